"""Changefeeds and jobs follow the same event store, and differ in five ways. Each test pins one of them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import CaptureProgress, RangeReader, ReadRange, SchemaRange
from penstock.follow.follower import JOBS_HOLDER, ScanFollower, SliceFollower
from penstock.follow.progress import MISSED_S
from penstock.follow.slices import Position, Slice, TableSpan
from penstock.follow.source import ReadableRange, TableGone, TableScan
from penstock.kv import AsyncClient, Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.pd import PdClient
from penstock.object_storage import StorageRef
from penstock.settings import Settings, StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables import Catalog
from penstock.testing.clock import ManualClock
from support.itemtables import item, item_table
from support.jobsources import JobSourceWorld
from support.metaevents import a_table, put_table, remove_table
from support.sourceworld import SourceWorld
from support.tableworld import START

WAIT_S = 20.0  # a capture's reader gives up after 30
FEED = "changefeed-feed"  # in whose name a changefeed holds history
CROWD = 40  # more than any pool of either source has threads


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = SYSTEM.monotonic() + WAIT_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, what
        await SYSTEM.sleep(0.01)


async def next_slice(source: SliceFollower, upto_ts: int, table_id: int = 1) -> Slice | None:
    return await source.next_slice(TableSpan.of("feed", table_id), Position(START), upto_ts, ReadLimit())


def scan(source: ScanFollower, upto_ts: int, table_id: int = 1) -> TableScan:
    return source.scan(table_id, START, upto_ts, ReadLimit())


def held(storage: StorageRef, table_id: int, holder: str) -> list[int]:
    """The timestamps after which a holder needs the history of a physical table."""
    return [each.ts for each in HistoryHolds(storage.open()).list_holds(table_id) if holder in each.path]


def slice_ids(piece: Slice | None) -> list[int]:
    found: list[int] = []
    for part in piece.parts if piece is not None else ():
        with part.collect() as handle:
            found += [number for batch in handle for number in batch.data.column("id").to_pylist()]
    return sorted(found)


def scan_ids(source: ScanFollower, found: TableScan) -> list[int]:
    with source.open(found, None) as handle:
        return sorted(number for batch in handle for number in batch.data.column("id").to_pylist())


# 1. Jobs ask for logical tables, changefeeds for physical ones.


@contextmanager
def parted_world(folder: Path) -> Iterator[tuple[JobSourceWorld, int, int]]:
    """Table 9 has partition 11, which is ahead, and 12, which is behind; returns how far each is."""
    table = item_table(table_id=9, partitions=(11, 12))
    with JobSourceWorld(folder, table, partitions=(11, 12)) as world:
        world.commit(item("integer", 1, "a"), into=0)
        world.commit(item("integer", 2, "b"), into=1)
        behind = world.resolve()
        ahead = world.commit(item("integer", 3, "c"), into=0)
        world.store.open_table(11).advance_resolved_ts(ahead)
        yield world, ahead, behind


async def test_a_changefeed_looks_at_partitions_and_reads_each_by_itself(tmp_path: Path) -> None:
    with parted_world(tmp_path) as (world, ahead, behind):
        async with world.source() as source:
            looks = await source.read_progress([9, 11, 12])
            assert looks.keys() == {11, 12}, "nobody captures the logical table"
            assert (looks[11].readable_ts, looks[12].readable_ts) == (ahead, behind)
            assert slice_ids(await next_slice(source, ahead, table_id=11)) == [1, 3]
            assert slice_ids(await next_slice(source, behind, table_id=12)) == [2]


async def test_a_job_looks_at_the_whole_table_and_reads_its_partitions_together(tmp_path: Path) -> None:
    with parted_world(tmp_path) as (world, _, behind):
        async with world.job_source() as source:
            looks = await source.read_progress([9, 11, 12])
            assert looks.keys() == {9}, "a partition is no table"
            assert looks[9].readable_ts == behind
            found = await asyncio.to_thread(scan, source, behind, 9)
            assert await asyncio.to_thread(scan_ids, source, found) == [1, 2]
            with pytest.raises(Unavailable, match="table 11 is not known"):
                await asyncio.to_thread(scan, source, behind, 11)


async def test_a_changefeed_holds_the_partitions_that_it_names_and_a_job_all_of_its_table(
    tmp_path: Path,
) -> None:
    with parted_world(tmp_path) as (world, _, behind):

        def holders(table_id: int) -> list[str]:
            return [each for each in (FEED, JOBS_HOLDER) if held(world.storage, table_id, each)]

        async with world.source() as feed_source:
            await feed_source.hold([11], behind)
        assert [holders(each) for each in (9, 11, 12)] == [[], [FEED], []]
        async with world.job_source() as job_source:
            await job_source.hold({9: behind})
        assert [holders(each) for each in (9, 11, 12)] == [[], [FEED, JOBS_HOLDER], [JOBS_HOLDER]]


# 2. Jobs never hold the cluster's garbage collection, changefeeds do.


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Settings, AsyncClient, PdClient]]:
    """A cluster without a capture, which would hold the collection too."""
    store = StoreSettings(data=folder / "kv", pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=50)
    running = await Cluster.start(store)
    settings = Settings(pd_addrs=(running.pd_addr,), capture={"storage": f"file://{folder}/events"})
    pd = await PdClient.connect(settings.pd_addrs, settings=settings.kv)
    try:
        async with await AsyncClient.connect(settings.pd_addrs, settings=settings.kv) as client:
            yield settings, client, pd
    finally:
        await pd.close()
        await asyncio.to_thread(ClusterRef.of(settings).close)  # changefeeds have one client for the process
        await running.stop()


def create_items(client: Client) -> int:
    """Make a table; return its id."""
    catalog = Catalog(client)
    catalog.create_database("shop")
    return catalog.create_table("shop.items", [("id", "bigint primary key")]).id


async def collectable_ts(pd: PdClient, wanted_ts: int) -> int:
    """How far the cluster's collector may go when it wants to go up to `wanted_ts`."""
    return await pd.update_service_gc_safe_point("gc_worker", 2**63 - 1, wanted_ts)


async def test_a_job_holds_history_on_storage_and_never_the_clusters_collection(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (settings, client, pd):
        table_id = await asyncio.to_thread(create_items, Client(client))
        now = await pd.timestamp()
        async with await ScanFollower.connect(settings, client) as source:
            assert await source.settle(WAIT_S), "the cluster's tables are not known"
            await source.hold({table_id: now - 200})
            assert held(StorageRef(settings.capture.storage), table_id, JOBS_HOLDER) == [now - 200]
            assert await collectable_ts(pd, now) == now
        assert await collectable_ts(pd, now + 1) == now + 1, "nor after the source has ended"


async def test_a_changefeed_holds_history_on_storage_and_the_clusters_collection(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (settings, client, pd):
        table_id = await asyncio.to_thread(create_items, Client(client))
        now = await pd.timestamp()
        source = await SliceFollower.connect(settings, "feed")
        try:
            await source.hold([table_id], now - 200)
            assert held(StorageRef(settings.capture.storage), table_id, FEED) == [now - 200]
            assert await collectable_ts(pd, now) == now - 200
        finally:
            await source.close()
        assert await collectable_ts(pd, now + 1) == now - 200, "a pause keeps it"


# 3. A changefeed counts a dropped table as read to its end, a job gets a sentence.


@contextmanager
def world_with_a_dropped_table(folder: Path) -> Iterator[JobSourceWorld]:
    """Table 77 was dropped before anybody captured it; table 78 is there, and nobody captures it either."""
    with JobSourceWorld(folder, item_table()) as world:
        world.meta += [
            put_table(3, a_table(77, name="u")),
            put_table(3, a_table(78, name="v")),
            remove_table(4, 77),
        ]
        world.resolve()
        yield world


async def test_a_changefeed_counts_a_dropped_table_as_read_to_its_end(tmp_path: Path) -> None:
    clock = ManualClock()
    with world_with_a_dropped_table(tmp_path) as world:
        async with world.source(clock=clock) as source:
            assert (await source.read_progress([1, 77, 78])).keys() == {1}, "somebody may have it still"
            clock.advance(MISSED_S)
            looks = await source.read_progress([1, 77, 78])
            assert looks.keys() == {1, 77, 78}
            assert looks[77] == ReadableRange(source.ddl_resolved_ts(), 0)
            assert looks[78] == ReadableRange(0, 0, uncaptured=True)


async def test_a_job_gets_a_sentence_about_a_dropped_table_and_no_end_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with world_with_a_dropped_table(tmp_path) as world:
        async with world.job_source(clock=clock) as source:
            for _ in range(2):
                assert (await source.read_progress([1, 77, 78])).keys() == {1}
                sentence = source.why_gone(77)
                assert sentence is not None
                assert "table shop.u was dropped; unregister its jobs" in sentence
                assert source.why_gone(78) is None
                with pytest.raises(TableGone, match=r"shop\.u was dropped"):
                    await asyncio.to_thread(scan, source, world.ts, 77)
                clock.advance(MISSED_S)


# 4. Planning has its own threads, so that a silent capture does not keep looks waiting.


class SilentRows:
    """A capture's rows: what is in `silent`, at first `parts` and `read`, waits until `answers` is set."""

    def __init__(self, rows: RangeReader) -> None:
        self.silent = frozenset({"parts", "read"})
        self.answers = threading.Event()
        self.waiting = 0
        self._rows = rows

    def progress(self, table_id: int) -> CaptureProgress:
        return self._rows.progress(table_id)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        self._wait("parts")
        return self._rows.parts(wanted)

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        self._wait("read")
        return self._rows.read(wanted)

    def _wait(self, question: str) -> None:
        if question not in self.silent:
            return
        self.waiting += 1
        if not self.answers.wait(2 * WAIT_S):
            raise Unavailable("nobody lets the capture answer")


@contextmanager
def silent_capture(folder: Path) -> Iterator[tuple[JobSourceWorld, SilentRows]]:
    """Table 1 has a row that only a silent capture has; it answers when the block ends at the latest."""
    with JobSourceWorld(folder, item_table()) as world:
        world.commit(item("integer", 1, "a"))
        world.resolve()
        silent = SilentRows(world.reader)
        with closing(FlightService("127.0.0.1:0", world.store, silent)) as service:
            world.addrs = [service.addr]
            try:
                yield world, silent
            finally:
                silent.answers.set()


async def test_looks_of_a_changefeed_do_not_wait_for_slices_of_a_silent_capture(tmp_path: Path) -> None:
    with silent_capture(tmp_path) as (world, silent):
        async with world.source() as source:
            await source.read_progress([1])
            slices = [asyncio.create_task(next_slice(source, world.ts)) for _ in range(CROWD)]
            try:
                await until(lambda: silent.waiting > 0, "nobody reads")
                looks = await asyncio.wait_for(source.read_progress([1]), WAIT_S)
                assert looks[1].readable_ts == world.ts
                assert not any(each.done() for each in slices)
            finally:
                silent.answers.set()
                pieces = await asyncio.gather(*slices)
            assert [slice_ids(each) for each in pieces] == [[1]] * CROWD


async def test_looks_of_jobs_do_not_wait_for_scans_of_a_silent_capture(tmp_path: Path) -> None:
    with silent_capture(tmp_path) as (world, silent), ThreadPoolExecutor(CROWD) as runners:
        async with world.job_source(clock=SYSTEM) as source:
            await source.read_progress([1])
            loop = asyncio.get_running_loop()
            scans = [loop.run_in_executor(runners, scan, source, world.ts) for _ in range(CROWD)]
            try:
                await until(lambda: silent.waiting > 0, "nobody reads")
                looks = await asyncio.wait_for(source.read_progress([1]), WAIT_S)
                assert looks[1].readable_ts == world.ts
                assert not any(each.done() for each in scans)
            finally:
                silent.answers.set()
                found = await asyncio.gather(*scans)
            assert [each.to_ts for each in found] == [world.ts] * CROWD


@contextmanager
def healthy_capture(folder: Path) -> Iterator[JobSourceWorld]:
    """Table 2 has a row that only its capture has, which answers."""
    with JobSourceWorld(folder, item_table(table_id=2)) as world:
        world.commit(item("integer", 2, "b"))
        world.resolve()
        yield world


async def test_slices_of_a_table_do_not_wait_for_a_silent_capture_of_another(tmp_path: Path) -> None:
    with silent_capture(tmp_path / "a") as (world, silent), healthy_capture(tmp_path / "b") as healthy:
        async with world.source() as source, healthy.source() as other:
            await source.read_progress([1])
            await other.read_progress([2])
            silent.silent = frozenset({"read"})  # so changes cannot be counted
            waits = asyncio.create_task(next_slice(source, world.ts))
            try:
                await until(lambda: silent.waiting > 0, "nobody asks")
                piece = await asyncio.wait_for(next_slice(other, healthy.ts, table_id=2), WAIT_S)
                assert slice_ids(piece) == [2]
                assert not waits.done()
            finally:
                silent.answers.set()
            assert slice_ids(await waits) == [1]


async def test_scans_of_a_table_do_not_wait_for_a_silent_capture_of_another(tmp_path: Path) -> None:
    with silent_capture(tmp_path / "a") as (world, silent), healthy_capture(tmp_path / "b") as healthy:
        async with world.job_source(clock=SYSTEM) as source, healthy.job_source(clock=SYSTEM) as other:
            await source.read_progress([1])
            await other.read_progress([2])
            silent.silent = frozenset({"read"})  # so changes cannot be counted
            waits = asyncio.create_task(asyncio.to_thread(scan, source, world.ts))
            try:
                await until(lambda: silent.waiting > 0, "nobody asks")
                found = await asyncio.wait_for(asyncio.to_thread(scan, other, healthy.ts, 2), WAIT_S)
                assert found.to_ts == healthy.ts
                assert not waits.done()
            finally:
                silent.answers.set()
            assert (await waits).to_ts == world.ts


# 5. Owners are looked for again once per failure, by changefeeds as by jobs.


@contextmanager
def three_captures(folder: Path) -> Iterator[tuple[JobSourceWorld, list[FlightService]]]:
    """Table 1 is with three captures, of which the first that answers is its owner; some may be closed."""
    with JobSourceWorld(folder, item_table()) as world, ExitStack() as services:
        world.commit(item("integer", 1, "a"))
        world.resolve()
        made = [FlightService("127.0.0.1:0", world.store, world.reader) for _ in range(3)]
        for each in made:
            services.callback(each.close)
        world.addrs = [each.addr for each in made]
        yield world, made


def searches(world: SourceWorld) -> int:
    """How often all captures were asked for all of their tables."""
    return world.asked.count("progress") // len(world.addrs)


async def test_a_changefeed_looks_for_the_owner_again_at_once_and_once_for_each_failure(
    tmp_path: Path,
) -> None:
    with three_captures(tmp_path) as (world, services):
        async with world.source(clock=ManualClock()) as source:  # no time passes between the failures
            await source.read_progress([1])
            assert searches(world) == 1
            for failures, service in enumerate(services[:2], start=1):
                service.close()
                for _ in range(3):  # the first of them fails, and finds the next owner
                    assert slice_ids(await next_slice(source, world.ts)) == [1]
                assert searches(world) == 1 + failures


async def test_a_job_looks_for_the_owner_again_at_once_and_once_for_each_failure(tmp_path: Path) -> None:
    with three_captures(tmp_path) as (world, services):
        async with world.job_source(clock=ManualClock()) as source:  # no time passes between the failures
            await source.read_progress([1])
            assert searches(world) == 1
            for failures, service in enumerate(services[:2], start=1):
                service.close()
                for _ in range(3):  # the first of them fails, and finds the next owner
                    found = await asyncio.to_thread(scan, source, world.ts)
                    assert await asyncio.to_thread(scan_ids, source, found) == [1]
                assert searches(world) == 1 + failures


class LeavingOwner:
    """Captures of which the first gives its tables up while it is read from; see `connect`.

    Reads from it wait until `leaves` is set, and fail then; the first search after that waits for `searched`.
    """

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self.leaves = threading.Event()
        self.searched = threading.Event()
        self.reading = 0
        self.failed = 0
        self.searches = 0
        self._lock = threading.Lock()

    def connect(self, addr: str) -> FlightReader:
        """A reader of a capture: of the one that leaves, or another."""
        return _LeavingReader(self) if addr == self.addr else FlightReader(addr)

    def leave(self, wanted: ReadRange) -> Unavailable:
        """Wait until the capture leaves; return the failure of a read."""
        with self._lock:
            self.reading += 1
        self.leaves.wait(2 * WAIT_S)
        with self._lock:
            self.failed += 1
        return Unavailable(f"table {wanted.table_id} is not captured here")

    def search(self) -> None:
        """Count a search; once the capture has left, wait until `searched` is set."""
        with self._lock:
            self.searches += 1
        if self.leaves.is_set():
            self.searched.wait(2 * WAIT_S)


class _LeavingReader(FlightReader):
    def __init__(self, owner: LeavingOwner) -> None:
        super().__init__(owner.addr)
        self._owner = owner

    def tables(self, *, timeout_s: float = WAIT_S) -> list[CaptureProgress]:
        self._owner.search()
        return [] if self._owner.leaves.is_set() else super().tables(timeout_s=timeout_s)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        raise self._owner.leave(wanted)

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        raise self._owner.leave(wanted)


async def test_slices_of_a_changefeed_that_fail_together_share_their_search(tmp_path: Path) -> None:
    with three_captures(tmp_path) as (world, services):
        owner = LeavingOwner(services[0].addr)
        world.connect = owner.connect  # type: ignore[method-assign]
        async with world.source() as source:
            await source.read_progress([1])
            slices = [asyncio.create_task(next_slice(source, world.ts)) for _ in range(CROWD)]
            await fail_together(owner)
            assert [slice_ids(each) for each in await asyncio.gather(*slices)] == [[1]] * CROWD
        assert 1 <= owner.searches - 1 <= CROWD // 4


async def test_scans_of_jobs_that_fail_together_share_their_search(tmp_path: Path) -> None:
    with three_captures(tmp_path) as (world, services), ThreadPoolExecutor(CROWD) as runners:
        owner = LeavingOwner(services[0].addr)
        world.connect = owner.connect  # type: ignore[method-assign]
        async with world.job_source(clock=SYSTEM) as source:
            await source.read_progress([1])
            loop = asyncio.get_running_loop()
            scans = [loop.run_in_executor(runners, scan, source, world.ts) for _ in range(CROWD)]
            await fail_together(owner)
            assert [each.to_ts for each in await asyncio.gather(*scans)] == [world.ts] * CROWD
        assert 1 <= owner.searches - 1 <= CROWD // 4


async def fail_together(owner: LeavingOwner) -> None:
    """Let all reads fail; the search that the first of them begins ends after the last of them has failed."""
    try:
        await until(lambda: owner.reading > 0, "nobody reads")
        owner.leaves.set()
        await until(lambda: owner.failed >= CROWD, "not everybody failed")
    finally:
        owner.leaves.set()
        owner.searched.set()


async def test_a_changefeed_that_reads_objects_of_a_table_without_owner_does_not_ask_captures_for_each_slice(
    tmp_path: Path,
) -> None:
    with (
        SourceWorld(tmp_path / "a", item_table()) as world,
        SourceWorld(tmp_path / "b", item_table(table_id=2)) as other,
    ):
        world.commit(item("integer", 1, "a"))
        flushed = world.flush()
        world.addrs = other.addrs  # a capture of another table
        async with world.source() as source:
            assert (await source.read_progress([1]))[1].readable_ts == flushed
            for _ in range(20):
                assert slice_ids(await next_slice(source, flushed)) == [1]
            assert searches(world) == 1
