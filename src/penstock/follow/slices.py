"""Slices of a changefeed: positions in the order of changes, the next slice within a limit, and split points.

A dispatcher reads a `TableSpan` slice by slice. `plan_slice` decides how far the next slice goes and which
parts are read for it; `table_split_points` divides a large table among dispatchers by a sample of its
objects.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
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
from penstock.eventstore.objects.object_file import open_object
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.read.partition import Partition, PartitionState, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.tables.arrow import arrow_name


class Phase(IntEnum):
    """What a position inside a commit counts.

    ROWS: all changes of a row at once. A table whose unique keys can go from one row to another has the
    deletes of a commit first: DELETES counts these, and REST what follows when all of them are done.
    """

    ROWS = 0
    DELETES = 1
    REST = 2


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """How far a dispatcher's changes are done: all up to `ts`; with a handle, at `ts` only the rows before
    it, as the phase says.

    Changes are ordered by (commit_ts, phase, handle), and so is a snapshot, whose rows all count as committed
    at its timestamp: `Position(ts, b"")` is the beginning of the snapshot at ts, and `Position(ts)` its end.
    """

    ts: int
    handle: bytes | None = None
    phase: Phase = Phase.ROWS

    @property
    def checkpoint_ts(self) -> int:
        """The timestamp up to which every commit is done."""
        return self.ts if self.handle is None else self.ts - 1

    def __lt__(self, other: "Position") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, Phase, bytes]:
        return self.ts, self.handle is None, self.phase, self.handle or b""

    def to_json(self) -> dict[str, Any]:
        """Return the position as it is stored; `from_json` reads it."""
        if self.handle is None:
            return {"ts": self.ts}
        phase = {"phase": int(self.phase)} if self.phase else {}
        return {"ts": self.ts, "handle": self.handle.hex(), **phase}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Self:
        """Read what `to_json` returned; raise Corrupt when `tree` is something else."""
        try:
            handle = tree.get("handle")
            return cls(
                int(tree["ts"]),
                None if handle is None else bytes.fromhex(handle),
                Phase(tree.get("phase", Phase.ROWS)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt("a position has no timestamp or a damaged handle") from error


@dataclass(frozen=True, slots=True)
class TableSpan:
    """What one dispatcher reads: a physical table, or its rows in [handle_from, handle_to)."""

    id: str  # of the dispatcher: decimal digits, as in file names
    table_id: int
    handle_from: bytes = b""
    handle_to: bytes = b""

    @classmethod
    def of(cls, feed: str, table_id: int, handle_from: bytes = b"", handle_to: bytes = b"") -> "TableSpan":
        """Return the span with the id of its dispatcher, which is the same after every restart."""
        digest = hashlib.sha256(f"{feed}/{table_id}/".encode() + handle_from).digest()
        # Two 64-bit numbers, written one after the other as decimals.
        low, high = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
        return cls(f"{low}{high}", table_id, handle_from, handle_to)

    @property
    def whole(self) -> bool:
        """Whether the span has all rows of its table."""
        return not self.handle_from and not self.handle_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The changes of one dispatcher after `start` up to `end`, which have one schema version.

    The parts are in order, and each is encoded by itself. They may contain rows up to `start` and after
    `end`: the encoder leaves them out. Can be pickled. `rows` and `nbytes` are estimates.
    """

    dispatcher: TableSpan
    schema: SchemaVersion
    start: Position
    end: Position
    parts: tuple[ChangesPartition, ...]
    rows: int
    nbytes: int


PART_ROWS = 256 * 1024
"""About how many rows a part has. Parts of a slice are encoded in parallel."""
PART_BYTES = 16 * 1024 * 1024
"""About how many bytes of objects a part has. Rows of a snapshot are sorted in memory."""
PART_BYTES_MIN = 1024 * 1024
"""Parts are not smaller because more tasks are there: a task for less costs more than it saves."""
BATCH_ROWS = 16 * 1024
"""How many rows a batch of a part has at most."""
_EVERYTHING = 1 << 62  # rows: more than any table has


FILLED_MIN, FILLED_MAX = 0.75, 1.5
"""A slice fills a file if it has such a part of its bytes."""


@dataclass(frozen=True, slots=True)
class SliceSize:
    """How large the next slice of a dispatcher should be.

    About `file_bytes` fill a file, which one task makes. Up to `tasks` tasks share the encoding of others.
    """

    file_bytes: int
    tasks: int = 1

    def part_limit(self, rows: int, nbytes: int) -> ReadLimit:
        """Return how large the parts of a slice of so many rows and bytes are.

        One task reads all parts of its slice, one after the other, and each reads its objects anew: they are
        few. Where tasks share a slice, each gets a part, also of few rows that are wide.
        """
        fills_file = FILLED_MIN * self.file_bytes <= nbytes <= FILLED_MAX * self.file_bytes
        if self.tasks == 1 or fills_file:
            return ReadLimit(PART_ROWS, PART_BYTES)
        by_tasks = min(self.tasks, nbytes // PART_BYTES_MIN)
        count = max(-(-rows // PART_ROWS), -(-nbytes // PART_BYTES), by_tasks, 1)
        return ReadLimit(max(1, -(-rows // count)), max(1, -(-nbytes // count)))


ANY_SIZE = SliceSize(1 << 62)
"""Whatever the limit allows, for one task."""


@dataclass(frozen=True, slots=True)
class SliceRange:
    """The range of which a slice is planned: changes after `start` up to `upto_ts`, within the limit."""

    dispatcher: TableSpan
    start: Position
    upto_ts: int
    limit: ReadLimit
    snapshot: bool  # whether `start` is inside a snapshot or at its beginning
    size: SliceSize = ANY_SIZE

    @property
    def schema_ts(self) -> int:
        """The timestamp of the first change that may follow: its schema is that of the slice."""
        return self.start.ts if self.start.handle is not None else self.start.ts + 1


def is_snapshot(start: Position, begin: Position | None) -> bool:
    """Return whether `start` is in the snapshot that a dispatcher began with, or at its first row."""
    if start.handle is None:
        return False
    began_here = begin is not None and begin.handle is not None and begin.ts == start.ts
    return began_here or start.handle == b""


def slice_options(schema: SchemaVersion) -> dict[str, Any]:
    """Return the arguments of `plan_changes` for the parts of a slice: every column, and every change."""
    names = [arrow_name(column) for column in schema.table.stored_columns]
    return {
        "columns": (*names, HANDLE),
        "coalesce": False,
        "old_rows": True,
        "impossible_dates": True,
        "batch_rows": BATCH_ROWS,
    }


def plan_slice(view: TableView, schema: SchemaVersion, wanted: SliceRange) -> Slice | None:
    """Return the next slice of a physical table; None when it has no change up to `upto_ts`.

    Blocks. Raises StaleRead when history is gone, Unavailable when storage or the capture does not answer,
    Corrupt when an object is damaged.
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
        """Return the next rows of the snapshot; None when there are no more."""
        ts, dispatcher = self.wanted.start.ts, self.wanted.dispatcher
        assert self.wanted.start.handle is not None
        low = max(self.wanted.start.handle, dispatcher.handle_from)
        states = open_range(self.view, 0, ts)
        high = _end_within(states, ts, low, dispatcher.handle_to, self.wanted.limit)
        whole = [part.within(low, high) for part in self._plan_parts(0, ts, _EVERYTHING)]
        parts = [part for part in whole if part is not None]
        if not parts:
            return None
        inside = HandleRange(low=low, high=high)
        weights = [_objects_weight(parts, self.wanted.limit), *_unflushed_weights(states, ts, inside)]
        rows, nbytes = sum(rows for rows, _ in weights), sum(nbytes for _, nbytes in weights)
        part_size = self.wanted.size.part_limit(rows, nbytes)
        if not part_size.allows(rows, nbytes):
            bounds = [low, *_part_bounds(states, ts, low, high, part_size), high]
            divided = [part.within(*handles) for handles in pairwise(bounds) for part in parts]
            parts = [part for part in divided if part is not None]
        end = Position(ts) if high == dispatcher.handle_to else Position(ts, high)
        return self._slice(end, parts, rows, nbytes)

    def _tail(self, start: Position) -> Slice | None:
        """Return changes after `start`: whole commits, and the rest of the one that `start` is inside of."""
        from_ts = max(1, start.ts if start.handle is None else start.ts - 1)  # 0 would mean a snapshot
        upto_ts, dispatcher = self.wanted.upto_ts, self.wanted.dispatcher
        if upto_ts <= from_ts:
            return None
        states = open_range(self.view, from_ts, upto_ts)
        handles = HandleRange(low=dispatcher.handle_from, high=dispatcher.handle_to)
        counts = ChangeCounts(states, from_ts, upto_ts, handles)
        if not counts.has_changes():
            return None
        end_ts = counts.last_admitted_ts(self.wanted.limit)
        rows, nbytes = counts.weigh(end_ts)
        part_rows = self.wanted.size.part_limit(rows, nbytes).rows or rows
        parts: list[ChangesPartition] = []
        if start.handle is not None:
            # Inside the deletes of a commit, the rest of every row is still to come.
            done = b"" if start.phase is Phase.DELETES else start.handle
            parts += self._parts(from_ts, start.ts, rows, part_rows, low=max(done, dispatcher.handle_from))
        if end_ts > max(start.ts, from_ts):
            parts += self._parts(max(start.ts, from_ts), end_ts, rows, part_rows, low=dispatcher.handle_from)
        return self._slice(Position(end_ts), parts, rows, nbytes)

    def _parts(
        self, from_ts: int, to_ts: int, rows: int, part_rows: int, *, low: bytes
    ) -> Iterator[ChangesPartition]:
        """Yield parts with the changes in (from_ts, to_ts] of the dispatcher's rows from `low` on."""
        if rows > part_rows:
            planned = self._plan_parts(from_ts, to_ts, part_rows)
        else:
            options = ChangeOptions(**slice_options(self.schema))
            planned = [
                ChangesPartition(table=self.view, from_ts=from_ts, to_ts=to_ts, options=options, rows=rows)
            ]
        for part in planned:
            inside = part.within(low, self.wanted.dispatcher.handle_to)
            if inside is not None:
                yield inside

    def _plan_parts(self, from_ts: int, to_ts: int, partition_rows: int) -> list[ChangesPartition]:
        return plan_changes(
            self.view,
            from_ts,
            to_ts,
            partition_rows=partition_rows,
            # The deletes of a commit come before the rest of it, so one task has to see all of them.
            divide_commits=not self.schema.table.unique_keys,
            **slice_options(self.schema),
        )

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


def _end_within(
    states: Sequence[PartitionState], ts: int, low: bytes, high: bytes, limit: ReadLimit
) -> bytes:
    """Return up to which handle the limit allows rows of a snapshot in [low, high)."""
    end = admitted_handle(states, ts, low, limit)
    return high if end is None or (high and end >= high) else end


def _part_bounds(
    states: Sequence[PartitionState], ts: int, low: bytes, high: bytes, part_size: ReadLimit
) -> Iterator[bytes]:
    """Yield the handles that divide rows of a snapshot in [low, high) into parts."""
    while (low := _end_within(states, ts, low, high, part_size)) != high:
        yield low


def _unflushed_weights(
    states: Sequence[PartitionState], ts: int, handles: HandleRange
) -> Iterator[tuple[int, int]]:
    """Yield about how many rows and bytes of a snapshot are in no object yet, for each partition."""
    for state in states:
        if state.flushed_ts < ts:
            yield ChangeCounts([state], state.flushed_ts, ts, handles).weigh(ts)


def _objects_weight(parts: Sequence[ChangesPartition], limit: ReadLimit) -> tuple[int, int]:
    """Return about how many rows and bytes parts of a snapshot have: whole objects, at most the limit."""
    pieces = [piece for part in parts if part.snapshot is not None for piece in part.snapshot.tasks]
    rows, nbytes = sum(piece.rows for piece in pieces), sum(piece.size_bytes for piece in pieces)
    return (
        max(1, rows if limit.rows is None else min(rows, limit.rows)),
        max(1, nbytes if limit.nbytes is None else min(nbytes, limit.nbytes)),
    )


_GROUPS_MAX = 64  # row groups that are read for a sample
_SAMPLE_MAX = 256  # handles that are kept of a row group


class HandleSample(NamedTuple):
    """Some handles, in order: an even sample of `rows` rows."""

    handles: list[bytes]
    rows: int


def table_split_points(partition: Partition, ts: int, rows: int) -> list[bytes]:
    """Return the handles that divide a physical table at `ts` into parts of about `rows` rows; none if it is
    small.

    Rows that are not flushed yet do not count. Blocks. Raises StaleRead when the history at `ts` is gone,
    Unavailable when it is not complete yet or storage does not answer.
    """
    state = partition.state(from_ts=ts)
    state.check_range(0, ts)
    objects = [info for info in state.visible_objects("data", min(ts, state.flushed_ts)) if info.rows]
    if sum(info.rows for info in objects) <= rows:
        return []
    stride = -(-len(objects) // _GROUPS_MAX)  # rounded up: at most _GROUPS_MAX objects are read
    groups_max = max(1, _GROUPS_MAX // len(objects))
    samples = [sample for info in objects[::stride] for sample in _samples(state, info, ts, groups_max)]
    scale = sum(info.rows for info in objects) / sum(sample.rows for sample in samples)
    return divide_samples(samples, rows / scale)


def _samples(state: PartitionState, info: ObjectInfo, ts: int, groups_max: int) -> Iterable[HandleSample]:
    """Yield a sample of each of some row groups of an object, which are evenly spread."""
    with state.reading(ts), open_object(state.storage, state.table_id, info) as file:
        count = file.num_row_groups
        chosen = sorted({at * count // groups_max for at in range(min(count, groups_max))})
        for number in chosen:
            handles = file.read_row_group(number, columns=[HANDLE]).column(0)
            yield HandleSample(_sample(handles), info.rows // len(chosen))


def _sample(handles: pa.ChunkedArray) -> list[bytes]:
    """Return at most _SAMPLE_MAX of the handles, in order and evenly spread."""
    ordered = handles.take(pc.sort_indices(handles))
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), _SAMPLE_MAX)).astype(np.int64)
    found: list[bytes] = ordered.take(pa.array(places)).to_pylist()
    return found


def divide_samples(samples: Sequence[HandleSample], rows: float) -> list[bytes]:
    """Return handles, in order, that divide the sampled rows into parts of about `rows`. Pure."""
    weighted = sorted(
        (handle, sample.rows / len(sample.handles)) for sample in samples for handle in sample.handles
    )
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
