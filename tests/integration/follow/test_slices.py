"""Slices of any size, one after the other, are the changes of the whole range: each once, in order."""

import pickle
import random  # noqa: TID251 - seeded, so that every run is the same
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from penstock.changes import ChangesPartition, collect_changes
from penstock.changes.collect import open_range
from penstock.changes.limits import ChangeCounts, ReadLimit
from penstock.clock import SYSTEM, compose_ts
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.capture.flight_server import FlightAccess
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.follow import slices as slicing
from penstock.follow.follower import SliceFollower
from penstock.follow.slices import Position, Slice, SliceSize, TableSpan
from penstock.tables.alter import add_column
from penstock.tables.keys import encode_handle
from support.itemtables import item, item_table
from support.metaevents import a_table, put_table
from support.rawbatches import raw
from support.sourceworld import SourceWorld
from support.tableworld import START

Row = tuple[int, bytes, str, str]  # commit_ts, handle, side, the rest


KINDS = ["integer", "not clustered"]


@pytest.fixture(params=KINDS)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SourceWorld]:
    """A world of one's own."""
    with lively(tmp_path, request.param) as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SourceWorld]:
    """The same for those that only look."""
    with lively(tmp_path_factory.mktemp("seen"), request.param) as made:
        yield made


@contextmanager
def lively(folder: Path, kind: str) -> Iterator[SourceWorld]:
    """Changes in objects of several kinds, and some that are not flushed."""
    mix = random.Random(5)
    with SourceWorld(folder, item_table(kind), large_txn_bytes=4000) as made:
        present: set[int] = set()
        for step in range(40):
            size = 60 if step == 20 else mix.randint(1, 5)  # one is large
            put = set(mix.sample(range(1, 100), size))
            gone = {each for each in sorted(present - put) if mix.random() < 0.1}
            keys = [made.key(item(kind, each, "")) for each in gone]
            made.commit(*(item(kind, each, f"{step}") for each in sorted(put)), delete=keys)
            present = (present | put) - gone
            if step % 9 == 8:
                made.flush()
        made.resolve()
        yield made


def rows_of(batches: Iterable[Any]) -> list[Row]:
    found: list[Row] = []
    for batch in batches:
        for side, rows in (("1 data", batch.data), ("0 tombstone", batch.tombstones)):
            found += [
                (row["_commit_ts"], row["_handle"], side, repr(sorted(row.items())))
                for row in rows.to_pylist()
            ]
    return found


def whole(world: SourceWorld, from_ts: int, to_ts: int) -> list[Row]:
    columns = [*(column.name for column in world.versions.table.stored_columns), "_handle"]
    with collect_changes(
        world.view(), from_ts, to_ts, columns=columns, coalesce=False, old_rows=True
    ) as all_of:
        return sorted(rows_of(all_of))


def read(piece: Slice) -> list[Row]:
    found: list[Row] = []
    for part in piece.parts:
        with part.collect() as handle:
            found += rows_of(handle)
    return found


async def slices(
    source: SliceFollower,
    spec: TableSpan,
    start: Position,
    upto_ts: int,
    limits: Iterable[ReadLimit],
    begin: Position | None = None,
) -> list[Slice]:
    found: list[Slice] = []
    for limit in limits:
        piece = await source.next_slice(spec, start, upto_ts, limit, begin=begin)
        if piece is None:
            return found
        assert piece.start == start < piece.end <= Position(upto_ts)
        found.append(piece)
        start = piece.end
    raise AssertionError("there is no end of slices")


def any_limits(seed: int) -> Iterator[ReadLimit]:
    mix = random.Random(seed)
    for _ in range(500):
        rows, nbytes = mix.choice([1, 3, 20, 100]), mix.choice([None, 1, 500, 5000])
        yield ReadLimit(rows, nbytes)


@pytest.mark.parametrize("seed", range(3))
async def test_slices_are_the_changes_of_the_whole_range(seen: SourceWorld, seed: int) -> None:
    async with seen.source() as source:
        spec = TableSpan.of("feed", 1)
        pieces = await slices(source, spec, Position(START), seen.ts, any_limits(seed))
    assert len(pieces) > 3
    found = [row for piece in pieces for row in read(pickle.loads(pickle.dumps(piece)))]
    assert sorted(found) == whole(seen, START, seen.ts)
    for piece in pieces:
        assert all(piece.start.ts < row[0] <= piece.end.ts for row in read(piece))
        assert piece.rows > 0
        assert piece.nbytes > 0
        assert piece.schema.name == "shop.items"


async def test_limits_hold_but_for_a_commit_that_is_larger(seen: SourceWorld) -> None:
    async with seen.source() as source:
        spec = TableSpan.of("feed", 1)
        pieces = await slices(source, spec, Position(START), seen.ts, [ReadLimit(rows=20)] * 100)
    sizes = [(len(read(piece)), len({row[0] for row in read(piece)})) for piece in pieces]
    assert all(rows <= 20 or commits == 1 for rows, commits in sizes)
    assert sum(rows for rows, _ in sizes[:-1]) / len(sizes[:-1]) > 10


@pytest.mark.parametrize("seed", range(3))
async def test_key_ranges_share_the_changes(seen: SourceWorld, seed: int) -> None:
    bounds = [b"", *(encode_handle(each) for each in (10, 40, 41, 90)), b""]
    found: list[Row] = []
    async with seen.source() as source:
        for low, high in pairwise(bounds):
            spec = TableSpan.of("feed", 1, low, high)
            pieces = await slices(source, spec, Position(START), seen.ts, any_limits(seed))
            rows = [row for piece in pieces for row in read(piece)]
            assert all(low <= row[1] and (not high or row[1] < high) for row in rows)
            assert [row[0] for row in sorted(rows)] == sorted(row[0] for row in rows)
            found += rows
    assert sorted(found) == whole(seen, START, seen.ts)


async def test_a_range_without_changes_has_no_slice(seen: SourceWorld) -> None:
    async with seen.source() as source:
        spec = TableSpan.of("feed", 1)
        last = max(seen.moments())
        assert await source.next_slice(spec, Position(last), seen.ts, ReadLimit()) is None
        assert await source.next_slice(spec, Position(seen.ts), seen.ts, ReadLimit()) is None
        nobody = TableSpan.of("feed", 1, encode_handle(1000), b"")
        assert await source.next_slice(nobody, Position(START), seen.ts, ReadLimit()) is None


async def test_inside_a_commit_it_goes_on_at_the_handle(seen: SourceWorld) -> None:
    ts = list(seen.moments())[20]
    everything = whole(seen, START, seen.ts)
    inside = sorted(row[1] for row in everything if row[0] == ts)
    middle = inside[len(inside) // 2]
    async with seen.source() as source:
        spec = TableSpan.of("feed", 1)
        for limit in (ReadLimit(), ReadLimit(rows=1)):
            pieces = await slices(source, spec, Position(ts, middle), seen.ts, [limit] * 200)
            found = sorted(row for piece in pieces for row in read(piece))
            assert found == [row for row in everything if row[0] > ts or (row[0] == ts and row[1] >= middle)]


async def test_large_slices_have_parts_in_order(world: SourceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "PART_ROWS", 10)
    world.flush()
    async with world.source() as source:
        for low, high in (b"", b""), (encode_handle(30), encode_handle(80)):
            spec = TableSpan.of("feed", 1, low, high)
            piece = await source.next_slice(spec, Position(START), world.ts, ReadLimit())
            assert piece is not None
            assert len(piece.parts) > 3
            ends = [(part.to_ts, part.handle_to) for part in piece.parts]
            assert [ts for ts, _ in ends] == sorted(ts for ts, _ in ends)
            expected = [
                row for row in whole(world, START, world.ts) if low <= row[1] and (not high or row[1] < high)
            ]
            assert sorted(read(piece)) == expected


async def test_tasks_share_a_slice_by_its_bytes_unless_it_fills_a_file(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "PART_BYTES_MIN", 1000)
    world.flush()
    async with world.source() as source:
        spec = TableSpan.of("feed", 1)

        async def parts(size: SliceSize) -> Sequence[ChangesPartition]:
            piece = await source.next_slice(spec, Position(START), world.ts, ReadLimit(), size=size)
            assert piece is not None
            assert sorted(read(piece)) == whole(world, START, world.ts)
            return piece.parts

        (alone,) = await parts(SliceSize(1 << 40))
        assert len(await parts(SliceSize(1000, tasks=4))) >= 4
        assert len(await parts(SliceSize(1000, tasks=1))) == 1
        nbytes = ChangeCounts(open_range(alone.table, START, world.ts), START, world.ts).weigh(world.ts)[1]
        assert len(await parts(SliceSize(nbytes, tasks=4))) == 1


def test_parts_are_for_all_tasks_but_not_smaller_than_a_task_is_worth() -> None:
    mib = 1024 * 1024
    wide = SliceSize(6 * mib, tasks=8).part_limit(rows=800, nbytes=64 * mib)
    assert (wide.rows, wide.nbytes) == (100, 8 * mib)
    small = SliceSize(6 * mib, tasks=8).part_limit(rows=10_000, nbytes=2 * mib)
    assert small.nbytes == mib
    many = SliceSize(6 * mib, tasks=2).part_limit(rows=1000, nbytes=640 * mib)
    assert many.nbytes == slicing.PART_BYTES
    assert SliceSize(6 * mib, tasks=8).part_limit(rows=900, nbytes=6 * mib).allows(900, 6 * mib)


def snapshot(world: SourceWorld, ts: int) -> list[bytes]:
    batches = read_snapshot(world.view(), ts, columns=["_handle"])
    return sorted(each for batch in batches for each in batch.column(0).to_pylist())


@pytest.mark.parametrize("bounds", [(b"", b""), (encode_handle(20), encode_handle(70))])
@pytest.mark.parametrize("part_rows", [7, 10**6])
@pytest.mark.parametrize("at", [17, 30, 39])
async def test_a_snapshot_comes_in_slices_and_then_the_changes(
    seen: SourceWorld, bounds: tuple[bytes, bytes], part_rows: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "PART_ROWS", part_rows)
    ts = list(seen.moments())[at]
    low, high = bounds
    begin = Position(ts, b"")
    async with seen.source() as source:
        spec = TableSpan.of("feed", 1, low, high)
        pieces = await slices(source, spec, begin, seen.ts, [ReadLimit(rows=15)] * 200, begin)
    rows_before: list[bytes] = []
    for piece in [each for each in pieces if each.start.handle is not None]:
        assert all(part.snapshot is not None for part in piece.parts) or piece.start.ts != piece.end.ts
        for part in piece.parts:
            with part.collect() as handle:
                found = [row[1] for row in rows_of(handle)]
            if part.snapshot is not None:
                assert all(part.handle_from <= each for each in found)
                assert all(not part.handle_to or each < part.handle_to for each in found)
                assert all(each > max(rows_before, default=b"") for each in found)
                rows_before += found
    assert sorted(rows_before) == [
        each for each in snapshot(seen, ts) if low <= each and (not high or each < high)
    ]
    tail = [row for piece in pieces if piece.start.handle is None for row in read(piece)]
    assert sorted(tail) == [
        row for row in whole(seen, ts, seen.ts) if low <= row[1] and (not high or row[1] < high)
    ] if ts < seen.ts else tail == []  # fmt: skip


async def test_a_start_is_in_the_snapshot_that_the_dispatcher_began_with(seen: SourceWorld) -> None:
    ts = list(seen.moments())[20]
    handle = encode_handle(50)
    spec = TableSpan.of("feed", 1)
    async with seen.source() as source:
        in_snapshot = await source.next_slice(
            spec, Position(ts, handle), ts, ReadLimit(), begin=Position(ts, b"")
        )
        in_commit = await source.next_slice(
            spec, Position(ts, handle), ts, ReadLimit(), begin=Position(START)
        )
    assert in_snapshot is not None
    assert in_commit is not None
    assert [part.snapshot is None for part in (*in_snapshot.parts, *in_commit.parts)] == [False, True]
    assert sorted(row[1] for row in read(in_snapshot)) == [
        each for each in snapshot(seen, ts) if each >= handle
    ]


async def test_an_empty_table_has_an_empty_snapshot(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        world.flush()
        ts = world.ts
        world.commit(item("integer", 1, "a"))
        world.resolve()
        async with world.source() as source:
            spec, begin = TableSpan.of("feed", 1), Position(ts, b"")
            assert await source.next_slice(spec, begin, ts, ReadLimit(), begin=begin) is None
            piece = await source.next_slice(spec, begin, world.ts, ReadLimit(), begin=begin)
            assert piece is not None
            assert (piece.start, piece.end, len(read(piece))) == (begin, Position(world.ts), 1)


async def test_rows_that_are_not_flushed_weigh_in_a_snapshot_too(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        world.commit(*(item("integer", number, "x" * 50) for number in range(100)))
        ts, begin = world.resolve(), Position(world.ts, b"")
        async with world.source() as source:
            piece = await source.next_slice(TableSpan.of("feed", 1), begin, ts, ReadLimit(), begin=begin)
        assert piece is not None
        assert piece.rows >= 100
        assert piece.nbytes >= 1000


async def test_a_slice_weighs_what_its_commits_do_however_short_its_time(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        world.commit(item("integer", 1, "early"))
        world.tick(compose_ts(60_000))
        start, large_ts = world.ts, world.commit(*(item("integer", n, "x") for n in range(2, 100)))
        world.tick(compose_ts(60_000))
        world.commit(item("integer", 200, "late"))
        ts = world.flush()
        async with world.source() as source:
            piece = await source.next_slice(TableSpan.of("feed", 1), Position(start), ts, ReadLimit(rows=98))
        assert piece is not None
        assert large_ts <= piece.end.ts < ts
        assert piece.rows == 98
        assert piece.nbytes >= world.manifest().change_objects("data", 0, ts)[0].size_bytes // 2


async def test_slices_have_the_schema_that_readers_see(world: SourceWorld) -> None:
    before = world.ts
    altered = world.alter(add_column(world.versions.table, "more", "int default 5"))
    world.commit(item("integer", 500, "new", more=7, _tidb_rowid=500))
    world.resolve()
    spec = TableSpan.of("feed", 1)
    async with world.source() as source:
        old = await source.next_slice(spec, Position(START), altered - 1, ReadLimit())
        new = await source.next_slice(spec, Position(altered - 1), world.ts, ReadLimit())
    assert old is not None
    assert new is not None
    assert (old.schema.since_ts, new.schema.since_ts) == (2, altered)
    assert before < altered
    (row,) = read(new)
    assert "'more', 7" in row[3]
    assert "more" not in read(old)[0][3]


async def test_a_capture_that_moved_is_found_again(world: SourceWorld) -> None:
    spec = TableSpan.of("feed", 1)
    async with world.source() as source:
        assert await source.read_progress([1])
        world.flight.close()
        world.flight = FlightService("127.0.0.1:0", world.store, world.reader)
        world.addrs = []
        with pytest.raises(Unavailable):
            await source.next_slice(spec, Position(START), world.ts, ReadLimit())
        world.addrs = [world.flight.addr]

        for _ in range(200):
            try:
                piece = await source.next_slice(spec, Position(START), world.ts, ReadLimit())
                break
            except Unavailable:
                await SYSTEM.sleep(0.05)
        assert piece is not None
        assert sorted(read(piece)) == whole(world, START, world.ts)


async def test_a_table_that_nobody_captures_is_told(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        world.addrs = []
        async with world.source() as source:
            made = source._history  # a table that is known by its DDL alone
            ts = made.resolved_ts() + 5
            made.consume_kv_events(raw([put_table(ts, a_table(77, name="ghost"))]), lambda: None)
            made.advance_resolved_ts(ts + compose_ts(1))
            spec = TableSpan.of("feed", 77)
            with pytest.raises(Unavailable, match=r"shop\.ghost is not captured.*capture\.tables"):
                await source.next_slice(spec, Position(ts), ts + 1, ReadLimit())
            assert await source.read_progress([77]) == {}


async def test_history_that_is_gone_is_told(tmp_path: Path) -> None:
    settings = {"upkeep": {"history_ttl_s": 0, "merge_interval_s": 10**9, "collect_interval_s": 10**9}}
    with SourceWorld(tmp_path, item_table(), **settings) as world:
        for number in range(40):
            world.commit(item("integer", number % 3, f"{number}"))
            world.flush()
        assert world.store.merge(1)
        world.store.collect(1)
        async with world.source() as source:
            spec = TableSpan.of("feed", 1)
            with pytest.raises(StaleRead):
                await source.next_slice(spec, Position(START), world.ts, ReadLimit())


async def test_a_refused_token_is_told(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        service = FlightService(
            "127.0.0.1:0", world.store, world.reader, FlightAccess(token=SecretStr("s" * 32))
        )
        try:
            world.addrs = [service.addr]
            async with world.source() as source:
                with pytest.raises(Invalid, match="token"):
                    await source.read_progress([1])
        finally:
            service.close()
