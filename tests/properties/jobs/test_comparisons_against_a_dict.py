"""What a comparison finds, and what it says must be done about it, against two plain lists of rows."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.verify import compare as comparing
from penstock.verify.compare import Comparison, Counts
from support.campaign import examples

SCHEMA = pa.schema(
    [
        ("tenant", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 2)),
    ]
)
KEYS = 2
KEY = st.tuples(st.integers(0, 2), st.sampled_from(["", "a", "b", "ab"]))
VALUES = st.tuples(
    st.none() | st.decimals(0, 3, places=2),
    st.none() | st.lists(st.none() | st.sampled_from(["", "x", "xy"]), max_size=2),
    st.none() | st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])).map(list),
)
ROWS = st.dictionaries(KEY, VALUES, max_size=8)

Row = tuple[Any, ...]


def batches(rows: list[Row]) -> list[pa.RecordBatch]:
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    return [pa.RecordBatch.from_pylist(named[at : at + 3], SCHEMA) for at in range(0, len(named), 3)]


def flat(rows: dict[Any, Any]) -> list[Row]:
    return [(*key, *values) for key, values in rows.items()]


def frozen(row: Row) -> Row:
    return tuple(tuple(cell) if isinstance(cell, list) else cell for cell in row)


def counted(expected: list[Row], present: list[Row]) -> Counts:
    by_key: dict[Row, tuple[Counter[Row], Counter[Row]]] = defaultdict(lambda: (Counter(), Counter()))
    for side, rows in enumerate((expected, present)):
        for row in rows:
            by_key[row[:KEYS]][side][frozen(row)] += 1
    found = Counts()
    for wanted, there in by_key.values():
        surplus = max(0, there.total() - wanted.total())
        found += Counts(
            missing=max(0, wanted.total() - there.total()),
            different=min(wanted.total(), there.total()) - (wanted & there).total(),
            extra=surplus if not wanted else 0,
            duplicates=surplus if wanted else 0,
        )
    return found


def mended(comparison: Comparison, expected: list[Row], present: list[Row]) -> list[Row]:
    """The target after what the comparison says: keys taken out, then rows of the source put by key."""
    there = list(present)
    put: set[int] = set()
    for part in comparison.differences():
        leaving = {tuple(each.values()) for each in part.removed.to_pylist()}
        assert len(leaving) == part.removed.num_rows, "a key is named once"
        there = [row for row in there if row[:KEYS] not in leaving]
        put |= set(part.put.tolist())
    for batch in batches(expected):
        for row, key in zip(batch.to_pylist(), comparison.key_hashes(batch).tolist(), strict=True):
            if key in put:
                made = tuple(row.values())
                there = [made if each[:KEYS] == made[:KEYS] else each for each in there]
                there += [] if any(each[:KEYS] == made[:KEYS] for each in there) else [made]
    return there


@settings(max_examples=examples(120), deadline=None)
@given(ROWS, ROWS, st.lists(st.tuples(KEY, VALUES), max_size=3), st.sampled_from([1, 400, 1 << 20]))
def test_every_difference_is_counted_once_and_its_remedy_gives_the_source(
    source: dict[Any, Any], target: dict[Any, Any], more: list[Any], buffer_bytes: int
) -> None:
    expected = flat(source)
    present = flat(target) + [(*key, *values) for key, values in more]
    with tempfile.TemporaryDirectory() as folder:
        with Comparison(SCHEMA, KEYS, Path(folder), buffer_bytes=buffer_bytes) as comparison:
            comparison.find(batches(present))
            comparison.expect(batches(expected))
            found = mended(comparison, expected, present)
            counts = sum((part.counts for part in comparison.differences()), start=Counts())
            assert comparison.rows == (len(expected), len(present))
        assert list(Path(folder).iterdir()) == []
    assert counts == counted(expected, present)
    assert sorted(map(repr, map(frozen, found))) == sorted(map(repr, map(frozen, expected)))


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, st.lists(VALUES, min_size=8, max_size=8), st.sets(st.integers(0, 7)), st.integers(1, 4))
def test_keys_that_share_a_hash_are_no_difference_and_are_mended_too(
    source: dict[Any, Any], others: list[Any], damaged: set[int], hashes: int
) -> None:
    """With hashes that are far too short, several keys have the same one."""
    expected = flat(source)
    wrong = [(*row[:KEYS], *values) for row, values in zip(expected, others, strict=False)]
    present = [wrong[at] if at in damaged else row for at, row in enumerate(expected)]
    real = comparing.hashes_of
    with (
        tempfile.TemporaryDirectory() as folder,
        Comparison(SCHEMA, KEYS, Path(folder)) as comparison,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(
            comparing,
            "hashes_of",
            lambda batch, names: real(batch, names) % (hashes if len(names) == KEYS else 1 << 63),
        )
        comparison.find(batches(present))
        comparison.expect(batches(expected))
        total = sum(part.counts.total for part in comparison.differences())
        found = mended(comparison, expected, present)
    assert total == counted(expected, present).total
    assert sorted(map(repr, map(frozen, found))) == sorted(map(repr, map(frozen, expected)))
