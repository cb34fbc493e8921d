"""Run a transaction until it commits: `transact` for blocking callers, `transact_async` on an event loop.

A transaction that met a conflict changed nothing, so its work always runs again. A commit that was not
answered (Undetermined) may have happened: the work runs again only when the caller calls it `repeatable`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeVar

from penstock.clock import SYSTEM, Clock
from penstock.errors import Conflict, PenstockError, Unavailable, Undetermined
from penstock.retry import BackoffPolicy

T = TypeVar("T")
Txn = TypeVar("Txn")

_ATTEMPTS = 20
_BACKOFF = BackoffPolicy(base_s=0.005, cap_s=0.5, jitter=(0.5, 1.5), attempts=_ATTEMPTS)


def transact(
    begin: Callable[[], AbstractContextManager[Txn]],
    work: Callable[[Txn], T],
    *,
    repeatable: bool = False,
    clock: Clock = SYSTEM,
) -> T:
    """Begin a transaction, do `work` in it and commit; do so again, after a pause, while it conflicts.

    With `repeatable` the work also runs again after a commit whose outcome is unknown. It may then read what
    it wrote itself, and must take that for its own success.

    After 20 tries raises the last Conflict; with `repeatable` Unavailable, because the whole call may be
    repeated. Raises at once whatever else `begin`, `work` or the commit raises.
    """
    failures = 0
    while True:
        try:
            with begin() as txn:
                return work(txn)
        except (Conflict, Undetermined) as error:
            failures += 1
            clock.pause(_pause_s(error, failures, repeatable=repeatable, clock=clock))


async def transact_async(
    begin: Callable[[], AbstractAsyncContextManager[Txn]],
    work: Callable[[Txn], Awaitable[T]],
    *,
    repeatable: bool = False,
    clock: Clock = SYSTEM,
) -> T:
    """Begin a transaction, do `work` in it and commit; do so again, after a pause, while it conflicts.

    With `repeatable` the work also runs again after a commit whose outcome is unknown. It may then read what
    it wrote itself, and must take that for its own success.

    After 20 tries raises the last Conflict; with `repeatable` Unavailable, because the whole call may be
    repeated. Raises at once whatever else `begin`, `work` or the commit raises.
    """
    failures = 0
    while True:
        try:
            async with begin() as txn:
                return await work(txn)
        except (Conflict, Undetermined) as error:
            failures += 1
            await clock.sleep(_pause_s(error, failures, repeatable=repeatable, clock=clock))


def _pause_s(error: PenstockError, failures: int, *, repeatable: bool, clock: Clock) -> float:
    """Return the pause before the next try; raise what ends the call when there is to be none."""
    if isinstance(error, Undetermined) and not repeatable:
        raise error
    if not _BACKOFF.is_last(failures - 1):
        return _BACKOFF.delay_s(failures, clock.random())
    if repeatable:
        raise Unavailable(
            f"a transaction did not commit in {_ATTEMPTS} tries ({error}); try again later"
        ) from error
    raise error
