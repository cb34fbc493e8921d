"""Values of one type as another's, as MODIFY COLUMN converts them."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import Invalid
from penstock.tables.codec.datums import NULL
from penstock.tables.conversion import can_convert, convert
from penstock.tables.define import parse_definition
from penstock.tables.values import from_datum, to_datum

CASES: list[tuple[str, Any, str, Any]] = [
    ("int", 10, "varchar(10)", "10"),
    ("int", -7, "decimal(5,2)", Decimal("-7.00")),
    ("int", 7, "tinyint unsigned", 7),
    ("bigint unsigned", 2**64 - 1, "varchar(20)", "18446744073709551615"),
    ("varchar(20)", " 123 ", "bigint", 123),
    ("varchar(20)", "2.5", "int", 3),
    ("varchar(20)", "-2.5", "int", -3),
    ("varchar(20)", "1e2", "int", 100),
    ("varchar(20)", "1.25", "double", 1.25),
    ("varchar(20)", "2024-02-29", "date", date(2024, 2, 29)),
    ("varchar(20)", "12:30:01", "time", timedelta(hours=12, minutes=30, seconds=1)),
    ("varchar(20)", "b", "enum('a','b')", "b"),
    ("varchar(20)", "", "enum('a','')", ""),
    ("varchar(20)", "a   ", "varchar(2)", "a "),
    ("varchar(20)", '{"a":1}', "json", '{"a": 1}'),
    ("double", 1.75, "decimal(10,2)", Decimal("1.75")),
    ("double", 2.5, "int", 2),
    ("double", 3.5, "int", 4),
    ("double", 0.1, "varchar(20)", "0.1"),
    ("double", 1e20, "varchar(30)", "100000000000000000000"),
    ("float", 0.5, "varchar(20)", "0.5"),
    ("decimal(10,3)", Decimal("1.250"), "decimal(5,1)", Decimal("1.3")),
    ("decimal(10,3)", Decimal("-1.500"), "int", -2),
    ("decimal(10,3)", Decimal("1.500"), "varchar(9)", "1.500"),
    ("datetime(3)", datetime(2024, 5, 5, 5, 5, 5, 999_000), "date", date(2024, 5, 5)),
    ("datetime(3)", datetime(2024, 5, 5, 23, 59, 59, 500_000), "datetime", datetime(2024, 5, 6)),
    ("datetime(3)", datetime(2024, 5, 5, 5, 5, 5, 120_000), "varchar(30)", "2024-05-05 05:05:05.120"),
    ("datetime", datetime(2024, 5, 5, 5, 6, 7), "time", timedelta(hours=5, minutes=6, seconds=7)),
    ("date", date(2024, 5, 5), "datetime(2)", datetime(2024, 5, 5)),
    ("datetime", datetime(2024, 5, 5, 1), "timestamp", datetime(2024, 5, 5, 1, tzinfo=UTC)),
    ("time(1)", -timedelta(hours=1, milliseconds=500), "varchar(20)", "-01:00:00.5"),
    ("year", 2024, "int", 2024),
    ("int", 70, "year", 1970),
    ("enum('a','b')", "b", "enum('b','c')", "b"),
    ("enum('a','b')", "b", "varchar(3)", "b"),
    ("varbinary(4)", b"ab", "varchar(4)", "ab"),
    ("varchar(4)", "ab", "varbinary(4)", b"ab"),
]
REFUSED: list[tuple[str, Any, str]] = [
    ("int", 300, "tinyint"),
    ("int", -1, "int unsigned"),
    ("int", 12345, "varchar(4)"),
    ("varchar(20)", "12x", "int"),
    ("varchar(20)", "", "int"),
    ("varchar(20)", "nan", "double"),
    ("varchar(20)", "abc", "varchar(2)"),
    ("varchar(20)", "2024-02-31", "date"),
    ("varchar(20)", "z", "enum('a','b')"),
    ("varchar(20)", "", "enum('a','b')"),
    ("decimal(10,3)", Decimal("999.950"), "decimal(4,1)"),
    ("varbinary(4)", b"\xff", "varchar(4)"),
    ("enum('a','b')", "a", "enum('b','c')"),
]


def kind(definition: str) -> Any:
    return parse_definition(definition).type


@pytest.mark.parametrize(("old", "value", "new", "wanted"), CASES)
def test_a_value_is_converted_as_in_strict_mode(old: str, value: Any, new: str, wanted: Any) -> None:
    converted = convert(kind(old), kind(new), to_datum(kind(old), value))
    assert from_datum(kind(new), converted) == wanted
    assert can_convert(kind(old), kind(new))
    assert convert(kind(old), kind(new), NULL) == NULL


@pytest.mark.parametrize(("old", "value", "new"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_without_being_shown(old: str, value: Any, new: str) -> None:
    with pytest.raises(Invalid) as refused:
        convert(kind(old), kind(new), to_datum(kind(old), value))
    if len(str(value)) > 2:
        assert str(value) not in str(refused.value)


def test_types_that_do_not_convert_are_known_beforehand() -> None:
    for old, new in (("vector(2)", "varchar(9)"), ("enum('a')", "date"), ("bit(3)", "date"), ("json", "int")):
        assert not can_convert(kind(old), kind(new))


def test_zero_dates_keep_their_parts_and_their_text() -> None:
    zero = to_datum(kind("datetime"), "0000-00-00")
    assert convert(kind("datetime"), kind("date"), zero) == zero
    text = convert(kind("datetime"), kind("varchar(30)"), zero)
    assert from_datum(kind("varchar(30)"), text) == "0000-00-00 00:00:00"
    with pytest.raises(Invalid, match="no calendar"):
        convert(kind("datetime"), kind("time"), zero)
