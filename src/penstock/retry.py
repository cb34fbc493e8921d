"""Whether and when a failed iteration is tried again. Pure."""

from dataclasses import dataclass

WAIT_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """At most `attempts` tries; the wait between two doubles each time, up to a minute."""

    attempts: int
    backoff_s: float

    def last(self, failures: int) -> bool:
        """Whether the try after so many failed ones is the last."""
        return failures + 1 >= self.attempts

    def wait_s(self, failures: int, chance: float) -> float:
        """How long to wait after so many failed tries; `chance`, in [0, 1), spreads those of one moment."""
        longest = min(self.backoff_s * 2.0 ** min(failures - 1, 32), WAIT_MAX_S)
        return longest * (1 + chance) / 2
