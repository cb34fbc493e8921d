"""Custom triggers: functions of users that decide whether a job's next iteration begins.

    def at_night(context: TriggerContext) -> bool:
        return context.now.hour < 6

A job names one as `module:function`, or by the name of an entry point in the group `penstock.triggers`. It is
called again and again, in a thread, and should return at once. Whatever it raises is the error of that job
alone.
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
from penstock.jobs.custom_code import check_code
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
    """The timestamp up to which the target has everything."""
    readable_ts: int
    """The timestamp up to which the table can be read."""
    now_ts: int
    """The database's time."""
    changed: bool | None
    """Whether the table has changes after the watermark; None: its history does not reach back so far."""
    interval_s: float | None
    """The interval of the job's schedule, if it has one."""
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
"""Must return a bool; the result is checked."""


class TriggerRequest(NamedTuple):
    """A trigger's name, and the context that it is called with."""

    name: str
    context: TriggerContext


class Fault(NamedTuple):
    """Why a trigger gave no answer."""

    code: ErrorCode
    message: str


@cache
def find_trigger(name: str, allowed: tuple[str, ...] = ()) -> Trigger:
    """Return the function of a trigger's name; raise Invalid when there is none, or its module is refused."""
    _, colon, attribute = name.partition(":")
    try:
        location = name if colon else entry_points(group=ENTRY_POINTS)[name].value
        check_code(location, allowed, f"trigger {name!r}")
        module, _, attribute = location.partition(":")
        found = attrgetter(attribute)(import_module(module))
    except Invalid:
        raise
    except Exception as error:  # the module is foreign code and may raise anything
        raise Invalid(
            f"there is no trigger {name!r} ({type(error).__name__}); write default, greedy, periodic,"
            f" module:function, or the name of an entry point in {ENTRY_POINTS}"
        ) from error
    if not callable(found):
        raise Invalid(f"trigger {name!r} is not a function; it must take a TriggerContext and return a bool")
    trigger: Trigger = found
    return trigger


def ask_trigger(request: TriggerRequest, allowed: tuple[str, ...] = ()) -> bool | Fault:
    """Call a trigger; never raises. Of a foreign exception the message has only the class."""
    try:
        result = find_trigger(request.name, allowed)(request.context)
    except Invalid as error:
        return Fault(ErrorCode.REFUSED, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises is that job's error
        _log.exception("a trigger raised", extra={"trigger": request.name, "job": str(request.context.job)})
        return Fault(
            ErrorCode.TRIGGER, f"trigger {request.name} raised {type(error).__name__}; see the runner's log"
        )
    if not isinstance(result, bool):
        kind = type(result).__name__
        return Fault(ErrorCode.REFUSED, f"trigger {request.name} returned {kind}; it has to return a bool")
    return result


def clear_trigger_error(job: Job) -> Job:
    """Clear the error of a job whose trigger answers again."""
    return job.with_status(error_code=0, error_msg="", failures=0)


class TriggerRunner:
    """Calls triggers in threads. One that does not return in time is not called again until it has."""

    def __init__(self, allowed: tuple[str, ...] = (), *, clock: Clock = SYSTEM) -> None:
        """`allowed` are the modules whose functions are called."""
        self._allowed = allowed
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-trigger")
        self._open: dict[JobKey, asyncio.Future[bool | Fault]] = {}

    async def ask(self, requests: Mapping[JobKey, TriggerRequest]) -> dict[JobKey, bool | Fault]:
        """Return the answers, with a Fault in place of each that is missing."""
        loop = asyncio.get_running_loop()
        self._open = {key: call for key, call in self._open.items() if not call.done()}
        calls = {
            key: self._open.get(key) or loop.run_in_executor(self._pool, ask_trigger, request, self._allowed)
            for key, request in requests.items()
        }
        await self._wait(calls.values())
        self._open |= calls
        return {
            key: calls[key].result() if calls[key].done() else _late(request)
            for key, request in requests.items()
        }

    async def _wait(self, calls: Iterable["asyncio.Future[bool | Fault]"]) -> None:
        patience = asyncio.ensure_future(self._clock.sleep(_PATIENCE_S))
        waiting: set[asyncio.Future[Any]] = {call for call in calls if not call.done()}
        try:
            while waiting and not patience.done():
                done, _ = await asyncio.wait({*waiting, patience}, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
        finally:
            patience.cancel()

    def close(self) -> None:
        """Call no more triggers; do not wait for those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _late(request: TriggerRequest) -> Fault:
    return Fault(
        ErrorCode.TRIGGER,
        f"trigger {request.name} has not answered within {_PATIENCE_S:g} s; make it return at once",
    )
