"""Values as Go and TiDB write them."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.text_cells import TextForm, from_text, latin1_bytes
from penstock.tables.arrow import arrow_type
from penstock.tables.define import define_column, parse_definition
from penstock.tables.text_values import enum_numbers, general_floats, set_numbers, texts


def written(definition: str, *values: Any) -> list[str | None]:
    kind = parse_definition(definition).type
    return texts(kind, pa.array(values, arrow_type(kind))).cast(pa.string()).to_pylist()


@pytest.mark.parametrize(
    ("number", "fixed", "general"),
    [
        (0.0, "0", "0"),
        (-0.0, "-0", "-0"),
        (1.0, "1", "1"),
        (-2.5, "-2.5", "-2.5"),
        (123456.0, "123456", "123456"),
        (999999.5, "999999.5", "999999.5"),
        (1000000.0, "1000000", "1e+06"),
        (-1234567.5, "-1234567.5", "-1.2345675e+06"),
        (10000000.0, "10000000", "1e+07"),
        (123456789012345.0, "123456789012345", "1.23456789012345e+14"),
        (1e20, "100000000000000000000", "1e+20"),
        (1.7976931348623157e308, "17976931348623157" + "0" * 292, "1.7976931348623157e+308"),
        (0.1, "0.1", "0.1"),
        (0.0001, "0.0001", "0.0001"),
        (0.00001, "0.00001", "1e-05"),
        (-0.000012, "-0.000012", "-1.2e-05"),
        (0.000001, "0.000001", "1e-06"),
        (1.5e-7, "0.00000015", "1.5e-07"),
        (5e-324, "0." + "0" * 323 + "5", "5e-324"),
    ],
)
def test_floats_are_the_shortest_that_read_back(number: float, fixed: str, general: str) -> None:
    assert written("double", number, None) == [fixed, None]
    assert general_floats(pa.array([None, number])).to_pylist() == [None, general]


def test_single_precision_floats_have_no_digits_of_double_ones() -> None:
    assert written("float", 3.14, 16777216.0, 1e10) == ["3.14", "16777216", "10000000000"]
    found = general_floats(pa.array([3.14, 16777216.0, 1e10], pa.float32())).to_pylist()
    assert found == ["3.14", "1.6777216e+07", "1e+10"]


@pytest.mark.parametrize(
    ("definition", "value", "text"),
    [
        ("decimal(12,2)", Decimal("-12.50"), "-12.50"),
        ("decimal(20,8)", Decimal("0.00000001"), "0.00000001"),
        ("decimal(20,8)", Decimal(0), "0.00000000"),
        ("decimal(20,8)", Decimal("-123.5"), "-123.50000000"),
        ("decimal(30,30)", Decimal("-0.5"), "-0.5" + "0" * 29),
        ("decimal(38,0)", Decimal("9" * 38), "9" * 38),
        ("decimal(60,10)", "1.5000000000", "1.5000000000"),
        ("bigint unsigned", Decimal((1 << 64) - 1), "18446744073709551615"),
        ("bit(64)", Decimal(1 << 63), "9223372036854775808"),
        ("bit(8)", 5, "5"),
        ("year", 2026, "2026"),
        ("date", date(1, 2, 3), "0001-02-03"),
        ("datetime", datetime(2026, 2, 3, 4, 5, 6), "2026-02-03 04:05:06"),
        ("datetime(1)", datetime(2026, 2, 3, 4, 5, 6, 700000), "2026-02-03 04:05:06.7"),
        ("datetime(4)", datetime(1000, 2, 3, 4, 5, 6, 123400), "1000-02-03 04:05:06.1234"),
        ("timestamp(3)", datetime(2026, 2, 3, 4, 5, 6, 7000, tzinfo=UTC), "2026-02-03 04:05:06.007"),
        ("timestamp(6)", datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC), "2026-02-03 04:05:06.000007"),
        ("time", timedelta(hours=-838, minutes=-59, seconds=-59), "-838:59:59"),
        ("time", timedelta(seconds=5), "00:00:05"),
        ("time(2)", timedelta(hours=-1, milliseconds=-250), "-01:00:00.25"),
        ("time(6)", timedelta(hours=1, microseconds=1), "01:00:00.000001"),
        ("vector(3)", [1.0, -2.5, 1e-7], "[1,-2.5,0.0000001]"),
        ("vector", [], "[]"),
    ],
)
def test_each_type_has_one_text(definition: str, value: Any, text: str) -> None:
    assert written(definition, None, value, value) == [None, text, text]


@pytest.mark.parametrize(
    "vector", [[1e38, -1e-38], [-0.0, 3.0, 16777216.0], [3.4028234663852886e38, 1.4e-45]]
)
def test_a_vector_is_read_from_its_text(vector: list[float]) -> None:
    column, _, _ = define_column("v", "vector", column_id=1)
    values = pa.array([vector, None], arrow_type(column.type))
    form = TextForm(latin1_bytes, numbered_elements=True)
    found = from_text(column, texts(column.type, values), form)
    assert found.flatten().to_numpy().tobytes() == values.flatten().to_numpy().tobytes()


def test_columns_that_are_slices_of_others_have_their_own_rows() -> None:
    kind = parse_definition("decimal(20,8)").type
    values = pa.array([Decimal(number) for number in range(9)], arrow_type(kind)).slice(3, 2)
    assert texts(kind, values).to_pylist() == ["3.00000000", "4.00000000"]
    vectors = pa.array([[1.0], [2.0, 3.0], None, [4.0]], pa.list_(pa.float32())).slice(1, 3)
    assert texts(parse_definition("vector").type, vectors).to_pylist() == ["[2,3]", None, "[4]"]


def test_enums_and_sets_have_numbers() -> None:
    assert enum_numbers(["a", "b"], pa.array(["b", "", None, "a"])).to_pylist() == ["2", "0", None, "1"]
    elems = [f"e{place}" for place in range(64)]
    found = set_numbers(elems, pa.array(["e0,e63", "", None, "e1", "e0,e63"])).to_pylist()
    assert found == [str((1 << 63) + 1), "0", None, "2", str((1 << 63) + 1)]
