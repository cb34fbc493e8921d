"""The net effect of changes, row by row of the table that says what is kept."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.changes.net_change import coalesce_by_handle, without_updates
from penstock.eventstore.sides import PARTITION

DATA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("_handle", pa.binary(), nullable=False),
        pa.field("_commit_ts", pa.int64(), nullable=False),
        pa.field("_update", pa.bool_(), nullable=False),
    ]
)
TOMBSTONE = pa.schema([*list(DATA)[1:], pa.field("_old", pa.struct([pa.field("name", pa.string())]))])

Op = tuple[str, int]  # "I" or "D", commit-ts


def sides(ops: Sequence[tuple[bytes, str, int]]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Both sides of changes to rows; what a row is called is when it was written."""
    ordered = sorted(ops, key=lambda op: op[2])
    data = [
        {"name": f"at {ts}", "_handle": handle, "_commit_ts": ts, "_update": (handle, "D", ts) in ops}
        for handle, op, ts in ordered
        if op == "I"
    ]
    ends = [
        {
            "_handle": handle,
            "_commit_ts": ts,
            "_update": (handle, "I", ts) in ops,
            "_old": {"name": f"before {ts}"},
        }
        for handle, op, ts in ordered
        if op == "D"
    ]
    return pa.RecordBatch.from_pylist(data, DATA), pa.RecordBatch.from_pylist(ends, TOMBSTONE)


def kept(ops: Sequence[Op], handle: bytes = b"h", **rules: bool) -> list[Op]:
    """What is left of the changes to one row, among others that change once."""
    others = [(b"other %d" % ts, "I", ts) for _, ts in ops]
    data, ends = coalesce_by_handle(*sides([*((handle, op, ts) for op, ts in ops), *others]), **rules)
    found = [
        *(("D", row["_commit_ts"]) for row in ends.to_pylist() if row["_handle"] == handle),
        *(("I", row["_commit_ts"]) for row in data.to_pylist() if row["_handle"] == handle),
    ]
    assert sum(row["_handle"] != handle for row in data.to_pylist()) == len(set(others))
    return found


CASES: list[tuple[str, str, str, str]] = [
    # changes, kept, kept in a replay, kept where keys move; a digit is a commit-ts
    ("I1", "I1", "I1", "I1"),
    ("D1", "D1", "D1", "D1"),
    ("D1 I1", "D1 I1", "D1 I1", "D1 I1"),
    ("D1 I2", "D1 I2", "D1 I2", "D1 I2"),
    ("I1 D2", "", "D2", ""),
    ("I1 D2 I2", "I2", "I2", "I2"),
    ("I1 D2 I2 D3", "", "D3", ""),
    ("D1 I1 D2", "D2", "D2", "D1"),
    ("D1 I1 D2 I2", "D1 I2", "D1 I2", "D1 I2"),
    ("D1 I2 D3 I3 D4", "D4", "D4", "D1"),
    ("I1 D2 I3 D4 I4", "I4", "I4", "I4"),
    ("I1 I2 I3", "I3", "I3", "I3"),  # updates whose old rows are not known
    ("D1 D2", "D2", "D2", "D1"),
]


def read(text: str) -> list[Op]:
    return [(each[0], int(each[1:])) for each in text.split()]


@pytest.mark.parametrize(("changes", "net", "replayed", "moving"), CASES)
@pytest.mark.parametrize("handle", [b"12345678", b"a handle that is no integer", b""])
def test_the_first_and_the_last_change_decide(
    changes: str, net: str, replayed: str, moving: str, handle: bytes
) -> None:
    assert kept(read(changes), handle) == read(net)
    assert kept(read(changes), handle, replay=True) == read(replayed)
    assert kept(read(changes), handle, keys_move=True) == read(moving)


@pytest.mark.parametrize(("changes", "expected"), [(each[0], each[1]) for each in CASES])
def test_coalescing_in_two_steps_comes_to_the_same(changes: str, expected: str) -> None:
    ops = read(changes)
    for at in range(len(ops) + 1):
        if 0 < at < len(ops) and ops[at - 1][1] == ops[at][1]:
            continue  # a transaction is not divided
        data, ends = coalesce_by_handle(*sides([(b"h", *op) for op in ops[:at]]))
        later_data, later_ends = sides([(b"h", *op) for op in ops[at:]])
        found = coalesce_by_handle(
            pa.concat_batches([data, later_data]), pa.concat_batches([ends, later_ends])
        )
        left = [*(("D", row["_commit_ts"]) for row in found[1].to_pylist())]
        left += [("I", row["_commit_ts"]) for row in found[0].to_pylist()]
        assert left == read(expected)


def test_what_is_left_says_whether_the_row_was_there_before() -> None:
    data, ends = coalesce_by_handle(
        *sides(
            [
                (b"came", "I", 1),
                *((b"came", op, 2) for op in "DI"),
                *((b"stayed", op, 3) for op in "DI"),
                *((b"back", op, ts) for op, ts in (("D", 1), ("I", 4))),
                *((b"gone", op, ts) for op, ts in (("D", 1), ("I", 1), ("D", 5))),
            ]
        )
    )
    assert {row["_handle"]: row["_update"] for row in data.to_pylist()} == {
        b"came": False,
        b"stayed": True,
        b"back": True,
    }
    assert {row["_handle"]: row["_update"] for row in ends.to_pylist()} == {
        b"stayed": True,
        b"back": True,
        b"gone": False,
    }
    assert without_updates(ends).column("_handle").to_pylist() == [b"gone"]


def test_a_tombstone_has_the_old_row_that_a_reader_has() -> None:
    _, ends = coalesce_by_handle(*sides([(b"h", op, ts) for op, ts in read("D1 I1 D2 I2 D3")]))
    assert ends.to_pylist() == [
        {"_handle": b"h", "_commit_ts": 3, "_update": False, "_old": {"name": "before 1"}}
    ]


def test_what_stays_keeps_its_order() -> None:
    ops = [(b"%d" % (ts % 7), op, ts) for ts in range(1, 50) for op in ("D", "I")]
    data, ends = coalesce_by_handle(*sides(ops))
    for side in (data, ends):
        times = side.column("_commit_ts").to_pylist()
        assert times == sorted(times)
        assert len(times) == 7
    assert data.column("_commit_ts").to_pylist() == list(range(43, 50))
    assert ends.column("_commit_ts").to_pylist() == list(range(1, 8))


def test_changes_of_different_rows_pass_as_they_are() -> None:
    data, ends = sides([(b"%08d" % ts, "DI"[ts % 2], ts) for ts in range(20)])
    assert coalesce_by_handle(data, ends)[0] is data
    assert coalesce_by_handle(data, ends)[1] is ends


def test_sides_without_rows_and_slices_are_fine() -> None:
    data, ends = sides([(b"%08d" % (ts % 3), op, ts) for ts in range(1, 10) for op in "DI"])
    nothing = data.slice(0, 0), ends.slice(0, 0)
    assert [len(side) for side in coalesce_by_handle(*nothing)] == [0, 0]
    assert len(coalesce_by_handle(data, nothing[1])[0]) == 3
    assert len(coalesce_by_handle(nothing[0], ends)[1]) == 3
    found = coalesce_by_handle(data.slice(3), ends.slice(3))
    assert found[1].column("_commit_ts").to_pylist() == [4, 5, 6]
    assert found[0].column("name").to_pylist() == ["at 7", "at 8", "at 9"]


@pytest.mark.parametrize("handle", [b"eight...", b"text"])
def test_a_handle_in_another_partition_is_another_row(handle: bytes) -> None:
    data, ends = sides([(handle, "I", 1), (handle, "I", 2), (handle, "D", 3), (handle, "I", 4)])
    tagged = data.append_column(PARTITION, pa.array([11, 12, 11]))
    for of, left in ((11, [2, 4]), (12, [4])):
        net, gone = coalesce_by_handle(tagged, ends.append_column(PARTITION, pa.array([of])))
        assert net.column("_commit_ts").to_pylist() == left
        assert gone.num_rows == 0
    net, gone = coalesce_by_handle(tagged, ends.slice(0, 0))
    assert net.column("_commit_ts").to_pylist() == [2, 4]
