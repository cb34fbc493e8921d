"""Triggers that users write: functions that say whether a job's next iteration should begin.

    def at_night(context: TriggerContext) -> bool:
        return context.now.hour < 6

A job names one as `module:function`, or by the name of an entry point in the group `penstock.triggers`. It is
asked again and again, in a thread, and should answer at once. Whatever it raises is that job's error and
nobody else's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Invalid
from penstock.jobs.job import ErrorCode, Job, JobId, JobKey

ENTRY_POINTS = "penstock.triggers"

_PATIENCE_S = 1.0
_THREADS = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerContext:
    """What a trigger knows of its job and of the table."""

    job: JobId
    account: str
    watermark: int
    """Up to where the target has everything."""
    readable_ts: int
    """Up to where the table can be read."""
    now_ts: int
    """The database's time."""
    changed: bool | None
    """Whether the table has changes beyond the watermark; None: its history does not reach back so far."""
    interval_s: float | None
    """The interval of the job's schedule, where it has one."""
    end_at: int
    """When the last iteration ended, in milliseconds of wall time; 0: there was none."""

    @property
    def now(self) -> datetime:
        """The database's time."""
        return datetime.fromtimestamp(physical_ms(self.now_ts) / 1000, UTC)

    @property
    def behind_s(self) -> float:
        """How far the watermark is behind the database's time."""
        return max(0, physical_ms(self.now_ts) - physical_ms(self.watermark)) / 1000


Trigger = Callable[[TriggerContext], object]
"""Has to return a bool; it is not trusted to."""


class TriggerRequest(NamedTuple):
    """A trigger by its name, and what it is asked."""

    name: str
    context: TriggerContext


class Fault(NamedTuple):
    """Why a trigger gave no answer."""

    code: ErrorCode
    message: str


@cache
def find_trigger(name: str) -> Trigger:
    """The function that a name stands for; raise Invalid when there is none."""
    module, colon, attribute = name.partition(":")
    try:
        if colon:
            found = attrgetter(attribute)(import_module(module))
        else:
            found = entry_points(group=ENTRY_POINTS)[name].load()
    except Exception as error:  # its module is code of somebody else's, and may raise anything
        raise Invalid(
            f"there is no trigger {name!r} ({type(error).__name__}); write default, greedy, periodic,"
            f" module:function, or the name of an entry point in {ENTRY_POINTS}"
        ) from error
    if not callable(found):
        raise Invalid(f"trigger {name!r} is no function; it has to take a TriggerContext and return a bool")
    trigger: Trigger = found
    return trigger


def answer(question: TriggerRequest) -> bool | Fault:
    """Ask a trigger; never raises. The message has no more of a foreign exception than its class."""
    try:
        said = find_trigger(question.name)(question.context)
    except Invalid as error:
        return Fault(ErrorCode.REFUSED, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises is that job's error
        _log.exception("a trigger raised", extra={"trigger": question.name, "job": str(question.context.job)})
        return Fault(
            ErrorCode.TRIGGER, f"trigger {question.name} raised {type(error).__name__}; see the runner's log"
        )
    if not isinstance(said, bool):
        kind = type(said).__name__
        return Fault(ErrorCode.REFUSED, f"trigger {question.name} returned {kind}; it has to return a bool")
    return said


def recovered(job: Job) -> Job:
    """The transition of a job whose trigger answers again."""
    return job.with_status(error_code=0, error_msg="", failures=0)


class TriggerRunner:
    """Asks triggers in threads. One that does not answer in time is left alone until it does."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-trigger")
        self._open: dict[JobKey, asyncio.Future[bool | Fault]] = {}

    async def ask(self, questions: Mapping[JobKey, TriggerRequest]) -> dict[JobKey, bool | Fault]:
        """The answers, each with a fault in its place where there was none."""
        loop = asyncio.get_running_loop()
        self._open = {key: asked for key, asked in self._open.items() if not asked.done()}
        asked = {
            key: self._open.get(key) or loop.run_in_executor(self._pool, answer, question)
            for key, question in questions.items()
        }
        await self._wait(asked.values())
        self._open |= asked
        return {
            key: asked[key].result() if asked[key].done() else _late(question)
            for key, question in questions.items()
        }

    async def _wait(self, asked: Iterable["asyncio.Future[bool | Fault]"]) -> None:
        patience = asyncio.ensure_future(self._clock.sleep(_PATIENCE_S))
        waiting: set[asyncio.Future[Any]] = {each for each in asked if not each.done()}
        try:
            while waiting and not patience.done():
                done, _ = await asyncio.wait({*waiting, patience}, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
        finally:
            patience.cancel()

    def close(self) -> None:
        """Ask no more; who has not answered is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _late(question: TriggerRequest) -> Fault:
    return Fault(ErrorCode.TRIGGER, f"trigger {question.name} has not answered within {_PATIENCE_S:g} s")
