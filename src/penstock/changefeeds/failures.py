"""What went wrong with a changefeed, for how long, and whether to try again."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Denied, Fenced, Invalid, StaleRead, Unavailable

T = TypeVar("T")

GIVE_UP_S = 30 * 60.0
_FIRST_WAIT_S = 0.5
_LAST_WAIT_S = 60.0
_ERROR_CHARS_MAX = 500
_HOPELESS = (Corrupt, Fenced, Invalid, StaleRead)

_log = logging.getLogger(__name__)


class FailureTracker:
    """Failures since the last progress. After `give_up_s` of them without progress there is no next try."""

    def __init__(self, feed_id: str, *, give_up_s: float = GIVE_UP_S, clock: Clock = SYSTEM) -> None:
        self.error = ""
        self._feed_id = feed_id
        self._give_up_s = give_up_s
        self._clock = clock
        self._since: float | None = None

    @property
    def there(self) -> bool:
        """Whether something failed since the last progress."""
        return self._since is not None

    def over(self) -> None:
        """There was progress."""
        self._since, self.error = None, ""

    def met(self, error: Exception, attempt: int) -> float:
        """Note a failure: the seconds to wait before the next try. Raises it when there is to be none."""
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        self.error = f"{type(error).__name__}: {_first_line(error)}"
        if _is_hopeless(error) or now - self._since >= self._give_up_s:
            raise error
        facts = {"changefeed": self._feed_id, "error": self.error, "attempt": attempt}
        _log.warning("a changefeed failed and tries again", extra=facts)
        longest: float = min(_LAST_WAIT_S, _FIRST_WAIT_S * 2 ** min(attempt, 16))
        return longest * (0.5 + self._clock.random() / 2)

    async def through(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call, again and again while Unavailable is raised; raises what else it raises, or the last."""
        attempt = 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                await self._clock.sleep(self.met(error, attempt))
                attempt += 1


def _is_hopeless(error: Exception) -> bool:
    """Whether waiting cannot help. Credentials that are refused may be replaced, or valid again, by then."""
    return isinstance(error, _HOPELESS) and not isinstance(error, Denied)


def _first_line(error: Exception) -> str:
    """What an exception says, as far as people need it: others than ours may go on with a stack trace."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0][:_ERROR_CHARS_MAX]
