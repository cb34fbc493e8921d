"""Rows in the order of their keys, and which of them have certain keys."""

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar import key_order
from penstock.columnar.key_order import KeySet, OrderedRows, chunk_rows
from support.campaign import examples

NUMBERS = st.lists(st.integers(-50, 50), max_size=60)


def table(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


@settings(max_examples=examples(200), deadline=None)
@given(NUMBERS, st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.integers(-60, 60)), max_size=6))
def test_each_row_is_taken_once_in_order(numbers: list[int], size: int, cuts: list[tuple[bool, int]]) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    rows = [{"k": each, "v": str(each)} for each in numbers]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + size], schema) for at in range(0, len(rows), size)]
    all_rows = pa.Table.from_batches(batches, schema)
    ordered = OrderedRows(all_rows, all_rows.select(["k"]))
    taken: list[dict[str, Any]] = []
    for below, value in cuts:
        before = len(taken)
        for batch in ordered.take_below(value) if below else ordered.take_up_to(value):
            taken += batch.to_pylist()
        assert all(row["k"] < value or (row["k"] == value and not below) for row in taken[before:])
    assert ordered.left == len(rows) - len(taken)
    for batch in ordered.take_rest():
        taken += batch.to_pylist()
    assert [row["k"] for row in taken] == sorted(numbers)
    assert all(row["v"] == str(row["k"]) for row in taken)


@settings(max_examples=examples(200), deadline=None)
@given(NUMBERS, NUMBERS)
def test_rows_of_changed_keys_are_left_out(there: list[int], changed: list[int]) -> None:
    keys = KeySet(pa.table({"k": pa.array(changed, pa.int64())}))
    rows = pa.record_batch({"k": pa.array(there, pa.int64())})
    assert keys.remove_from(rows).column("k").to_pylist() == [each for each in there if each not in changed]


PAIRS = st.lists(
    st.tuples(st.one_of(st.none(), st.text("a1:|-", max_size=4)), st.one_of(st.none(), st.integers(0, 3))),
    max_size=20,
)


@settings(max_examples=examples(200), deadline=None)
@given(PAIRS, PAIRS)
def test_keys_of_several_columns_are_the_same_when_all_are(
    there: list[tuple[Any, Any]], changed: list[tuple[Any, Any]]
) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    keys = KeySet(pa.Table.from_pylist([{"a": a, "b": b} for a, b in changed], schema))
    rows = pa.RecordBatch.from_pylist([{"a": a, "b": b} for a, b in there], schema)
    left = [(row["a"], row["b"]) for row in keys.remove_from(rows).to_pylist()]
    assert left == [each for each in there if each not in changed]


@pytest.mark.parametrize(
    "values",
    [
        [b"", b"\x00", b"\xff"],
        ["", "a", "ü"],
        [Decimal("1.00"), Decimal("2.50"), Decimal("-3.25")],
        [date(2026, 1, 1), date(1970, 1, 1), date(1, 1, 1)],
        [0.5, -0.5, 1e300],
    ],
)
def test_keys_of_every_kind_are_found(values: list[Any]) -> None:
    for others in ([], [["x"] * len(values)]):
        columns = {"k": values, **{f"o{at}": each for at, each in enumerate(others)}}
        rows = table(**columns)
        keys = KeySet(rows.slice(0, 2))
        assert keys.remove_from(rows.to_batches()[0]).column("k").to_pylist() == values[2:]
        assert keys.overlaps(min(values[:2]), max(values[:2]))


def test_null_is_a_key_like_others() -> None:
    keys = KeySet(table(day=[None, date(2026, 1, 1)]))
    assert keys.has_nulls
    rows = pa.record_batch({"day": [None, date(2026, 1, 1), date(2026, 1, 2)]})
    assert keys.remove_from(rows).to_pylist() == [{"day": date(2026, 1, 2)}]
    ordered = OrderedRows(table(day=[None, date(2026, 1, 1)]), table(day=[None, date(2026, 1, 1)]))
    assert [each.to_pylist() for each in ordered.take_up_to(date(2027, 1, 1))] == [
        [{"day": date(2026, 1, 1)}]
    ]
    assert [each.to_pylist() for each in ordered.take_rest()] == [[{"day": None}]]


def test_large_rows_are_handled_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chunk_rows(1000, 1000 << 20) == 8
    assert chunk_rows(0, 0) > 1
    assert chunk_rows(10**9, 10) == 65_536
    monkeypatch.setattr(key_order, "CHUNK_BYTES", 100)
    rows = table(k=list(range(50)))
    assert max(each.num_rows for each in OrderedRows(rows, rows).take_rest()) <= 12
