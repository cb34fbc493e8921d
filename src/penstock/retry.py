"""How long to wait before the next try, and when to stop trying. Pure: no clock, no randomness, no sleep."""

from dataclasses import dataclass

NO_JITTER = (1.0, 1.0)
"""Wait exactly the delay: one caller, or callers that do not meet."""
EQUAL_JITTER = (0.5, 1.0)
"""Wait between half of the delay and all of it, so that callers that failed together come back apart."""
_DOUBLINGS_MAX = 64  # a higher power could overflow a float, and every cap is reached long before


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Delays that grow with every failure in a row: `base_s`, then `factor` times as long, up to `cap_s`.

    A delay is multiplied by a number of the range `jitter`. `attempts` is the number of tries in all; None
    means that there is no last try.
    """

    base_s: float
    cap_s: float
    factor: float = 2.0
    jitter: tuple[float, float] = NO_JITTER
    attempts: int | None = None

    def is_last(self, failures: int) -> bool:
        """Return whether the try after so many failures is the last one."""
        return self.attempts is not None and failures + 1 >= self.attempts

    def delay_s(self, failures: int, chance: float = 0.0) -> float:
        """Return the seconds to wait after so many failures in a row, at least one.

        `chance`, in [0, 1), says where in the range of the jitter the delay lies.
        """
        assert failures >= 1, "there is nothing to wait for before the first failure"
        longest = min(self.base_s * self.factor ** min(failures - 1, _DOUBLINGS_MAX), self.cap_s)
        low, high = self.jitter
        return longest * (low + (high - low) * chance)
