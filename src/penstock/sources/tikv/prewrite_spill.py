"""Prewrites that do not fit into memory: a bound over all regions, and a database on disk for the rest."""

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from tempfile import mkdtemp
from typing import Any, NamedTuple, cast

from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

from penstock import metrics
from penstock.durable_files import make_private_folder

__all__ = ["CachedEnd", "PrewriteMemory", "PrewriteSpill", "SpilledPrewrite"]

_MIB = 1024 * 1024
_PREWRITES, _ENDS = b"p", b"e"
_SPACE = Struct(">cQ")
_PREWRITE_KEY = Struct(">cQQ")
_PREWRITE = Struct("<IQ")  # length of the value, generation
_END = Struct("<QQB")


class SpilledPrewrite(NamedTuple):
    """What a transaction is about to write to a key."""

    value: bytes
    old_value: bytes
    generation: int = 0

    def supersedes(self, known: "SpilledPrewrite") -> bool:
        """Return whether it replaces what is known of the same key and transaction.

        An empty value is an echo of the lock (a heart beat) and replaces nothing; of a pipelined
        transaction the latest generation counts.
        """
        return bool(self.value) and self.generation >= known.generation


class CachedEnd(NamedTuple):
    """A commit, or with commit_ts 0 a rollback, whose prewrite may still be on its way."""

    start_ts: int
    commit_ts: int
    op: int
    key: bytes


class PrewriteMemory:
    """Counts the bytes of unmatched rows in memory, over all regions. Any thread may charge it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def charge(self, change: int) -> bool:
        """Account for a change; return whether the bound is exceeded."""
        with self._lock:
            self.used += change
            return self.used > self.limit


class PrewriteSpill:
    """A scratch database for unmatched rows; nothing in it outlives the process.

    Each matcher has a *space* of its own. Opened when it is first needed; any thread may use it.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._parent = directory
        self._path: Path | None = None
        self._db: Rdict | None = None
        self._lock = threading.Lock()
        self._spaces = 0

    def new_space(self) -> int:
        """Return the number of a space that nobody else has."""
        with self._lock:
            self._spaces += 1
            return self._spaces

    def put(self, space: int, start_ts: int, rows: Mapping[bytes, SpilledPrewrite]) -> int:
        """Add prewrites of a transaction to those already there; return how many keys are new."""
        db = self._open()
        head = _PREWRITE_KEY.pack(_PREWRITES, space, start_ts)
        known: list[bytes | None] = cast(Any, db.get([head + key for key in rows]))
        batch = WriteBatch(raw_mode=True)
        new = size = 0
        for (key, row), stored in zip(rows.items(), known, strict=True):
            if stored is None:
                new += 1
            elif not row.supersedes(_read(stored)):
                continue
            packed = _PREWRITE.pack(len(row.value), row.generation) + row.value + row.old_value
            size += len(key) + len(packed)
            batch.put(head + key, packed)
        db.write(batch)
        metrics.PULLER_SPILLED_BYTES_TOTAL.inc(size)
        return new

    def take(self, space: int, start_ts: int, key: bytes) -> SpilledPrewrite | None:
        """Remove a prewrite and return it."""
        db = self._open()
        place = _PREWRITE_KEY.pack(_PREWRITES, space, start_ts) + key
        stored = db.get(place)
        if stored is None:
            return None
        db.delete(place)
        return _read(stored)

    def put_back(self, space: int, start_ts: int, key: bytes, row: SpilledPrewrite) -> None:
        """Undo a `take`."""
        packed = _PREWRITE.pack(len(row.value), row.generation) + row.value + row.old_value
        self._open().put(_PREWRITE_KEY.pack(_PREWRITES, space, start_ts) + key, packed)

    def append_ends(self, space: int, first: int, ends: Sequence[CachedEnd]) -> None:
        """Keep commits and rollbacks in their order; `first` is the number of the first one."""
        batch = WriteBatch(raw_mode=True)
        for number, end in enumerate(ends, first):
            packed = _END.pack(end.start_ts, end.commit_ts, end.op) + end.key
            batch.put(_PREWRITE_KEY.pack(_ENDS, space, number), packed)
        self._open().write(batch)

    def ends(self, space: int) -> Iterator[CachedEnd]:
        """Return the commits and rollbacks that were kept, in order."""
        head = _SPACE.pack(_ENDS, space)
        stored = cast("Iterator[tuple[bytes, bytes]]", self._open().items(from_key=head))
        for key, packed in stored:
            if not key.startswith(head):
                return
            start_ts, commit_ts, op = _END.unpack_from(packed)
            yield CachedEnd(start_ts, commit_ts, op, packed[_END.size :])

    def drop(self, space: int) -> None:
        """Forget everything of a space."""
        db = self._open()
        for kind in (_PREWRITES, _ENDS):
            db.delete_range(_SPACE.pack(kind, space), _SPACE.pack(kind, space + 1))

    def close(self) -> None:
        """Remove the files."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            if self._path is not None:
                shutil.rmtree(self._path, ignore_errors=True)
                self._path = None

    def _open(self) -> Rdict:
        with self._lock:
            if self._db is None:
                if self._parent is not None:
                    make_private_folder(self._parent)
                self._path = Path(mkdtemp(prefix="penstock-prewrites-", dir=self._parent))
                self._db = Rdict(str(self._path / "db"), _options())
                unlogged = WriteOptions()
                unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever the stub says
                self._db.set_write_options(unlogged)
            return self._db


def _options() -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(16 * _MIB)
    options.set_max_write_buffer_number(3)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(8 * _MIB))
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    return options


def _read(stored: bytes) -> SpilledPrewrite:
    length, generation = _PREWRITE.unpack_from(stored)
    at = _PREWRITE.size
    return SpilledPrewrite(stored[at : at + length], stored[at + length :], generation)
