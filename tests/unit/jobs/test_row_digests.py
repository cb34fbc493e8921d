"""Hashes of rows depend on their values alone: not on their neighbours, nor on how they are kept."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.columnar.row_hash import hash_text, hashes_of

STRUCT = pa.struct([("a", pa.int8()), ("b", pa.string())])
CASES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [0, 1, -1, None]),
    (pa.uint64(), [0, 1 << 63, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float16(), [np.float16(0), np.float16(1.5), None]),
    (pa.float64(), [0.0, -0.5, float("inf"), None]),
    (pa.decimal128(20, 3), [Decimal("0.001"), Decimal("-7"), None]),
    (pa.decimal256(60, 3), [Decimal("0.001"), Decimal(10) ** 40, None]),
    (pa.date32(), [date(2026, 1, 1), date(1969, 1, 1), None]),
    (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), None]),
    (pa.duration("us"), [timedelta(0), timedelta(seconds=-3), None]),
    (pa.string(), ["", "a", "ab", "a" * 30, None]),
    (pa.large_string(), ["", "a", None]),
    (pa.string_view(), ["", "a", "a" * 30, None]),
    (pa.binary(), [b"", b"\0", b"\0\0", None]),
    (pa.binary(3), [b"abc", b"abd", None]),
    (pa.large_binary(), [b"", b"\0", None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    (pa.list_(pa.float32()), [[], [0.0], [None], [0.0, None], [None, 0.0], [0.0, 0.0], None]),
    (pa.large_list(pa.int64()), [[], [1], [1, 2], None]),
    (pa.list_(pa.float32(), 2), [[0.0, 1.0], [0.0, None], None]),
    (pa.list_(pa.bool_()), [[], [True], [False], [None], None]),
    (pa.list_(pa.date32()), [[], [date(2026, 1, 1)], [None], None]),
    (pa.list_(pa.string()), [[], [""], ["", ""], ["a"], [None], None]),
    (pa.list_(pa.list_(pa.int8())), [[], [[]], [[1], [2]], [[1, 2]], [None], None]),
    (STRUCT, [{"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": 1, "b": None}, None]),
    (pa.map_(pa.string(), pa.int8()), [[], [("a", 1)], [("a", 2)], [("a", 1), ("b", 1)], None]),
    (pa.null(), [None]),
]


def hashes(values: list[Any], kind: pa.DataType) -> list[int]:
    return hashes_of(pa.record_batch([pa.array(values, kind)], names=["c"]), ["c"]).tolist()


@pytest.mark.parametrize(
    ("kind", "values"), CASES, ids=lambda each: str(each) if isinstance(each, pa.DataType) else ""
)
def test_each_value_has_a_hash_of_its_own_wherever_it_stands(kind: pa.DataType, values: list[Any]) -> None:
    together = hashes(values, kind)
    assert len(set(together)) == len(values)
    assert [hashes([value], kind)[0] for value in values] == together, "neighbours do not count"
    around = pa.array([values[0], *values, values[-1]], kind).slice(1, len(values))
    assert hashes_of(pa.record_batch([around], names=["c"]), ["c"]).tolist() == together, "nor does a slice"
    assert hashes([], kind) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string())),
        (pa.string(), pa.string_view()),
    ],
)
def test_how_a_text_is_kept_does_not_count(one: pa.DataType, other: pa.DataType) -> None:
    assert hashes(["a", "", None, "b"], one) == hashes(["a", "", None, "b"], other)


def test_which_column_a_value_is_in_counts() -> None:
    first = pa.record_batch([pa.array(["a"]), pa.array([None], pa.string())], names=["x", "y"])
    second = pa.record_batch([pa.array([None], pa.string()), pa.array(["a"])], names=["x", "y"])
    assert hashes_of(first, ["x", "y"])[0] != hashes_of(second, ["x", "y"])[0]
    assert hashes_of(first, ["x", "y"])[0] == hashes_of(second, ["y", "x"])[0], (
        "in the order that is asked for"
    )


def test_a_digest_is_sixteen_hexadecimal_digits() -> None:
    assert hash_text(10) == "000000000000000a"
