"""What travels between dispatchers, sink and engine: descriptors of rows, never the rows. No I/O."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.changes import ChangesPartition
from penstock.eventstore.schemaversion import SchemaVersion
from penstock.sink.positions import Position


@dataclass(frozen=True, slots=True)
class DispatcherSpec:
    """A dispatcher's part of the world: a physical table, or the rows of it in [handle_from, handle_to)."""

    id: str  # decimal digits, as in file names
    table_id: int
    handle_from: bytes = b""
    handle_to: bytes = b""

    @classmethod
    def of(
        cls, feed: str, table_id: int, handle_from: bytes = b"", handle_to: bytes = b""
    ) -> "DispatcherSpec":
        """The same dispatcher has the same id after every restart."""
        known = hashlib.sha256(f"{feed}/{table_id}/".encode() + handle_from).digest()
        low, high = int.from_bytes(known[:8], "big"), int.from_bytes(known[8:16], "big")
        return cls(f"{low}{high}", table_id, handle_from, handle_to)

    @property
    def whole(self) -> bool:
        """Whether it has all rows of its table."""
        return not self.handle_from and not self.handle_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Changes of one dispatcher that follow each other, after `start` up to `end`, of one schema version.

    The parts are in order and each is encoded by itself; the first may hold rows that are not after `start`.
    Can be pickled. `rows` and `nbytes` are estimates.
    """

    dispatcher: DispatcherSpec
    schema: SchemaVersion
    start: Position
    end: Position
    parts: tuple[ChangesPartition, ...]
    rows: int
    nbytes: int


class DmlEvent:
    """A slice on its way, with its two acknowledgements. Each runs once, whoever calls it how often.

    `post_enqueue`: the encoded payload is in the spool, so that the dispatcher may go on. `post_flush`: data
    and index are on the remote; nothing else may move a checkpoint.
    """

    def __init__(self, piece: Slice) -> None:
        self.slice = piece
        self._enqueued: list[Callable[[], None]] | None = []
        self._flushed: list[Callable[[], None]] | None = []

    def add_post_enqueue(self, call: Callable[[], None]) -> None:
        """Call it when the event is in the spool."""
        assert self._enqueued is not None, "the event is in the spool already"
        self._enqueued.append(call)

    def add_post_flush(self, call: Callable[[], None]) -> None:
        """Call it when the event is on the remote."""
        assert self._flushed is not None, "the event is on the remote already"
        self._flushed.append(call)

    def post_enqueue(self) -> None:
        """The event is in the spool, and the spool has room for more."""
        calls, self._enqueued = self._enqueued, None
        for call in calls or ():
            call()

    def post_flush(self) -> None:
        """All of the event is on the remote."""
        calls, self._flushed = self._flushed, None
        for call in calls or ():
            call()


Traced = tuple[tuple[int, int], ...]
"""Transactions that are traced, by commit timestamp, and how many rows each has somewhere."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """An encoded payload in the spool: the changes after `start` up to `end`. (segment, number) finds it."""

    segment: int
    number: int
    start: Position
    end: Position
    rows: int
    nbytes: int
    traced: Traced = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """A file to write: its chunks in order, then the index that names it."""

    dispatcher_id: str
    chunks: tuple[Chunk, ...]
    data_path: str
    index_path: str
    header: bytes = b""  # before the first chunk
    parquet: bool = False  # chunks are Arrow streams, to become one Parquet file
    parquet_options: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a FileWork. `error` is one line; empty when data and index are on the remote."""

    data_path: str
    nbytes: int
    error: str = ""
