"""Streams of changes out of objects and of rows that are not in objects, against plain sorted lists."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Corrupt, Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import (
    Archive,
    ManifestEntry,
    ManifestState,
    ObjectInfo,
    ObjectKind,
    write_entry,
)
from penstock.eventstore.paths import Side
from penstock.eventstore.read import streams as readahead
from penstock.eventstore.read.blocks import change_order
from penstock.eventstore.read.partition import CaptureProgress, PartitionState, ReadRange, SchemaRange
from penstock.eventstore.read.streams import Place, ReadAhead, merge_streams, open_streams
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.object_storage import ObjectStorage, open_storage
from support.campaign import examples
from support.events import a_table

TABLE = a_table()
VERSION = SchemaVersion(0, 1, TABLE, "shop")
Row = tuple[int, int, int]  # commit_ts, start_ts, number
BASE = 1 << 58  # above it neighbouring timestamps are the same number to a float
SIDES: tuple[Side, ...] = ("data", "tombstone")


def handle(number: int) -> bytes:
    return (1 << 63 | number).to_bytes(8, "big")


def batch_of(rows: list[Row], side: Side) -> pa.RecordBatch:
    schema = side_schema(TABLE, side)
    values = [
        {
            "id": number,
            "name": f"n{number}",
            "_handle": handle(number),
            "_commit_ts": commit,
            "_start_ts": start,
            "_update": False,
            "_old": {"id": number, "name": "before"},
        }
        for commit, start, number in rows
    ]
    return pa.RecordBatch.from_pylist(values, schema)


def shown(batch: pa.RecordBatch) -> list[Row]:
    names = ("_commit_ts", "_start_ts", "id")
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))


class HeldRows:
    """A RangeReader over a list."""

    def __init__(self, rows: list[Row], batch_rows: int = 3) -> None:
        self.rows = rows
        self.batch_rows = batch_rows
        self.asked: list[ReadRange] = []

    def progress(self, table_id: int) -> CaptureProgress:
        return CaptureProgress(table_id, BASE + 10**6, BASE + 10**6, 0)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        return [SchemaRange(wanted, VERSION)]

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        self.asked.append(wanted)
        inside = [
            row
            for row in sorted(self.rows)
            if wanted.from_ts < row[0] <= wanted.to_ts
            and handle(row[2]) >= wanted.handle_from
            and (not wanted.handle_to or handle(row[2]) < wanted.handle_to)
        ]
        whole = batch_of(inside, wanted.side).select(list(wanted.columns))
        return whole.schema, iter(
            [whole.slice(at, self.batch_rows) for at in range(0, len(inside), self.batch_rows)]
        )


@dataclass
class World:
    """Objects on storage, and the state that names them."""

    storage: ObjectStorage = field(default_factory=lambda: open_storage("memory:///"))
    objects: list[ObjectInfo] = field(default_factory=list)

    def add(
        self, side: Side, kind: ObjectKind, rows: list[Row], *, group_rows: int = 100, seq: int = 1
    ) -> ObjectInfo:
        """Write an object with its rows as they come."""
        name = f"{len(self.objects):032x}"
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([batch_of(rows, side)]), sink, row_group_size=group_rows)
        self.storage.write(paths.object_path("tables/1", side, name), sink.getvalue().to_pybytes())
        commits = [row[0] for row in rows]
        info = ObjectInfo(
            id=name,
            side=side,
            kind=kind,
            schema_version=1,
            create_ts=min(commits),
            min_ts=min(commits),
            max_ts=max(commits),
            rows=len(rows),
            size_bytes=1,
            key_min=min(handle(row[2]) for row in rows),
            key_max=max(handle(row[2]) for row in rows),
            seq=seq,
        )
        self.objects.append(info)
        return info

    def state(self, *, flushed_ts: int = 0, rows: HeldRows | None = None) -> PartitionState:
        newest = max((each.max_ts for each in self.objects), default=0)
        manifest = ManifestState(
            flushed_ts=max(flushed_ts, newest),
            objects={each.id: each for each in self.objects},
            facts=(VERSION.as_fact(),),
        )
        return PartitionState(1, self.storage, manifest, rows)


@st.composite
def _rows(draw: st.DrawFn) -> list[Row]:
    """Changes of few timestamps, so that many share one; a handle occurs once at a commit-ts."""
    found = draw(st.sets(st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 40)), max_size=40))
    once = {(commit, number): (BASE + commit, BASE - 5 + start, number) for commit, start, number in found}
    return sorted(once.values())


def _cuts(draw: st.DrawFn, rows: list[Row]) -> list[list[Row]]:
    """Ordered rows cut into objects anywhere."""
    places = sorted(draw(st.sets(st.integers(0, len(rows)), max_size=4)) | {0, len(rows)})
    return [rows[start:end] for start, end in pairwise(places) if end > start]


def _runs(rows: list[Row]) -> list[list[Row]]:
    """Rows of each transaction."""
    found: dict[Place, list[Row]] = {}
    for row in rows:
        found.setdefault(row[:2], []).append(row)
    return list(found.values())


@dataclass
class Case:
    world: World
    state: PartitionState
    side: Side
    rows: list[Row]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """Changes spread over appendable objects, direct objects and unflushed rows, as flushes would."""
    world, side = World(), draw(st.sampled_from(SIDES))
    rows = draw(_rows())
    flushed_ts = BASE + draw(st.integers(0, 7))
    flushed = [row for row in rows if row[0] <= flushed_ts]
    direct = [run for run in _runs(flushed) if draw(st.booleans())]
    appendable = [row for row in flushed if not any(row in run for run in direct)]
    pieces: list[tuple[ObjectKind, list[Row]]] = [("appendable", piece) for piece in _cuts(draw, appendable)]
    pieces += [("direct", piece) for run in direct for piece in _cuts(draw, run)]
    for kind, piece in draw(st.permutations(pieces)):
        stored = draw(st.permutations(piece)) if side == "tombstone" else piece
        world.add(side, kind, stored, group_rows=draw(st.integers(1, 8)))
    if flushed:
        world.add(side, "merged", sorted(flushed, key=lambda row: row[2]))
    state = world.state(flushed_ts=flushed_ts, rows=HeldRows(rows))  # it may be asked for what is flushed
    return Case(world, state, side, rows)


@settings(max_examples=examples(150), deadline=None)
@given(_cases(), st.data())
def test_the_merge_of_all_streams_is_a_sort(case: Case, data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.lists(st.integers(0, 8), min_size=2, max_size=2, unique=True)))
    handle_from = data.draw(st.one_of(st.just(b""), st.integers(0, 40).map(handle)))
    handle_to = data.draw(st.one_of(st.just(b""), st.integers(0, 41).map(handle)))
    streams = open_streams(
        case.state, case.side, BASE + low, BASE + high, handle_from=handle_from, handle_to=handle_to
    )
    rows_max = data.draw(st.integers(1, 50))
    batches = list(merge_streams(streams, rows_max))
    assert [row for batch in batches for row in shown(batch)] == [
        row
        for row in case.rows
        if BASE + low < row[0] <= BASE + high
        and handle(row[2]) >= handle_from
        and (not handle_to or handle(row[2]) < handle_to)
    ]
    assert all(0 < batch.num_rows <= rows_max for batch in batches)
    assert all(batch.schema == side_schema(TABLE, case.side) for batch in batches)


@settings(max_examples=examples(150), deadline=None)
@given(_cases(), st.data())
def test_a_stream_gives_what_is_before_a_place_and_no_more(case: Case, data: st.DataObject) -> None:
    places = st.tuples(st.integers(BASE, BASE + 7), st.integers(BASE - 6, BASE + 1))
    for stream in open_streams(case.state, case.side, BASE, BASE + 9):
        taken: list[Row] = []
        while (place := stream.peek()) is not None:
            before = data.draw(st.one_of(st.none(), places))
            if before is not None and before <= place:
                before = (place[0], place[1] + 1)
            rows_max = data.draw(st.integers(1, 9))
            rows = shown(stream.take(before, rows_max))
            assert rows[0][:2] == place
            assert 1 <= len(rows) <= rows_max
            assert before is None or all(row[:2] < before for row in rows)
            taken += rows
        assert stream.peek() is None
        assert taken == sorted(taken)
        assert set(taken) <= set(case.rows)
        stream.close()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["appendable", "direct"])
def test_a_range_begins_after_its_from_and_ends_with_its_to(side: Side, kind: ObjectKind) -> None:
    world = World()
    rows = [(BASE + at, 1, 9 - at) for at in range(5)]
    world.add(side, kind, rows)
    state = world.state()
    for start in range(-1, 5):
        for end in range(start + 1, 5):
            found = merge_streams(open_streams(state, side, BASE + start, BASE + end), 100)
            assert [row for batch in found for row in shown(batch)] == rows[start + 1 : end + 1]


def test_two_streams_of_one_transaction_come_one_after_the_other() -> None:
    """As the partitions of a table have them."""
    first, second = World(), World()
    first.add("data", "appendable", [(BASE, 1, 5), (BASE, 1, 7), (BASE + 2, 2, 9)])
    second.add("data", "appendable", [(BASE, 1, 1), (BASE, 1, 6), (BASE + 1, 1, 4)])
    streams = [
        stream
        for world in (first, second)
        for stream in open_streams(world.state(flushed_ts=BASE + 2), "data", 0, BASE + 2)
    ]
    found = [shown(batch) for batch in merge_streams(streams, 100)]
    assert found == [
        [(BASE, 1, 5), (BASE, 1, 7)],
        [(BASE, 1, 1), (BASE, 1, 6), (BASE + 1, 1, 4)],
        [(BASE + 2, 2, 9)],
    ]


def test_batches_have_the_columns_that_were_asked_for_in_their_order() -> None:
    world = World()
    world.add("tombstone", "appendable", [(BASE + 1, 1, 8), (BASE, 1, 5)])
    rows = HeldRows([(BASE + 9, 1, 3)])
    state = world.state(rows=rows)
    columns = ["_commit_ts", "id"]
    found = list(merge_streams(open_streams(state, "tombstone", 0, BASE + 9, columns=columns), 100))
    assert [batch.schema.names for batch in found] == [columns, columns]
    assert [row for batch in found for row in batch.to_pylist()] == [
        {"_commit_ts": BASE, "id": 5},
        {"_commit_ts": BASE + 1, "id": 8},
        {"_commit_ts": BASE + 9, "id": 3},
    ]
    assert rows.asked[0].columns == ("_commit_ts", "id", "_start_ts")


def test_only_row_groups_that_can_have_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add("data", "appendable", [(BASE + at, 1, 100 - at) for at in range(10)], group_rows=2)
    read: list[int] = []
    whole = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, group: int, **rest: Any) -> pa.Table:
        read.append(group)
        return whole(file, group, **rest)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    streams = open_streams(world.state(), "data", BASE + 1, BASE + 7, handle_to=handle(97))
    assert [row[2] for batch in merge_streams(streams, 100) for row in shown(batch)] == [96, 95, 94, 93]
    assert read == [2, 3]


def test_a_large_row_group_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.read.blocks._WHOLE_BYTES", 10)
    world = World()
    rows = [(BASE + at, 1, at) for at in range(100)]
    world.add("data", "appendable", rows)
    found = [shown(batch) for batch in merge_streams(open_streams(world.state(), "data", 0, BASE + 99), 1000)]
    assert [len(each) for each in found] == [25, 25, 25, 25]
    assert [row for each in found for row in each] == rows


def test_handles_too_long_for_statistics_are_read() -> None:
    world = World()
    info = world.add("data", "appendable", [(BASE, 1, 1)])
    batch = batch_of([(BASE, 1, 1)], "data")
    long = b"x" * 10_000
    batch = batch.set_column(batch.schema.get_field_index("_handle"), "_handle", pa.array([long]))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    world.storage.write(paths.object_path("tables/1", "data", info.id), sink.getvalue().to_pybytes())
    (stream,) = open_streams(world.state(), "data", 0, BASE)
    assert stream.take(None, 1).column("_handle").to_pylist() == [long]
    stream.close()


def test_a_range_with_two_schemas_is_refused() -> None:
    world = World()
    world.add("data", "appendable", [(BASE, 1, 1)])
    state = world.state()
    facts = (VERSION.as_fact(), SchemaVersion(BASE, 2, TABLE).as_fact())
    manifest = ManifestState(flushed_ts=BASE, objects=state.manifest.objects, facts=facts)
    with pytest.raises(Invalid, match=f"changes after {BASE - 1}; read the parts"):
        open_streams(PartitionState(1, world.storage, manifest), "data", BASE - 5, BASE)
    with pytest.raises(Invalid, match="no column 'zz'"):
        open_streams(state, "data", 0, BASE, columns=["zz"])
    with pytest.raises(Unavailable, match="without its capture"):
        open_streams(state, "data", 0, BASE + 1, schema=VERSION)


@pytest.mark.parametrize("side", SIDES)
def test_an_object_that_was_collected_while_it_was_to_be_read_is_a_stale_read(side: Side) -> None:
    world = World()
    info = world.add(side, "appendable", [(BASE, 1, 1)])
    world.add(side, "direct", [(BASE + 7, 1, 2)])
    state = world.state()
    world.storage.delete(paths.object_path("tables/1", side, info.id))
    with pytest.raises(Unavailable, match="plan the read again"):  # a manifest still has it
        list(merge_streams(open_streams(state, side, BASE - 1, BASE + 7), 10))
    archive = Archive(id="a" * 32, upto_ts=BASE + 3, objects=1)
    entries = [
        ManifestEntry(seq=1, epoch=1, writer="w", id="1" * 32, archive=archive),
        ManifestEntry(seq=2, epoch=1, writer="w", id="2" * 32, collect=(archive.id,)),
    ]
    for entry in entries:
        world.storage.write(paths.manifest_entry("tables/1", entry.seq), write_entry(entry))
    streams = open_streams(state, side, BASE - 1, BASE + 7)
    for _ in range(2):  # a stream that failed has not ended
        with pytest.raises(StaleRead) as caught:
            streams[0].peek()
        assert caught.value.oldest_ts == BASE + 3
    for stream in streams:
        stream.close()


def test_a_damaged_object_is_named() -> None:
    world = World()
    info = world.add("data", "appendable", [(BASE, 1, 1)])
    world.storage.write(paths.object_path("tables/1", "data", info.id), b"PAR1 damaged PAR1")
    with pytest.raises(Corrupt, match=info.id):
        list(merge_streams(open_streams(world.state(), "data", 0, BASE), 10))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.integers(0, 2),
            st.one_of(st.binary(max_size=9), st.binary(min_size=8, max_size=8)),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.integers(0, 3),
)
def test_rows_are_put_in_the_order_of_changes(
    rows: list[tuple[int, int, bytes]], wide: bool, skip: int
) -> None:
    rows = [(commit << (56 if wide else 0), start, key) for commit, start, key in rows]
    commit = pa.array([row[0] for row in rows], pa.int64()).slice(skip)
    start = pa.array([row[1] for row in rows], pa.int64()).slice(skip)
    handles = pa.array([row[2] for row in rows], pa.binary()).slice(skip)
    order = change_order(commit.to_numpy(), start.to_numpy(), handles)
    found = rows[skip:] if order is None else [rows[skip:][at] for at in order]
    assert found == sorted(rows[skip:])


class Counting:
    """A generator that says how far it was asked."""

    def __init__(self, upto: int, fails_at: int | None = None) -> None:
        self.given = 0
        self.closed = threading.Event()
        self.upto = upto
        self.fails_at = fails_at

    def __call__(self) -> Iterator[int]:
        try:
            for number in range(self.upto):
                if number == self.fails_at:
                    raise Unavailable("not now")
                self.given += 1
                yield number
        finally:
            self.closed.set()


def _until(holds: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(500):
        if holds():
            return
        never.wait(0.01)
    raise AssertionError("it did not come to pass")


def test_one_item_and_no_more_is_read_ahead() -> None:
    counting = Counting(10)
    ahead = ReadAhead(counting())  # type: ignore[arg-type] # a generator
    _until(lambda: counting.given == 1)
    assert ahead.next() == 0
    _until(lambda: counting.given == 2)
    assert not threading.Event().wait(0.05)
    assert counting.given == 2
    ahead.close()
    assert counting.closed.is_set()


def test_a_failure_stays_and_is_not_taken_for_the_end() -> None:
    ahead = ReadAhead(Counting(3, fails_at=1)())  # type: ignore[arg-type] # a generator
    assert ahead.next() == 0
    for _ in range(3):
        with pytest.raises(Unavailable):
            ahead.next()
    ahead.close()


def test_readers_within_readers_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(readahead._READERS, "pool", pool)

        def nested(depth: int) -> Iterator[int]:
            if not depth:
                yield from range(3)
                return
            inner = ReadAhead(nested(depth - 1))  # type: ignore[arg-type] # a generator
            while (number := inner.next()) is not None:
                yield number
            inner.close()

        outer = [ReadAhead(nested(4)) for _ in range(6)]  # type: ignore[arg-type] # a generator
        assert [[each.next() for _ in range(4)] for each in outer] == [[0, 1, 2, None]] * 6
        for each in outer:
            each.close()
