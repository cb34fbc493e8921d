"""How much of the unflushed rows is kept in memory."""

import threading

from penstock import metrics


class MemoryBudget:
    """Bytes of rows in memory, over all tables. Thread-safe.

    Rows that find no room are not refused: they are in the log already and are read from there.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes taken now."""
        return self._used

    def take(self, nbytes: int) -> bool:
        """Reserve room; False when there is none."""
        with self._lock:
            if self._used + nbytes > self._limit:
                metrics.EVENTSTORE_SPILLED_BYTES_TOTAL.inc(nbytes)
                return False
            self._used += nbytes
            metrics.EVENTSTORE_MEMORY_BYTES.set(self._used)
            return True

    def give_back(self, nbytes: int) -> None:
        """Return room that was reserved."""
        with self._lock:
            self._used -= nbytes
            assert self._used >= 0, "more was given back than taken"
            metrics.EVENTSTORE_MEMORY_BYTES.set(self._used)
