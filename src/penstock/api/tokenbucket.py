"""How many requests each caller may make. Pure: the time is an argument."""

from collections import OrderedDict

__all__ = ["RateLimit"]

_KEYS_MAX = 10_000


class RateLimit:
    """A bucket of `burst` tokens for each key, which gets `per_s` tokens in a second; a request takes one.

    Keys that were not seen for long are forgotten when there are more than `keys_max`: their buckets are
    full again, unless more callers than that come within a burst.
    """

    def __init__(self, per_s: float, burst: int, *, keys_max: int = _KEYS_MAX) -> None:
        self._per_s = per_s
        self._burst = burst
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at what time

    def take(self, key: str, now: float) -> float:
        """Take a token; 0, or how many seconds it takes until there is one."""
        tokens, at = self._buckets.pop(key, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - at) * self._per_s)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_s
        self._buckets[key] = (tokens - 1 if not wait else tokens, now)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return wait
