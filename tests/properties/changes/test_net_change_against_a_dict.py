"""Whatever the changes: what is left of them says the same as a dict to which all of them were applied."""

from collections.abc import Hashable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes.columns import with_commit_ts
from penstock.changes.net_change import coalesce_by_handle, coalesce_by_key
from penstock.eventstore.sides import PARTITION
from support.campaign import examples


class Change(NamedTuple):
    """A tombstone or a row of one key; `number` tells rows of the same key apart."""

    key: Hashable
    commit_ts: int
    is_data: bool
    number: int


INTEGER_HANDLES = [number.to_bytes(8, "big") for number in (1, 2, 1 << 40)]
handles = st.one_of(
    st.just(INTEGER_HANDLES), st.just([b"", b"a", b"b", b"a handle of text"]), st.just([b"12345678", b"a"])
)


@st.composite
def changes_of(draw: st.DrawFn, keys: st.SearchStrategy[Any]) -> list[Change]:
    """Changes by time; a commit has a key at most once on each side, and its tombstone is first."""
    drawn = draw(st.sets(st.tuples(keys, st.integers(1, 8), st.booleans()), max_size=40))
    ordered = sorted(drawn, key=lambda change: (change[1], change[2]))
    return [Change(*change, number) for number, change in enumerate(ordered)]


def histories(changes: list[Change]) -> dict[Hashable, list[Change]]:
    """The changes of each key, by time."""
    found: dict[Hashable, list[Change]] = {}
    for change in changes:
        found.setdefault(change.key, []).append(change)
    return found


def expected_by_handle(history: list[Change], *, replay: bool, keys_move: bool) -> set[int]:
    """The numbers of the changes to one row that stay, by the table in the module's docstring."""
    first, last = history[0], history[-1]
    was_there, is_there = not first.is_data, last.is_data
    if is_there:
        return {first.number, last.number} if was_there else {last.number}
    if was_there:
        return {first.number if keys_move else last.number}
    return {last.number} if replay else set()


def sides(changes: list[Change], *, with_partition: bool) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Both sides of changes whose keys are (handle, partition)."""

    def side(chosen: list[Change], extra: dict[str, pa.Array]) -> pa.RecordBatch:
        columns = {
            "_handle": pa.array([change.key[0] for change in chosen], pa.binary()),
            "_commit_ts": pa.array([change.commit_ts for change in chosen], pa.int64()),
            "_update": pa.nulls(len(chosen), pa.bool_()),
            "number": pa.array([change.number for change in chosen], pa.int64()),
            **extra,
        }
        if with_partition and chosen:  # a side without rows may lack the column
            columns[PARTITION] = pa.array([change.key[1] for change in chosen], pa.int64())
        return pa.RecordBatch.from_pydict(columns)

    ends = [change for change in changes if not change.is_data]
    olds = pa.array([{"number": change.number} for change in ends], pa.struct([("number", pa.int64())]))
    return side([change for change in changes if change.is_data], {}), side(ends, {"_old": olds})


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3))
def test_coalescing_by_handle_keeps_what_the_table_of_first_and_last_changes_says(
    data: st.DataObject, replay: bool, keys_move: bool, with_partition: bool, begin: int
) -> None:
    partitions = st.integers(1, 2) if with_partition else st.just(1)
    keys = st.tuples(st.sampled_from(data.draw(handles)), partitions)
    changes = data.draw(changes_of(keys))
    rows, ends = sides(changes, with_partition=with_partition)
    rows, ends = rows.slice(begin), ends.slice(begin)  # as slices of a larger batch
    seen = {*rows.column("number").to_pylist(), *ends.column("number").to_pylist()}
    by_key = histories([change for change in changes if change.number in seen])
    kept_rows, kept_ends = coalesce_by_handle(rows, ends, replay=replay, keys_move=keys_move)

    expected = [
        expected_by_handle(history, replay=replay, keys_move=keys_move) for history in by_key.values()
    ]
    numbers = [side.column("number").to_pylist() for side in (kept_rows, kept_ends)]
    assert {*numbers[0], *numbers[1]} == set().union(*expected)
    assert all(side == sorted(side) for side in numbers)
    if len(numbers[0]) + len(numbers[1]) == len(seen) == len(by_key):
        return  # nothing was there twice, so that both sides passed as they were
    histories_by_number = {change.number: known for known in by_key.values() for change in known}
    for side in (kept_rows, kept_ends):
        for row in side.to_pylist():
            history = histories_by_number[row["number"]]
            assert row["_update"] == (not history[0].is_data and history[-1].is_data)
            if "_old" in row:
                first_end = next(change for change in history if not change.is_data)
                assert row["_old"] == {"number": first_end.number}


KEY_KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [-1, 0, 1 << 40]),
    (pa.int8(), [-1, 0, 1]),
    (pa.string(), ["", "a", "ä"]),
    (pa.binary(), INTEGER_HANDLES),
    (pa.binary(), [b"", b"12345678", b"x"]),
    (pa.float64(), [0.5, -0.5]),
]


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.sampled_from([1, 200, 1 << 26]), st.randoms(use_true_random=False))
def test_coalescing_by_key_keeps_the_last_change_of_each_key_whatever_the_order_of_batches(
    data: st.DataObject, memory_bytes: int, order: Any
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KEY_KINDS), min_size=1, max_size=3))
    changes = data.draw(changes_of(st.tuples(*(st.sampled_from(values) for _, values in kinds))))
    last = {change.key: change for change in changes}  # the dict: a later change replaces an earlier one
    order.shuffle(changes)

    keys = [f"key{at}" for at in range(len(kinds))]
    columns = pa.schema(
        [*((name, kind) for name, (kind, _) in zip(keys, kinds, strict=True)), ("number", pa.int64())]
    )
    upsert_schema = with_commit_ts(columns)
    delete_schema = pa.schema([upsert_schema.field(name) for name in (*keys, "_commit_ts")])
    size = data.draw(st.integers(1, 10))
    batches = []
    for begin in range(0, len(changes), size):
        part = changes[begin : begin + size]
        rows = [
            {
                **dict(zip(keys, change.key, strict=True)),
                "_commit_ts": change.commit_ts,
                "number": change.number,
            }
            for change in part
        ]
        batches.append(
            tuple(
                pa.RecordBatch.from_pylist(
                    [row for row, change in zip(rows, part, strict=True) if change.is_data is is_data], schema
                )
                for is_data, schema in ((True, upsert_schema), (False, delete_schema))
            )
        )
    with TemporaryDirectory() as folder:
        net = coalesce_by_key(batches, columns, keys, Path(folder), memory_bytes=memory_bytes)
        assert not list(Path(folder).iterdir())

    expected = [change for change in changes if last[change.key] is change]  # in the order in which they came
    upserts = [change.number for change in expected if change.is_data]
    deletes = [(*change.key, change.commit_ts) for change in expected if not change.is_data]
    assert net.upserts.column("number").to_pylist() == upserts
    assert [tuple(row[name] for name in delete_schema.names) for row in net.deletes.to_pylist()] == deletes
