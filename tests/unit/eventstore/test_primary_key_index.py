"""The primary-key index: always what the objects say, whatever happens to its directory."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import metrics
from penstock.errors import Unavailable
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.manifest import Archive
from penstock.eventstore.objects.primary_key_index import PrimaryKeyIndex
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from support.events import FixedSchemas, a_table, change, events, live_rows, objects
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
        on: ObjectStorage = storage, schemas: FixedSchemas | None = None, **settings: Any
    ) -> EventStore:
        given = {"data": tmp_path, "flush_interval_s": 3600, "idle_flush_interval_s": 10**9} | settings
        store = EventStore(
            CaptureSettings(**given),
            on,
            decoder=TidbRowDecoder(),
            schemas=schemas or FixedSchemas.of(TABLE),
        )
        opened.append(store)
        store.start()
        return store

    yield open_it
    for store in opened:
        store.close(flush=False)


def row(number: int, name: str = "x") -> dict[str, Any]:
    return {"id": number, "name": name}


def flush(store: EventStore, *changes: Change) -> bool:
    table = store.open_table(1)
    done = threading.Event()
    assert table.consume_kv_events(raw(changes), done.set)
    assert done.wait(10)
    table.advance_resolved_ts(max(each[0] for each in changes))
    return store.flush(1)


def inserted(store: EventStore, first: int = 1, count: int = 20) -> None:
    assert flush(store, *(change(TABLE, NOW + at, row(at)) for at in range(first, first + count)))


def builds() -> float:
    return metrics.EVENTSTORE_INDEX_BUILDS_TOTAL._value.get()


def delete(number: int, ts: int) -> Change:
    return change(TABLE, NOW + ts, None, row(number))


def ended(storage: ObjectStorage) -> list[tuple[int, str | None, int | None]]:
    return [(each["id"], each["_object"], each["_offset"]) for each in events(storage, 1, "tombstone")]


def test_a_tombstone_names_the_row_of_an_earlier_flush(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store()
    inserted(store)
    assert flush(store, delete(3, 50), delete(7, 51))
    (data,) = objects(storage, 1, "data")
    assert ended(storage) == [(3, data.id, 2), (7, data.id, 6)]
    (tombstones,) = objects(storage, 1, "tombstone")
    assert tombstones.targets == ((data.id, 2),)


def test_a_tombstone_whose_row_was_never_captured_has_no_row_id(
    open_store: Open, storage: ObjectStorage
) -> None:
    store = open_store()
    unknown = metrics.EVENTSTORE_UNKNOWN_ROWS_TOTAL._value
    before = unknown.get()
    assert flush(store, delete(3, 1), change(TABLE, NOW + 2, row(4, "new"), row(4, "old")), delete(4, 3))
    (data,) = objects(storage, 1, "data")
    assert ended(storage) == [(3, None, None), (4, None, None), (4, data.id, 0)]
    (tombstones,) = objects(storage, 1, "tombstone")
    assert tombstones.targets == ((data.id, 1),)
    assert unknown.get() - before == 2


def test_the_index_goes_on_after_a_restart_without_being_built_again(open_store: Open) -> None:
    store = open_store()
    inserted(store)
    store.close(flush=False)
    before = builds()
    assert flush(open_store(), delete(3, 50))
    assert builds() == before


def lose(index: Path) -> None:
    shutil.rmtree(index)


def garble(index: Path) -> None:
    (index / "CURRENT").write_bytes(b"nonsense\n")


def drop_a_file(index: Path) -> None:
    next(index.glob("*.sst")).unlink()


def cut_a_file(index: Path) -> None:
    file = next(index.glob("*.sst"))
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize("damage", [lose, garble, drop_a_file, cut_a_file])
def test_an_index_that_is_lost_or_damaged_is_built_again(
    open_store: Open, storage: ObjectStorage, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = open_store()
    inserted(store)
    assert flush(store, delete(3, 50))
    store.close(flush=False)
    damage(tmp_path / "index")
    before = builds()
    store = open_store()
    assert flush(store, change(TABLE, NOW + 60, row(7, "new"), row(7))) or store.flush(1)
    assert builds() == before + 1
    assert len(live_rows(storage, 1, NOW + 60)) == 19


def test_an_index_that_fails_while_it_is_used_is_built_again(
    open_store: Open, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    inserted(store)
    assert store._index is not None
    damaged = store._index.current()
    damaged.close()
    assert not flush(store, delete(3, 50))  # to be tried again
    assert store._failure is None
    assert store.flush(1)
    assert store._index.current() is not damaged
    assert len(live_rows(storage, 1, NOW + 50)) == 19


def test_an_index_of_another_manifest_is_built_again(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store()
    inserted(store)
    store.close(flush=False)
    other = open_storage("memory:///")
    store = open_store(on=other)
    assert flush(store, change(TABLE, NOW + 40, row(30)))  # and what the log still holds of the others
    assert flush(store, delete(3, 50), delete(30, 51))
    found = ended(other)
    assert {name for _, name, _ in found} == {each.id for each in objects(other, 1, "data")}
    assert len(live_rows(other, 1, NOW + 51)) == 19


def test_a_state_older_than_the_index_makes_it_start_again(open_store: Open, storage: ObjectStorage) -> None:
    store = open_store()
    inserted(store, count=1)
    older = store.ownership(1).state
    inserted(store, first=2, count=1)
    newer = store.ownership(1).state
    index = store._find_owned(1).index
    before = builds()
    index.catch_up(older)
    assert builds() == before + 1
    handles = pa.array([(1 << 63 | number).to_bytes(8, "big") for number in (1, 2)], pa.binary())
    assert index.find(handles).objects.tolist() == [0, -1]
    index.catch_up(newer)
    assert builds() == before + 1
    assert (index.find(handles).objects >= 0).all()


def test_an_archive_of_entries_that_the_index_lacks_makes_it_start_again(
    open_store: Open, storage: ObjectStorage, tmp_path: Path
) -> None:
    store = open_store()
    inserted(store, count=3)
    behind = PrimaryKeyIndex(tmp_path / "behind")
    index = behind.table(1, storage)
    index.catch_up(store.ownership(1).state)
    before = builds()
    assert flush(store, delete(2, 50))
    state = store._find_owned(1).commit(archive=Archive(id="a", upto_ts=NOW, objects=0))
    index.catch_up(state)
    assert builds() == before + 1
    store._find_owned(1).commit(archive=Archive(id="b", upto_ts=NOW, objects=0))
    index.catch_up(store.ownership(1).state)  # only the archive is new: it lacks nothing
    assert builds() == before + 1
    behind.close()


def test_a_row_of_an_object_that_is_not_visible_is_not_found(open_store: Open) -> None:
    store = open_store()
    inserted(store, count=1)
    index, state = store._find_owned(1).index, store.ownership(1).state
    handle = pa.array([(1 << 63 | 1).to_bytes(8, "big")], pa.binary())
    assert index.find(handle).offsets.tolist() == [0]
    hidden = {name: replace(each, delete_ts=NOW + 1) for name, each in state.objects.items()}
    index.catch_up(replace(state, objects=hidden))
    assert index.find(handle).objects.tolist() == [-1]
    assert index.find(handle).offsets.tolist() == [-1]


def test_a_table_that_is_given_up_leaves_nothing_in_the_index(open_store: Open) -> None:
    store = open_store()
    inserted(store)
    assert store._index is not None
    assert len(list(store._index.current().items())) == 21
    store.close_table(1)
    assert list(store._index.current().items()) == []


def test_nothing_is_flushed_of_a_table_that_was_given_up(open_store: Open) -> None:
    store = open_store()
    rows = store.open_table(1)
    table = store._find_owned(1)
    done = threading.Event()
    rows.consume_kv_events(raw([change(TABLE, NOW + 1, row(1))]), done.set)
    assert done.wait(10)
    rows.advance_resolved_ts(NOW + 2)
    store.close_table(1, flush=False)
    store._flusher.flush(table)  # it was on its way
    assert table.ownership.state.flushed_ts == 0


def test_tables_without_changes_do_not_touch_the_index(open_store: Open) -> None:
    store = open_store()
    store.open_table(1).advance_resolved_ts(NOW)
    assert store.flush(1)
    assert store.ownership(1).state.flushed_ts == NOW
    assert store._index is not None
    assert list(store._index.current().items()) == []


def test_handles_of_any_form_are_told_apart(open_store: Open, storage: ObjectStorage) -> None:
    wide = replace(define_table("items", [("id", "varchar(40) primary key"), ("name", "varchar(64)")]), id=1)
    store = open_store(schemas=FixedSchemas.of(wide))
    names = ["a", "aa", "b" * 30, "eight888", ""]

    def one(name: str) -> dict[str, Any]:
        return {"id": name, "name": "x"}

    assert flush(store, *(change(wide, NOW + at, one(name)) for at, name in enumerate(names)))
    assert flush(store, *(change(wide, NOW + 9, None, one(name)) for name in names[1:]))
    live = live_rows(storage, 1, NOW + 9)
    assert [each["id"] for _, each in live.values()] == ["a"]


def test_a_directory_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match=r"primary-key index at .* cannot be written"):
        PrimaryKeyIndex(tmp_path / "file" / "index")
