"""Since when a changefeed fails, and whether to try again."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Denied, Fenced, Invalid, StaleRead, Unavailable
from penstock.retry import EQUAL_JITTER, BackoffPolicy

T = TypeVar("T")

GIVE_UP_S = 30 * 60.0
STALL_S = 10 * 60.0
"""After so many seconds in which a target was asked and nothing came to it, a changefeed says so."""
RETRY_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=60.0, jitter=EQUAL_JITTER)
_ERROR_CHARS_MAX = 500
_PERMANENT = (Corrupt, Fenced, Invalid, StaleRead)

_log = logging.getLogger(__name__)


class FailureTracker:
    """The failures of a changefeed since its last progress. After `give_up_s` there is no next try.

    `mask` takes the secrets of the changefeed from the messages that are kept and logged.
    """

    def __init__(
        self,
        changefeed_id: str,
        *,
        give_up_s: float = GIVE_UP_S,
        mask: Callable[[str], str] = str,
        clock: Clock = SYSTEM,
    ) -> None:
        self.error = ""
        self._changefeed_id = changefeed_id
        self._give_up_s = give_up_s
        self._mask = mask
        self._clock = clock
        self._since: float | None = None

    @property
    def failing(self) -> bool:
        """Whether something failed since the last progress."""
        return self._since is not None

    def clear(self) -> None:
        """Forget the failures: there was progress."""
        self._since, self.error = None, ""

    def record(self, error: Exception, attempt: int) -> float:
        """Record a failure; return the seconds to wait before the next try.

        Raises the failure when there is to be no next try: it is permanent, or `give_up_s` have passed.
        """
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        self.error = f"{type(error).__name__}: {self.describe(error)}"
        if _is_permanent(error) or now - self._since >= self._give_up_s:
            raise error
        facts = {"changefeed": self._changefeed_id, "error": self.error, "attempt": attempt}
        _log.warning("a changefeed failed and tries again", extra=facts)
        return RETRY_BACKOFF.delay_s(attempt + 1, self._clock.random())

    def describe(self, error: Exception) -> str:
        """Return the first line of an error, without secrets."""
        return _first_line(self._mask(str(error)))

    def give_up_after(self, since: float, error: Exception) -> None:
        """Raise a failure that is tried again without progress since a time, when `give_up_s` have passed."""
        if self._clock.monotonic() - since >= self._give_up_s:
            self._since = since if self._since is None else min(self._since, since)
            raise error

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while it raises Unavailable.

        Raises any other error at once, and Unavailable when `give_up_s` have passed without progress.
        """
        attempt = 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                await self._clock.sleep(self.record(error, attempt))
                attempt += 1


def _is_permanent(error: Exception) -> bool:
    """Return whether waiting cannot help. Refused credentials may be replaced, or become valid again."""
    return isinstance(error, _PERMANENT) and not isinstance(error, Denied)


def _first_line(message: str) -> str:
    """Return the first line of a message: those of other libraries may go on with a stack trace."""
    lines = message.strip().splitlines() or [""]
    return lines[0][:_ERROR_CHARS_MAX]
