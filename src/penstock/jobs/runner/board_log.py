"""The exchange between the board and the log: the board follows committed rows, the log gets its changes."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import Transition, adopt_job
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.seams import RunnerFeed, RunnerLog
from penstock.metrics import (
    JOBS_ADOPTED_TOTAL,
    JOBS_COLLECTED_TOTAL,
    JOBS_FLUSHED_WATERMARKS_TOTAL,
    JOBS_LOG_REPLAYS_TOTAL,
)

_log = logging.getLogger(__name__)


class BoardLog:
    """The log during one lease, whose `epoch` is written into every adopted row.

    While a row is being written, nothing begins for its job. A row whose state is unknown is read again
    first. So an iteration is never submitted with a row that is known to be stale.
    """

    def __init__(self, board: JobBoard, log: RunnerLog, *, epoch: int) -> None:
        self._board = board
        self._log = log
        self._epoch = epoch

    async def take_over(self) -> int:
        """Read all rows and adopt the live ones, so that no earlier runner can write any more.

        Return the timestamp after which the log has to be followed.
        """
        await asyncio.to_thread(self._log.ensure)
        ts, rows = await asyncio.to_thread(self._log.read_all)
        self._board.replace(rows)
        await self._adopt([row for row in rows if row.live])
        return ts

    async def follow(self, feed: RunnerFeed, ts: int, notify: Callable[[], None]) -> None:
        """Apply what is committed after `ts` to the board and call `notify`, until it is cancelled."""
        async with aclosing(feed.follow(ts)) as changes:
            async for change in changes:
                if change.whole:
                    JOBS_LOG_REPLAYS_TOTAL.inc()
                    self._board.replace(change.rows)
                else:
                    self._board.apply(change.rows)
                    self._board.remove(change.removed)
                notify()

    async def settle(self) -> None:
        """Adopt rows that other runners had, and read uncertain rows again."""
        await self._adopt(self._board.take_orphaned())
        uncertain = self._board.take_uncertain()
        if not uncertain:
            return
        found: list[Job] = []
        try:
            found = await asyncio.to_thread(self._log.read, uncertain)
            self._board.remove(_missing(uncertain, found))
        finally:
            self._board.settle(uncertain, found)

    async def _adopt(self, found: Sequence[Job]) -> None:
        """Adopt rows, except those of a newer runner: this one is fenced, and will notice."""
        rows = [row for row in found if row.status.runner <= self._epoch]
        if rows:
            JOBS_ADOPTED_TOTAL.inc(len(rows))
            await self.write([(row, adopt_job(self._epoch)) for row in rows])

    async def write(self, changes: Sequence[tuple[Job, Transition]]) -> None:
        """Change rows; rows that another writer has changed are read again later."""
        keys = [job.key for job, _ in changes]
        self._board.mark_uncertain(keys)
        written: list[Job | None] = []
        try:
            written = await asyncio.to_thread(self._log.transact, changes)
        finally:
            self._board.settle(keys, [row for row in written if row is not None])

    async def flush(self) -> None:
        """Write watermarks that only moved in memory. The board learns of it from the log's feed."""
        raised = self._board.list_unflushed()
        if raised:
            written = await asyncio.to_thread(self._log.flush_watermarks, raised)
            JOBS_FLUSHED_WATERMARKS_TOTAL.inc(sum(row is not None for row in written))

    async def collect(self, dropped_ttl_s: float) -> None:
        """Remove rows that were dropped `dropped_ttl_s` ago."""
        JOBS_COLLECTED_TOTAL.inc(await asyncio.to_thread(self._log.collect, dropped_ttl_s))


def _missing(keys: Iterable[JobKey], rows: Iterable[Job]) -> set[JobKey]:
    return set(keys) - {row.key for row in rows}
