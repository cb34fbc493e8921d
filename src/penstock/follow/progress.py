"""How far physical tables can be read: as their captures say, or else as their objects on storage do."""

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from penstock.clock import SYSTEM, Clock
from penstock.eventstore.read.partition import CaptureProgress, Partition
from penstock.follow.captures import Captures
from penstock.follow.source import ReadableRange
from penstock.object_storage import StorageRef

_log = logging.getLogger(__name__)

OBJECTS_S = 10.0
"""Seconds for which an uncaptured table's progress is cached."""
MISSED_S = 30.0
"""Seconds after which a table counts as not captured: a warning says so, or a dropped one is given up."""


@dataclass(slots=True)
class _UncapturedTable:
    """The progress of a table without a capture, by its objects; None when it has no objects."""

    progress: ReadableRange | None
    read_at: float
    since: float
    warned: bool = False
    refused: bool = False

    def is_missed(self, now: float) -> bool:
        return now >= self.since + MISSED_S


class ProgressReader:
    """Reads the progress of many tables with one call of each capture. Blocks; for one thread at a time."""

    def __init__(
        self,
        captures: Captures,
        storage: StorageRef,
        pool: Executor,
        *,
        gone_ts: Callable[[int], int | None] = lambda _: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`gone_ts` returns up to when a table is known to be dropped; None when it is not."""
        self._captures = captures
        self._gone_ts = gone_ts
        self._storage = storage
        self._pool = pool
        self._clock = clock
        self._uncaptured: dict[int, _UncapturedTable] = {}

    def read_progress(self, physical_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return how far physical tables can be read; those of which nothing is known yet are left out.

        A dropped table that has no rows anywhere counts as read up to its `gone_ts`. A table that cannot be
        captured is readable as far as its objects go, and says why. Raises Invalid when a capture refuses the
        token, Unavailable when it is not known which captures there are.
        """
        captured = self._captures.progress()
        found = {
            table_id: _captured_range(captured[table_id]) for table_id in physical_ids if table_id in captured
        }
        missing = [table_id for table_id in physical_ids if table_id not in captured]
        refusals = self._captures.refusals() if missing else {}
        self._read_objects(missing, refusals)
        now = self._clock.monotonic()
        for table_id, table in self._uncaptured.items():
            if table_id in refusals:
                progress = table.progress or ReadableRange(0, 0)
                found[table_id] = replace(progress, refusal=refusals[table_id])
            elif table.progress is not None:
                found[table_id] = replace(table.progress, uncaptured=table.is_missed(now))
            elif table.is_missed(now):
                # A capture that does not answer may have the table's last rows.
                gone_ts = self._gone_ts(table_id) if self._captures.all_answer else None
                if gone_ts is not None:
                    found[table_id] = ReadableRange(gone_ts, 0)
                else:
                    found[table_id] = ReadableRange(0, 0, uncaptured=True)
                    _warn_once(table_id, table)
        return {table_id: progress for table_id, progress in found.items() if _is_known(progress)}

    def _read_objects(self, physical_ids: Collection[int], refused: Collection[int]) -> None:
        """Make these the uncaptured tables; read the objects of those that are new or due again.

        A capture flushes a table before it says that it cannot capture it. So the objects of a table that
        is refused since the last call are read again: what they have now is all that comes.
        """
        now = self._clock.monotonic()
        before = self._uncaptured
        self._uncaptured = {
            table_id: before.get(table_id) or _UncapturedTable(None, now, now) for table_id in physical_ids
        }
        due = [
            table_id
            for table_id, table in self._uncaptured.items()
            if table_id not in before
            or now >= table.read_at + OBJECTS_S
            or (table_id in refused and not table.refused)
        ]
        for table_id, progress in zip(due, self._pool.map(self._flushed_range, due), strict=True):
            self._uncaptured[table_id].progress = progress
            self._uncaptured[table_id].read_at = now
        for table_id, table in self._uncaptured.items():
            table.refused = table_id in refused

    def _flushed_range(self, table_id: int) -> ReadableRange | None:
        manifest = Partition(self._storage, table_id).state().manifest
        if not manifest.flushed_ts:
            return None
        return ReadableRange(
            manifest.flushed_ts, min(manifest.flushed_ts, manifest.changed_ts), manifest.oldest_ts
        )


def _captured_range(progress: CaptureProgress) -> ReadableRange:
    return ReadableRange(
        progress.readable_ts, min(progress.readable_ts, progress.changed_ts), progress.oldest_ts
    )


def _is_known(progress: ReadableRange) -> bool:
    return bool(progress.readable_ts or progress.refusal or progress.uncaptured)


def _warn_once(table_id: int, table: _UncapturedTable) -> None:
    if not table.warned:
        table.warned = True
        _log.warning(
            "a table is not captured; start a capture whose capture.tables name it",
            extra={"table_id": table_id},
        )
