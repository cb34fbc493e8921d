"""A subscription of a span, as the parts of the puller share it."""

import logging
import threading
from collections.abc import Callable

from penstock.clock import physical_ms
from penstock.sources.tikv.key_ranges import KeySpan
from penstock.sources.tikv.range_lock import LockedRange, RangeLock

__all__ = ["SubscribedSpan"]

_JUMP_MS = 30_000
_log = logging.getLogger(__name__)


class SubscribedSpan:
    """How far a subscription is. Its parts may be asked and moved by any thread.

    With `advance_interval_s` of 0 every progress of a region may move the span (a heap finds the
    minimum); else it moves at most once an interval, and every part is looked at then.
    """

    def __init__(
        self,
        sub_id: int,
        span: KeySpan,
        start_ts: int,
        *,
        advance_interval_s: float,
        now: float,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.sub_id = sub_id
        self.span = span
        self.start_ts = start_ts
        self.on_failure = on_failure
        self.stopped = False
        self.resolved_ts = start_ts  # the last one told to the pipeline
        self.moved_at = now  # when that was
        self.range_lock = RangeLock(span.start, span.end, start_ts)
        self.lock = threading.Lock()  # guards the range lock and the fields below
        self._interval_s = advance_interval_s
        self._looked_at = now - advance_interval_s
        self._told_start = False

    def initialize(self, locked: LockedRange) -> None:
        """The incremental scan of a part has ended."""
        with self.lock:
            self.range_lock.initialize(locked)

    def raise_resolved(self, locked: LockedRange, ts: int) -> None:
        """A part is complete up to `ts`; ignored before its scan has ended, and when it would go back."""
        if locked.initialized and ts >= locked.resolved_ts:
            locked.resolved_ts = ts

    def advance(self, now: float) -> int | None:
        """Return the span's new resolved timestamp when it is to be told.

        The start timestamp itself is told once, when every part has been initialized.
        """
        with self.lock:
            if self._interval_s:
                if now - self._looked_at < self._interval_s:
                    return None
                self._looked_at = now
                ts = self.range_lock.resolved_ts()
            else:
                ts = self.range_lock.heap_min_ts()
            if ts < self.resolved_ts or (ts == self.resolved_ts and not self._first_time(ts)):
                return None
            self._warn_of_jump(ts)
            self._told_start = True
            self.resolved_ts = ts
            self.moved_at = now
            return ts

    def _first_time(self, ts: int) -> bool:
        return ts == self.start_ts and not self._told_start and self.range_lock.initialized

    def _warn_of_jump(self, ts: int) -> None:
        jump_ms = physical_ms(ts) - physical_ms(self.resolved_ts)
        if jump_ms > _JUMP_MS and self.resolved_ts > self.start_ts:
            _log.warning(
                "a span's resolved timestamp moved far at once",
                extra={"sub_id": self.sub_id, "table_id": self.span.table_id, "jump_ms": jump_ms},
            )
