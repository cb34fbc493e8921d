"""Which work of dispatchers is done in one job. Pure."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

W = TypeVar("W")

LARGE_BYTES = 16 * 1024 * 1024
"""Work of so many expected bytes has a job of its own: others would wait until it is done."""
_SLOW_TIMES = 3  # so many times what a quarter of the dispatchers take at most is slow
_SLOW_MIN_S = 0.2  # what takes no longer is not slow
_KNOWN_MAX = 4096  # dispatchers whose last work is remembered
_JOB_ITEMS = 512
_JOB_BYTES = 256 * 1024 * 1024


class JobKind(Enum):
    """What shares no slots with what: slow work does not keep large work waiting, nor the other way round."""

    SHARED = auto()
    LARGE = auto()
    SLOW = auto()


@dataclass(frozen=True, slots=True, eq=False)
class DispatcherJob(Generic[W]):
    """Work that one job does; of one dispatcher if it is `alone`."""

    work: tuple[W, ...]
    kind: JobKind

    @property
    def alone(self) -> bool:
        """Whether it shares the job with no other dispatcher."""
        return self.kind is not JobKind.SHARED


class JobQueue(Generic[W]):
    """Work that waits for a job, divided by size and pace: a job answers when all of its work is done.

    Small work shares jobs: while these are busy more comes, and the next one is larger. Large work has a job
    of its own, and so has that of a dispatcher whose last work was slow, until it is not. Slow is what takes
    several times as long as the work of the fastest quarter of the dispatchers: when all take long, nobody
    keeps anybody waiting.
    """

    def __init__(
        self,
        *,
        dispatcher_of: Callable[[W], str],
        weigh: Callable[[W], int],
        shared_max: int,
        large_max: int,
        slow_max: int,
        bytes_max: int = _JOB_BYTES,
    ) -> None:
        """At most `shared_max` jobs, each of about `bytes_max`, are shared at a time; `large_max` are of
        large work, and `slow_max` of slow dispatchers.
        """
        self._dispatcher_of = dispatcher_of
        self._weigh = weigh
        self._free = {JobKind.SHARED: shared_max, JobKind.LARGE: large_max, JobKind.SLOW: slow_max}
        self._bytes_max = bytes_max
        self._waiting: dict[JobKind, deque[W]] = {kind: deque() for kind in JobKind}
        self._halves: deque[tuple[W, ...]] = deque()  # of shared jobs that have failed
        self._seconds: OrderedDict[str, float] = OrderedDict()  # of the last small work of each dispatcher
        self._slow_s = _SLOW_MIN_S

    def add(self, work: W, *, alone: bool = False) -> None:
        """Queue some work; `alone`: it must share no job."""
        if self._weigh(work) >= LARGE_BYTES:
            kind = JobKind.LARGE
        elif alone or self._seconds.get(self._dispatcher_of(work), 0.0) > self._slow_s:
            kind = JobKind.SLOW
        else:
            kind = JobKind.SHARED
        self._waiting[kind].append(work)

    def take(self) -> DispatcherJob[W] | None:
        """Return the next job; None when nothing waits, or enough jobs run."""
        for kind in (JobKind.LARGE, JobKind.SLOW):
            if self._waiting[kind] and self._free[kind]:
                self._free[kind] -= 1
                return DispatcherJob((self._waiting[kind].popleft(),), kind)
        if not self._free[JobKind.SHARED]:
            return None
        work = self._halves.popleft() if self._halves else self._take_shared()
        if not work:
            return None
        self._free[JobKind.SHARED] -= 1
        return DispatcherJob(work, JobKind.SHARED)

    def _take_shared(self) -> tuple[W, ...]:
        shared = self._waiting[JobKind.SHARED]
        work: list[W] = []
        nbytes = 0
        while shared and len(work) < _JOB_ITEMS:
            nbytes += self._weigh(shared[0])
            if work and nbytes > self._bytes_max:
                break
            work.append(shared.popleft())
        return tuple(work)

    def finish(self, job: DispatcherJob[W], seconds: Sequence[float]) -> None:
        """End a job; another one may start. `seconds` is how long each piece of its work took."""
        self._free[job.kind] += 1
        if job.kind is JobKind.LARGE:  # how long that takes is a matter of its size
            return
        for work, took_s in zip(job.work, seconds, strict=True):
            dispatcher_id = self._dispatcher_of(work)
            self._seconds[dispatcher_id] = took_s
            self._seconds.move_to_end(dispatcher_id)
        while len(self._seconds) > _KNOWN_MAX:
            self._seconds.popitem(last=False)
        fast_s = sorted(self._seconds.values())[(len(self._seconds) - 1) // 4]
        self._slow_s = max(_SLOW_MIN_S, _SLOW_TIMES * fast_s)

    def fail(self, job: DispatcherJob[W]) -> W | None:
        """End a job that has failed as a whole; return its work if that is one piece.

        Otherwise it is done again in two jobs, so that what fails is found, and the rest is done.
        """
        self._free[job.kind] += 1
        if len(job.work) == 1:
            return job.work[0]
        half = len(job.work) // 2
        self._halves += (job.work[:half], job.work[half:])
        return None
