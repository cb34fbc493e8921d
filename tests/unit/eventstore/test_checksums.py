"""Row hashes, sums of them, and who has which rows."""

from bisect import bisect_right
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.row_hash import (
    Digest,
    compare_hashes,
    digests_by_range,
    range_numbers,
    row_hashes,
    total,
)

SCHEMA = pa.schema(
    [
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("plain", pa.int32()),
        ("wide", pa.int64()),
        ("huge", pa.decimal128(20, 0)),
        ("money", pa.decimal128(12, 2)),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("utc", pa.timestamp("us", tz="UTC")),
        ("span", pa.duration("us")),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("vector", pa.list_(pa.float32())),
        ("flag", pa.bool_()),
    ]
)
ROW: dict[str, Any] = {
    "tiny": 1,
    "short": 2,
    "plain": 3,
    "wide": 4,
    "huge": Decimal(1 << 63),
    "money": Decimal("1.25"),
    "real": 0.5,
    "double": 0.25,
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5),
    "utc": datetime(2026, 1, 2, 3, 4, 5),
    "span": timedelta(seconds=7),
    "text": "a text of more than eight bytes",
    "raw": b"\x00\x01",
    "vector": [1.0, 2.0, 3.0],
    "flag": True,
}
OTHER: dict[str, Any] = {
    "tiny": -1,
    "short": 200,
    "plain": -3,
    "wide": 1 << 40,
    "huge": Decimal(-(1 << 63)),
    "money": Decimal("1.26"),
    "real": -0.5,
    "double": 0.125,
    "day": date(2026, 1, 3),
    "at": datetime(2026, 1, 2, 3, 4, 5, 1),
    "utc": datetime(2026, 1, 2, 3, 4, 6),
    "span": timedelta(seconds=-7),
    "text": "a text of more than eight bytez",
    "raw": b"\x00\x01\x00",
    "vector": [1.0, 3.0, 2.0],
    "flag": False,
}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


@pytest.mark.parametrize("name", SCHEMA.names)
def test_every_type_counts_and_null_is_no_value(name: str) -> None:
    blank = {"text": "", "raw": b"", "vector": []}.get(name, ROW[name])
    rows = batch(ROW, {**ROW, name: OTHER[name]}, {**ROW, name: None}, {**ROW, name: blank}, ROW)
    hashes = row_hashes(rows)
    assert hashes[0] == hashes[4]
    different = {int(each) for each in hashes[:3]} | {int(hashes[3])}
    assert len(different) == (4 if blank != ROW[name] else 3)


def test_values_in_other_columns_give_other_hashes() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    rows = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("", "abc"), ("abc", ""), (None, "abc"), ("abc", None)]
    hashes = row_hashes(pa.RecordBatch.from_pylist([{"a": a, "b": b} for a, b in rows], schema=schema))
    assert len(set(hashes.tolist())) == len(rows)


def test_a_slice_has_the_hashes_of_its_rows() -> None:
    rows = batch(*({**ROW, "wide": n, "text": "x" * n, "vector": [float(n)] * (n % 4)} for n in range(40)))
    whole = row_hashes(rows)
    assert row_hashes(rows.slice(7, 20)).tolist() == whole[7:27].tolist()
    nothing = row_hashes(rows.slice(0, 0))
    assert (len(nothing), Digest.of(nothing)) == (0, Digest())


def test_many_rows_are_hashed_in_slices_alike() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([f"row {n}" for n in range(20_000)])], ["text"])
    hashes = row_hashes(rows)
    assert len(set(hashes.tolist())) == 20_000
    assert hashes[15_000] == row_hashes(rows.slice(15_000, 1))[0]


texts = st.lists(st.binary(max_size=20), max_size=30)


@given(texts, st.randoms(use_true_random=False))
def test_digests_do_not_depend_on_the_order_of_rows_and_add_up(cells: list[bytes], shuffle: Any) -> None:
    mixed = list(cells)
    shuffle.shuffle(mixed)

    def digest(part: list[bytes]) -> Digest:
        return Digest.of(row_hashes(pa.RecordBatch.from_arrays([pa.array(part, pa.binary())], ["c"])))

    assert digest(cells) == digest(mixed)
    assert digest(cells) == total([digest(mixed[:7]), digest(mixed[7:])])
    if cells:
        assert digest([*cells[1:], cells[0] + b"\0"]) != digest(cells)


short = st.one_of(st.binary(min_size=8, max_size=8), st.binary(max_size=10))


@given(st.lists(st.one_of(short), min_size=1, max_size=20), st.sets(short, max_size=8), st.booleans())
def test_rows_find_the_range_that_they_are_in(handles: list[bytes], cuts: set[bytes], whole: bool) -> None:
    if whole:
        handles = [handle[:8].ljust(8, b"\xff") for handle in handles]
    starts = sorted(cuts | {b""})
    array = pa.array(handles, pa.binary())
    expected = [bisect_right(starts, handle) - 1 for handle in handles]
    assert range_numbers(array, starts).tolist() == expected
    hashes = row_hashes(pa.RecordBatch.from_arrays([array], ["h"]))
    found = dict(digests_by_range(array, hashes, starts))
    for number in set(expected):
        chosen = hashes[np.array(expected) == number]
        assert found.pop(number) == Digest.of(chosen)
    assert not found


def test_rows_that_differ_are_named() -> None:
    first = pa.array([b"a", b"b", b"c", b"d"], pa.binary())
    second = pa.array([b"d", b"x", b"b", b"a"], pa.binary())
    found = compare_hashes(
        first, np.array([1, 2, 3, 4], np.uint64), second, np.array([4, 9, 7, 1], np.uint64)
    )
    assert (found.only_first.to_pylist(), found.only_second.to_pylist()) == ([b"c"], [b"x"])
    assert found.unequal.to_pylist() == [b"b"]
    nothing = pa.array([], pa.binary())
    alone = compare_hashes(first, np.array([1, 2, 3, 4], np.uint64), nothing, np.array([], np.uint64))
    assert (alone.only_first, alone.only_second.to_pylist(), alone.unequal.to_pylist()) == (first, [], [])
