"""Decides what the supervisor does next: which parts to start, when to restart one, which to stop first.

Pure: time is an argument, in monotonic seconds, and the caller runs the processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock.retry import BackoffPolicy
from penstock.settings import UpSettings

__all__ = ["Rank", "Restart", "Supervision"]


class Rank(IntEnum):
    """The order of parts: a part starts after those of lower ranks, and stops before them."""

    STORE = 0
    """Every part needs it: nothing else starts before it has been ready once."""
    CAPTURE = 1
    """Later ranks start once it has been ready or has failed once, so that the pages can show the error."""
    REST = 2


@dataclass(frozen=True, slots=True)
class Restart:
    """A part ended and is restarted after `wait_s`."""

    wait_s: float
    new_reason: bool
    """Whether its error differs from that of the last time."""


@dataclass(slots=True)
class _PartRecord:
    """What is known of one part."""

    rank: Rank
    running: bool = False
    ready_at: float | None = None
    """When the current process became ready."""
    was_started: bool = False
    was_ready: bool = False
    failures: int = 0
    """Exits in a row, without a steady run between them."""
    error: str = ""
    start_at: float = 0.0
    """Not to be started before this time."""


class Supervision:
    """The parts of a deployment.

    A part that ends is restarted after a delay, which doubles with each exit up to a limit. The delay is
    reset once the part has been ready for `steady_s` without an exit. After `stop` no part is started.
    """

    def __init__(self, ranks: Mapping[str, Rank], settings: UpSettings) -> None:
        self._records = {
            name: _PartRecord(rank) for name, rank in sorted(ranks.items(), key=lambda item: item[1])
        }
        self._steady_s = settings.steady_s
        self._backoff = BackoffPolicy(base_s=settings.backoff_s, cap_s=settings.backoff_max_s)
        self.stopping = False

    @property
    def all_were_ready(self) -> bool:
        """Whether every part has been ready at least once."""
        return all(record.was_ready for record in self._records.values())

    def due_parts(self, now: float) -> list[str]:
        """Return the parts to start now, in start order. Call `record_start` for each."""
        return [
            name
            for name, record in self._records.items()
            if self._may_start(record) and record.start_at <= now
        ]

    def next_start_at(self) -> float | None:
        """Return when the next part is due if nothing happens until then; None when none is."""
        starts = (record.start_at for record in self._records.values() if self._may_start(record))
        return min(starts, default=None)

    def record_start(self, name: str) -> None:
        """Record that a part was started."""
        record = self._records[name]
        assert not record.running, "a part runs once at a time"
        record.running = record.was_started = True
        record.ready_at = None

    def record_ready(self, name: str, now: float) -> None:
        """Record that a part has become ready."""
        record = self._records[name]
        assert record.running, "only a running part can be ready"
        record.ready_at = now
        record.was_ready = True

    def record_exit(self, name: str, now: float, error: str) -> Restart | None:
        """Record that a part has ended; return when to restart it, or None while stopping."""
        record = self._records[name]
        assert record.running, "only a running part can end"
        record.running = False
        if self.stopping:
            return None
        if record.ready_at is not None and now - record.ready_at >= self._steady_s:
            record.failures, record.error = 0, ""
        record.failures += 1
        wait_s = self._backoff.delay_s(record.failures)
        record.start_at = now + wait_s
        new_reason = error != record.error
        record.error = error
        return Restart(wait_s, new_reason)

    def stop(self) -> None:
        """Start no more parts. `stoppable_parts` then says which to stop first."""
        self.stopping = True

    def stoppable_parts(self) -> list[str]:
        """Return the running parts of the highest rank: no other running part depends on them."""
        running = {name: record.rank for name, record in self._records.items() if record.running}
        last = max(running.values(), default=None)
        return [name for name, rank in running.items() if rank == last]

    def _may_start(self, record: _PartRecord) -> bool:
        if record.running or self.stopping:
            return False
        return record.was_started or all(
            other.was_ready or (other.failures > 0 and other.rank is not Rank.STORE)
            for other in self._records.values()
            if other.rank < record.rank
        )
