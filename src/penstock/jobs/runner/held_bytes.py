"""How much history the jobs of each account hold back in the event store, and which holds are given up.

A job that is behind keeps the changes that it still needs from being collected, for as long as its target
does not take them. Beyond `bytes_held_max` of its account, the runner holds no more for it: the job goes on
while the changes are there, and fills its target anew once they are gone, as after any longer absence.

`release_over_quota` measures; `follow.holds` decides.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import PenstockError, StaleRead
from penstock.follow.holds import HeldHistory, choose_released, held_limits
from penstock.follow.source import ScanSource
from penstock.jobs.job import JobKey
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.lease_term import SideTask
from penstock.jobs.runner.seams import RunnerLease
from penstock.metrics import JOBS_HELD_BYTES
from penstock.settings import Settings

__all__ = ["release_over_quota"]

_LAG_S = 60.0
_EVERY_S = 60.0

_log = logging.getLogger(__name__)


def release_over_quota(
    source: ScanSource,
    settings: Settings,
    *,
    lag_s: float = _LAG_S,
    every_s: float = _EVERY_S,
    clock: Clock = SYSTEM,
) -> SideTask:
    """Return the side task that measures accounts with a limit, and gives up holds of those above it.

    Jobs that are less than `lag_s` behind hold back little and are not measured.
    """
    limits = held_limits(settings)

    async def release(board: JobBoard, _lease: RunnerLease) -> None:
        known: dict[tuple[str, int], HeldHistory[JobKey]] = {}
        try:
            while limits:
                known = await _measure(board, source, limits, known, lag_s)
                _show(known.values(), limits)
                released = choose_released(known.values(), limits)
                for key in released - board.released:
                    facts = {"table_id": key.table_id, "job": key.job_name}
                    _log.warning(
                        "history is not held for a job any more: its account is above bytes_held_max, or the"
                        " history is gone; it may fill its target anew",
                        extra=facts,
                    )
                board.released = released
                await clock.sleep(every_s)
            await asyncio.Event().wait()
        finally:
            for account in limits:
                JOBS_HELD_BYTES.remove(account)

    return release


async def _measure(
    board: JobBoard,
    source: ScanSource,
    limits: Mapping[str, int],
    known: Mapping[tuple[str, int], HeldHistory[JobKey]],
    lag_s: float,
) -> dict[tuple[str, int], HeldHistory[JobKey]]:
    """Return what accounts hold back, by account and table; what cannot be read stays as it was known."""
    try:
        late_ms = physical_ms(await source.now_ts()) - int(lag_s * 1000)
        behind: defaultdict[tuple[str, int], dict[JobKey, int]] = defaultdict(dict)
        for tracked in board:
            job, held_ts = tracked.job, tracked.held_ts
            if job.account not in limits or held_ts is None:
                continue
            # The table has no change up to a watermark that was raised: nothing before it is held.
            if physical_ms(max(held_ts, tracked.watermark)) < late_ms:
                behind[job.account, job.key.table_id][job.key] = held_ts
        ranges = await source.read_progress({table_id for _, table_id in behind})
    except PenstockError as error:
        _log.warning("what jobs hold back cannot be measured now", extra={"error": str(error)})
        return dict(known)
    found: dict[tuple[str, int], HeldHistory[JobKey]] = {}
    for (account, table_id), jobs in behind.items():
        to_ts = ranges[table_id].readable_ts if table_id in ranges else 0
        from_ts = min(jobs.values())
        nbytes: int | None = 0
        try:
            if from_ts < to_ts:
                scan = await asyncio.to_thread(source.scan, table_id, from_ts, to_ts, ReadLimit())
                nbytes = scan.nbytes
        except StaleRead:
            nbytes = None
        except PenstockError:
            nbytes = known[account, table_id].nbytes if (account, table_id) in known else 0
        found[account, table_id] = HeldHistory(account, nbytes, frozenset(jobs))
    return found


def _show(held: Collection[HeldHistory[JobKey]], limits: Mapping[str, int]) -> None:
    for account in limits:
        total = sum(history.nbytes or 0 for history in held if history.account == account)
        JOBS_HELD_BYTES.labels(account).set(total)
