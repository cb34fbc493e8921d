"""One reader, many consumers: each is given every piece once, in order, and at its own speed.

A lane is what one consumer is given. A consumer that does not keep up holds the reader back once its lane is
full. When another one has waited for it long enough it is detached: what it has not taken goes to disk, and
the reader does not wait for it any more. One that has taken everything from there is attached again.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.errors import Aborted, Unavailable
from penstock.jobs.error_codes import CutOff

T = TypeVar("T")


class BatchQueue(Protocol[T]):
    """Where the pieces of a detached lane are. Thread-safe; may raise OSError."""

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""

    @property
    def empty(self) -> bool:
        """Whether everything was taken."""

    def append(self, piece: T) -> None:
        """Keep a piece."""

    def take(self) -> T | None:
        """The first one; None when there is none now."""

    def close(self) -> None:
        """Give the disk back."""


@dataclass(slots=True)
class ConsumerQueue(Generic[T]):
    """What a consumer was given and has not taken. Pure: whoever uses it has the lock.

    Invariant: in `queue`, then in `spool`, are the pieces that were not taken, in order.
    """

    pieces_max: int
    queue: deque[T] = field(default_factory=deque)
    spool: BatchQueue[T] | None = None
    asked: bool = False
    """Its consumer waits for a piece."""
    held_s: float = 0.0
    """How long others have waited for it."""
    closed: Exception | None = None
    """Nothing more is given; what its consumer is told when it asks."""

    @property
    def attached(self) -> bool:
        """Whether the reader waits for it."""
        return self.closed is None and self.spool is None

    @property
    def full(self) -> bool:
        """Whether the reader waits for it now."""
        return self.attached and len(self.queue) >= self.pieces_max

    @property
    def starving(self) -> bool:
        """Whether it waits for the reader."""
        return self.attached and self.asked and not self.queue


class FanOut(Generic[T]):
    """Lanes by name. One thread reads: `give`, `end` or `fail`; each consumer has its own to `take`.

    Others wait for a lane for at most `patience_s`, all in all. At most `pieces_max` pieces are in memory,
    beside those in the hands of the reader and of consumers; each spool has at most `spool_bytes`: whoever
    needs more is cut off.
    """

    def __init__(
        self,
        names: Iterable[Hashable],
        *,
        pieces_max: int,
        patience_s: float,
        spool_bytes: int,
        open_spool: Callable[[Hashable], BatchQueue[T]],
        clock: Clock = SYSTEM,
    ) -> None:
        self._lanes = {name: ConsumerQueue[T](pieces_max) for name in names}
        self._patience_s = patience_s
        self._spool_bytes = spool_bytes
        self._open_spool = open_spool
        self._clock = clock
        self._changed = threading.Condition()
        self._ended = False
        self._failure: Exception | None = None

    def give(self, piece: T) -> bool:
        """Give a piece to every lane, once there is room; False when nobody wants one any more."""
        with self._changed:
            self._attach()
            late = self._wait_for_room()
            for lane in self._lanes.values():
                if lane.attached:
                    lane.queue.append(piece)
            self._changed.notify_all()
            spooled = [
                lane for lane in self._lanes.values() if lane.closed is None and lane.spool is not None
            ]
        for lane, pieces in late:
            for each in pieces:
                self._spool(lane, each)
        for lane in spooled:
            self._spool(lane, piece)
        with self._changed:
            return any(lane.closed is None for lane in self._lanes.values())

    def end(self) -> None:
        """Everything was given."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The source failed: whoever asks from now on is told."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def take(self, name: Hashable) -> T | None:
        """The next piece, once there is one; None when all were taken.

        Raises what the source failed with, CutOff when the consumer was too slow, Aborted when it was
        canceled, Unavailable when its spool failed.
        """
        lane = self._lanes[name]
        while True:
            with self._changed:
                spool = self._wait_for_piece(lane)
                if spool is None:
                    return lane.queue.popleft() if lane.queue else None
            try:
                piece = spool.take()
            except OSError as error:
                raise _broken(error) from error
            if piece is not None:  # else it was closed meanwhile
                return piece

    def _wait_for_piece(self, lane: ConsumerQueue[T]) -> BatchQueue[T] | None:
        """Wait until the lane has a piece, or all were taken; where it is, if it is not in memory."""
        lane.asked = True
        self._changed.notify_all()
        try:
            while True:
                if lane.closed is not None:
                    raise lane.closed
                if self._failure is not None:
                    raise self._failure
                if lane.queue:
                    return None
                if lane.spool is not None and not lane.spool.empty:
                    return lane.spool
                if self._ended:
                    return None
                self._changed.wait()
        finally:
            lane.asked = False
            self._changed.notify_all()

    def close(self, name: Hashable, reason: Exception | None = None) -> None:
        """Give a consumer nothing more; it is told the reason, by default that it was canceled."""
        with self._changed:
            self._close(self._lanes[name], reason or Aborted("the job was canceled"))

    def check(self, name: Hashable) -> None:
        """Raise what a consumer is told that is given nothing more."""
        with self._changed:
            closed = self._lanes[name].closed
            if closed is not None:
                raise closed

    def _close(self, lane: ConsumerQueue[T], reason: Exception) -> None:
        if lane.closed is None:
            lane.closed = reason
        lane.queue.clear()
        if lane.spool is not None:
            lane.spool.close()
        self._changed.notify_all()

    def _attach(self) -> None:
        for lane in self._lanes.values():
            if lane.closed is None and lane.spool is not None and lane.spool.empty and not lane.queue:
                lane.spool.close()
                lane.spool = None

    def _wait_for_room(self) -> list[tuple[ConsumerQueue[T], list[T]]]:
        """Wait until no lane is full; those that others have waited for too long, with what they had."""
        late: list[tuple[ConsumerQueue[T], list[T]]] = []
        while full := [(name, lane) for name, lane in self._lanes.items() if lane.full]:
            if not any(lane.starving for lane in self._lanes.values()):
                self._changed.wait()
                continue
            patience_s = self._patience_s - max(lane.held_s for _, lane in full)
            if patience_s > 0:
                before = self._clock.monotonic()
                self._changed.wait(patience_s)
                for _, lane in full:
                    lane.held_s += self._clock.monotonic() - before
                continue
            for name, lane in full:
                if lane.held_s >= self._patience_s:
                    lane.spool = self._open_spool(name)
                    late.append((lane, list(lane.queue)))
                    lane.queue.clear()
                    metrics.JOBS_DETACHED_TOTAL.inc()
        return late

    def _spool(self, lane: ConsumerQueue[T], piece: T) -> None:
        """Put a piece on disk. Without the lock: nobody else waits for that."""
        reason: Exception | None = None
        assert lane.spool is not None, "a detached lane has a spool"
        try:
            lane.spool.append(piece)
            if lane.spool.nbytes > self._spool_bytes:
                metrics.JOBS_CUT_OFF_TOTAL.inc()
                reason = CutOff(
                    f"it is behind the other jobs of its table by more than {self._spool_bytes} bytes on disk"
                    " (jobs.spool_bytes); it catches up in an iteration of its own"
                )
        except OSError as error:
            reason = _broken(error)
        with self._changed:
            if reason is not None:
                self._close(lane, reason)
            self._changed.notify_all()


def _broken(error: OSError) -> Unavailable:
    return Unavailable(f"the spool of a slow consumer failed ({error.strerror}); check the disk of jobs.data")
