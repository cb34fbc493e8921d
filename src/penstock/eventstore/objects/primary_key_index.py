"""The primary-key index: where the row of a handle is, for the tables that are owned here.

One RocksDB under the capture's data directory. Everything in it can be read from the objects again, so it has
no write-ahead log: a crash leaves a prefix of the writes, and `catch_up` goes on from the state that the
index records of itself. An index that RocksDB cannot read is deleted and built anew.
"""

import json
import logging
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.durable_files import make_private_folder
from penstock.errors import Unavailable
from penstock.eventstore.manifest import ManifestState, ObjectInfo
from penstock.eventstore.objects.deletion_vectors import Deletions, live_mask
from penstock.eventstore.objects.object_file import open_object
from penstock.eventstore.objects.row_ids import Moves, RowIds, as_sort_keys
from penstock.eventstore.sides import HANDLE
from penstock.object_storage import ObjectStorage

_log = logging.getLogger(__name__)

_FORMAT = 1
_MIB = 1024 * 1024
_BATCH_ROWS = 8192  # other threads wait while RocksDB takes a batch
_READ_ROWS = 64 * 1024
_ID_BYTES, _OFFSET_BYTES = 16, 4
_VALUE_BYTES = _ID_BYTES + _OFFSET_BYTES
_NOWHERE = bytes(_VALUE_BYTES)


class PrimaryKeyIndex:
    """The indexes of all tables of one capture. Thread-safe; each table is used by one thread at a time.

    Raises Unavailable when the directory cannot be written. Only one process may use it.
    """

    def __init__(self, path: Path, *, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._db = _open(path)

    def table(self, table_id: int, storage: ObjectStorage) -> "TableIndex":
        """Return the index of one table; it reads the table's objects from `storage` when it has to."""
        return TableIndex(self, table_id, storage, self._clock)

    def current(self) -> Rdict:
        """Return the database that is used now; a failure replaces it."""
        with self._lock:
            return self._db

    def call(self, db: Rdict, work: Callable[..., Any], *given: object) -> Any:
        """Call a method of a database; when it fails, replace the database by an empty one and raise."""
        try:
            return work(*given)
        except Exception as error:
            _log.exception("primary-key index failed; it is rebuilt")
            self._replace(db)
            raise Unavailable("the primary-key index failed and is rebuilt; try again later") from error

    def _replace(self, damaged: Rdict) -> None:
        with self._lock:
            if self._db is damaged and not self._closed:
                _close(damaged)
                shutil.rmtree(self._path, ignore_errors=True)
                self._db = _open(self._path)

    def clear(self, db: Rdict, table_id: int) -> None:
        """Remove everything of a table."""
        self.call(db, db.delete_range, _prefix(table_id), _prefix(table_id + 1))

    def forget(self, table_id: int) -> None:
        """Free the room of a table that is given up."""
        with suppress(Unavailable):  # the database was replaced by an empty one, which has no such table
            self.clear(self.current(), table_id)

    def close(self) -> None:
        """Write everything to the disk. Closing twice is fine."""
        with self._lock:
            self._closed = True
            _close(self._db)


def _prefix(table_id: int) -> bytes:
    """Return what every key of a table begins with. Alone it is no row's key, because no handle is empty."""
    return table_id.to_bytes(8, "big")


def _open(path: Path) -> Rdict:
    try:
        return _open_once(path)
    except Exception as error:  # noqa: BLE001 - rocksdict has no class of its own for any failure
        _log.warning("primary-key index is damaged; it is rebuilt", extra={"reason": str(error)})
        shutil.rmtree(path, ignore_errors=True)
    try:
        return _open_once(path)
    except Exception as error:
        raise Unavailable(f"the primary-key index at {path} cannot be written ({error})") from error


def _open_once(path: Path) -> Rdict:
    make_private_folder(path)
    options = Options(raw_mode=True)
    options.set_write_buffer_size(16 * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_log_file_size(4 * _MIB)
    options.set_keep_log_file_num(4)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(16 * _MIB))
    blocks.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(blocks)
    db = Rdict(str(path), options)
    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever the stub says
    db.set_write_options(unlogged)
    return db


def _close(db: Rdict) -> None:
    with suppress(DbClosedError):
        db.close()


@dataclass(frozen=True, slots=True)
class _Applied:
    """The manifest entry up to which a table's rows are indexed. Written after them.

    `newest` is the object that was added last. It tells this manifest from an older copy that went on with
    other entries of the same numbers.
    """

    origin: str
    seq: int
    newest: str = ""
    format: int = _FORMAT

    @classmethod
    def of(cls, state: ManifestState) -> "_Applied":
        return cls(state.origin, state.seq, _newest(state, state.seq))

    def reaches(self, state: ManifestState) -> bool:
        """Return whether the objects of a state have all that is missing here; archives are not read."""
        current = self.format == _FORMAT and self.origin == state.origin
        return (
            current
            and state.archived_seq <= self.seq <= state.seq
            and self.newest == _newest(state, self.seq)
        )


def _newest(state: ManifestState, upto_seq: int) -> str:
    """Return the object that was added last, by an entry up to `upto_seq`; empty when there is none."""
    added = ((info.seq, info.id) for info in state.objects.values() if info.seq <= upto_seq)
    return max(added, default=(0, ""))[1]


class TableIndex:
    """Where each live row of a table is, as of the manifest state it was last brought up to.

    Every method raises Unavailable when the database is damaged; the next `catch_up` builds it anew.
    """

    def __init__(self, index: PrimaryKeyIndex, table_id: int, storage: ObjectStorage, clock: Clock) -> None:
        self._index = index
        self._table_id = table_id
        self._storage = storage
        self._clock = clock
        self._prefix = _prefix(table_id)
        self._db = index.current()  # all calls after a catch_up use the database that caught up
        self._applied: _Applied | None = None
        self._visible: frozenset[str] = frozenset()

    def catch_up(self, state: ManifestState) -> None:
        """Bring the index up to a state from its objects; build it anew when it is of another manifest.

        Raises Unavailable also when an object cannot be read, Corrupt when one is damaged. It can be
        repeated, and be interrupted at any point.
        """
        started = self._clock.monotonic()
        self._applied, self._db = None, self._index.current()
        applied = self._read_applied()
        if applied is None or not applied.reaches(state):
            if state.objects:
                metrics.EVENTSTORE_INDEX_BUILDS_TOTAL.inc()
                _log.info("primary-key index is built", extra={"table_id": self._table_id, "seq": state.seq})
            self._index.clear(self._db, self._table_id)
            applied = _Applied(state.origin, 0)
        if applied.seq < state.seq:
            self._apply_objects(state, applied.seq)
            self._mark(state)
            metrics.EVENTSTORE_INDEX_SECONDS.observe(self._clock.monotonic() - started)
        self._remember(state)

    def _apply_objects(self, state: ManifestState, seq: int) -> None:
        """Apply the objects of entries after `seq`: first the tombstones, then the live rows."""
        fresh = sorted((info for info in state.objects.values() if info.seq > seq), key=lambda info: info.id)
        for info in fresh:
            if seq and info.side == "tombstone" and info.kind != "merged":
                for handles in self._handles(info):
                    self._remove(handles)
        ts = state.flushed_ts
        deletions = Deletions(self._storage, self._table_id, state.visible_objects("tombstone", ts), ts)
        for info in fresh:
            if info.side == "data" and info.is_visible(ts):
                mask = live_mask(info.rows, deletions.of(info.id))
                at = 0
                for handles in self._handles(info):
                    live = np.flatnonzero(mask[at : at + len(handles)])
                    self._put(handles.take(pa.array(live)), RowIds.within(info.id, live + at))
                    at += len(handles)

    def _handles(self, info: ObjectInfo) -> Iterator[pa.Array]:
        with open_object(self._storage, self._table_id, info) as file:
            for batch in file.iter_batches(_READ_ROWS, columns=[HANDLE]):
                yield batch.column(0)

    def apply(self, moves: Moves, state: ManifestState) -> None:
        """Bring the index from the state before to this one, whose last entry did nothing but `moves`."""
        before = self._applied
        if before is None or (before.origin, before.seq) != (state.origin, state.seq - 1):
            self.catch_up(state)
            return
        started = self._clock.monotonic()
        self._applied = None
        self._remove(moves.gone)
        self._put(moves.live, moves.places)
        self._mark(state)
        self._remember(state)
        metrics.EVENTSTORE_INDEX_SECONDS.observe(self._clock.monotonic() - started)

    def find(self, handles: pa.Array) -> RowIds:
        """Return where the rows of some handles are; -1 when no live row has the handle."""
        assert self._applied is not None, "catch up first"
        order = np.argsort(as_sort_keys(handles))  # in order, because neighbours are in one block of RocksDB
        found: list[bytes] = []
        for start in range(0, len(order), _BATCH_ROWS):
            keys = self._keys(handles.take(pa.array(order[start : start + _BATCH_ROWS])))
            values: Any = self._index.call(self._db, self._db.get, keys)
            found.append(b"".join([value or _NOWHERE for value in values]))
        packed = np.empty((len(order), _VALUE_BYTES), np.uint8)
        packed[order] = np.frombuffer(b"".join(found), np.uint8).reshape(-1, _VALUE_BYTES)
        return _unpack(packed, self._visible)

    def _remove(self, handles: pa.Array) -> None:
        for start in range(0, len(handles), _BATCH_ROWS):
            batch = WriteBatch(raw_mode=True)
            deque(map(batch.delete, self._keys(handles.slice(start, _BATCH_ROWS))), maxlen=0)
            self._index.call(self._db, self._db.write, batch)

    def _put(self, handles: pa.Array, places: RowIds) -> None:
        values = _pack(places)
        for start in range(0, len(handles), _BATCH_ROWS):
            batch = WriteBatch(raw_mode=True)
            keys = self._keys(handles.slice(start, _BATCH_ROWS))
            deque(map(batch.put, keys, values[start : start + _BATCH_ROWS]), maxlen=0)
            self._index.call(self._db, self._db.write, batch)

    def _keys(self, handles: pa.Array) -> list[bytes]:
        return [self._prefix + handle for handle in handles.to_pylist()]

    def _read_applied(self) -> _Applied | None:
        data: Any = self._index.call(self._db, self._db.get, self._prefix)
        return None if data is None else _Applied(**json.loads(data))

    def _mark(self, state: ManifestState) -> None:
        """Record the state of the rows written before this; it reaches the disk no earlier than they do."""
        data = json.dumps(asdict(_Applied.of(state))).encode()
        self._index.call(self._db, self._db.put, self._prefix, data)

    def _remember(self, state: ManifestState) -> None:
        self._applied = _Applied.of(state)
        self._visible = frozenset(info.id for info in state.visible_objects("data", state.flushed_ts))


def _pack(places: RowIds) -> list[bytes]:
    """Return the values of some rows: object id and offset as fixed-width bytes."""
    ids = np.frombuffer(bytes.fromhex("".join(places.names)), np.uint8).reshape(-1, _ID_BYTES)
    packed = np.empty((len(places.offsets), _VALUE_BYTES), np.uint8)
    packed[:, :_ID_BYTES] = ids[places.objects]
    packed[:, _ID_BYTES:] = places.offsets.astype(">u4").view(np.uint8).reshape(-1, _OFFSET_BYTES)
    data = packed.tobytes()
    return [data[start : start + _VALUE_BYTES] for start in range(0, len(data), _VALUE_BYTES)]


def _unpack(packed: npt.NDArray[np.uint8], visible: Collection[str]) -> RowIds:
    """Return the rows of some values; rows of objects that are not visible are not known."""
    ids = np.ascontiguousarray(packed[:, :_ID_BYTES])
    offsets = np.ascontiguousarray(packed[:, _ID_BYTES:]).view(">u4").ravel().astype(np.int64)
    encoded = pa.Array.from_buffers(pa.binary(_ID_BYTES), len(packed), [None, pa.py_buffer(ids)])
    encoded = encoded.dictionary_encode()
    names = [object_id.hex() for object_id in encoded.dictionary.to_pylist()]
    objects = encoded.indices.to_numpy()
    known = np.array([name in visible for name in names], np.bool_)[objects]
    return RowIds(names, np.where(known, objects, -1).astype(np.int32), np.where(known, offsets, -1))
