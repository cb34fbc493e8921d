"""What a reader still needs of its tables' history, kept on storage for as long as it may be away.

A hold that is older than need be keeps a little more than is needed. So it is written anew only when it would
run out, or when it has fallen far behind: ten thousand tables are not ten thousand writes for every step.

Keeping in the cluster what a changefeed reads there at its next start: the DDLs after its checkpoint.

What a stream still needs of its table's history, kept on storage for when it starts again.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import PenstockError
from penstock.eventstore.capture.safe_point import ServiceSafePoint
from penstock.eventstore.history_holds import HOLD_TTL_S, HistoryHolds
from penstock.kv.pd import PdClient
from penstock.object_storage import ObjectStorage
from penstock.settings import Settings

BEHIND_MS = 30 * 60 * 1000
"""How far a hold may fall behind what is needed."""
RENEWED_MAX = 256
"""How many holds are written again in one call, so that those that are due together are spread."""


@dataclass(frozen=True, slots=True)
class _Held:
    ts: int
    at: float


class HoldPolicy:
    """Which holds are to be written. Pure."""

    def __init__(self, *, ttl_s: float = HOLD_TTL_S) -> None:
        self._renew_s = ttl_s / 3
        self._held: dict[int, _Held] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not self._held

    @property
    def tables(self) -> frozenset[int]:
        """Those for which something is held."""
        return frozenset(self._held)

    def due(self, needed: Mapping[int, int], now: float) -> list[int]:
        """The tables whose hold at what is needed is to be written: new and lowered ones, the oldest others.

        `needed` has the timestamp after which history is needed, by table.
        """
        new = [each for each, ts in needed.items() if each not in self._held or ts < self._held[each].ts]
        old = [
            each
            for each, ts in needed.items()
            if each in self._held and ts >= self._held[each].ts and self._stale(each, ts, now)
        ]
        old.sort(key=lambda each: self._held[each].at)
        return new + old[:RENEWED_MAX]

    def _stale(self, table_id: int, ts: int, now: float) -> bool:
        held = self._held[table_id]
        behind_ms = physical_ms(ts) - physical_ms(held.ts)
        return now >= held.at + self._renew_s or behind_ms >= BEHIND_MS

    def wrote(self, table_id: int, ts: int, now: float) -> None:
        """A hold is on storage."""
        self._held[table_id] = _Held(ts, now)

    def forget(self, table_ids: Iterable[int]) -> None:
        """Nothing is held for these any more."""
        for each in table_ids:
            self._held.pop(each, None)


_log = logging.getLogger(__name__)


class ClusterHold:
    """Holds back the cluster's garbage collection at a checkpoint, for a day after the last `hold`.

    Rows come from the event store, whatever the cluster collects. Of its tables' descriptions, collection
    leaves the newest alone: a changefeed that is behind could not tell what was there before.
    """

    def __init__(self, pd: PdClient, feed_id: str) -> None:
        self._pd = pd
        self._feed_id = feed_id
        self._point = ServiceSafePoint(pd, f"changefeed-{feed_id}")
        self._warned = False

    @classmethod
    async def connect(cls, settings: Settings, feed_id: str, *, clock: Clock = SYSTEM) -> Self:
        """Connect to the placement driver; raise Unavailable when it does not answer."""
        pd = await PdClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv, clock=clock)
        return cls(pd, feed_id)

    async def hold(self, ts: int) -> None:
        """Keep the DDLs after `ts`, as far as they are there. Raises Unavailable."""
        found = await self._point.hold(lambda: ts)
        if found is not None and found[1] > ts and not self._warned:
            self._warned = True
            _log.warning(
                "the cluster has collected history that a changefeed needs; of tables that were altered since"
                " its checkpoint it knows the last DDL only",
                extra={"changefeed": self._feed_id, "needed_ts": ts, "collected_ts": found[1]},
            )

    async def release(self) -> None:
        """Hold nothing any more. Raises Unavailable."""
        await self._point.release()

    async def close(self) -> None:
        """End the connection; what is held stays so for a day."""
        await self._pd.close()


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
                self._watermarks.hold(table_id, self._holder, ts, ttl_s=HOLD_TTL_S)
        except PenstockError as error:
            if not self._told:
                self._told = True
                _log.warning(
                    "history is not held for the stream: a restart finds it as long as captures keep it",
                    extra={"holder": self._holder, "reason": str(error)},
                )
