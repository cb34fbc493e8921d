"""What a stream still needs of its table's history, kept on storage for when it starts again."""

import logging
from collections.abc import Iterable

from penstock.clock import SYSTEM, Clock
from penstock.errors import PenstockError
from penstock.eventstore.history_holds import HistoryHolds
from penstock.object_storage import ObjectStorage

_log = logging.getLogger(__name__)

TTL_S = 86_400.0
"""How long after its last sign of life a stream finds the history that it needs."""
_RENEW_S = 60.0  # holding less than is possible does no harm, and spares storage a write for every batch


class ConsumerHold:
    """Holds history after a timestamp for one stream, in its name. Nothing is released: holds expire.

    Storage that cannot be written to is told once; the stream then has as much time as history is kept.
    """

    def __init__(self, storage: ObjectStorage, holder: str, clock: Clock = SYSTEM) -> None:
        self._watermarks = HistoryHolds(storage, clock)
        self._holder = holder
        self._clock = clock
        self._renew_at: float | None = None
        self._told = False

    def keep(self, table_ids: Iterable[int], ts: int) -> None:
        """The stream needs what comes after `ts`, and the snapshot there, instead of what it held before."""
        now = self._clock.monotonic()
        if ts <= 0 or (self._renew_at is not None and now < self._renew_at):
            return
        self._renew_at = now + _RENEW_S
        try:
            for table_id in table_ids:
                self._watermarks.hold(table_id, self._holder, ts, ttl_s=TTL_S)
        except PenstockError as error:
            if not self._told:
                self._told = True
                _log.warning(
                    "history is not held for the stream: a restart finds it as long as captures keep it",
                    extra={"holder": self._holder, "reason": str(error)},
                )
