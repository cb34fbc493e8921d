"""The changes of a range that has one schema version, in batches that can be applied as they come."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock import metrics
from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.caching import BYTES_MAX, SideCache
from penstock.changes.cutting import complete_ts, cut
from penstock.changes.net_change import coalesce, without_updates
from penstock.changes.options import ChangeOptions, ReadColumns
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SchemaVersion


@dataclass(frozen=True, slots=True)
class _Net:
    """Changes that are complete up to some timestamp and wait to be sent."""

    data: pa.RecordBatch
    tombstones: pa.RecordBatch


_FIELD: Mapping[Side, str] = {"data": "data", "tombstone": "tombstones"}


class Tail:
    """Batches of changes up to `to_ts` out of the slices of both sides.

    Both sides are cached, cut where neither is crossed any more, and coalesced; what comes out is sent once
    more than `batch_rows` rows of a side stay, or the range ends; there are at most twice as many. What one
    commit-ts holds is sent in pieces when it cannot be cached whole: its tombstones, then its data.
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
        # A reader that goes back has rows under keys that only the single changes name.
        self._coalesces = options.coalesce and not (options.replay and columns.keys_move)
        self._skips = options.skip_deletes and not columns.keys_vary
        self._nothing = _Net(self._joined("data", []), self._joined("tombstone", []))

    def batches(self) -> Iterator[ChangeBatch]:
        """Every batch, the last one a TAIL_DONE; none when there is no change."""
        waiting = self._nothing
        while True:
            data = self._data.fill(waiting.data.num_rows)
            tombstones = self._tombstones.fill(waiting.tombstones.num_rows)
            if data.first_ts is None and tombstones.first_ts is None:
                break
            found = cut(data, tombstones, self._to_ts)
            if found.large_ts is not None and waiting is self._nothing:
                yield from self._large(found.large_ts)
                continue
            if found.large_ts is None:
                waiting = self._add(waiting, found.upto_ts)
            if found.large_ts is not None or self._is_enough(waiting):
                yield from self._send(waiting)
                waiting = self._nothing
        yield from self._send(waiting)

    def end(self) -> ChangeBatch:
        """A batch that says only that the range is complete."""
        return self._batch(self._nothing, Hint.TAIL_DONE, self._to_ts)

    def _add(self, waiting: _Net, ts: int) -> _Net:
        """Changes that wait, and those cached up to a timestamp: their net effect."""
        data = self._joined("data", [waiting.data, *self._data.upto(ts)])
        tombstones = self._joined("tombstone", [waiting.tombstones, *self._tombstones.upto(ts)])
        if not self._coalesces:
            return _Net(data, tombstones)
        net = _Net(*coalesce(data, tombstones, replay=self._replay, keys_move=self._columns.keys_vary))
        gone = data.num_rows + tombstones.num_rows - net.data.num_rows - net.tombstones.num_rows
        metrics.CHANGES_COALESCED_ROWS_TOTAL.inc(gone)
        return net

    def _is_enough(self, waiting: _Net) -> bool:
        sides = (waiting.data, waiting.tombstones)
        return any(side.num_rows > self._batch_rows or side.nbytes > BYTES_MAX for side in sides)

    def _send(self, waiting: _Net) -> Iterator[ChangeBatch]:
        if waiting.data.num_rows or waiting.tombstones.num_rows:
            yield self._batch(waiting, Hint.TAIL_DONE, self._complete_ts())

    def _large(self, ts: int) -> Iterator[ChangeBatch]:
        """The pieces of one commit-ts. A row is in it once on each side, so that nothing coalesces."""
        sides: tuple[tuple[Side, SideCache], ...] = (("tombstone", self._tombstones), ("data", self._data))
        for side, cache in sides:
            while cache.fill().first_ts == ts:
                rows = self._joined(side, cache.upto(ts))
                piece = replace(self._nothing, **{_FIELD[side]: rows})
                complete = self._complete_ts()
                batch = self._batch(piece, Hint.TAIL_DONE if complete >= ts else Hint.TAIL_WIP, complete)
                if batch.hint is Hint.TAIL_DONE or batch.data.num_rows or batch.tombstones.num_rows:
                    yield batch

    def _complete_ts(self) -> int:
        return complete_ts(self._data.fill(), self._tombstones.fill(), self._to_ts)

    def _joined(self, side: Side, slices: list[pa.RecordBatch]) -> pa.RecordBatch:
        """One batch of slices, which costs nothing where one has all the rows."""
        filled = [each for each in slices if each.num_rows]
        if not filled:
            return pa.RecordBatch.from_pylist([], self._columns.of_side(side).read)
        return filled[0] if len(filled) == 1 else pa.concat_batches(filled)

    def _batch(self, net: _Net, hint: Hint, complete: int) -> ChangeBatch:
        tombstones = without_updates(net.tombstones) if self._skips else net.tombstones
        columns = self._columns
        return ChangeBatch(
            data=net.data.select(columns.data.shown.names),
            tombstones=tombstones.select(columns.tombstone.shown.names),
            hint=hint,
            schema=self._schema,
            complete_ts=complete,
        )
