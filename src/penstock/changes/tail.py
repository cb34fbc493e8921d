"""The changes of a range that has one schema version, in batches that can be applied as they come.

`Tail` caches the next rows of both sides, and sends what both have reached. The side that has come less far
decides: rows that the other side has beyond that point may have to come after rows that are not cached yet,
and wait. So does half of a transaction whose other half is not cached yet.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock import metrics
from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.net_change import coalesce_by_handle, without_updates
from penstock.changes.options import ChangeOptions, ReadColumns
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a side is cached: its first cached row, and the first row behind those (None: no more)."""

    first_ts: int | None
    next_ts: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Every row up to `upto_ts` is cached. `large_ts` is a commit-ts that is too large to be cached whole."""

    upto_ts: int
    large_ts: int | None = None


def find_cut(data: Extent, tombstones: Extent, to_ts: int) -> Cut:
    """Return where both filled caches can be cut: at `to_ts` when no more rows come.

    There is a `large_ts` only if nothing is cached up to `upto_ts`. It is the lowest commit-ts then.
    """
    sides = (data, tombstones)
    upto = min(to_ts if side.next_ts is None else side.next_ts - 1 for side in sides)
    first = min((side.first_ts for side in sides if side.first_ts is not None), default=None)
    return Cut(upto, first if first is not None and first > upto else None)


def complete_ts(data: Extent, tombstones: Extent, to_ts: int) -> int:
    """Return the highest timestamp up to which neither side has rows left."""
    left = [side.first_ts for side in (data, tombstones) if side.first_ts is not None]
    return min(left) - 1 if left else to_ts


BYTES_MAX = 64 * 1024 * 1024
# Weighing a slice takes as long as taking it. Smaller slices than this are weighed only once in so many.
_WEIGHED_ROWS = 256
_WEIGHED_SLICES = 32


class SideCache:
    """Takes ordered slices until more than `rows_max` rows are cached; at most so many are on view.

    The rows on view depend on the rows alone, not on how they come in slices, unless rows are so large that
    about `bytes_max` is reached first.
    """

    def __init__(
        self, slices: Iterator[pa.RecordBatch], rows_max: int, *, bytes_max: int = BYTES_MAX
    ) -> None:
        self._source: Iterator[pa.RecordBatch] | None = slices
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._slices: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0.0
        self._row_bytes: float = 0.0
        self._unweighed = _WEIGHED_SLICES

    def fill(self, waiting: int = 0) -> Extent:
        """Fill the cache up to its limit; return how far it reaches.

        With rows `waiting` elsewhere, so many fewer are on view. An error of the slices is raised.
        """
        while self._source is not None and self._has_room():
            taken = next(self._source, None)
            if taken is None:
                self._source = None
            elif taken.num_rows:
                self._slices.append(taken)
                self._rows += taken.num_rows
                self._bytes += self._weigh(taken)
        if not self._slices:
            return Extent(None, None)
        on_view = self._rows if self._source is None else self._rows - 1
        return Extent(_first_ts(self._slices[0]), self._commit_ts(min(on_view, self._rows_max - waiting)))

    def _has_room(self) -> bool:
        return self._rows < 2 or (self._rows <= self._rows_max and self._bytes < self._bytes_max)

    def _weigh(self, taken: pa.RecordBatch) -> float:
        self._unweighed += 1
        if taken.num_rows >= _WEIGHED_ROWS or self._unweighed > _WEIGHED_SLICES:
            self._row_bytes = float(taken.nbytes / taken.num_rows)
            self._unweighed = 0
        return self._row_bytes * float(taken.num_rows)

    def _commit_ts(self, row: int) -> int | None:
        """Return the commit-ts of a cached row; None when the row is past them all."""
        for rows in self._slices:
            if row < rows.num_rows:
                return int(rows.column(COMMIT_TS)[row].as_py())
            row -= rows.num_rows
        return None

    def take_upto(self, ts: int) -> list[pa.RecordBatch]:
        """Take the cached rows up to a commit-ts out of the cache, at most as many as may be on view."""
        found: list[pa.RecordBatch] = []
        room = self._rows_max
        whole = bisect_right(self._slices, ts, key=_last_ts)
        for at, rows in enumerate(self._slices):
            count = min(room, rows.num_rows if at < whole else _rows_upto(rows, ts))
            room -= count
            if count:
                found.append(rows if count == rows.num_rows else rows.slice(0, count))
            if count < rows.num_rows:
                self._slices = [rows.slice(count), *self._slices[at + 1 :]]
                break
        else:
            self._slices = []
        left = self._rows - (self._rows_max - room)
        self._bytes *= left / self._rows if self._rows else 0
        self._rows = left
        return found


def _first_ts(rows: pa.RecordBatch) -> int:
    return int(rows.column(COMMIT_TS)[0].as_py())


def _last_ts(rows: pa.RecordBatch) -> int:
    return int(rows.column(COMMIT_TS)[-1].as_py())


def _rows_upto(ordered: pa.RecordBatch, ts: int) -> int:
    return int(np.searchsorted(ordered.column(COMMIT_TS).to_numpy(), ts, side="right"))


@dataclass(frozen=True, slots=True)
class _Net:
    """Changes that are complete up to some timestamp and wait to be sent."""

    data: pa.RecordBatch
    tombstones: pa.RecordBatch


_FIELD: Mapping[Side, str] = {"data": "data", "tombstone": "tombstones"}


class Tail:
    """Makes batches of the changes up to `to_ts` out of the slices of both sides.

    Both sides are cached, cut where neither can cross the other any more, and coalesced. The result is sent
    once it has more than `batch_rows` rows on a side, or the range ends; it has at most twice as many. A
    commit-ts that cannot be cached whole is sent in several batches: its tombstones, then its data.
    """

    def __init__(
        self,
        data: Iterator[pa.RecordBatch],
        tombstones: Iterator[pa.RecordBatch],
        *,
        schema: SchemaVersion,
        columns: ReadColumns,
        options: ChangeOptions,
        to_ts: int,
    ) -> None:
        rows_max = 2 * options.batch_rows
        self._data = SideCache(data, rows_max)
        self._tombstones = SideCache(tombstones, rows_max)
        self._schema = schema
        self._columns = columns
        self._batch_rows = options.batch_rows
        self._to_ts = to_ts
        self._replay = options.replay
        # A reader that replays has rows under keys that only the single changes name.
        self._coalesces = options.coalesce and not (options.replay and columns.keys_move)
        self._skips = options.skip_deletes and not columns.keys_vary
        self._nothing = _Net(self._join_slices("data", []), self._join_slices("tombstone", []))

    def batches(self) -> Iterator[ChangeBatch]:
        """Yield every batch, the last one with TAIL_DONE; none when there is no change."""
        waiting = self._nothing
        while True:
            data = self._data.fill(waiting.data.num_rows)
            tombstones = self._tombstones.fill(waiting.tombstones.num_rows)
            if data.first_ts is None and tombstones.first_ts is None:
                break
            found = find_cut(data, tombstones, self._to_ts)
            if found.large_ts is not None and waiting is self._nothing:
                yield from self._send_large(found.large_ts)
                continue
            if found.large_ts is None:
                waiting = self._add(waiting, found.upto_ts)
            if found.large_ts is not None or self._is_enough(waiting):
                yield from self._send(waiting)
                waiting = self._nothing
        yield from self._send(waiting)

    def end(self) -> ChangeBatch:
        """Return a batch without rows that says that the range is complete."""
        return self._make_batch(self._nothing, Hint.TAIL_DONE, self._to_ts)

    def _add(self, waiting: _Net, ts: int) -> _Net:
        """Return the net effect of the changes that wait and of those cached up to a timestamp."""
        data = self._join_slices("data", [waiting.data, *self._data.take_upto(ts)])
        tombstones = self._join_slices("tombstone", [waiting.tombstones, *self._tombstones.take_upto(ts)])
        if not self._coalesces:
            return _Net(data, tombstones)
        net = _Net(
            *coalesce_by_handle(data, tombstones, replay=self._replay, keys_move=self._columns.keys_vary)
        )
        dropped = data.num_rows + tombstones.num_rows - net.data.num_rows - net.tombstones.num_rows
        metrics.CHANGES_COALESCED_ROWS_TOTAL.inc(dropped)
        return net

    def _is_enough(self, waiting: _Net) -> bool:
        sides = (waiting.data, waiting.tombstones)
        return any(side.num_rows > self._batch_rows or side.nbytes > BYTES_MAX for side in sides)

    def _send(self, waiting: _Net) -> Iterator[ChangeBatch]:
        if waiting.data.num_rows or waiting.tombstones.num_rows:
            yield self._make_batch(waiting, Hint.TAIL_DONE, self._complete_ts())

    def _send_large(self, ts: int) -> Iterator[ChangeBatch]:
        """Yield one commit-ts in several batches.

        A commit-ts has a row at most once on each side, so nothing is coalesced.
        """
        sides: tuple[tuple[Side, SideCache], ...] = (("tombstone", self._tombstones), ("data", self._data))
        for side, cache in sides:
            while cache.fill().first_ts == ts:
                rows = self._join_slices(side, cache.take_upto(ts))
                piece = replace(self._nothing, **{_FIELD[side]: rows})
                complete = self._complete_ts()
                batch = self._make_batch(piece, Hint.TAIL_DONE if complete >= ts else Hint.TAIL_WIP, complete)
                if batch.hint is Hint.TAIL_DONE or batch.data.num_rows or batch.tombstones.num_rows:
                    yield batch

    def _complete_ts(self) -> int:
        return complete_ts(self._data.fill(), self._tombstones.fill(), self._to_ts)

    def _join_slices(self, side: Side, slices: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return slices as one batch; nothing is copied when one of them has all the rows."""
        filled = [rows for rows in slices if rows.num_rows]
        if not filled:
            return pa.RecordBatch.from_pylist([], self._columns.of_side(side).read)
        return filled[0] if len(filled) == 1 else pa.concat_batches(filled)

    def _make_batch(self, net: _Net, hint: Hint, complete: int) -> ChangeBatch:
        tombstones = without_updates(net.tombstones) if self._skips else net.tombstones
        columns = self._columns
        return ChangeBatch(
            data=net.data.select(columns.data.shown.names),
            tombstones=tombstones.select(columns.tombstone.shown.names),
            hint=hint,
            schema=self._schema,
            complete_ts=complete,
        )
