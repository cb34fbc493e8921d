"""Running a transaction again when another one was faster."""

from collections.abc import Callable
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import Conflict

T = TypeVar("T")

ATTEMPTS = 20
_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.5


def retried(transaction: Callable[[], T], *, clock: Clock) -> T:
    """Run a whole transaction until it commits; after 20 conflicts in a row, raise the last one."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return transaction()
        except Conflict:
            clock.pause(min(_PAUSE_S * 2**attempt, _PAUSE_MAX_S) * (0.5 + clock.random()))
    return transaction()
