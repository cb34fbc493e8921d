"""Columns as Spark's VARIANT, read back by Spark's own reader of the format."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from penstock.columnar.variant import VARIANT, encode_json, encode_objects
from penstock.errors import Corrupt


def read(columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
    rows = len(next(iter(columns.values())))
    encoded = encode_objects(columns, rows)
    assert encoded.type == VARIANT
    encoded.validate(full=True)
    with localcontext(prec=38):  # else Python's decimals lose digits of Spark's
        return [VariantVal(**row).toPython() for row in encoded.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, 0, 127]),
        (pa.int16(), [-(1 << 15), 5]),
        (pa.int32(), [-(1 << 31), (1 << 31) - 1]),
        (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
        (pa.float32(), [0.5, -2.0]),
        (pa.float64(), [0.1, -1e300]),
        (pa.string(), ["", "short", "ü" * 31 + "x", "ü" * 32, "long" * 100]),
        (pa.binary(), [b"", b"\x00\xff", b"x" * 70_000]),
        (pa.date32(), [date(1, 1, 1), date(2026, 2, 28)]),
        (pa.timestamp("us"), [datetime(2026, 2, 28, 1, 2, 3, 4)]),
        (pa.timestamp("us", tz="UTC"), [datetime(1969, 2, 28, 1, 2, 3, 4, tzinfo=UTC)]),
        (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.01")]),
        (pa.decimal128(18, 0), [Decimal(-(10**18) + 1)]),
        (pa.decimal128(20, 0), [Decimal((1 << 64) - 1)]),
        (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789")]),
        (pa.list_(pa.float32()), [[1.0, 2.5], [], [0.5] * 300, [3.0, 4.0]]),
    ],
    ids=lambda given: str(given) if isinstance(given, pa.DataType) else "",
)
def test_every_value_is_read_back_with_its_type(kind: pa.DataType, values: list[Any]) -> None:
    known = [{"of the kind": value} for value in values]
    assert read({"of the kind": pa.array(values, kind)}) == known
    with_nulls = [None, *values, None]
    assert read({"of the kind": pa.array(with_nulls, kind)}) == [{"of the kind": v} for v in with_nulls]
    sliced = pa.array([*values, *with_nulls], kind).slice(1, len(values) + 1)
    assert read({"of the kind": sliced}) == [
        {"of the kind": v} for v in [*values, *with_nulls][1:][: len(sliced)]
    ]
    assert read({"of the kind": pa.nulls(2, kind)}) == [{"of the kind": None}] * 2
    assert read({"of the kind": pa.array([], kind)}) == []


def test_a_duration_is_a_number_of_microseconds() -> None:
    assert read({"span": pa.array([-3_600_000_000], pa.int64()).cast(pa.duration("us"))}) == [
        {"span": -3_600_000_000}
    ]


def test_a_row_may_have_hundreds_of_columns_with_any_names() -> None:
    names = [*(f"column {number}" for number in range(300)), "ü.`x`", "Z", "\uffff", "\U0001f600"]
    columns = {name: pa.array([f"{number}" * number, None]) for number, name in enumerate(names)}
    first, second = read(columns)
    assert first == {name: f"{number}" * number for number, name in enumerate(names)}
    assert second == dict.fromkeys(names)
    assert list(first) == sorted(names, key=lambda name: name.encode("utf-16-be")), "as Java searches them"


def read_json(*texts: str | None) -> list[Any]:
    encoded = encode_json(pa.array(texts, pa.string()))
    assert encoded.type == VARIANT
    encoded.validate(full=True)
    with localcontext(prec=38):
        return [None if row is None else VariantVal(**row).toPython() for row in encoded.to_pylist()]


def test_json_has_the_types_that_spark_gives_it() -> None:
    wide = {f"name {number}": number for number in range(300)}
    documents: list[Any] = [
        True,
        False,
        0,
        -129,
        1 << 40,
        "ü" * 40,
        [],
        {},
        [1, [None, {"a": {"b": []}}]],
        wide,
    ]
    assert read_json(*map(json.dumps, documents)) == documents
    assert read_json(None, "null", json.dumps(list(range(300)))) == [None, None, list(range(300))]
    (found,) = read_json("[1.50, 18446744073709551615, 1e2, 0.1e-300]")
    assert found == [Decimal("1.50"), Decimal("18446744073709551615"), 100.0, 1e-301]
    assert [type(value) for value in found] == [Decimal, Decimal, float, float]
    assert read_json("1" * 39, "-0." + "0" * 38 + "1") == [float("1" * 39), -1e-39]
    assert read_json('"\\ud800"', '{"\\ud800": 1}') == ["?", {"?": 1}]  # as Java writes half a character


@pytest.mark.parametrize("text", ["", "{", "NaN", "{'a': 1}", "[" * 100_000])
def test_a_text_that_is_not_json_is_refused_without_its_content(text: str) -> None:
    with pytest.raises(Corrupt, match="a JSON column has a value that is not JSON; keep"):
        read_json(text)
