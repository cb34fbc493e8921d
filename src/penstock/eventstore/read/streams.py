"""Ordered streams of one side of a table's changes, their merge, and reading ahead.

A partition has up to three streams of changes: of appendable objects, of direct objects, and of rows that are
not in objects yet. Each is in order; a transaction is in a single one. Rows pass as slices of Arrow batches.
"""

import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heapify, heappop, heapreplace
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from penstock.errors import Invalid, Unavailable
from penstock.eventstore.manifest import ObjectInfo, ObjectKind
from penstock.eventstore.paths import Side
from penstock.eventstore.read.blocks import Block, BlockReader, Blocks, count_below
from penstock.eventstore.read.partition import PartitionState, RangeReader, ReadRange
from penstock.eventstore.read.pruning import WantedRows
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, OLD, PARTITION, START_TS, side_schema, stored_side_schema

__all__ = [
    "BlockStream",
    "ChangeStream",
    "Place",
    "ReadAhead",
    "list_old",
    "memory_stream",
    "merge_streams",
    "narrow_old",
    "object_stream",
    "open_streams",
    "select_schema",
]


T = TypeVar("T")


Place = tuple[int, int]
"""The place of a transaction in the order of changes: commit_ts, start_ts."""


class ChangeStream(Protocol):
    """Rows in order, taken in slices. Use it from one thread at a time.

    `peek` and `take` raise StaleRead when history was collected while it was read, Unavailable and Corrupt;
    later calls raise the same error again.
    """

    def peek(self) -> Place | None:
        """Return the place of the next row; None at the end."""

    def take(self, before: Place | None, rows_max: int) -> pa.RecordBatch:
        """Take the next rows before a place (None: any place), at least one and at most `rows_max`.

        There must be such a row. The result may have fewer rows than there are: take again.
        """

    def close(self) -> None:
        """Close files and release rows; needed also at the end."""


class BlockStream:
    """The stream of blocks that are in order, in themselves and one after the other; one is read ahead.

    With a `partition` its rows have that in a column PARTITION.
    """

    def __init__(self, blocks: Blocks, partition: int | None = None) -> None:
        self._ahead = ReadAhead(blocks)
        self._partition = partition
        self._block: Block | None = None
        self._at = 0  # rows of the block that were taken

    def peek(self) -> Place | None:
        """Return the place of the next row; None at the end."""
        if self._block is None:
            self._block, self._at = self._ahead.next(), 0
            if self._block is None:
                return None
            if self._partition is not None:
                self._block = self._block._replace(rows=_add_partition(self._block.rows, self._partition))
        return int(self._block.commit[self._at]), int(self._block.start[self._at])

    def take(self, before: Place | None, rows_max: int) -> pa.RecordBatch:
        """Take the next rows before a place, out of one block."""
        at = self.peek()
        assert at is not None, "the stream has ended"
        assert self._block is not None
        rows, begin = self._block.rows, self._at
        end = rows.num_rows if before is None else _rows_before(self._block, begin, before)
        assert end > begin, "no row is before that place"
        end = min(end, begin + rows_max)
        if end == rows.num_rows:
            self._block = None
        self._at = end
        return rows.slice(begin, end - begin)

    def close(self) -> None:
        """Release the block and stop reading ahead."""
        self._block = None
        self._ahead.close()


def _add_partition(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    return rows.append_column(PARTITION, pa.repeat(pa.scalar(partition, pa.int64()), rows.num_rows))


def _rows_before(block: Block, begin: int, place: Place) -> int:
    """Return how many rows of a block come before a place; the first `begin` rows are not compared."""
    if (block.commit[-1], block.start[-1]) < place:
        return len(block.commit)
    commit_ts, start_ts = place
    low = begin + count_below(block.commit[begin:], commit_ts)
    high = low + count_below(block.commit[low:], commit_ts + 1)
    return low + count_below(block.start[low:high], start_ts)


def object_stream(
    state: PartitionState, reader: BlockReader, objects: Sequence[ObjectInfo], partition: int | None = None
) -> ChangeStream:
    """Return the stream of objects of one side and kind; they are the state's objects with changes."""

    def blocks() -> Blocks:
        with state.reading(reader.from_ts):
            yield from reader.blocks(objects)

    return BlockStream(blocks(), partition)


def memory_stream(
    rows: RangeReader, wanted: ReadRange, shown: pa.Schema, partition: int | None = None
) -> ChangeStream:
    """Return the stream of a range that a RangeReader reads."""

    def blocks() -> Blocks:
        _, batches = rows.read(wanted)
        for batch in batches:
            if batch.num_rows:
                yield Block.of(batch, shown)

    return BlockStream(blocks(), partition)


def open_streams(
    state: PartitionState,
    side: Side,
    from_ts: int,
    to_ts: int,
    *,
    columns: Sequence[str] | None = None,
    old_columns: Sequence[str] | None = None,
    handle_from: bytes = b"",
    handle_to: bytes = b"",
    schema: SchemaVersion | None = None,
    with_partition: bool = False,
    backfills: bool = False,
    wanted_rows: WantedRows | None = None,
) -> list[ChangeStream]:
    """Open the streams of a partition in (from_ts, to_ts], which has one schema version (`schema`, if known).

    Their batches have exactly `columns` (None: every column of the side), and with `with_partition` the
    state's id in PARTITION; `_old` has `old_columns`, or one column if that names none. With `backfills` they
    include updates that are no change for readers. Rows that are not among `wanted_rows` may be left out.
    Streams without rows are left out. Raises Invalid when the
    schema changes within the range or has no such column, Unavailable when nobody has the newest rows. The
    range must have passed `check_range`.
    """
    version = schema or _only_schema(state, from_ts, to_ts)
    shown = select_schema(version, side, columns, old_columns)
    reader = BlockReader(
        storage=state.storage,
        table_id=state.table_id,
        from_ts=from_ts,
        to_ts=to_ts,
        shown=shown,
        handle_from=handle_from,
        handle_to=handle_to,
        ranges={} if wanted_rows is None else wanted_rows.in_version(version.table, side),
    )
    found = state.change_objects(side, from_ts, min(to_ts, state.flushed_ts), backfills=backfills)
    kinds: tuple[ObjectKind, ...] = ("appendable", "direct", "backfill")
    by_kind = ([info for info in found if info.kind == kind] for kind in kinds)
    partition = state.table_id if with_partition else None
    streams = [object_stream(state, reader, objects, partition) for objects in by_kind if objects]
    if to_ts > state.flushed_ts:
        if state.rows is None:
            raise Unavailable(
                f"table {state.table_id} is read without its capture, so only up to {state.flushed_ts};"
                " read up to there, or with the capture"
            )
        hidden = sorted(_names(shown) - _names(side_schema(version.table, side)))
        wanted = ReadRange(
            table_id=state.table_id,
            from_ts=max(from_ts, state.flushed_ts),
            to_ts=to_ts,
            side=side,
            columns=tuple(dict.fromkeys([*shown.names, *hidden, COMMIT_TS, START_TS])),
            handle_from=handle_from,
            handle_to=handle_to,
            backfills=backfills,
        )
        streams.append(memory_stream(state.rows, wanted, shown, partition))
    return streams


def select_schema(
    version: SchemaVersion,
    side: Side,
    columns: Sequence[str] | None,
    old_columns: Sequence[str] | None = None,
) -> pa.Schema:
    """Return some columns of a side (None: all that readers see), in their order.

    `_old` has `old_columns`; None: the columns that readers see, and others that `columns` names. Raises
    Invalid when a column does not exist.
    """
    seen = side_schema(version.table, side)
    stored = stored_side_schema(version.table, side)
    names = seen.names if columns is None else columns
    hidden = _names(stored) - _names(seen)
    missing = sorted(set(names).difference(stored.names, hidden))
    if missing:
        raise Invalid(f"table {version.table.name} has no column {missing[0]!r} in this range")
    chosen = pa.schema([stored.field(name) for name in names if name in stored.names])
    return narrow_old(chosen, [*_names(seen), *names] if old_columns is None else old_columns)


def list_old(schema: pa.Schema) -> list[str] | None:
    """Return the columns of `_old` in the columns of a side; None when they do not have it."""
    at = schema.get_field_index(OLD)
    return None if at < 0 else [field.name for field in schema.field(at).type]


def _names(schema: pa.Schema) -> set[str]:
    """Return the columns of a side, those of `_old` among them."""
    return {*schema.names, *(list_old(schema) or ())}


def narrow_old(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return a schema whose `_old`, if it has that, has only some columns (None: all), but at least one.

    Without any column, objects would not show which old rows are known.
    """
    at = schema.get_field_index(OLD)
    if at < 0 or columns is None:
        return schema
    old = schema.field(at)
    chosen = [field for field in old.type if field.name in columns] or [old.type.field(0)]
    return schema.set(at, old.with_type(pa.struct(chosen)))


def _only_schema(state: PartitionState, from_ts: int, to_ts: int) -> SchemaVersion:
    first, *others = state.schemas(from_ts, to_ts)
    if others:
        split_points = ", ".join(str(version.since_ts - 1) for version in others)
        raise Invalid(f"the schema of table {state.table_id} changes after {split_points}; read the parts")
    return first


def merge_streams(streams: Sequence[ChangeStream], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all streams in order, in slices of at most `rows_max`; close the streams at the end.

    From the stream with the next row it takes everything before the next row of any other stream at once.
    Rows of the same transaction in several streams come in the order of the streams.
    """
    try:
        waiting = [
            (place, index) for index, stream in enumerate(streams) if (place := stream.peek()) is not None
        ]
        heapify(waiting)
        while waiting:
            place, index = waiting[0]
            stream = streams[index]
            before = _limit(waiting)
            next_place: Place | None = place
            while next_place is not None and (before is None or next_place < before):
                yield stream.take(before, rows_max)
                next_place = stream.peek()
            if next_place is None:
                heappop(waiting)
            else:
                heapreplace(waiting, (next_place, index))
    finally:
        for finished in streams:
            finished.close()


def _limit(waiting: Sequence[tuple[Place, int]]) -> Place | None:
    """Return up to where the first of a heap may be taken: the second, or past a shared transaction."""
    second = min(waiting[1:3], default=None)
    if second is None:
        return None
    (commit_ts, start_ts), _ = waiting[0]
    return max(second[0], (commit_ts, start_ts + 1))


_THREADS = 8  # shared by all readers; they mostly wait for storage


class _ReadAheadThreads:
    """The threads; a forked process gets its own."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Forget threads that this process does not have."""
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-read")  # starts no thread yet


_READERS = _ReadAheadThreads()


class ReadAhead(Generic[T]):
    """Fetches one item ahead, in the background. Use it from one thread at a time; `close` it after use.

    A caller that needs an item that no thread has begun to fetch fetches it itself. So nobody waits for a
    free thread, and readers within readers cannot block each other, however few threads there are.
    """

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self._failure: BaseException | None = None
        self._ahead: Future[T | None] | None = _READERS.pool.submit(self._fetch)

    def next(self) -> T | None:
        """Return the next item; None at the end. Every later call raises the error of a fetch again."""
        if self._failure is not None:
            raise self._failure
        if self._ahead is None:
            return None
        try:
            found = self._fetch() if self._ahead.cancel() else self._ahead.result()
        except BaseException as error:
            self._failure = error
            raise
        self._ahead = None if found is None else _READERS.pool.submit(self._fetch)
        return found

    def close(self) -> None:
        """Stop fetching; wait for an item that is being fetched."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not ahead.cancel():
            ahead.exception()
        self._items.close()

    def _fetch(self) -> T | None:
        return next(self._items, None)
