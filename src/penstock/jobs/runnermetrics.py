"""What the board shows of its jobs: how many there are in each state, and how far each is behind."""

from collections import Counter

from penstock.clock import physical_ms
from penstock.jobs.job import JobState
from penstock.jobs.jobboard import JobBoard
from penstock.metrics import JOBS_JOBS, JOBS_WATERMARK_LAG_SECONDS

_STATES = ("paused", *(state.name.lower() for state in JobState))


class BoardGauges:
    """Gauges of the jobs of a board; gone when it is cleared, because another process shows them then."""

    def __init__(self, board: JobBoard) -> None:
        self._board = board
        self._shown: set[str] = set()

    def show(self, now_ts: int | None) -> None:
        """Show the jobs as they are; lag is behind the database's time, and stays as it is without that."""
        states: Counter[str] = Counter()
        shown = set()
        for each in self._board:
            job, name = each.job, str(each.job.id)
            states["paused" if job.spec.paused else job.state.name.lower()] += 1
            if each.watermark:
                shown.add(name)
                if now_ts is not None:
                    lag_s = max(0, physical_ms(now_ts) - physical_ms(each.watermark)) / 1000
                    JOBS_WATERMARK_LAG_SECONDS.labels(name).set(lag_s)
        for state in _STATES:
            JOBS_JOBS.labels(state).set(states[state])
        self._forget(self._shown - shown)
        self._shown = shown if now_ts is not None else self._shown & shown

    def clear(self) -> None:
        """Show nothing any more."""
        for state in _STATES:
            JOBS_JOBS.labels(state).set(0)
        self._forget(self._shown)
        self._shown = set()

    def _forget(self, names: set[str]) -> None:
        for name in names:
            JOBS_WATERMARK_LAG_SECONDS.remove(name)
