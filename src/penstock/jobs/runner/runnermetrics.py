"""What the board shows of its jobs: how many there are in each state, and how far each is behind."""

from collections import Counter

from prometheus_client import Gauge

from penstock.clock import physical_ms
from penstock.jobs.job import JobState
from penstock.jobs.runner.board import JobBoard
from penstock.metrics import JOBS_JOBS, JOBS_WATERMARK_LAG_SECONDS

_STATES = ("paused", *(state.name.lower() for state in JobState))


class BoardGauges:
    """Gauges of the jobs of a board; gone when it is cleared, because another process shows them then."""

    def __init__(self, board: JobBoard) -> None:
        self._board = board
        self._lags: dict[str, Gauge] = {}  # by name: to find one by its label costs more than to set it

    def show(self, now_ts: int | None) -> None:
        """Show the jobs as they are; lag is behind the database's time, and stays as it is without that."""
        states: Counter[str] = Counter()
        left = set(self._lags)
        for each in self._board:
            job = each.job
            states["paused" if job.spec.paused else job.state.name.lower()] += 1
            if each.watermark:
                name = str(job.id)
                left.discard(name)
                if now_ts is not None:
                    self._show_lag(name, now_ts, each.watermark)
        for state in _STATES:
            JOBS_JOBS.labels(state).set(states[state])
        self._forget(left)

    def _show_lag(self, name: str, now_ts: int, watermark: int) -> None:
        if name not in self._lags:
            self._lags[name] = JOBS_WATERMARK_LAG_SECONDS.labels(name)
        self._lags[name].set(max(0, physical_ms(now_ts) - physical_ms(watermark)) / 1000)

    def clear(self) -> None:
        """Show nothing any more."""
        for state in _STATES:
            JOBS_JOBS.labels(state).set(0)
        self._forget(set(self._lags))

    def _forget(self, names: set[str]) -> None:
        for name in names:
            del self._lags[name]
            JOBS_WATERMARK_LAG_SECONDS.remove(name)
