"""Keeps the board and the log in step: what was committed comes to the board, what it decides to the log."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.transitions import Transition, adopted
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
    """The log for the time of one lease, in which `epoch` is written into every row that is taken over.

    While a row is being written nothing begins for its job, and a row of which nobody knows what became is
    read again first. So an iteration is never submitted with a row that is known to be stale.
    """

    def __init__(self, board: JobBoard, log: RunnerLog, *, epoch: int) -> None:
        self._board = board
        self._log = log
        self._epoch = epoch

    async def take_over(self) -> int:
        """Read all rows and adopt those that are live, so that nobody before can write any more.

        Return the timestamp after which the log has to be followed.
        """
        await asyncio.to_thread(self._log.ensure)
        ts, rows = await asyncio.to_thread(self._log.read_all)
        self._board.replace(rows)
        await self._adopt([row for row in rows if row.live])
        return ts

    async def follow(self, feed: RunnerFeed, ts: int, told: Callable[[], None]) -> None:
        """Bring what is committed after `ts` to the board, and tell of it, until it is cancelled."""
        async with aclosing(feed.follow(ts)) as changes:
            async for change in changes:
                if change.whole:
                    JOBS_LOG_REPLAYS_TOTAL.inc()
                    self._board.replace(change.rows)
                else:
                    self._board.apply(change.rows)
                    self._board.remove(change.removed)
                told()

    async def settle(self) -> None:
        """Adopt rows that others were busy with, and read those again that are not certain."""
        await self._adopt(self._board.take_orphaned())
        doubted = self._board.take_doubted()
        if not doubted:
            return
        found: list[Job] = []
        try:
            found = await asyncio.to_thread(self._log.read, doubted)
            self._board.remove(_missing(doubted, found))
        finally:
            self._board.settle(doubted, found)

    async def _adopt(self, found: Sequence[Job]) -> None:
        """Take rows over, but for those of a newer runner: this one is fenced, and will hear of it."""
        rows = [row for row in found if row.status.runner <= self._epoch]
        if rows:
            JOBS_ADOPTED_TOTAL.inc(len(rows))
            await self.write([(row, adopted(self._epoch)) for row in rows])

    async def write(self, changes: Sequence[tuple[Job, Transition]]) -> None:
        """Change rows; those that somebody else has changed are read again later."""
        keys = [job.key for job, _ in changes]
        self._board.doubt(keys)
        written: list[Job | None] = []
        try:
            written = await asyncio.to_thread(self._log.transact, changes)
        finally:
            self._board.settle(keys, [row for row in written if row is not None])

    async def flush(self) -> None:
        """Write watermarks that only moved in memory. The log's feed tells the board of it."""
        raised = self._board.unflushed()
        if raised:
            written = await asyncio.to_thread(self._log.flush_watermarks, raised)
            JOBS_FLUSHED_WATERMARKS_TOTAL.inc(sum(row is not None for row in written))

    async def collect(self, dropped_ttl_s: float) -> None:
        """Remove rows that were dropped so long ago."""
        JOBS_COLLECTED_TOTAL.inc(await asyncio.to_thread(self._log.collect, dropped_ttl_s))


def _missing(keys: Iterable[JobKey], rows: Iterable[Job]) -> set[JobKey]:
    return set(keys) - {row.key for row in rows}
