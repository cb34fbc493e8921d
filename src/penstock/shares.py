"""How many of a number of places one account may hold, and how often a caller may ask. Pure."""

import sys
from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["UNLIMITED", "RateLimit", "Shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """Places that accounts share, such as the workers of a process, and how many of them one may hold.

    While others want places, an account holds at most `account_count`: its cap. Beyond all `count`, an
    account that holds none gets one: its floor. So whatever the holders of one account do, and however long,
    every other account has a place.
    """

    count: int
    account_count: int

    @property
    def most(self) -> int:
        """The number of places that may be needed: the shared ones, and as many again for floors."""
        return 2 * self.count

    @classmethod
    def of(cls, count: int, account_count: int | None = None) -> "Shares":
        """Return the shares; without a cap in the settings, an account may hold three quarters."""
        return cls(count, max(1, min(count, account_count or count - count // 4)))

    def allow(self, held: int, total: int, *, alone: bool) -> bool:
        """Return whether an account that holds `held` of `total` places may have another one."""
        if not held:
            return total < self.most
        return total < self.count and held < (self.count if alone else self.account_count)


UNLIMITED = Shares(sys.maxsize // 2, sys.maxsize // 2)
"""Places without a limit."""

_KEYS_MAX = 10_000


class RateLimit:
    """A bucket of `burst` tokens for each key, refilled with `per_s` tokens per second; a request takes one.

    Above `keys_max` keys the least recently used one is dropped. Its bucket would be full again by then,
    unless more callers than that come within one burst. The time is an argument.
    """

    def __init__(self, per_s: float, burst: int, *, keys_max: int = _KEYS_MAX) -> None:
        self._per_s = per_s
        self._burst = burst
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # tokens, and when they were counted

    def take(self, key: str, now: float) -> float:
        """Take a token and return 0; without a token, return the seconds until there is one."""
        tokens, at = self._buckets.pop(key, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - at) * self._per_s)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_s
        self._buckets[key] = (tokens - 1 if not wait else tokens, now)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return wait
