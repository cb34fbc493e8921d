"""The rows of a part in the order in which they are written, with a bounded amount of them in memory.

Batches come by time. What is of one time, a snapshot or a large commit, comes in no order of handles, so it
is held until it is complete. Where that is too much it is read again, a range of handles at a time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from penstock.changefeeds.codecs.pairing import Pairing, keys_move
from penstock.changefeeds.codecs.row_changes import RowChanges, taken
from penstock.changes import ChangeBatch, ChangesPartition, Hint
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.follow.positions import Position

HELD_BYTES_MAX = 256 * 1024 * 1024
_SAMPLED = 64  # one handle of so many is looked at to divide a commit


@dataclass(frozen=True, slots=True)
class PartRows:
    """Changes of a part that are after a position.

    The changes of one commit are held together in memory, however many, where its keys can move between rows.
    """

    part: ChangesPartition
    pairing: Pairing
    after: Position
    held_bytes_max: int = HELD_BYTES_MAX

    @property
    def is_snapshot(self) -> bool:
        """Whether they are the rows that there are at one time."""
        return not self.part.from_ts

    def changes(self) -> Iterator[tuple[RowChanges, bool]]:
        """Changes in order, and whether the last commit among them is complete. Raises what reading does."""
        with self.part.collect() as batches:
            waiting: list[ChangeBatch] = []
            held = 0
            for batch in batches:
                waiting.append(batch)
                held += batch.data.nbytes + batch.tombstones.nbytes
                if batch.hint is Hint.TAIL_DONE:
                    yield self._paired(waiting), True
                elif held > self.held_bytes_max and self._divides:
                    yield from self._divided(waiting, batches)
                else:
                    continue
                waiting, held = [], 0
            if waiting:
                yield self._paired(waiting), True

    def _paired(self, batches: list[ChangeBatch]) -> RowChanges:
        return self.pairing.of(batches, self.after, snapshot_ts=self.part.to_ts if self.is_snapshot else 0)

    @property
    def _divides(self) -> bool:
        return self.is_snapshot or not keys_move(self.pairing.table)

    def _divided(
        self, begun: list[ChangeBatch], rest: Iterable[ChangeBatch]
    ) -> Iterator[tuple[RowChanges, bool]]:
        """What belongs together with batches that are too many, read again by ranges of handles."""
        sample = _Sample()
        for batch in chain(begun, rest):
            sample.add(batch)
            if batch.hint is Hint.TAIL_DONE:
                break
        begun.clear()
        whole = self.part
        if not self.is_snapshot:
            whole = replace(whole, from_ts=sample.ts - 1, to_ts=sample.ts)
        bounds = [b"", *sample.cuts(self.held_bytes_max // 2), b""]
        for number, (low, high) in enumerate(pairwise(bounds), 2):
            part = whole.within(low, high)
            if part is not None:
                with part.collect() as batches:
                    yield self._paired(list(batches)), number == len(bounds)


class _Sample:
    """How much there is of one time, and some of its handles."""

    def __init__(self) -> None:
        self.ts = 0
        self._nbytes = 0
        self._handles: list[bytes] = []

    def add(self, batch: ChangeBatch) -> None:
        for side in (batch.tombstones, batch.data):
            if side.num_rows:
                self.ts = int(side.column(COMMIT_TS)[0].as_py())
                self._nbytes += side.nbytes
                places = np.arange(0, side.num_rows, _SAMPLED)
                self._handles += taken(side.column(HANDLE), places).to_pylist()

    def cuts(self, nbytes: int) -> list[bytes]:
        """Handles that divide it into about so many bytes each."""
        count = -(-self._nbytes // max(1, nbytes))
        handles = sorted(self._handles)
        chosen = (handles[len(handles) * number // count] for number in range(1, count))
        return sorted(set(chosen) - {handles[0]})
