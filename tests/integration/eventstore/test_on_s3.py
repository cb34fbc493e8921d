"""The event store on an S3 server."""

import threading
from pathlib import Path

import pytest

from penstock.errors import Fenced
from penstock.eventstore import paths
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.manifest_log import ManifestLog, load
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.events import FixedSchemas, a_table, change, replay_objects
from support.rawbatches import raw
from support.s3server import S3Bucket

TABLE = a_table()
NOW = 1 << 58


@pytest.fixture
def storage(s3_bucket: S3Bucket, request: pytest.FixtureRequest) -> ObjectStorage:
    return open_storage(f"{s3_bucket.url}/{request.node.name}", s3_bucket.options)


def test_creation_is_conditional_and_listing_ordered(storage: ObjectStorage, tmp_path: Path) -> None:
    assert storage.create("f/2", b"one")
    assert not storage.create("f/2", b"two")
    assert storage.read("f/2") == b"one"
    large = tmp_path / "large"
    large.write_bytes(bytes(20 * 1024 * 1024))  # several parts
    storage.write("f/1", large)
    with storage.open("f/1") as file:
        assert file.size() == 20 * 1024 * 1024
    assert storage.names("f/") == ["f/1", "f/2"]
    assert storage.names("f/", after="f/1") == ["f/2"]
    storage.delete("f/1")
    storage.delete("f/1")
    assert storage.read("f/1") is None


def test_of_racing_owners_one_wins_each_number(storage: ObjectStorage) -> None:
    start = threading.Barrier(3)
    commits: list[str] = []

    def race(name: str) -> None:
        start.wait()
        log = ManifestLog.open(storage, "t", writer=name)
        for number in range(5):
            try:
                log.commit(facts=[{"kind": "note", "note": f"{name}-{number}"}])
            except Fenced:
                return
            commits.append(f"{name}-{number}")

    racers = [threading.Thread(target=race, args=(name,)) for name in "abc"]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    state = load(storage, "t")
    assert state.epoch == 3
    assert sorted(fact["note"] for fact in state.facts) == sorted(commits)
    assert any(note.endswith("-4") for note in commits)  # the last owner was not disturbed


def test_rows_survive_from_the_log_to_objects_in_s3(storage: ObjectStorage, tmp_path: Path) -> None:
    def open_store() -> EventStore:
        settings = CaptureSettings(data=tmp_path, flush_interval_s=3600, idle_flush_interval_s=3600)
        store = EventStore(settings, storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE))
        store.start()
        return store

    store = open_store()
    table = store.open_table(1)
    done = threading.Event()
    rows = [change(TABLE, NOW + number, {"id": number, "name": "x"}) for number in range(1, 101)]
    assert table.consume_kv_events(raw(rows), done.set)
    assert done.wait(10)
    table.advance_resolved_ts(NOW + 50)
    assert store.flush(1)
    store.close(flush=False)
    store = open_store()
    table = store.open_table(1)
    assert table.flushed_ts == NOW + 50
    table.advance_resolved_ts(NOW + 100)
    store.close()
    assert load(storage, paths.table_root(1)).flushed_ts == NOW + 100
    assert len(replay_objects(storage, 1, NOW + 100)) == 100


def test_the_environment_alone_says_how_to_reach_a_server(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_bucket.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    storage = open_storage(f"{s3_bucket.url}/environment")
    assert storage.create("one", b"1")
    assert storage.read("one") == b"1"
