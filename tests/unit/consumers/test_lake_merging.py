"""Which files changes are merged with, and what comes out."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar.key_order import KeySet, OrderedRows
from penstock.consumers.lake.files import DataFile, FileWriter, read_rows, with_bounds
from penstock.consumers.lake.merge import RewriteGroup, merge, plan
from support.campaign import examples

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
KEY = pa.schema([("k", pa.int64())])


class Memory:
    """Files in memory. Implements FileStore."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def write(self, path: str, data: bytes) -> None:
        assert path not in self.files
        self.files[path] = data

    def open(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.files[path])

    def names(self, folder: str) -> list[str]:
        return sorted(path for path in self.files if path.startswith(folder))

    def delete(self, path: str) -> None:
        self.files.pop(path, None)


def file(lowest: int | None, highest: int | None, *, nbytes: int = 100, nulls: bool = False) -> DataFile:
    return DataFile(f"{lowest}-{highest}", 1, nbytes, lowest, highest, nulls)


def rows(keys: Sequence[int | None], value: str = "") -> pa.Table:
    return pa.Table.from_pylist([{"k": key, "v": value} for key in keys], SCHEMA)


def chosen(
    files: Sequence[DataFile], upserts: Sequence[int | None], deletes: Sequence[int] = (), **more: Any
) -> list[list[str]]:
    coming = rows(upserts)
    changed = KeySet(pa.concat_tables([coming, rows(deletes)]).select(["k"]))
    groups = plan(files, changed, OrderedRows(coming, coming.select(["k"])), small_bytes=50, **more)
    return [[each.path for each in group.files] for group in groups]


A, B, C = file(0, 9), file(10, 19), file(30, 39)


def test_only_files_that_may_hold_a_changed_key_are_written_again() -> None:
    assert chosen([A, B, C], [12]) == [["10-19"]]
    assert chosen([A, B, C], [], [3, 33]) == [["0-9"], ["30-39"]]
    assert chosen([A, B, C], [25]) == []


def test_neighbours_are_written_together() -> None:
    assert chosen([C, A, B], [5, 12]) == [["0-9", "10-19"]]


def test_a_new_row_goes_with_a_small_neighbour() -> None:
    small = file(30, 39, nbytes=10)
    assert chosen([A, B, small], [45]) == [["30-39"]]
    assert chosen([A, B, small], [25]) == [["30-39"]]
    assert chosen([A, B, small], [12, 25]) == [["10-19"]]  # which is written anyway
    assert chosen([A, B, small], [12]) == [["10-19"]]


def test_files_of_which_nothing_is_known_are_always_written_again() -> None:
    assert chosen([A, file(None, None)], [12]) == [["None-None"]]
    assert chosen([A, file(None, None)], []) == []


def test_all_files_are_when_their_columns_change() -> None:
    assert chosen([A, B, file(None, None)], [], every=True) == [["None-None"], ["0-9", "10-19"]]


def test_a_null_key_may_be_in_files_that_have_some() -> None:
    with_nulls = file(50, 60, nulls=True)
    assert chosen([A, with_nulls], [None]) == [["50-60"]]


def test_groups_know_the_files_around_them() -> None:
    coming = rows([12])
    groups = plan([A, B, C], KeySet(coming.select(["k"])), OrderedRows(coming, coming.select(["k"])))
    assert [(each.floor, each.ceiling) for each in groups] == [(9, 30)]


class Copy:
    """Files that take changes as a consumer has them do."""

    def __init__(self, file_bytes: int, small_bytes: int) -> None:
        self.store = Memory()
        self.files: list[DataFile] = []
        self.file_bytes = file_bytes
        self.small_bytes = small_bytes
        self.commits = 0

    def apply(self, upserts: pa.Table, deletes: pa.Table) -> list[RewriteGroup]:
        self.commits += 1
        changed = KeySet(pa.concat_tables([upserts, deletes]).select(["k"]))
        ordered = OrderedRows(upserts, upserts.select(["k"]))
        groups = plan(self.files, changed, ordered, small_bytes=self.small_bytes)
        writer = FileWriter(
            self.store, SCHEMA, folder="f", name=str(self.commits), file_bytes=self.file_bytes
        )
        merge(
            groups,
            changed,
            ordered,
            read=lambda each: read_rows(self.store, each.path, SCHEMA),
            arriving=lambda each: each,
            writer=writer,
            keys=["k"],
        )
        gone = {each.path for group in groups for each in group.files}
        self.files = [each for each in self.files if each.path not in gone]
        self.files += [each.file("k") for each in writer.written]
        return groups

    def rows(self) -> list[dict[str, Any]]:
        tables = [pq.read_table(self.store.open(each.path)) for each in self.files]
        return [row for each in tables for row in each.to_pylist()]


CHANGES = st.lists(
    st.tuples(st.sets(st.integers(0, 60), max_size=8), st.sets(st.integers(0, 60), max_size=4)),
    min_size=1,
    max_size=12,
)


@pytest.fixture
def tiny_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.consumers.lake.files.GROUP_BYTES", 32)


@settings(max_examples=examples(60), deadline=None)
@given(CHANGES, st.sampled_from([32, 100, 1 << 20]), st.sampled_from([0, 1 << 20]))
def test_files_hold_what_the_changes_come_to(
    changes: list[tuple[set[int], set[int]]], file_bytes: int, small_bytes: int
) -> None:
    copy = Copy(file_bytes, small_bytes)
    model: dict[int, str] = {}
    for at, (come, go) in enumerate(changes):
        copy.apply(rows(sorted(come, key=hash), str(at)), rows(sorted(go - come)))
        model = {key: value for key, value in model.items() if key not in go} | dict.fromkeys(come, str(at))
        found = copy.rows()
        assert len(found) == len(model)
        assert {row["k"]: row["v"] for row in found} == model
        for each in copy.files:
            keys = pq.read_table(copy.store.open(each.path)).column("k").to_pylist()
            assert (each.lowest, each.highest, each.rows) == (min(keys), max(keys), len(keys))


@pytest.mark.usefixtures("tiny_groups")
def test_files_stay_apart_and_of_one_size_while_rows_come_in_any_order() -> None:
    copy = Copy(file_bytes=1200, small_bytes=400)
    for at in range(60):
        copy.apply(rows([(at * 37 + step * 7) % 1000 for step in range(10)], "x"), rows([]))
    ordered = sorted(copy.files, key=lambda each: each.lowest)
    assert all(left.highest < right.lowest for left, right in pairwise(ordered))
    assert len(copy.rows()) / len(copy.files) > 10


@pytest.mark.usefixtures("tiny_groups")
def test_appending_rows_writes_only_the_last_file_again() -> None:
    copy = Copy(file_bytes=1200, small_bytes=4000)
    for at in range(0, 900, 10):
        groups = copy.apply(rows(range(at, at + 10), "x"), rows([]))
        assert sum(len(group.files) for group in groups) <= 1
    assert len(copy.files) < 60


def test_bounds_that_are_not_kept_are_read_from_the_files() -> None:
    store = Memory()
    writer = FileWriter(store, SCHEMA, folder="f", name="a")
    writer.write(rows([5, 1, None]).to_batches())
    writer.cut()
    known = writer.written[0].file("k")
    assert (known.lowest, known.highest, known.nulls, known.rows) == (1, 5, True, 3)
    unknown = DataFile(known.path, 0, 0)
    assert [(each.lowest, each.highest) for each in with_bounds(store, [unknown, A], "k")] == [(1, 5), (0, 9)]
    assert not with_bounds(store, [unknown], "other")[0].bounded
