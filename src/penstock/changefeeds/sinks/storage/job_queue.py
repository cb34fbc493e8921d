"""Which work of dispatchers is done in one job. Pure."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")

LARGE_BYTES = 16 * 1024 * 1024
"""Work of so many expected bytes has a job of its own: others would wait until it is done."""
_SLOW_S = 2.0
_SLOW_MAX = 10_000  # dispatchers that are remembered as slow
_JOB_ITEMS = 512
_JOB_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class DispatcherJob(Generic[W]):
    """Work that one job does; of one dispatcher if it is `alone`."""

    work: tuple[W, ...]
    alone: bool


class JobQueue(Generic[W]):
    """Work that waits for a job, divided by size and pace: a job answers when all of its work is done.

    Small work shares jobs: while these are busy more comes, and the next one is larger. Large work has a job
    of its own, and so has that of a dispatcher whose last job was slow, until one is not.
    """

    def __init__(
        self,
        *,
        dispatcher_of: Callable[[W], str],
        weigh: Callable[[W], int],
        shared_max: int,
        alone_max: int,
        bytes_max: int = _JOB_BYTES,
    ) -> None:
        """At most `shared_max` jobs, each of about `bytes_max`, are shared at a time, and `alone_max` are of
        one dispatcher.
        """
        self._dispatcher_of = dispatcher_of
        self._weigh = weigh
        self._free = {False: shared_max, True: alone_max}  # jobs that may start, by `alone`
        self._bytes_max = bytes_max
        self._shared: deque[W] = deque()
        self._alone: deque[W] = deque()
        self._slow: OrderedDict[str, None] = OrderedDict()

    def add(self, work: W, *, alone: bool = False) -> None:
        """Queue some work; `alone`: it must share no job."""
        apart = alone or self._weigh(work) >= LARGE_BYTES or self._dispatcher_of(work) in self._slow
        (self._alone if apart else self._shared).append(work)

    def take(self) -> DispatcherJob[W] | None:
        """Return the next job; None when nothing waits, or enough jobs run."""
        if self._alone and self._free[True]:
            self._free[True] -= 1
            return DispatcherJob((self._alone.popleft(),), alone=True)
        if not self._shared or not self._free[False]:
            return None
        self._free[False] -= 1
        work: list[W] = []
        nbytes = 0
        while self._shared and len(work) < _JOB_ITEMS:
            nbytes += self._weigh(self._shared[0])
            if work and nbytes > self._bytes_max:
                break
            work.append(self._shared.popleft())
        return DispatcherJob(tuple(work), alone=False)

    def finish(self, job: DispatcherJob[W], seconds: float) -> None:
        """End a job that took so many seconds; another one may start."""
        self._free[job.alone] += 1
        self._learn(map(self._dispatcher_of, job.work), slow=seconds > _SLOW_S)

    def _learn(self, dispatcher_ids: Iterable[str], *, slow: bool) -> None:
        for dispatcher_id in dispatcher_ids:
            self._slow.pop(dispatcher_id, None)
            if slow:
                self._slow[dispatcher_id] = None
        while len(self._slow) > _SLOW_MAX:
            self._slow.popitem(last=False)
