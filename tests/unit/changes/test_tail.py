"""Batches out of the slices of both sides: where they are cut, what they say, and what is held back."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.options import ChangeOptions, ReadColumns
from penstock.changes.tail import Tail
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from support.events import a_table

END = 1000
VERSION = SchemaVersion(0, 1, a_table())

Op = tuple[int, str, int]  # commit-ts, "I" (begins), "D" (ends) or "U" (both), id


def slices(ops: Iterable[Op], side: Side, options: ChangeOptions, size: int) -> Iterator[pa.RecordBatch]:
    schema = side_schema(VERSION.table, side)
    rows = [
        {
            "id": number,
            "name": f"{number} at {ts}",
            "_handle": number.to_bytes(8, "big"),
            "_commit_ts": ts,
            "_start_ts": ts - 1,
            "_update": op == "U",
            "_old": {"id": number, "name": f"{number} before {ts}"},
        }
        for ts, op, number in sorted(ops)
        if op in ("U", "I" if side == "data" else "D")
    ]
    read = ReadColumns.of(VERSION.table, options).of_side(side).read
    batch = pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )
    for at in range(0, len(rows), size):
        yield batch.select(read.names).slice(at, size)


def collected(ops: Iterable[Op], *, size: int = 3, **options: Any) -> list[ChangeBatch]:
    """The batches of some changes; four rows of a side are a batch."""
    chosen = ChangeOptions(**{"batch_rows": 4, "coalesce": False, **options})
    tail = Tail(
        slices(ops, "data", chosen, size),
        slices(ops, "tombstone", chosen, size),
        schema=VERSION,
        columns=ReadColumns.of(VERSION.table, chosen),
        options=chosen,
        to_ts=END,
    )
    return list(tail.batches())


def shown(batch: ChangeBatch) -> str:
    """For example `D1 D2 | I3 done 3`."""
    ends = [f"D{ts}" for ts in batch.tombstones.column("_commit_ts").to_pylist()]
    begins = [f"I{ts}" for ts in batch.data.column("_commit_ts").to_pylist()]
    hint = "done" if batch.hint is Hint.TAIL_DONE else "wip"
    return " ".join([*ends, "|", *begins, hint, str(batch.complete_ts)])


def test_few_changes_are_one_batch() -> None:
    assert [shown(each) for each in collected([(1, "I", 1), (2, "U", 1), (3, "D", 1)])] == [
        "D2 D3 | I1 I2 done 1000"
    ]


def test_no_changes_are_no_batch() -> None:
    assert collected([]) == []


@pytest.mark.parametrize("op", ["I", "D"])
def test_a_side_alone_passes_in_whole_batches(op: str) -> None:
    found = collected([(ts, op, ts) for ts in range(1, 21)])
    assert [each.data.num_rows + each.tombstones.num_rows for each in found] == [8, 8, 4]
    assert [each.complete_ts for each in found] == [8, 16, END]
    assert all(each.hint is Hint.TAIL_DONE for each in found)


def test_a_slice_that_is_a_batch_passes_without_a_copy() -> None:
    chosen = ChangeOptions(batch_rows=4, coalesce=False)
    (whole,) = slices([(ts, "I", ts) for ts in range(1, 9)], "data", chosen, 100)
    tail = Tail(
        iter([whole]),
        iter([]),
        schema=VERSION,
        columns=ReadColumns.of(VERSION.table, chosen),
        options=chosen,
        to_ts=END,
    )
    (batch,) = tail.batches()
    assert [each.address for each in batch.data.column("id").buffers() if each] == [
        each.address for each in whole.column("id").buffers() if each
    ]


def test_the_side_that_is_ahead_is_cut_where_the_other_ends() -> None:
    ops: list[Op] = [(ts, "I", ts) for ts in range(1, 21)]  # dense
    ops += [(ts, "D", 100 + ts) for ts in range(5, 60, 5)]  # far ahead
    found = collected(ops)
    assert [shown(each) for each in found[:2]] == [
        "D5 | I1 I2 I3 I4 I5 I6 I7 I8 done 8",
        "D10 D15 | I9 I10 I11 I12 I13 I14 I15 I16 done 16",
    ]
    assert found[-1].complete_ts == END


def test_a_transaction_is_not_divided_between_done_batches() -> None:
    ops = [(ts, "I", 10 * ts + number) for ts in range(1, 6) for number in range(5)]
    assert [shown(each) for each in collected(ops)] == [
        f"| {' '.join([f'I{ts}'] * 5)} done {END if ts == 5 else ts}" for ts in range(1, 6)
    ]


def test_a_transaction_larger_than_the_cache_comes_in_pieces_ends_first() -> None:
    ops: list[Op] = [(1, "I", 1), (2, "I", 2)]
    ops += [(5, "U", number) for number in range(100, 120)]
    ops += [(9, "D", 1)]
    found = collected(ops)
    hints = [each.hint for each in found]
    assert hints == [Hint.TAIL_DONE, *[Hint.TAIL_WIP] * 5, Hint.TAIL_DONE, Hint.TAIL_DONE]
    assert shown(found[0]) == "| I1 I2 done 4"
    assert [each.complete_ts for each in found[1:6]] == [4] * 5
    assert [each.tombstones.num_rows for each in found[1:7]] == [8, 8, 4, 0, 0, 0]
    assert [each.data.num_rows for each in found[1:7]] == [0, 0, 0, 8, 8, 4]
    assert found[6].complete_ts == 8
    assert shown(found[7]) == "D9 | done 1000"


@pytest.mark.parametrize("op", ["I", "D"])
def test_a_large_transaction_with_one_side_ends_with_done(op: str) -> None:
    found = collected([(5, op, number) for number in range(24)])
    assert [each.hint for each in found] == [Hint.TAIL_WIP, Hint.TAIL_WIP, Hint.TAIL_DONE]
    assert [each.complete_ts for each in found] == [4, 4, END]


def test_what_was_cached_of_a_large_transaction_is_not_sent_with_what_is_before_it() -> None:
    ops = [(1, "D", 1), *((5, "I", number) for number in range(24)), (5, "D", 77)]
    found = collected(ops)
    assert shown(found[0]) == "D1 | done 4"
    assert shown(found[1]) == "D5 | wip 4"
    assert sum(each.data.num_rows for each in found) == 24


def test_coalesced_changes_are_collected_until_enough_stay() -> None:
    ops = [(ts, "U", 1) for ts in range(1, 101)] + [(200 + ts, "I", 1000 + ts) for ts in range(20)]
    found = collected(ops, coalesce=True)
    assert shown(found[0]).startswith("D1 | I100 I200")
    assert found[0].data.num_rows > 4
    assert sum(each.data.num_rows for each in found) == 21


def test_changes_that_come_to_nothing_are_no_batch() -> None:
    ops: list[Op] = [op for ts in range(1, 100, 2) for op in ((ts, "I", ts), (ts + 1, "D", ts))]
    assert collected(ops, coalesce=True) == []


def test_skipped_deletes_are_those_of_rows_that_come_back() -> None:
    ops: list[Op] = [(1, "U", 1), (2, "D", 2), (3, "D", 3), (4, "I", 3)]
    (coalesced,) = collected(ops, coalesce=True, skip_deletes=True)
    assert shown(coalesced) == "D2 | I1 I4 done 1000"
    (every,) = collected(ops, skip_deletes=True)
    assert shown(every) == "D2 D3 | I1 I4 done 1000"


def test_a_delete_after_an_update_whose_delete_was_to_be_skipped_is_told() -> None:
    ops: list[Op] = [(ts, "U", 1) for ts in range(1, 101)]  # more than the cache holds
    ops.append((101, "D", 1))
    assert [shown(each) for each in collected(ops, coalesce=True, skip_deletes=True)] == ["D101 | done 1000"]


def test_skipped_deletes_of_a_large_transaction_leave_no_empty_pieces() -> None:
    ops: list[Op] = [(5, "U", number) for number in range(20)] + [(5, "D", 99)]
    for coalesce in (False, True):
        found = collected(ops, coalesce=coalesce, skip_deletes=True)
        assert sum(each.tombstones.num_rows for each in found) == 1
        assert sum(each.data.num_rows for each in found) == 20
        assert all(each.data.num_rows or each.tombstones.num_rows for each in found)
        assert found[-1].hint is Hint.TAIL_DONE


def test_only_what_was_asked_for_is_shown() -> None:
    ops: list[Op] = [(1, "U", 1), (2, "D", 2)]
    (plain,) = collected(ops, coalesce=True, skip_deletes=True)
    assert plain.data.schema.names == ["id", "name", "_commit_ts"]
    assert plain.tombstones.schema.names == ["id", "_commit_ts"]
    (asked,) = collected(ops, columns=("_start_ts", "NAME", "_handle"), old_rows=True)
    assert asked.data.schema.names == ["name", "_handle", "_start_ts", "_commit_ts"]
    assert asked.tombstones.schema.names == ["id", "_handle", "_start_ts", "_commit_ts", "_old"]
    assert asked.tombstones.column("_old").to_pylist()[1] == {"id": 2, "name": "2 before 2"}
