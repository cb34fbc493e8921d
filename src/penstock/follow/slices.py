"""The next slice of a dispatcher: how far it goes within a limit, and the parts that are read for it.

Handles that divide a table into parts of about as many rows, by a sample of its objects.

How far a dispatcher's changes have gone: a place in their order. Pure.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import total_ordering
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import ChangesPartition, plan_changes
from penstock.changes.collect import open_range
from penstock.changes.limits import ChangeCounts, ReadLimit, admitted_handle
from penstock.changes.options import ChangeOptions
from penstock.errors import Corrupt
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.object_file import opened
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import Partition, PartitionState, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """Every change up to `ts` is done; with a handle, of those at `ts` only the rows before it.

    Changes are ordered by (commit_ts, handle), and so is a snapshot, whose rows all count as committed at its
    timestamp: `Position(ts, b"")` is the beginning of the snapshot at ts, and `Position(ts)` its end.
    """

    ts: int
    handle: bytes | None = None

    @property
    def checkpoint_ts(self) -> int:
        """Every commit up to it is done."""
        return self.ts if self.handle is None else self.ts - 1

    def __lt__(self, other: "Position") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, bytes]:
        return self.ts, self.handle is None, self.handle or b""

    def to_json(self) -> dict[str, Any]:
        """What is kept of it."""
        return {"ts": self.ts} if self.handle is None else {"ts": self.ts, "handle": self.handle.hex()}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raise Corrupt when it is something else."""
        try:
            handle = tree.get("handle")
            return cls(int(tree["ts"]), None if handle is None else bytes.fromhex(handle))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt("a position lacks its timestamp or has a damaged handle") from error


BATCH_ROWS = 16 * 1024  # of the batches in which a part is read


@dataclass(frozen=True, slots=True)
class TableSpan:
    """A dispatcher's part of the world: a physical table, or the rows of it in [handle_from, handle_to)."""

    id: str  # decimal digits, as in file names
    table_id: int
    handle_from: bytes = b""
    handle_to: bytes = b""

    @classmethod
    def of(cls, feed: str, table_id: int, handle_from: bytes = b"", handle_to: bytes = b"") -> "TableSpan":
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

    dispatcher: TableSpan
    schema: SchemaVersion
    start: Position
    end: Position
    parts: tuple[ChangesPartition, ...]
    rows: int
    nbytes: int


PART_ROWS = 256 * 1024
"""About how many rows are encoded one after the other; parts are encoded beside each other."""
PART_BYTES = 16 * 1024 * 1024
"""About how many bytes of objects a part of a snapshot has: its rows are sorted in memory."""
_PART = ReadLimit(PART_ROWS, PART_BYTES)
_EVERYTHING = 1 << 62  # rows


@dataclass(frozen=True, slots=True)
class SliceRange:
    """What is asked for: changes of a dispatcher after `start`, up to `upto_ts`, as many as are allowed."""

    dispatcher: TableSpan
    start: Position
    upto_ts: int
    limit: ReadLimit
    snapshot: bool  # whether `start` is inside a snapshot, or before it

    @property
    def schema_ts(self) -> int:
        """When the schema of what follows is in force."""
        return self.start.ts if self.start.handle is not None else self.start.ts + 1


def is_snapshot(start: Position, begin: Position | None) -> bool:
    """Whether a start is inside the snapshot that a dispatcher began with."""
    if start.handle is None:
        return False
    began = begin is not None and begin.handle is not None and begin.ts == start.ts
    return began or start.handle == b""


def slice_options(schema: SchemaVersion) -> dict[str, Any]:
    """The arguments with which `plan_changes` plans the parts of a slice: every column, and every change."""
    names = [column.name for column in schema.table.stored_columns]
    return {"columns": (*names, HANDLE), "coalesce": False, "old_rows": True, "batch_rows": BATCH_ROWS}


def plan_slice(view: TableView, schema: SchemaVersion, wanted: SliceRange) -> Slice | None:
    """The next slice of a physical table; None when there is nothing up to `upto_ts`.

    Blocks. Raises what reading raises: StaleRead, Unavailable, Corrupt.
    """
    return _SlicePlan(view, schema, wanted).next()


@dataclass(frozen=True)
class _SlicePlan:
    view: TableView
    schema: SchemaVersion
    wanted: SliceRange

    def next(self) -> Slice | None:
        if not self.wanted.snapshot:
            return self._tail(self.wanted.start)
        return self._snapshot() or self._tail(Position(self.wanted.start.ts))

    def _snapshot(self) -> Slice | None:
        """Rows of the snapshot from the start on; None when there are no more."""
        ts, dispatcher = self.wanted.start.ts, self.wanted.dispatcher
        assert self.wanted.start.handle is not None
        low = max(self.wanted.start.handle, dispatcher.handle_from)
        states = open_range(self.view, 0, ts)
        high = _cut(states, ts, low, dispatcher.handle_to, self.wanted.limit)
        whole = [part.within(low, high) for part in self._planned(0, ts, _EVERYTHING)]
        parts = [part for part in whole if part is not None]
        if not parts:
            return None
        inside = HandleRange(low=low, high=high)
        rows, nbytes = _summed([_weight(parts, self.wanted.limit), *_unflushed(states, ts, inside)])
        if not _PART.allows(rows, nbytes):
            bounds = [low, *_cuts(states, ts, low, high), high]
            divided = [part.within(*each) for each in pairwise(bounds) for part in parts]
            parts = [part for part in divided if part is not None]
        end = Position(ts) if high == dispatcher.handle_to else Position(ts, high)
        return self._slice(end, parts, rows, nbytes)

    def _tail(self, start: Position) -> Slice | None:
        """Changes after a start, of whole commits; the first goes on where the start is inside of it."""
        from_ts = max(1, start.ts if start.handle is None else start.ts - 1)  # 0 would be a snapshot
        upto_ts, dispatcher = self.wanted.upto_ts, self.wanted.dispatcher
        if upto_ts <= from_ts:
            return None
        states = open_range(self.view, from_ts, upto_ts)
        handles = HandleRange(low=dispatcher.handle_from, high=dispatcher.handle_to)
        counts = ChangeCounts(states, from_ts, upto_ts, handles)
        if not counts.any():
            return None
        end_ts = counts.admitted_ts(self.wanted.limit)
        rows, nbytes = counts.weigh(end_ts)
        parts: list[ChangesPartition] = []
        if start.handle is not None:
            parts += self._parts(from_ts, start.ts, rows, low=max(start.handle, dispatcher.handle_from))
        if end_ts > max(start.ts, from_ts):
            parts += self._parts(max(start.ts, from_ts), end_ts, rows, low=dispatcher.handle_from)
        return self._slice(Position(end_ts), parts, rows, nbytes)

    def _parts(self, from_ts: int, to_ts: int, rows: int, *, low: bytes) -> Iterator[ChangesPartition]:
        """The changes in (from_ts, to_ts] of the dispatcher's rows from `low` on."""
        if rows > PART_ROWS:
            planned = self._planned(from_ts, to_ts, PART_ROWS)
        else:
            options = ChangeOptions(**slice_options(self.schema))
            planned = [
                ChangesPartition(table=self.view, from_ts=from_ts, to_ts=to_ts, options=options, rows=rows)
            ]
        for each in planned:
            inside = each.within(low, self.wanted.dispatcher.handle_to)
            if inside is not None:
                yield inside

    def _planned(self, from_ts: int, to_ts: int, partition_rows: int) -> list[ChangesPartition]:
        options = slice_options(self.schema)
        return plan_changes(self.view, from_ts, to_ts, partition_rows=partition_rows, **options)

    def _slice(self, end: Position, parts: Sequence[ChangesPartition], rows: int, nbytes: int) -> Slice:
        return Slice(
            dispatcher=self.wanted.dispatcher,
            schema=self.schema,
            start=self.wanted.start,
            end=end,
            parts=tuple(parts),
            rows=rows,
            nbytes=nbytes,
        )


def _cut(states: Sequence[PartitionState], ts: int, low: bytes, high: bytes, limit: ReadLimit) -> bytes:
    """Where to cut the rows of a snapshot in [low, high); `high` when all of them are allowed."""
    cut = admitted_handle(states, ts, low, limit)
    return high if cut is None or (high and cut >= high) else cut


def _cuts(states: Sequence[PartitionState], ts: int, low: bytes, high: bytes) -> Iterator[bytes]:
    """Where to divide these rows."""
    while (low := _cut(states, ts, low, high, _PART)) != high:
        yield low


def _unflushed(states: Sequence[PartitionState], ts: int, handles: HandleRange) -> Iterator[tuple[int, int]]:
    """About how many rows of a snapshot, and bytes of them, are in no object yet."""
    for state in states:
        if state.flushed_ts < ts:
            yield ChangeCounts([state], state.flushed_ts, ts, handles).weigh(ts)


def _summed(weights: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(rows for rows, _ in weights), sum(nbytes for _, nbytes in weights)


def _weight(parts: Sequence[ChangesPartition], limit: ReadLimit) -> tuple[int, int]:
    """About how many rows, and bytes of them, parts of a snapshot have: objects are counted as a whole."""
    pieces = [piece for part in parts if part.snapshot is not None for piece in part.snapshot.pieces]
    rows, nbytes = sum(piece.rows for piece in pieces), sum(piece.size_bytes for piece in pieces)
    return (
        max(1, rows if limit.rows is None else min(rows, limit.rows)),
        max(1, nbytes if limit.nbytes is None else min(nbytes, limit.nbytes)),
    )


_GROUPS_MAX = 64  # row groups that are read for a sample
_SAMPLE_MAX = 256  # handles of a row group


class HandleSample(NamedTuple):
    """Some handles, in order, that stand for `rows` rows."""

    handles: list[bytes]
    rows: int


def table_cuts(partition: Partition, ts: int, rows: int) -> list[bytes]:
    """Where to divide a physical table as of `ts`; none for a small one.

    Rows that are not flushed yet do not count. Blocks. Raises what reading a snapshot raises.
    """
    state = partition.state(from_ts=ts)
    state.check_range(0, ts)
    objects = [each for each in state.visible("data", min(ts, state.flushed_ts)) if each.rows]
    if sum(each.rows for each in objects) <= rows:
        return []
    stride = -(-len(objects) // _GROUPS_MAX)
    groups_max = max(1, _GROUPS_MAX // len(objects))
    samples = [each for info in objects[::stride] for each in _samples(state, info, ts, groups_max)]
    scale = sum(each.rows for each in objects) / sum(each.rows for each in samples)
    return divide(samples, rows / scale)


def _samples(state: PartitionState, info: ObjectInfo, ts: int, groups_max: int) -> Iterable[HandleSample]:
    """Row groups of an object, evenly spread, as a sample of all of it."""
    with state.reading(ts), opened(state.storage, state.table_id, info) as file:
        count = file.num_row_groups
        chosen = sorted({at * count // groups_max for at in range(min(count, groups_max))})
        for number in chosen:
            handles = file.read_row_group(number, columns=[HANDLE]).column(0)
            yield HandleSample(_thinned(handles), info.rows // len(chosen))


def _thinned(handles: pa.ChunkedArray) -> list[bytes]:
    ordered = handles.take(pc.sort_indices(handles))
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), _SAMPLE_MAX)).astype(np.int64)
    found: list[bytes] = ordered.take(pa.array(places)).to_pylist()
    return found


def divide(samples: Sequence[HandleSample], rows: float) -> list[bytes]:
    """Handles, in order, that divide what the samples stand for into parts of about `rows`. Pure."""
    weighted = sorted((handle, each.rows / len(each.handles)) for each in samples for handle in each.handles)
    total = sum(weight for _, weight in weighted)
    parts = max(1, round(total / rows))
    cuts: list[bytes] = []
    before = 0.0
    for handle, weight in weighted:
        is_new = handle > (cuts[-1] if cuts else weighted[0][0])
        if before >= total * (len(cuts) + 1) / parts and is_new and len(cuts) + 1 < parts:
            cuts.append(handle)
        before += weight
    return cuts
