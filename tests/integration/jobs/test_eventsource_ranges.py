"""A source of jobs over an event store: looking, ranges, partitions, what is gone, holds."""

import asyncio
import random  # noqa: TID251 - seeded by the test
from dataclasses import replace
from pathlib import Path
from time import process_time  # noqa: TID251 - what is measured is work, not time

import pytest

from penstock.changes.columns import choose_columns, key_names
from penstock.changes.limits import ReadLimit
from penstock.changes.net_change import coalesce_by_key
from penstock.clock import physical_ms
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.manifest import BEGUN
from penstock.eventstore.read.partition import CaptureProgress, Refusal
from penstock.follow.cluster_tables import UNKNOWN_MS, FollowedTables
from penstock.follow.follower import JOBS_HOLDER, EventStoreAccess, ScanFollower
from penstock.follow.source import ReadableRange, TableGone, TableScan
from penstock.jobs.iteration.ordering import BatchProjection
from penstock.kv.lease import LeaseRecord
from penstock.object_storage import StorageRef
from penstock.tables.alter import add_column
from penstock.tables.schema import TableInfo
from penstock.testing.clock import ManualClock
from penstock.testing.versions import Snapshot, key_of
from support.itemtables import TABLES, item, item_table
from support.jobsources import HandFed, JobSourceWorld
from support.metaevents import a_table, put_database, put_table, remove_table
from support.tableworld import START

EVERYTHING = ReadLimit()


async def scan(
    source: ScanFollower, *given: int, limit: ReadLimit = EVERYTHING, table_id: int = 1
) -> TableScan:
    return await asyncio.to_thread(source.scan, table_id, *given, limit)


def applied(
    source: ScanFollower,
    found: TableScan,
    rows: Snapshot,
    scratch: Path,
    columns: list[str] | None = None,
) -> Snapshot:
    """What a target has after a range."""
    table = found.schema.table
    wanted = choose_columns(table, columns)
    projection = BatchProjection(found.schema, wanted.names)
    with source.open(found, columns) as handle:
        pieces = [projection.project(batch) for batch in handle]
    pairs = [(piece.inserts, piece.deletes) for piece in pieces]
    net = coalesce_by_key(pairs, wanted, key_names(table), scratch)
    assert not found.snapshot or not net.deletes.num_rows
    left = {} if found.snapshot else dict(rows)
    for row in net.deletes.to_pylist():
        left.pop(key_of(table, row), None)
    for row in net.upserts.to_pylist():
        left[key_of(table, row)] = {name: cell for name, cell in row.items() if name[0] != "_"}
    return left


# Looking.


class ListedCapture:
    """A capture of many tables that says how far they are, and nothing else."""

    def __init__(self, tables: list[CaptureProgress]) -> None:
        self.calls = 0
        self._tables = tables

    def tables(self) -> list[CaptureProgress]:
        self.calls += 1
        return self._tables

    def refusals(self) -> list[Refusal]:
        return []

    def close(self) -> None:
        pass


async def test_a_thousand_tables_are_looked_at_in_one_call_of_each_capture(tmp_path: Path) -> None:
    ids = range(1, 1001)
    captures = {
        f"capture-{at}": ListedCapture([CaptureProgress(each, 500, 500, 0, each, 7) for each in ids[at::2]])
        for at in range(2)
    }
    fed = HandFed(
        [put_database(1, 1, "shop"), *(put_table(2, a_table(each, name=f"t{each}")) for each in ids)]
    )
    fed.ts = 400
    tables = FollowedTables(fed.subscribe)
    await tables.start()

    async def now() -> int:
        return 500

    access = EventStoreAccess(
        StorageRef(f"file://{tmp_path}"),
        now,
        lambda: [CaptureLease(addr, addr, LeaseRecord("data", 1, 0)) for addr in captures],
        captures.__getitem__,  # type: ignore[arg-type] # only what is asked is there
    )
    source = ScanFollower(access, tables)
    async with source:
        looks = await source.read_progress(ids)
        assert looks == {each: ReadableRange(400, min(400, max(2, each)), 7) for each in ids}
        began = process_time()
        await source.read_progress(ids)
        assert process_time() - began < 0.2
        assert [each.calls for each in captures.values()] == [2, 2]


async def test_a_table_is_as_far_as_the_last_of_its_partitions(tmp_path: Path) -> None:
    table = item_table(table_id=9, partitions=(11, 12))
    with JobSourceWorld(tmp_path, table, partitions=(11, 12)) as world:
        early = world.commit(item("integer", 1, "a"), into=1)
        world.store.record_fact(12, {"kind": BEGUN, "ts": START})
        readable = world.resolve()
        newest = world.commit(item("integer", 2, "b"), into=0)
        world.store.open_table(11).advance_resolved_ts(newest)
        async with world.job_source() as source:
            assert await source.read_progress([9, 77]) == {9: ReadableRange(readable, readable, START)}
            world.resolve_all()
            assert await source.read_progress([9]) == {9: ReadableRange(newest, newest, START)}
            assert early < newest


async def test_nothing_can_be_read_beyond_what_is_known_of_schemas(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        known = world.resolve()
        async with world.job_source() as source:
            later = world.commit(item("integer", 1, "a"))
            world.resolve()
            assert (await source.read_progress([1]))[1].readable_ts == known
            with pytest.raises(Unavailable, match="schemas are known up to"):
                await scan(source, 0, later)
            world.resolve_all()
            assert (await source.read_progress([1]))[1] == ReadableRange(later, later)


async def test_another_schema_is_a_change_that_targets_follow(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.commit(item("integer", 1, "a"))
        altered = world.alter(add_column(item_table(), "size", "int"))
        world.tick(4)
        world.resolve()
        async with world.job_source() as source:
            assert (await source.read_progress([1]))[1] == ReadableRange(world.ts, altered)


async def test_a_failed_subscription_of_schemas_is_begun_anew(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.resolve()
        async with world.job_source() as source:
            before = await source.read_progress([1])
            world.fed.failure = Invalid("the cluster is another one")
            assert await source.read_progress([1]) == before
            assert world.fed.begun == 2
        assert world.fed.closed


# Ranges.


@pytest.mark.parametrize("kind", TABLES)
async def test_ranges_one_after_the_other_lead_to_what_the_table_is(tmp_path: Path, kind: str) -> None:
    mix = random.Random(kind)
    with JobSourceWorld(tmp_path, item_table(kind)) as world:
        async with world.job_source() as source:
            rows: Snapshot = {}
            at_ts = 0
            for turn in range(12):
                for _ in range(mix.randrange(1, 8)):
                    made = {}
                    for _ in range(mix.randrange(1, 5)):
                        row = item(kind, mix.randrange(20), f"{turn}")
                        made[world.key(row)] = row
                    live = [key for key in world.versions.live() if key not in made]
                    world.commit(*made.values(), delete=mix.sample(live, min(len(live), 2)))
                ts = world.resolve_all()
                if mix.random() < 0.5:
                    world.flush()
                limit = ReadLimit(rows=mix.choice([1, 5, 1000]))
                while at_ts < ts:
                    found = await scan(source, at_ts, ts, limit=limit)
                    assert found.to_ts > at_ts
                    assert not found.snapshot or found.to_ts == ts
                    rows = await asyncio.to_thread(applied, source, found, rows, tmp_path)
                    at_ts = found.to_ts
                    assert rows == world.versions.at(at_ts)


async def test_a_range_ends_where_the_limit_is_met_and_has_one_whole_commit_at_least(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        commits = [
            world.commit(*(item("integer", 10 * turn + each, "x") for each in range(10))) for turn in range(5)
        ]
        world.resolve()
        async with world.job_source() as source:
            for flushed in (False, True):
                if flushed:
                    world.flush()
                start = START + 1
                one = await scan(source, start, world.ts, limit=ReadLimit(rows=1))
                assert (one.rows, one.to_ts) == (10, commits[0])
                two = await scan(source, start, world.ts, limit=ReadLimit(rows=25))
                assert commits[1] <= two.to_ts < commits[2]
                assert two.rows == 20
                small = await scan(source, start, world.ts, limit=ReadLimit(nbytes=1))
                assert small.to_ts == commits[0]
                whole = await scan(source, start, world.ts)
                assert (whole.rows, whole.to_ts) == (50, world.ts)
                assert whole.nbytes > 0
                snapshot = await scan(source, 0, world.ts, limit=ReadLimit(rows=1))
                assert (snapshot.rows, snapshot.to_ts) == (50, world.ts)
                assert snapshot.snapshot


async def test_a_range_without_changes_is_as_long_as_is_wanted(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        start = world.commit(item("integer", 1, "a"))
        world.tick(100)
        world.resolve()
        async with world.job_source() as source:
            found = await scan(source, start, world.ts, limit=ReadLimit(rows=1))
            assert (found.rows, found.nbytes, found.to_ts) == (0, 0, world.ts)


async def test_whoever_applied_a_part_is_told_what_undoes_it(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        start = world.commit(item("integer", 1, "a"))
        middle = world.commit(item("integer", 2, "b"))
        world.commit(delete=[(2,)])
        world.resolve()
        async with world.job_source() as source:
            partly = applied(source, await scan(source, start, middle), {}, tmp_path)
            assert partly.keys() == {(2,)}
            again = applied(source, await scan(source, start, world.ts), partly, tmp_path)
            assert not again


async def test_columns_are_found_under_the_names_that_they_had(tmp_path: Path) -> None:
    table = item_table()
    with JobSourceWorld(tmp_path, table) as world:
        start = world.commit(item("integer", 1, "a"))
        world.commit(item("integer", 1, "old"))
        columns = [replace(each, name="title") if each.name == "name" else each for each in table.columns]
        world.alter(add_column(table.with_columns(columns), "size", "int default 7"))
        world.commit({"id": 2, "title": "new", "size": 1})
        world.resolve()
        async with world.job_source() as source:
            found = await scan(source, start, world.ts)
            rows = applied(source, found, {}, tmp_path, columns=["title", "size"])
            assert rows == {
                (1,): {"id": 1, "title": "old", "size": 7},
                (2,): {"id": 2, "title": "new", "size": 1},
            }
            only = applied(source, found, {}, tmp_path, columns=[])
            assert only == {(1,): {"id": 1}, (2,): {"id": 2}}


async def test_history_that_is_gone_needs_a_snapshot(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        start = world.commit(item("integer", 1, "a"))
        world.commit(item("integer", 1, "b"))
        world.flush()
        world.store.record_fact(1, {"kind": BEGUN, "ts": world.ts})
        async with world.job_source() as source:
            assert (await source.read_progress([1]))[1].oldest_ts == world.ts
            with pytest.raises(StaleRead):
                await scan(source, start, world.ts)
            assert (await scan(source, 0, world.ts)).rows


async def test_a_table_that_nobody_captures_is_named(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.meta.append(put_table(3, a_table(77, name="u")))
        world.resolve()
        async with world.job_source() as source:
            assert not await source.read_progress([77])
            with pytest.raises(Unavailable, match=r"table shop.u is not captured.*capture.tables"):
                await scan(source, 0, world.ts, table_id=77)


async def test_rows_are_read_from_objects_when_their_capture_is_away(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.commit(item("integer", 1, "a"))
        flushed = world.flush()
        world.addrs.clear()
        async with world.job_source() as source:
            assert (await source.read_progress([1]))[1].readable_ts == flushed
            found = await scan(source, 0, flushed)
            assert applied(source, found, {}, tmp_path) == world.versions.at(flushed)


# Partitions.


def parted(*ids: int) -> TableInfo:
    return item_table(table_id=9, partitions=ids)


async def test_a_range_ends_before_a_partition_is_added_and_the_next_one_has_it(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, parted(11), partitions=(11,)) as world:
        start = world.commit(item("integer", 1, "a"), into=0)
        before = world.commit(item("integer", 2, "b"), into=0)
        added = world.add_partition(world.table)
        world.share()
        world.store.record_fact(
            world.ids[1], {"kind": BEGUN, "ts": added - 1}
        )  # nobody knows what was before
        world.commit(item("integer", 3, "c"), into=1)
        world.resolve()
        async with world.job_source() as source:
            first = await scan(source, start, world.ts, table_id=9)
            assert before <= first.to_ts == added - 1
            rows = applied(source, first, world.versions.at(start), tmp_path)
            second = await scan(source, first.to_ts, world.ts, table_id=9)
            assert second.to_ts == world.ts
            assert applied(source, second, rows, tmp_path) == world.versions.at(world.ts)


async def test_a_partition_that_goes_takes_its_rows_and_a_snapshot_is_read(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, parted(11, 12), partitions=(11, 12)) as world:
        start = world.commit(item("integer", 1, "a"), into=0)
        world.commit(item("integer", 2, "b"), into=1)
        dropped = world.alter(parted(11))
        world.tick()
        world.resolve()
        async with world.job_source() as source:
            assert (await source.read_progress([9]))[9].changed_ts == dropped
            for from_ts in (start, dropped - 1):
                with pytest.raises(StaleRead):
                    await scan(source, from_ts, world.ts, table_id=9)
            found = await scan(source, 0, world.ts, table_id=9)
            assert applied(source, found, {}, tmp_path).keys() == {(1,)}
            earlier = await scan(source, 0, dropped - 1, table_id=9)
            assert applied(source, earlier, {}, tmp_path).keys() == {(1,), (2,)}
            assert (await scan(source, dropped, world.ts, table_id=9)).to_ts == world.ts


# What is gone.


async def test_what_became_of_a_table_is_known_at_once(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.resolve()
        async with world.job_source() as source:
            assert source.why_gone(1) is None
            world.meta.append(remove_table(world.tick(), 1))
            world.resolve_all()
            assert "dropped" in source.why_gone(1)
            with pytest.raises(TableGone, match="dropped"):
                await scan(source, START, world.ts)


async def test_a_table_that_was_never_heard_of_is_gone_when_news_of_it_would_have_come(
    tmp_path: Path,
) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.resolve()
        clock = ManualClock(wall_ms=physical_ms(world.ts))
        async with world.job_source(clock=clock) as source:
            assert source.why_gone(5) is None
            world.ts += (UNKNOWN_MS - 1) << 18
            world.resolve_all()
            assert source.why_gone(5) is None
            world.ts += 1 << 18
            world.resolve_all()
            assert "table 5 does not exist any more" in source.why_gone(5)


# Holds.


async def test_history_is_held_table_by_table_and_let_go(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, parted(11, 12), partitions=(11, 12)) as world:
        world.meta.append(put_table(3, a_table(77, name="u")))
        world.resolve()
        held = HistoryHolds(world.storage.open(), world.clock)

        def holds(physical_id: int) -> list[int]:
            return [each.ts for each in held.list_holds(physical_id) if JOBS_HOLDER in each.path]

        async with world.job_source() as source:
            await source.hold({9: START + 5, 77: START + 8, 404: 3})
            assert [holds(each) for each in (11, 12, 77)] == [[START + 5], [START + 5], [START + 8]]
            await source.hold({9: START + 6, 77: START + 9})
            assert holds(11) == [START + 5], "it serves still"
            await source.hold({9: START + 4})
            assert [holds(each) for each in (11, 12, 77)] == [[START + 4], [START + 4], []]
        assert holds(11) == [START + 4], "it outlives the source"


async def test_nothing_is_let_go_before_it_is_known_where_rows_are(tmp_path: Path) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.ts = 0
        async with world.job_source() as source:
            with pytest.raises(Unavailable, match="not known yet"):
                await source.hold({1: START})


async def test_a_wall_clock_that_is_behind_does_not_bury_a_table_whose_news_are_on_their_way(
    tmp_path: Path,
) -> None:
    with JobSourceWorld(tmp_path, item_table()) as world:
        world.resolve()
        clock = ManualClock(wall_ms=physical_ms(world.ts) - 3_600_000)
        async with world.job_source(clock=clock) as source:
            assert source.why_gone(5) is None
            world.ts += UNKNOWN_MS << 18
            world.resolve_all()
            assert "table 5 does not exist any more" in source.why_gone(5)
