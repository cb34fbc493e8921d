"""What an answer, or none, means for a request. Pure."""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto

_RETRIED = frozenset({408, 425, 429})
_CONFLICT = 409
_HINTS = {
    401: "; check the options headers.* and secret",
    403: "; check the options headers.* and secret",
    413: "; lower the option request_bytes",
}

_FIRST_S, _MOST_S = 0.5, 30.0
WAIT_MAX_S = 60.0
"""A server that wants more time is left to the next iteration."""


class DeliveryResult(Enum):
    """What to do next."""

    TAKEN = auto()
    AGAIN = auto()
    FENCED = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and how long the server wants to be left alone, as it says that; or why there is none."""

    status: int
    retry_after: str = ""
    failure: str = ""

    @property
    def verdict(self) -> DeliveryResult:
        """2xx: taken. 409: the server has another watermark. 408, 425, 429 and 5xx pass. Others do not."""
        if self.failure:
            return DeliveryResult.AGAIN
        if 200 <= self.status < 300:
            return DeliveryResult.TAKEN
        if self.status == _CONFLICT:
            return DeliveryResult.FENCED
        return (
            DeliveryResult.AGAIN if self.status in _RETRIED or self.status >= 500 else DeliveryResult.REFUSED
        )

    @property
    def reason(self) -> str:
        """What somebody has to know who mends it."""
        if self.failure:
            return self.failure
        if 300 <= self.status < 400:
            return f"answers {self.status}; redirects are not followed: give the address that it leads to"
        return f"answers {self.status}{_HINTS.get(self.status, '')}"


def wait_s(attempt: int, retry_after: str, *, now_s: float, chance: float) -> float:
    """How long to wait after an attempt (the first is 0): what the server says, else a time that doubles."""
    asked = _asked_s(retry_after.strip(), now_s)
    return asked if asked is not None else min(_FIRST_S * 2**attempt, _MOST_S) * (0.5 + chance / 2)


def _asked_s(retry_after: str, now_s: float) -> float | None:
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError):
        return None
