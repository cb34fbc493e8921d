"""How busy a store is, as its answers report it."""

import os

from penstock.clock import SYSTEM, Clock
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

__all__ = ["StoreHealth"]

_INTERVAL_S = 1.0
_HEALTHY = 1  # the lowest slow score


class StoreHealth:
    """Samples the processor's load once a second, and numbers the feedback given to clients."""

    def __init__(self, store_id: int, *, clock: Clock = SYSTEM) -> None:
        self._store_id = store_id
        self._clock = clock
        self._sampled_at = clock.monotonic()
        self._busy_s = _busy_s()
        self._sequence = 0
        self.load = 0  # percent of one processor

    def feedback(self) -> kvrpcpb.HealthFeedback:
        """Return feedback newer than any before."""
        self._sequence += 1
        return kvrpcpb.HealthFeedback(
            store_id=self._store_id, feedback_seq_no=self._sequence, slow_score=_HEALTHY
        )

    def due(self) -> bool:
        """Tell, once a second, that it is time to give feedback; take a sample of the load."""
        now = self._clock.monotonic()
        passed = now - self._sampled_at
        if passed < _INTERVAL_S:
            return False
        busy_s = _busy_s()
        self.load = round(100 * (busy_s - self._busy_s) / passed)
        self._sampled_at, self._busy_s = now, busy_s
        return True


def _busy_s() -> float:
    used = os.times()
    return used.user + used.system
