"""RocksDB with group commit: one writer thread syncs all writes that queued meanwhile at once."""

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    Snapshot,
    WriteBatch,
    WriteOptions,
)

from penstock import metrics
from penstock.durable_files import make_data_directory
from penstock.errors import Corrupt, Invalid, Unavailable

_MIB = 1024 * 1024
_BLOCK_CACHE_BYTES = 128 * _MIB
_WAL_BYTES_MAX = 256 * _MIB
_LOG_BYTES_MAX = 4 * _MIB
_BLOOM_BITS = 10
_GROUP_MUTATIONS_MAX = 65_536
_VIEW_ATTEMPTS = 8


class Cf(IntEnum):
    """Column families; the value is a position, the name in RocksDB is the lower-case name."""

    DEFAULT = 0  # values too long to live in a lock or a version
    LOCK = 1
    WRITE = 2  # versions
    RAW = 3
    META = 4


Mutation = tuple[Cf, bytes, bytes | None]  # None deletes
EVERY_CURSOR = (Cf.DEFAULT, Cf.LOCK, Cf.WRITE, Cf.WRITE, Cf.RAW, Cf.META)
Range = tuple[Cf, bytes, bytes]  # lower inclusive, upper exclusive and not empty


class _WriteWork(NamedTuple):
    mutations: Sequence[Mutation]
    ranges: Sequence[Range]


class _QueuedWork(NamedTuple):
    work: _WriteWork
    done: "asyncio.Future[None]"


class EngineView:
    """The engine at one moment: it does not show later writes. Drop it soon, it holds back compaction.

    Iterators of rocksdict's snapshots (0.3.29) do not stay at the snapshot, and its loops treat an error as
    the end. But a RocksDB iterator shows the state at the time it was made. So a view makes the cursors that
    it may need at once, at the same sequence number as the snapshots that serve single keys.
    """

    __slots__ = ("_free", "_snapshots")

    def __init__(self, snapshots: tuple[Snapshot, ...], cursors: Sequence[tuple[Cf, RdictIter]]) -> None:
        self._snapshots = snapshots
        self._free = list(cursors)

    def get(self, cf: Cf, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        try:
            value: bytes = self._snapshots[cf][key]
        except Exception as error:
            if error.args == ("key not found",):  # rocksdict has no class of its own for this
                return None
            raise
        return value

    def iterate(self, cf: Cf, lower: bytes = b"", upper: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) from `lower` up to, not including, `upper`; an empty `upper` is the end."""
        with self.cursor(cf) as cursor:
            cursor.seek(lower)
            while cursor.valid():
                key: bytes = cursor.key()
                if upper and key >= upper:
                    return
                yield key, cursor.value()
                cursor.next()
            cursor.status()

    def iterate_reverse(
        self, cf: Cf, lower: bytes = b"", upper: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the same pairs as `iterate`, last one first."""
        with self.cursor(cf) as cursor:
            if upper:
                cursor.seek_for_prev(upper)
                if cursor.valid() and cursor.key() == upper:
                    cursor.prev()
            else:
                cursor.seek_to_last()
            while cursor.valid():
                key: bytes = cursor.key()
                if key < lower:
                    return
                yield key, cursor.value()
                cursor.prev()
            cursor.status()

    @contextmanager
    def cursor(self, cf: Cf) -> Iterator[RdictIter]:
        """Lend a cursor to move by hand. `status` of an invalid cursor raises when it met an error."""
        cursor = self.take_cursor(cf)
        try:
            yield cursor
        finally:
            self._free.append((cf, cursor))

    def take_cursor(self, cf: Cf) -> RdictIter:
        """Return a cursor for as long as the view is used; it is not given back."""
        for index, (family, cursor) in enumerate(self._free):
            if family is cf:
                del self._free[index]
                return cursor
        raise AssertionError(f"this view has no free cursor for {cf.name}: too many iterations at once")


class Engine:
    """The one database of a data directory.

    Writes queue on the event loop and one thread applies many at a time: each call is atomic, calls are
    applied in the order they were made, and a call returns when its group is on disk. Reads go through views,
    on any thread. After a failed write every waiting and every later write raises Unavailable: what reached
    the disk is known only after a restart.
    """

    def __init__(self, db: Rdict, path: Path, *, sync: bool) -> None:
        self._path = path
        self._db = db
        self._families = tuple(db.get_column_family(cf.name.lower()) for cf in Cf)
        self._handles = tuple(db.get_column_family_handle(cf.name.lower()) for cf in Cf)
        self._options = WriteOptions()
        self._options.sync = sync
        self._queue: queue.SimpleQueue[_QueuedWork | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._failure: Unavailable | None = None
        self._closed = False
        self._writer = threading.Thread(target=self._write_groups, name="penstock-engine", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, path: Path, *, sync: bool = True) -> "Engine":
        """Open or create the database; raise Invalid when it cannot be used, Corrupt when it is damaged.

        Without `sync` a write may be lost when the machine (not only the process) goes down.
        """
        try:
            make_data_directory(path)
        except OSError as error:
            raise Invalid(
                f"data directory {path} cannot be created ({error.strerror}); choose another one"
            ) from error
        cache = Cache(_BLOCK_CACHE_BYTES)
        try:
            db = Rdict(
                str(path),
                _database_options(cache),
                column_families={
                    cf.name.lower(): _family_options(cf, cache) for cf in Cf if cf != Cf.DEFAULT
                },
            )
        except Exception as error:
            raise _refusal(path, str(error)) from error
        return cls(db, path, sync=sync)

    def close(self) -> None:
        """Finish the queued writes and close the database. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._writer.join()
        self._handles = ()
        for family in self._families:
            family.close()
        self._families = ()
        self._db.close()

    def view(self, cursors: Sequence[Cf] = EVERY_CURSOR) -> EngineView:
        """Return the present state, the same moment for every column family.

        `cursors` names the column families to iterate over, once for each concurrent iteration.
        """
        for _ in range(_VIEW_ATTEMPTS):
            before = self._db.latest_sequence_number()
            view = self._view(cursors)
            if self._db.latest_sequence_number() == before:
                return view
        with self._writing:  # a busy writer got in between each time: keep it from writing
            return self._view(cursors)

    def _view(self, cursors: Sequence[Cf]) -> EngineView:
        families = self._families
        return EngineView(
            tuple([family.snapshot() for family in families]), [(cf, families[cf].iter()) for cf in cursors]
        )

    def submit(self, mutations: Sequence[Mutation], ranges: Sequence[Range] = ()) -> "asyncio.Future[None]":
        """Queue one atomic write; the future is done on the running loop when it is durable.

        Futures of calls made in order are done in order. Cancelling the future does not undo the write.
        """
        if self._closed:
            raise Unavailable(f"store at {self._path} is closed; start it again")
        if self._failure is not None:
            raise self._failure
        done = asyncio.get_running_loop().create_future()
        self._queue.put(_QueuedWork(_WriteWork(mutations, ranges), done))
        return done

    async def write(self, mutations: Sequence[Mutation]) -> None:
        """Apply one atomic write; durable on return, also when the caller is cancelled meanwhile."""
        await asyncio.shield(self.submit(mutations))

    async def delete_range(self, ranges: Sequence[Range]) -> None:
        """Delete every key of the ranges (an empty upper bound is the end) in one atomic write."""
        await self.write(())  # what was queued before this call must be deleted as well: let it land
        closed = [(cf, lower, upper or self._after_last(cf)) for cf, lower, upper in ranges]
        await asyncio.shield(self.submit((), [r for r in closed if r[1] < r[2]]))

    def compact(self, ranges: Sequence[Range]) -> None:
        """Give back the space of keys that were deleted in these ranges. Blocks; not on the event loop."""
        for cf, lower, upper in ranges:
            self._families[cf].compact_range(lower, upper or None)

    def _after_last(self, cf: Cf) -> bytes:
        for key, _ in self.view((cf,)).iterate_reverse(cf):
            return key + b"\0"
        return b""

    def _write_groups(self) -> None:
        """Write what is queued as one batch and resolve its futures, until `close` queues None."""
        while True:
            group, last = self._next_group()
            if group:
                failure = self._failure or self._try_write([entry.work for entry in group])
                group[0].done.get_loop().call_soon_threadsafe(_resolve, group, failure)
            if last:
                return

    def _next_group(self) -> tuple[list[_QueuedWork], bool]:
        group: list[_QueuedWork] = []
        mutations = 0
        while mutations < _GROUP_MUTATIONS_MAX:
            try:
                entry = self._queue.get(block=not group)
            except queue.Empty:
                break
            if entry is None:
                return group, True
            group.append(entry)
            mutations += len(entry.work.mutations) + 1
        return group, False

    def _try_write(self, group: Sequence[_WriteWork]) -> Unavailable | None:
        metrics.STORE_ENGINE_GROUP_WRITES.observe(len(group))
        try:
            with self._writing, metrics.STORE_ENGINE_WRITE_SECONDS.time():
                self._write(group)
        except Exception as error:  # noqa: BLE001 - no write may be acknowledged after any error
            self._failure = Unavailable(
                f"store at {self._path} cannot write ({error}); check the disk and its free space, "
                "then start the store again"
            )
        return self._failure

    def _write(self, group: Sequence[_WriteWork]) -> None:
        batch = WriteBatch(raw_mode=True)
        handles: tuple[ColumnFamily, ...] = self._handles
        for work in group:
            for cf, key, value in work.mutations:
                if value is None:
                    batch.delete(key, handles[cf])
                else:
                    batch.put(key, value, handles[cf])
            for cf, lower, upper in work.ranges:
                batch.delete_range(lower, upper, handles[cf])
        if not batch.is_empty():
            self._db.write(batch, self._options)


def _resolve(group: Sequence[_QueuedWork], failure: Unavailable | None) -> None:
    for entry in group:
        if entry.done.done():  # cancelled by its caller
            continue
        if failure is None:
            entry.done.set_result(None)
        else:
            entry.done.set_exception(failure)


def _database_options(cache: Cache) -> Options:
    options = _family_options(Cf.DEFAULT, cache)
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_log_file_size(_LOG_BYTES_MAX)
    options.set_keep_log_file_num(4)
    # A torn tail was never acknowledged; damage before it was, and must be reported, not skipped.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def _family_options(cf: Cf, cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size((16 if cf in {Cf.LOCK, Cf.META} else 64) * _MIB)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size(16 * 1024)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if cf != Cf.WRITE:  # versions are read by seeks, never by their whole key
        blocks.set_bloom_filter(_BLOOM_BITS, block_based=False)
    options.set_block_based_table_factory(blocks)
    if cf in {Cf.LOCK, Cf.WRITE, Cf.DEFAULT}:  # locks go soon after they came, old versions in rounds
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
    return options


def _refusal(path: Path, reason: str) -> Invalid | Corrupt:
    if "ermission denied" in reason:
        return Invalid(f"data directory {path} is not writable; give this user the right to write it")
    if "lock file" in reason or "lock hold" in reason:
        return Invalid(f"data directory {path} is in use by another process; stop it or choose another one")
    if reason.startswith("Corruption"):
        return Corrupt(f"data directory {path} is damaged ({reason}); keep a copy and restore a backup")
    return Invalid(f"data directory {path} cannot be opened ({reason}); choose another one")
