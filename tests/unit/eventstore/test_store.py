"""The event store as a puller meets it."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.errors import Corrupt, Denied, PenstockError, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.log.table_log import TableLog
from penstock.eventstore.manifest import BEGUN
from penstock.eventstore.manifest_log import ManifestLog, load
from penstock.eventstore.read.partition import ReadRange
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings
from penstock.tables.columns import Tp
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from support.events import FixedSchemas, a_table, change, events, objects, read_object, replay_objects
from support.rawbatches import Change, raw

TABLE = a_table()
NOW = 1 << 58
Open = Callable[..., EventStore]


@pytest.fixture
def storage() -> ObjectStorage:
    return open_storage("memory:///")


@pytest.fixture
def open_store(tmp_path: Path, storage: ObjectStorage) -> Iterator[Open]:
    opened: list[EventStore] = []

    def open_it(
        *, schemas: FixedSchemas | None = None, on: ObjectStorage | None = None, **settings: Any
    ) -> EventStore:
        given: dict[str, Any] = {"data": tmp_path, "flush_interval_s": 3600, "idle_flush_interval_s": 3600}
        known = ("on_fenced", "on_refused", "on_failure")
        hooks = {name: settings.pop(name) for name in known if name in settings}
        store = EventStore(
            CaptureSettings(**(given | settings)),
            on or storage,
            decoder=TidbRowDecoder(),
            schemas=schemas or FixedSchemas.of(TABLE),
            **hooks,
        )
        opened.append(store)
        store.start()
        return store

    yield open_it
    for store in opened:
        store.close(flush=False)


def give(table: TableLog, *changes: Change) -> bool:
    """Hand over a batch and wait until it is durable; return whether it was taken."""
    done = threading.Event()
    taken = table.consume_kv_events(raw(changes), done.set)
    assert not taken or done.wait(10)
    return taken


def row(number: int, name: str = "x") -> dict[str, Any]:
    return {"id": number, "name": name}


def test_changes_that_nobody_can_read_yet_are_not_told_of(open_store: Open) -> None:
    """Whoever was told would look for them in vain."""
    store = open_store()
    table = store.open_table(TABLE.id)
    give(table, change(TABLE, NOW + 3, row(1)))
    give(table, change(TABLE, NOW + 6, row(2)), change(TABLE, NOW + 9, row(3)))
    assert table.changed_ts == 0
    table.advance_resolved_ts(NOW + 5)
    assert table.changed_ts == NOW + 3
    table.advance_resolved_ts(NOW + 7)
    assert NOW + 6 <= table.changed_ts <= NOW + 7
    table.advance_resolved_ts(NOW + 20)
    assert table.changed_ts == NOW + 9
    table.advance_resolved_ts(NOW + 30)
    assert table.changed_ts == NOW + 9
    store.close(flush=False)
    again = open_store().open_table(TABLE.id)
    assert (again.resolved_ts, again.changed_ts) == (NOW + 30, NOW + 9)


def test_changes_become_a_data_object_and_a_tombstone_object(
    open_store: Open, storage: ObjectStorage
) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 3, None, row(1, "b")), change(TABLE, NOW + 1, row(1, "a")))
    give(table, change(TABLE, NOW + 2, row(1, "b"), row(1, "a")), change(TABLE, NOW + 9, row(2)))
    table.advance_resolved_ts(NOW + 5)
    assert store.flush(1)
    written = events(storage, 1, "data")
    assert [(each["_commit_ts"], each["id"], each["name"]) for each in written] == [
        (NOW + 1, 1, "a"),
        (NOW + 2, 1, "b"),
    ]
    ended = events(storage, 1, "tombstone")
    assert [(each["_commit_ts"], each["_start_ts"], each["id"], each["_old"]) for each in ended] == [
        (NOW + 2, NOW + 1, 1, {"id": 1, "name": "a"}),
        (NOW + 3, NOW + 2, 1, {"id": 1, "name": "b"}),
    ]
    assert written[0]["_handle"] == ended[0]["_handle"] == (1 | 1 << 63).to_bytes(8, "big")
    (info,) = objects(storage, 1, "data")
    assert (info.kind, info.rows, info.min_ts, info.max_ts) == ("appendable", 2, NOW + 1, NOW + 2)
    assert load(storage, paths.table_root(1)).flushed_ts == NOW + 5
    assert table.flushed_ts == NOW + 5


def test_a_delete_whose_old_row_is_unknown_still_names_its_primary_key(
    open_store: Open, storage: ObjectStorage
) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, (NOW + 1, NOW, change(TABLE, NOW + 1, row(7))[2], None, None))
    table.advance_resolved_ts(NOW + 5)
    assert store.flush(1)
    (ended,) = events(storage, 1, "tombstone")
    assert (ended["id"], ended["_old"]) == (7, None)


def test_objects_are_zstd_with_statistics_and_know_their_schema(
    open_store: Open, storage: ObjectStorage
) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, *(change(TABLE, NOW + ts, row(ts)) for ts in range(1, 50)))
    table.advance_resolved_ts(NOW + 100)
    store.flush(1)
    (info,) = objects(storage, 1, "data")
    with storage.open(paths.object_path("tables/1", "data", info.id)) as file:
        meta = pq.ParquetFile(file).metadata
    column = meta.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert (column.statistics.min, column.statistics.max) == (1, 49)
    assert meta.metadata[b"penstock.schema_version"] == b"1"


def test_what_is_delivered_twice_is_kept_once(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store()
    table = store.open_table(1)
    first = change(TABLE, NOW + 1, row(1))
    assert give(table, first)
    assert give(table, first, change(TABLE, NOW + 1, row(2)))
    table.advance_resolved_ts(NOW + 2)
    assert not give(table, first)
    assert give(table, first, change(TABLE, NOW + 3, row(3)))
    table.advance_resolved_ts(NOW + 3)
    store.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1, 2, 3]


def test_transactions_with_equal_commit_timestamps_are_different(
    open_store: Open, storage: ObjectStorage
) -> None:
    store = open_store()
    table = store.open_table(1)
    one, two = change(TABLE, NOW + 5, row(1)), change(TABLE, NOW + 5, row(2))
    give(table, one, (two[0], two[1] - 1, *two[2:]))
    table.advance_resolved_ts(NOW + 9)
    store.flush(1)
    assert [(each["_start_ts"], each["id"]) for each in events(storage, 1, "data")] == [
        (NOW + 3, 2),
        (NOW + 4, 1),
    ]


def test_a_resolved_timestamp_never_goes_back(open_store: Open) -> None:
    table = open_store().open_table(1)
    table.advance_resolved_ts(NOW + 5)
    table.advance_resolved_ts(NOW + 3)
    assert table.resolved_ts == NOW + 5


def test_nothing_is_flushed_beyond_the_schema_history(open_store: Open, storage: ObjectStorage) -> None:
    schemas = FixedSchemas(SchemaVersion(0, 1, TABLE), resolved_ts=NOW + 1)
    store = open_store(schemas=schemas)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)), change(TABLE, NOW + 2, row(2)))
    table.advance_resolved_ts(NOW + 9)
    assert store.readable_ts(1) == NOW + 1
    store.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1]
    schemas.resolved = NOW + 9
    store.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1, 2]


def test_each_object_has_one_schema_version(open_store: Open, storage: ObjectStorage) -> None:
    wider = replace(
        define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)"), ("more", "int")]), id=1
    )
    schemas = FixedSchemas(SchemaVersion(0, 1, TABLE), SchemaVersion(NOW + 3, 2, wider))
    store = open_store(schemas=schemas)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)), change(wider, NOW + 3, {**row(2), "more": 5}))
    table.advance_resolved_ts(NOW + 9)
    store.flush(1)
    first, second = objects(storage, 1, "data")
    assert (first.schema_version, second.schema_version) == (1, 2)
    assert "more" not in read_object(storage, 1, first).column_names
    assert read_object(storage, 1, second)["more"].to_pylist() == [5]


def test_a_large_transaction_becomes_an_object_of_its_own(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store(large_txn_bytes=2000, sort_bytes=3000, memory_bytes=1)
    table = store.open_table(1)
    big = [change(TABLE, NOW + 5, row(number, "y" * 50)) for number in range(200)]
    give(table, change(TABLE, NOW + 4, row(1000)))
    for start in range(0, 200, 40):
        give(table, *big[start : start + 60])  # regions that move deliver some twice
    give(table, change(TABLE, NOW + 6, row(2000)))
    table.advance_resolved_ts(NOW + 9)
    assert store.flush(1)
    first, direct, last = objects(storage, 1, "data")
    assert (direct.kind, direct.rows, direct.create_ts) == ("direct", 200, NOW + 5)
    assert [each["id"] for each in read_object(storage, 1, direct).to_pylist()] == list(range(200))
    assert [(each.kind, each.max_ts) for each in (first, last)] == [
        ("appendable", NOW + 4),
        ("appendable", NOW + 6),
    ]
    assert len(replay_objects(storage, 1, NOW + 9)) == 202


def test_rows_beyond_memory_are_read_from_the_log(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store(memory_bytes=1)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    assert all(held.batch is None for held in table.list_held(0, NOW + 2))
    store.flush(1)
    assert len(replay_objects(storage, 1, NOW + 2)) == 1


def test_small_batches_count_by_what_they_really_take(open_store: Open) -> None:
    store = open_store(memory_bytes=10 * 4096 + 4000)
    table = store.open_table(1)
    for ts in range(1, 21):  # far below 4096 bytes each, as Arrow counts
        give(table, change(TABLE, NOW + ts, row(ts)))
    assert [each.batch is not None for each in table.list_held(0, NOW + 20)] == [True] * 10 + [False] * 10
    table.advance_resolved_ts(NOW + 20)
    assert store.flush(1)
    assert store._memory.used_bytes == 0


def test_flushed_rows_leave_memory_and_disk(open_store: Open, tmp_path: Path) -> None:
    store = open_store(wal_segment_bytes=4096)
    table = store.open_table(1)
    for ts in range(1, 60):
        give(table, change(TABLE, NOW + ts, row(ts, "z" * 60)))
    table.advance_resolved_ts(NOW + 59)
    assert len(paths.wal_segments(tmp_path / "wal")) > 3
    assert store._memory.used_bytes > 0
    store.flush(1)
    assert store._memory.used_bytes == 0
    assert len(paths.wal_segments(tmp_path / "wal")) == 1
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_restart_goes_on_from_the_last_resolved_timestamp(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    store.flush(1)
    give(table, change(TABLE, NOW + 3, row(2)), change(TABLE, NOW + 6, row(3)))
    table.advance_resolved_ts(NOW + 4)
    store.close(flush=False)
    again = open_store()
    assert again.recovered_tables() == {1}
    table = again.open_table(1)
    assert (table.flushed_ts, table.resolved_ts) == (NOW + 2, NOW + 4)
    give(table, change(TABLE, NOW + 6, row(3)))  # pulled again
    table.advance_resolved_ts(NOW + 7)
    again.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1, 2, 3]


def test_a_table_given_up_is_pulled_again_from_its_manifest(open_store: Open) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    store.close_table(1, flush=False)
    assert not give(table, change(TABLE, NOW + 3, row(3)))
    table.advance_resolved_ts(NOW + 5)
    assert store.open_table(1).resolved_ts == 0
    store.close(flush=False)
    assert open_store().open_table(1).resolved_ts == 0


def test_a_fenced_table_is_given_up_and_told_of(open_store: Open, storage: ObjectStorage) -> None:
    lost: list[int] = []
    store = open_store(on_fenced=lost.append)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    rival = ManifestLog.open(storage, paths.table_root(1), writer="rival")
    assert not store.flush(1)
    assert lost == [1]
    assert not give(table, change(TABLE, NOW + 3, row(2)))
    assert store.tables() == {}
    rival.commit(flushed_ts=NOW)
    assert load(storage, paths.table_root(1)).flushed_ts == NOW


def test_a_fenced_table_that_is_taken_again_is_pulled_from_its_manifest(open_store: Open) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    ManifestLog.open(store._storage, paths.table_root(1), writer="rival")
    assert not store.flush(1)
    assert store.open_table(1).resolved_ts == 0, "its rows were dropped"


def test_rows_that_were_dropped_are_not_read_as_none(open_store: Open, storage: ObjectStorage) -> None:
    """A table is given up while it is read: its rows go a moment before it does."""
    store = open_store()
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    table.disown()
    _, batches = Reader(store, storage, TidbRowDecoder()).read(
        ReadRange(table_id=1, from_ts=NOW, to_ts=NOW + 2)
    )
    with pytest.raises(Unavailable, match="table 1"):
        list(batches)


def test_a_flush_that_fails_while_the_store_closes_leaves_nothing_open(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    with monkeypatch.context() as patch:
        patch.setattr(TidbRowDecoder, "decode", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.close()
    assert open_store().open_table(1).resolved_ts == NOW + 2


class _Doubtful(ObjectStorage):
    """Commits take effect and their answers are lost, once."""

    lose = False

    def create(self, path: str, data: bytes) -> bool:
        made = super().create(path, data)
        if self.lose:
            self.lose = False
            raise Unavailable("lost answer")
        return made


def test_a_flush_whose_answer_was_lost_is_not_repeated(open_store: Open, storage: ObjectStorage) -> None:
    doubtful = _Doubtful(storage.url, storage._store)
    store = open_store(on=doubtful)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    doubtful.lose = True
    assert not store.flush(1)
    give(table, change(TABLE, NOW + 3, row(2)))
    table.advance_resolved_ts(NOW + 4)
    assert store.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1, 2]


class _Damaged(ObjectStorage):
    def write(self, path: str, data: bytes | Path) -> None:
        raise Corrupt(f"{path} is damaged")


def test_damaged_objects_fail_the_store_and_nothing_more_is_taken(
    open_store: Open, storage: ObjectStorage
) -> None:
    failed: list[PenstockError] = []
    store = open_store(on=_Damaged(storage.url, storage._store), on_failure=failed.append)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    assert not store.flush(1)
    assert len(failed) == 1
    with pytest.raises(Unavailable, match="restart"):
        give(table, change(TABLE, NOW + 3, row(2)))


def test_due_tables_are_flushed_in_the_background(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store(flush_bytes=1, flush_interval_s=0.01)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    _until(lambda: table.flushed_ts == NOW + 2)
    assert len(events(storage, 1, "data")) == 1


def test_a_full_disk_holds_rows_back_until_a_flush_frees_it(open_store: Open, storage: ObjectStorage) -> None:
    slow = _Blocked(storage.url, storage._store)
    store = open_store(on=slow, wal_bytes=1, wal_segment_bytes=1024, flush_bytes=1)
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    _until(lambda: store._crowded)
    taken = threading.Event()
    thread = threading.Thread(
        target=lambda: taken.set() if give(table, change(TABLE, NOW + 3, row(2))) else None
    )
    thread.start()
    assert not taken.wait(0.3)
    slow.go.set()
    assert taken.wait(10)
    thread.join()


class _Blocked(ObjectStorage):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.go = threading.Event()

    def write(self, path: str, data: bytes | Path) -> None:
        assert self.go.wait(20)
        super().write(path, data)


@pytest.mark.parametrize(
    ("tp", "value", "said"),
    [
        (Tp.GEOMETRY, None, "columns of type GEOMETRY have no Arrow form"),
        (Tp.TINY, None, "a row cannot be read: column place: an integer of a row is wider than its column"),
        (Tp.LONG, b"\x80\x00\x05", "a row cannot be read: a row is cut short in its head"),
    ],
    ids=["type", "width", "damage"],
)
def test_rows_that_cannot_be_kept_cost_their_table_alone(
    open_store: Open, storage: ObjectStorage, tp: Tp, value: bytes | None, said: str
) -> None:
    defined = define_table("t", [("id", "bigint primary key"), ("place", "int")])
    place = replace(defined.columns[1], type=replace(defined.columns[1].type, tp=tp))
    bad = replace(defined, id=2, columns=(defined.columns[0], place))
    refused: list[tuple[int, str]] = []
    failed: list[PenstockError] = []
    store = open_store(
        schemas=FixedSchemas.of(TABLE, bad),
        on_refused=lambda table_id, error: refused.append((table_id, str(error))),
        on_failure=failed.append,
    )
    good, table = store.open_table(1), store.open_table(2)
    commit_ts, start_ts, key, written, old = change(replace(defined, id=2), NOW + 1, {"id": 1, "place": 2024})
    give(table, (commit_ts, start_ts, key, value or written, old))
    table.advance_resolved_ts(NOW + 2)
    assert not store.flush(2)
    ((table_id, reason),) = refused
    assert table_id == 2
    assert said in reason
    assert set(store.tables()) == {1}
    give(good, change(TABLE, NOW + 1, row(1)))
    good.advance_resolved_ts(NOW + 2)
    assert store.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1]
    assert not failed


class _Refusing(ObjectStorage):
    """Credentials are refused, as while they are being replaced."""

    refuses = False

    def write(self, path: str, data: bytes | Path) -> None:
        if self.refuses:
            raise Denied(f"storage refuses to write {path} (403); check its credentials")
        super().write(path, data)


def test_credentials_that_storage_refuses_for_a_while_cost_no_table(
    open_store: Open, storage: ObjectStorage
) -> None:
    refusing = _Refusing(storage.url, storage._store)
    refused: list[int] = []
    failed: list[PenstockError] = []
    store = open_store(
        on=refusing, on_refused=lambda table_id, _: refused.append(table_id), on_failure=failed.append
    )
    table = store.open_table(1)
    give(table, change(TABLE, NOW + 1, row(1)))
    table.advance_resolved_ts(NOW + 2)
    refusing.refuses = True
    assert not store.flush(1)
    assert (refused, failed, set(store.tables())) == ([], [], {1})
    refusing.refuses = False
    assert store.flush(1)
    assert [each["id"] for each in events(storage, 1, "data")] == [1]


def test_rows_of_a_first_scan_that_did_not_end_are_pulled_again(open_store: Open) -> None:
    store = open_store()
    give(store.open_table(1), change(TABLE, NOW + 1, row(1)))
    store.close(flush=False)
    again = open_store()
    assert again.open_table(1).list_held(0, NOW + 9) == []  # row 1 may be deleted, and the delete collected
    again.close(flush=False)
    assert open_store().recovered_tables() == set()


@pytest.mark.parametrize(
    ("since", "begun", "known"),
    [
        pytest.param(0, 0, True, id="the schema of then"),
        pytest.param(3, 0, True, id="a later one, after which all rows are"),
        pytest.param(4, 0, False, id="one that is later than a row"),
        pytest.param(4, 4, True, id="one that is later than a row, of a table that begins there"),
    ],
)
def test_recovered_rows_need_the_schema_that_they_were_committed_under(
    open_store: Open, since: int, begun: int, known: bool
) -> None:
    store = open_store()
    table = store.open_table(1)
    if begun:
        store.record_fact(1, {"kind": BEGUN, "ts": NOW + begun})
    give(table, change(TABLE, NOW + 3, row(1)), change(TABLE, NOW + 5, row(2)))
    table.advance_resolved_ts(NOW + 6)
    store.close(flush=False)
    version = SchemaVersion(NOW + since, 1, TABLE) if since else SchemaVersion(0, 1, TABLE)
    again = open_store(schemas=FixedSchemas(version))
    table = again.open_table(1)
    assert table.resolved_ts == (NOW + 6 if known else 0)  # else all of them are pulled again
    assert len(table.list_held(0, NOW + 9)) == known


def _until(holds: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(500):
        if holds():
            return
        never.wait(0.02)
    raise AssertionError("it did not come to pass")
