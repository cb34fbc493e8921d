"""How far tables can be read: as their captures say, else as their objects do."""

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from penstock.clock import SYSTEM, Clock
from penstock.eventstore.read.partition import CaptureProgress, Partition
from penstock.follow.captures import Captures
from penstock.follow.source import ReadableRange
from penstock.object_storage import StorageRef

_log = logging.getLogger(__name__)

OBJECTS_S = 10.0
"""How long is taken for true what objects say of a table that nobody captures."""
MISSED_S = 30.0
"""After which it is told that a table is not captured, and one that was dropped will not be."""


@dataclass(slots=True)
class _Objects:
    """What the objects of a table said, when; None: there is nothing of it."""

    look: ReadableRange | None
    seen_at: float
    since: float
    told: bool = False


class ProgressReader:
    """Looks at many tables in one call of each capture. Blocks; call it from one thread at a time."""

    def __init__(
        self,
        captures: Captures,
        storage: StorageRef,
        pool: Executor,
        *,
        gone_ts: Callable[[int], int | None] = lambda _: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`gone_ts` says of a table that is not there any more up to when that is known, else None."""
        self._captures = captures
        self._gone_ts = gone_ts
        self._storage = storage
        self._pool = pool
        self._clock = clock
        self._objects: dict[int, _Objects] = {}

    def look(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """See SliceSource."""
        captured = self._captures.progress()
        found = {each: _of_capture(captured[each]) for each in table_ids if each in captured}
        orphans = [each for each in table_ids if each not in captured]
        self._load(orphans)
        for each in orphans:
            known = self._objects[each].look
            if known is not None:
                found[each] = known
            elif self._is_missed(each):
                gone_ts = self._gone_ts(each) if self._captures.all_answer else None
                if gone_ts is None:
                    self._tell(each)
                else:  # nobody has anything of it, and nobody will
                    found[each] = ReadableRange(gone_ts, 0)
        return {each: look for each, look in found.items() if look.readable_ts}

    def _load(self, orphans: Iterable[int]) -> None:
        """Ask the objects of tables that nobody captures, now and then."""
        now = self._clock.monotonic()
        before, self._objects = self._objects, {}
        due = []
        for each in orphans:
            known = before.get(each)
            self._objects[each] = known or _Objects(None, now, now)
            if known is None or now >= known.seen_at + OBJECTS_S:
                due.append(each)
        for each, look in zip(due, self._pool.map(self._of_objects, due), strict=True):
            self._objects[each].look = look
            self._objects[each].seen_at = now

    def _of_objects(self, table_id: int) -> ReadableRange | None:
        manifest = Partition(self._storage, table_id).state().manifest
        if not manifest.flushed_ts:
            return None
        return ReadableRange(
            manifest.flushed_ts, min(manifest.flushed_ts, manifest.changed_ts), manifest.oldest_ts
        )

    def _is_missed(self, table_id: int) -> bool:
        return self._clock.monotonic() >= self._objects[table_id].since + MISSED_S

    def _tell(self, table_id: int) -> None:
        if not self._objects[table_id].told:
            self._objects[table_id].told = True
            _log.warning(
                "a table is not captured; start a capture whose capture.tables name it",
                extra={"table_id": table_id},
            )


def _of_capture(progress: CaptureProgress) -> ReadableRange:
    return ReadableRange(
        progress.readable_ts, min(progress.readable_ts, progress.changed_ts), progress.oldest_ts
    )
