"""A partition for readers: its manifest with its history, its schemas, and what cannot be read."""

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

from penstock.errors import Corrupt, Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import Archive, ObjectInfo, Removal, write_archive
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import (
    CaptureProgress,
    Partition,
    PartitionState,
    ReadRange,
    SchemaRange,
    TableView,
)
from penstock.eventstore.schema_version import SchemaVersion, cut_at_changes, versions_in_force
from penstock.object_storage import ObjectStorage, StorageRef
from support.events import a_table

TABLE = a_table()
WAIT_S = 10.0
V1, V2, V3 = (SchemaVersion(since, since, TABLE, "shop") for since in (10, 50, 80))


def an_object(name: str, min_ts: int, max_ts: int, **rest: object) -> ObjectInfo:
    info = ObjectInfo(
        id=name * 32,
        side="data",
        kind="appendable",
        schema_version=1,
        create_ts=min_ts,
        min_ts=min_ts,
        max_ts=max_ts,
        rows=1,
        size_bytes=1,
        key_min=b"a",
        key_max=b"b",
    )
    return replace(info, **rest)  # type: ignore[arg-type] # any of its fields


class Newest:
    """Whoever has the rows up to 100; counts what it is asked."""

    def __init__(self, *versions: SchemaVersion) -> None:
        self.versions = versions
        self.asked: list[ReadRange] = []
        self.away = False

    def progress(self, table_id: int) -> CaptureProgress:
        if self.away:
            raise Unavailable("the capture is away")
        return CaptureProgress(table_id, 100, 100, 60)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        self.asked.append(wanted)
        found = versions_in_force(self.versions, wanted.from_ts, wanted.to_ts)
        cuts = cut_at_changes(found, wanted.from_ts, wanted.to_ts) if found else []
        return [
            SchemaRange(replace(wanted, from_ts=start, to_ts=end), version) for start, end, version in cuts
        ]

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        raise AssertionError("nobody reads here")


@pytest.fixture
def ref(request: pytest.FixtureRequest, tmp_path: Path) -> StorageRef:
    return StorageRef(f"file://{tmp_path}/events")


@pytest.fixture
def storage(ref: StorageRef) -> ObjectStorage:
    return ref.open()


@pytest.fixture
def log(storage: ObjectStorage) -> ManifestLog:
    """Flushed up to 60; three objects, of which a merge has replaced the first two."""
    log = ManifestLog.open(storage, "tables/1", writer="w")
    log.commit(
        add=[an_object("a", 11, 20), an_object("b", 21, 30), an_object("c", 31, 60)],
        flushed_ts=60,
        facts=[V1.as_fact(), V2.as_fact()],
    )
    merged = an_object("d", 11, 30, kind="merged", create_ts=60)
    log.commit(add=[merged], remove=[Removal(id=name * 32, delete_ts=60) for name in "ab"])
    return log


def archived(storage: ObjectStorage, log: ManifestLog, *, upto_ts: int = 60, name: str = "e") -> Archive:
    archive = Archive(id=name * 32, upto_ts=upto_ts, objects=2)
    gone = [log.state.objects[each * 32] for each in "ab"]
    storage.write(paths.archive("tables/1", archive.id), write_archive(gone))
    log.commit(archive=archive, forget=[each.id for each in gone])
    return archive


def ids(objects: list[ObjectInfo]) -> str:
    return "".join(each.id[0] for each in objects)


def test_buckets_of_one_name_on_two_servers_are_two_storages() -> None:
    refs = [StorageRef("s3://bucket", {"endpoint": f"https://{name}", "region": "x"}) for name in "ab"]
    assert refs[0] != refs[1]
    assert refs[0].open() is not refs[1].open()
    assert refs[0].open() is StorageRef("s3://bucket", dict(refs[0].options)).open()


def test_many_storages_in_memory_do_not_push_out_the_others() -> None:
    kept = [StorageRef(f"memory:///many/{number}") for number in range(300)]
    opened = [ref.open() for ref in kept]
    bucket = StorageRef("s3://bucket", {"region": "beside-many"})
    assert bucket.open() is bucket.open()
    assert [ref.open() for ref in kept] == opened


def test_storage_is_opened_once_in_a_process() -> None:
    first, second = StorageRef("memory:///"), StorageRef("memory:///", {})
    first.open().write("x", b"1")
    assert second.open().read("x") == b"1"
    other = StorageRef("memory:///other")
    assert other.open() is not first.open()
    secret = StorageRef("s3://bucket", {"secret_access_key": "hidden"})
    assert "hidden" not in repr(secret)
    assert {secret: 1}[pickle.loads(pickle.dumps(secret))] == 1


def test_a_partition_travels_with_its_flight_reader(ref: StorageRef, log: ManifestLog) -> None:
    reader = FlightReader("127.0.0.1:1", token=SecretStr("t" * 20))
    table = TableView("shop.items", (Partition(ref, 1, reader), Partition(ref, 2)))
    found = pickle.loads(pickle.dumps(table))
    assert found.name == "shop.items"
    assert found.partitions[1] == table.partitions[1]
    state = found.partitions[0].state()
    assert state.flushed_ts == 60
    state.check_range(20, 60)  # needs no capture
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        state.check_range(20, 61)


def test_the_state_is_what_the_manifest_says(ref: StorageRef, log: ManifestLog) -> None:
    state = Partition(ref, 1).state()
    assert (state.flushed_ts, state.readable_ts, state.oldest_ts) == (60, 60, 0)
    assert ids(state.visible_objects("data", 60)) == "cd"
    assert ids(state.visible_objects("data", 59)) == "abc"
    assert ids(state.change_objects("data", 20, 60)) == "bc"
    assert ids(state.change_objects("tombstone", 0, 60)) == ""


def test_history_comes_from_the_archive_when_it_is_asked_for(
    ref: StorageRef, storage: ObjectStorage, log: ManifestLog
) -> None:
    archived(storage, log)
    newest, old = Partition(ref, 1).state(), Partition(ref, 1).state(from_ts=15)
    assert ids(newest.visible_objects("data", 60)) == "cd"
    with pytest.raises(AssertionError, match="without the history"):
        newest.change_objects("data", 15, 60)
    with pytest.raises(AssertionError, match="without the history"):
        newest.visible_objects("data", 59)
    assert ids(old.change_objects("data", 15, 60)) == "abc"
    assert ids(old.visible_objects("data", 40)) == "abc"
    assert ids(old.visible_objects("data", 60)) == "cd"
    assert old.manifest.objects["a" * 32].delete_ts == 60
    with pytest.raises(AssertionError, match="without the history"):
        old.change_objects("data", 14, 60)


def test_archives_that_a_range_does_not_need_are_not_read(
    ref: StorageRef, storage: ObjectStorage, log: ManifestLog
) -> None:
    archive = archived(storage, log)
    storage.write(paths.archive("tables/1", archive.id), b"damaged")
    assert ids(Partition(ref, 1).state(from_ts=60).change_objects("data", 60, 61)) == ""
    with pytest.raises(Corrupt, match="archive"):
        Partition(ref, 1).state(from_ts=59)


def test_what_was_collected_is_a_stale_read(
    ref: StorageRef, storage: ObjectStorage, log: ManifestLog
) -> None:
    archive = archived(storage, log)
    log.commit(collect=[archive.id])
    storage.delete(paths.archive("tables/1", archive.id))
    state = Partition(ref, 1).state(from_ts=15)
    for from_ts, to_ts in ((15, 60), (59, 60), (0, 59)):  # the last is a snapshot
        with pytest.raises(StaleRead, match="table 1") as caught:
            state.check_range(from_ts, to_ts)
        assert caught.value.oldest_ts == 60
    state.check_range(0, 60)


def test_an_archive_that_goes_while_it_is_looked_for_is_looked_up_again(
    ref: StorageRef, storage: ObjectStorage, log: ManifestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archived(storage, log)
    path = paths.archive("tables/1", archive.id)
    read = storage.read

    def collected_meanwhile(asked: str) -> bytes | None:
        if asked == path and not log.state.oldest_ts:
            log.commit(collect=[archive.id])
            storage.delete(path)
        return read(asked)

    monkeypatch.setattr(storage, "read", collected_meanwhile)
    state = Partition(ref, 1).state(from_ts=15)
    with pytest.raises(StaleRead):
        state.check_range(15, 60)


def test_an_archive_that_is_not_there_is_unavailable(
    ref: StorageRef, storage: ObjectStorage, log: ManifestLog
) -> None:
    storage.delete(paths.archive("tables/1", archived(storage, log).id))
    with pytest.raises(Unavailable, match="try again"):
        Partition(ref, 1).state(from_ts=15)


@pytest.mark.parametrize(("from_ts", "to_ts"), [(5, 5), (6, 5), (-1, 5)])
def test_what_is_no_range_is_refused(ref: StorageRef, log: ManifestLog, from_ts: int, to_ts: int) -> None:
    with pytest.raises(Invalid, match="no range"):
        Partition(ref, 1).state().check_range(from_ts, to_ts)


def test_a_range_is_complete_as_far_as_anybody_has_it(ref: StorageRef, log: ManifestLog) -> None:
    alone, newest = Partition(ref, 1).state(), Newest(V2)
    with pytest.raises(Unavailable, match="up to 60, not 61; wait"):
        alone.check_range(20, 61)
    with pytest.raises(Unavailable, match="up to 60, not 61; wait"):
        alone.schemas(20, 61)
    state = Partition(ref, 1, newest).state()
    state.check_range(20, 100)
    with pytest.raises(Unavailable, match="up to 100, not 101; wait"):
        state.check_range(20, 101)
    newest.away = True
    away = Partition(ref, 1, newest).state()
    away.check_range(20, 60)
    with pytest.raises(Unavailable, match="is away"):
        away.check_range(20, 61)


class SilentNewest(Newest):
    """Says how far it is when `answers` is set; counts who asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asking, self.answers = threading.Semaphore(0), threading.Event()

    def progress(self, table_id: int) -> CaptureProgress:
        self.asking.release()
        assert self.answers.wait(2 * WAIT_S), "nobody lets it answer"
        return super().progress(table_id)


def test_a_partition_does_not_wait_for_the_silent_capture_of_another(
    ref: StorageRef, log: ManifestLog
) -> None:
    silent = SilentNewest()
    stuck, healthy = Partition(ref, 1, silent).state(), Partition(ref, 1, Newest()).state()
    with ThreadPoolExecutor(2) as threads:
        waits = threads.submit(lambda: stuck.readable_ts)
        try:
            assert silent.asking.acquire(timeout=WAIT_S), "nobody asks"
            assert threads.submit(lambda: healthy.readable_ts).result(WAIT_S) == 100
            assert not waits.done()
        finally:
            silent.answers.set()
        assert waits.result(WAIT_S) == 100


def test_a_state_asks_once_how_far_it_can_be_read_and_a_copy_asks_anew(
    ref: StorageRef, log: ManifestLog
) -> None:
    newest = Newest()
    state = Partition(ref, 1, newest).state()
    assert (state.readable_ts, state.newest_ts) == (100, 100)
    newest.away = True
    assert (state.readable_ts, state.newest_ts) == (100, 100)
    with pytest.raises(Unavailable, match="is away"):
        _ = replace(state).readable_ts


@pytest.mark.parametrize(
    ("from_ts", "to_ts", "cuts"),
    [
        (0, 9, [(0, 9, 10)]),  # before every version that is known
        (0, 49, [(0, 49, 10)]),
        (0, 50, [(0, 49, 10), (49, 50, 50)]),
        (49, 60, [(49, 60, 50)]),
        (48, 60, [(48, 49, 10), (49, 60, 50)]),
        (60, 79, [(60, 79, 50)]),
        (20, 100, [(20, 49, 10), (49, 79, 50), (79, 100, 80)]),
        (79, 100, [(79, 100, 80)]),
    ],
)
def test_a_range_is_divided_where_the_schema_changes(
    ref: StorageRef, log: ManifestLog, from_ts: int, to_ts: int, cuts: list[tuple[int, int, int]]
) -> None:
    newest = Newest(V2, V3)
    state = Partition(ref, 1, newest).state()
    found = state.parts(from_ts, to_ts)
    assert [(start, end, version.since_ts) for start, end, version in found] == cuts
    assert state.schema_at(to_ts).since_ts == cuts[-1][2]
    assert all(each.from_ts >= 60 for each in newest.asked)  # below, the manifest says it


def test_a_table_without_schemas_is_unavailable(ref: StorageRef, storage: ObjectStorage) -> None:
    with pytest.raises(Unavailable, match="no schema"):
        PartitionState(1, storage, Partition(ref, 1).state().manifest, Newest()).schemas(0, 1)


def test_only_collected_objects_make_a_stale_read(
    ref: StorageRef, storage: ObjectStorage, log: ManifestLog
) -> None:
    state = Partition(ref, 1).state()
    with pytest.raises(Unavailable, match="not now"), state.reading(15):
        raise Unavailable("not now")
    log.commit(collect=[archived(storage, log).id])
    with pytest.raises(Unavailable, match="not now"), state.reading(60):
        raise Unavailable("not now")
    with pytest.raises(StaleRead) as caught, state.reading(15):
        raise Unavailable("not now")
    assert caught.value.oldest_ts == 60
