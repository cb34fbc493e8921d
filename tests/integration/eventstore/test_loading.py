"""A table's first snapshot, loaded by ranges from a store in another process; then captured from there."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid, StaleRead
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.read.partition import Partition
from penstock.eventstore.upkeep.load import (
    RangeTask,
    SnapshotLoad,
    is_load_in_progress,
    read_plan,
    write_plan,
)
from penstock.kv import Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import KvSettings, Settings
from penstock.spark.bulk import find_loads, load_table
from penstock.tables import Catalog
from penstock.tables.keys import encode_handle, record_key
from penstock.tables.meta import MetaWriter
from penstock.tables.records import to_record, value_of
from penstock.testing.store import Admin
from support.events import objects, read_object, replay_objects
from support.warmstore import WarmStore

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
ROWS = [{"id": n, "name": f"n{n}"} for n in range(600)]


class Crash(Exception):
    """A driver or a task that ends in the middle."""


class Bench:
    """A store, a table of several regions in it, and where the event store keeps it."""

    def __init__(self, folder: Path, store: WarmStore) -> None:
        self.settings = Settings(
            pd_addrs=(store.pd_addr,),
            capture={
                "id": "a",
                "data": folder / "capture",
                "storage": f"file://{folder}/events",
                "flush_interval_s": 0.2,
                "idle_flush_interval_s": 0.4,
                "flight_addr": "127.0.0.1:0",
            },
        )
        self.cluster = ClusterRef.of(self.settings)
        self.client = self.cluster.client()
        self.db = Catalog(self.client)
        self.ref = StorageRef(self.settings.capture.storage)
        self.storage = self.ref.open()
        self.db.create_database("shop")
        self.table_id = self.db.create_table("shop.orders", COLUMNS).id
        self.orders = self.db.table("shop.orders")
        self.orders.insert(ROWS)
        split(store, [record_key(self.table_id, n) for n in (100, 300, 301)])

    def rows_at(self, ts: int) -> dict[bytes, dict[str, Any]]:
        return {
            encode_handle(row["id"]): row for batch in self.orders.scan(at_ts=ts) for row in batch.to_pylist()
        }

    def load(self, **options: Any) -> Any:
        return load_table(self.settings, "shop.orders", run_all, **options)

    def flushed_ts(self) -> int:
        return manifest_log.load(self.storage, paths.table_root(self.table_id)).flushed_ts


def split(store: WarmStore, keys: Sequence[bytes]) -> None:
    async def cut() -> None:
        admin = Admin(store.pd_addr)
        await admin.split(keys)
        await admin.close()

    eventloop.run(cut())


def run_all(tasks: Sequence[RangeTask]) -> None:
    for task in tasks:
        task.run()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with WarmStore.start(tmp_path / "store", stores=2) as store:
        made = Bench(tmp_path, store)
        yield made
        made.cluster.close()


def until(holds: Callable[[], bool], clock: Clock = SYSTEM) -> None:
    deadline = clock.monotonic() + 30
    while not holds():
        assert clock.monotonic() < deadline, "it did not happen"
        clock.pause(0.02)


def test_a_loaded_table_is_the_snapshot_as_directly_written_objects(bench: Bench) -> None:
    report = bench.load()
    assert (report.rows, report.ranges, report.objects, report.resumed) == (600, 4, 4, False)
    found = objects(bench.storage, bench.table_id, "data")
    assert {(each.kind, each.create_ts, each.min_ts, each.max_ts) for each in found} == {
        ("direct", report.ts, report.ts, report.ts)
    }
    for each in found:
        rows = read_object(bench.storage, bench.table_id, each)
        assert rows["_handle"].to_pylist() == sorted(rows["_handle"].to_pylist())
        assert set(rows["_start_ts"].to_pylist()) == {report.ts}
        assert set(rows["_update"].to_pylist()) == {False}
    assert replay_objects(bench.storage, bench.table_id, report.ts) == bench.rows_at(report.ts)
    assert bench.flushed_ts() == report.ts
    assert bench.storage.names(paths.load_folder(paths.table_root(bench.table_id))) == []
    with pytest.raises(Invalid, match=r"shop\.orders is captured already, up to \d+, and needs no load"):
        bench.load()
    state = Partition(StorageRef(bench.settings.capture.storage), bench.table_id).state()
    state.check_range(0, report.ts)
    for from_ts, to_ts in ((0, report.ts - 1), (report.ts - 1, report.ts)):
        with pytest.raises(StaleRead) as gone:
            state.check_range(from_ts, to_ts)
        assert gone.value.oldest_ts == report.ts


def test_a_capture_goes_on_from_a_load_with_no_gap_and_no_overlap(bench: Bench) -> None:
    stop = threading.Event()

    def write() -> None:
        other = Catalog(bench.client).table("shop.orders")
        nth = 0
        while not stop.is_set():
            nth += 1
            other.insert([{"id": 10_000 + nth, "name": "new"}])
            other.update([{"id": nth % 600, "name": f"changed {nth}"}])
            other.delete([10_000 + nth - 5])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            report = bench.load()
            capture = eventloop.run(Capture.start(bench.settings))
            until(lambda: bench.flushed_ts() > report.ts)
        finally:
            stop.set()
            writing.result()
        until_ts = bench.client.timestamp()
        until(lambda: bench.flushed_ts() >= until_ts)
        eventloop.run(capture.stop())
    assert replay_objects(bench.storage, bench.table_id, until_ts) == bench.rows_at(until_ts)
    versions = {each.schema_version for each in objects(bench.storage, bench.table_id, "data")}
    assert len(versions) == 1, "a load writes under the version that the capture knows"


def test_a_capture_leaves_a_table_alone_while_it_is_loaded(bench: Bench) -> None:
    captures: list[Capture] = []

    def with_a_capture(tasks: Sequence[RangeTask]) -> None:
        capture = eventloop.run(Capture.start(bench.settings))
        captures.append(capture)
        other = bench.db.create_table("shop.other", COLUMNS).id
        until(lambda: other in capture.tables)
        assert bench.table_id not in capture.tables
        assert is_load_in_progress(bench.storage, bench.table_id)
        run_all(tasks)

    report = load_table(bench.settings, "shop.orders", with_a_capture)
    until(lambda: bench.table_id in captures[0].tables)
    until(lambda: bench.flushed_ts() > report.ts)
    eventloop.run(captures[0].stop())
    assert replay_objects(bench.storage, bench.table_id, bench.flushed_ts()) == bench.rows_at(report.ts)


def test_a_capture_that_was_there_first_is_fenced_and_begins_again_from_the_load(bench: Bench) -> None:
    slow = {"flush_interval_s": 3600, "idle_flush_interval_s": 3600}
    patient = bench.settings.model_copy(update={"capture": bench.settings.capture.model_copy(update=slow)})
    capture = eventloop.run(Capture.start(patient))
    try:
        until(lambda: bench.table_id in capture.tables)
        report = bench.load()
        bench.orders.update([{"id": 5, "name": "later"}])
        bench.orders.delete([6])
        capture.store.flush(bench.table_id)  # meets the load's entry
        now = bench.client.timestamp()
        until(lambda: owned_from(capture, bench.table_id) >= report.ts and readable(capture, bench) >= now)
        assert capture.store.flush(bench.table_id)
    finally:
        eventloop.run(capture.stop(flush=False))
    assert bench.flushed_ts() >= now
    assert replay_objects(bench.storage, bench.table_id, now) == bench.rows_at(now)


def owned_from(capture: Capture, table_id: int) -> int:
    rows = capture.store.tables().get(table_id)
    return rows.flushed_ts if rows is not None and table_id in capture.tables else -1


def readable(capture: Capture, bench: Bench) -> int:
    return capture.store.readable_ts(bench.table_id)


def test_an_interrupted_load_goes_on_where_it_was(bench: Bench) -> None:
    def crash_after_two(tasks: Sequence[RangeTask]) -> None:
        run_all(tasks[:2])
        raise Crash

    with pytest.raises(Crash):
        load_table(bench.settings, "shop.orders", crash_after_two)
    (load,) = find_loads(bench.ref, bench.cluster, "shop.orders")
    bench.orders.delete([1])
    left: list[int] = []

    def rest(tasks: Sequence[RangeTask]) -> None:
        left.extend(task.number for task in tasks)
        run_all(tasks)

    report = load_table(bench.settings, "shop.orders", rest)
    assert left == [2, 3]
    assert (report.resumed, report.ts, report.rows) == (True, load.plan.ts, 600)
    assert replay_objects(bench.storage, bench.table_id, report.ts) == bench.rows_at(report.ts)


def test_a_driver_that_ends_between_commit_and_clearing_is_followed_by_one_that_clears(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(SnapshotLoad, "clear", crash)
        with pytest.raises(Crash):
            bench.load()
    assert not is_load_in_progress(bench.storage, bench.table_id), (
        "a capture need not wait for what is committed"
    )
    state = manifest_log.load(bench.storage, paths.table_root(bench.table_id))
    report = bench.load()
    assert (report.resumed, report.rows) == (True, 600)
    assert manifest_log.load(bench.storage, paths.table_root(bench.table_id)) == state
    assert bench.storage.names(paths.load_folder(paths.table_root(bench.table_id))) == []


def crash(*_: Any) -> None:
    raise Crash


def test_the_first_of_two_attempts_at_a_range_wins(bench: Bench) -> None:
    def twice(tasks: Sequence[RangeTask]) -> None:
        with ThreadPoolExecutor(4) as pool:
            rows = list(pool.map(lambda task: task.run(), [*tasks, *tasks]))
        assert sum(rows) == 1200

    report = load_table(bench.settings, "shop.orders", twice)
    assert (report.rows, report.objects) == (600, 4)
    folder = paths.object_folder(paths.table_root(bench.table_id), "data")
    assert len(bench.storage.names(folder)) == 4, "what the second attempts wrote is deleted"


def test_two_drivers_load_a_table_once(bench: Bench) -> None:
    def with_another(tasks: Sequence[RangeTask]) -> None:
        run_all(tasks[:1])
        (load,) = find_loads(bench.ref, bench.cluster, "shop.orders")
        run_all(load.tasks(bench.cluster))
        load.commit(writer="another")
        run_all(tasks)

    report = load_table(bench.settings, "shop.orders", with_another)
    assert (report.rows, report.objects) == (600, 4)
    assert replay_objects(bench.storage, bench.table_id, report.ts) == bench.rows_at(report.ts)


def test_the_schema_as_of_the_load_is_used_though_it_changes_meanwhile(bench: Bench) -> None:
    def changing(tasks: Sequence[RangeTask]) -> None:
        run_all(tasks[:2])
        bench.db.drop_column("shop.orders", "name")
        run_all(tasks[2:])

    report = load_table(bench.settings, "shop.orders", changing)
    assert list(replay_objects(bench.storage, bench.table_id, report.ts).values()) == ROWS


def test_history_is_held_during_a_load_and_after_it(bench: Bench) -> None:
    def collecting(tasks: Sequence[RangeTask]) -> None:
        bench.orders.delete(list(range(300)))
        with Client.connect(bench.settings.pd_addrs, settings=KvSettings(safe_point_refresh_ms=1)) as client:
            held.append(client.gc(client.timestamp()))
        run_all(tasks)

    held: list[int] = []
    report = load_table(bench.settings, "shop.orders", collecting)
    assert held == [report.ts]
    assert report.rows == 600
    with Client.connect(bench.settings.pd_addrs, settings=KvSettings(safe_point_refresh_ms=1)) as client:
        assert client.gc(client.timestamp()) == report.ts


def test_a_load_whose_history_is_gone_says_so_and_can_begin_anew(bench: Bench) -> None:
    with pytest.raises(Crash):
        load_table(bench.settings, "shop.orders", crash)
    (load,) = find_loads(bench.ref, bench.cluster, "shop.orders")
    plan_path = paths.load_plan(paths.table_root(bench.table_id))
    bench.storage.write(plan_path, write_plan(replace(load.plan, ts=7)))
    with Client.connect(bench.settings.pd_addrs, settings=KvSettings(safe_point_refresh_ms=1)) as client:
        client.gc(client.timestamp())
    with pytest.raises(Invalid, match=r"interrupted load of shop\.orders cannot go on .*; restart it"):
        bench.load()
    assert bench.load(restart=True).rows == 600


def test_an_empty_table_is_loaded_too(bench: Bench) -> None:
    table_id = bench.db.create_table("shop.empty", COLUMNS).id
    report = load_table(bench.settings, "shop.empty", run_all)
    assert (report.rows, report.objects) == (0, 0)
    assert manifest_log.load(bench.storage, paths.table_root(table_id)).flushed_ts == report.ts


def test_every_partition_of_a_table_is_loaded_and_resumed_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = partitioned(bench)
    cleared: list[int] = []
    clear = SnapshotLoad.clear

    def crash_at_the_second(load: SnapshotLoad) -> None:
        if cleared:
            raise Crash
        cleared.append(load.plan.table_id)
        clear(load)

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotLoad, "clear", crash_at_the_second)
        with pytest.raises(Crash):
            load_table(bench.settings, "shop.events", run_all)
    assert cleared == ids[1:], "the first partition, by which a load is found, is cleared last"
    states = [manifest_log.load(bench.storage, paths.table_root(each)) for each in ids]
    assert len({state.flushed_ts for state in states}) == 1
    assert load_table(bench.settings, "shop.events", run_all).resumed
    for nth, table_id in enumerate(ids):
        assert list(replay_objects(bench.storage, table_id, states[0].flushed_ts).values()) == [
            {"id": nth, "name": f"n{nth}"}
        ]
        assert not SnapshotLoad.find(bench.ref, table_id)


def partitioned(bench: Bench) -> list[int]:
    """A table of two partitions with a row each; the catalog does not make such tables itself."""
    table = bench.db.create_table("shop.events", COLUMNS)
    ids = [table.id + 1_000_000, table.id + 1_000_001]
    partition = {"enable": True, "definitions": [{"id": each} for each in ids]}
    parted = replace(table, extra={**table.extra, "partition": partition})
    place = bench.db.schema().place("shop.events")
    with bench.client.begin() as txn:
        writer = MetaWriter(txn)
        writer.put_table(place.database.id, parted)
        writer.next_schema_version()
        for nth, physical in enumerate(ids):
            row = to_record(parted, {"id": nth, "name": f"n{nth}"}, start_ts=1)
            txn.put(record_key(physical, nth), value_of(parted, row))
    return ids


def test_a_plan_survives_its_file(bench: Bench) -> None:
    with pytest.raises(Crash):
        load_table(bench.settings, "shop.orders", crash)
    (load,) = find_loads(bench.ref, bench.cluster, "shop.orders")
    assert read_plan(write_plan(load.plan), path="p") == load.plan
    for damaged in (b"{}", b"[]", b"nonsense", write_plan(load.plan).replace(b'"ts"', b'"tz"')):
        with pytest.raises(Corrupt, match=r"load plan p has a missing or wrong field; remove it"):
            read_plan(damaged, path="p")
    with pytest.raises(Corrupt, match="load plan p has format 9, not 1; upgrade"):
        read_plan(b'{"format": 9}', path="p")
