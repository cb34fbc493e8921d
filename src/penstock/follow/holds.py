"""Which history of its tables a reader holds: on storage, and at the placement driver.

A hold keeps what comes after a timestamp until it expires, a day after it was written last, so that a reader
finds its history when it starts again. A hold that is older than need be only keeps a little more. So
`HoldPolicy` writes one again before it expires or when it has fallen far behind: ten thousand tables are not
ten thousand writes for every step of a reader.

What readers of an account hold back has a limit in bytes; `choose_released` decides whose holds are given up.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import PenstockError
from penstock.eventstore.capture.safe_point import ServiceSafePoint
from penstock.eventstore.history_holds import HOLD_TTL_S, HistoryHolds
from penstock.kv.pd import PdClient
from penstock.object_storage import ObjectStorage
from penstock.settings import Settings

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=Hashable)

BEHIND_MS = 30 * 60 * 1000
"""How far a hold may fall behind the timestamp that its reader needs."""
RENEWED_MAX = 256
"""How many holds are written again in one call, so that those that are due together are spread over calls."""
_STREAM_RENEW_S = 60.0  # a stream has few tables: a write of each once a minute spares one for every batch


@dataclass(frozen=True, slots=True)
class _WrittenHold:
    ts: int
    at: float


class HoldPolicy:
    """Decides which holds a reader writes. Pure."""

    def __init__(self, *, renew_s: float = HOLD_TTL_S / 3) -> None:
        self._renew_s = renew_s
        self._written: dict[int, _WrittenHold] = {}

    @property
    def empty(self) -> bool:
        """Whether the reader holds nothing."""
        return not self._written

    @property
    def tables(self) -> frozenset[int]:
        """The tables whose history the reader holds."""
        return frozenset(self._written)

    def tables_due(self, needed: Mapping[int, int], now: float) -> list[int]:
        """Return the tables whose hold is to be written: every new or lowered one, and the oldest of the
        others.

        `needed` has the timestamp after which the reader needs history, by table.
        """
        new = [table_id for table_id, ts in needed.items() if self._is_lower(table_id, ts)]
        old = [
            table_id
            for table_id, ts in needed.items()
            if not self._is_lower(table_id, ts) and self._is_stale(table_id, ts, now)
        ]
        old.sort(key=lambda table_id: self._written[table_id].at)
        return new + old[:RENEWED_MAX]

    def _is_lower(self, table_id: int, ts: int) -> bool:
        return table_id not in self._written or ts < self._written[table_id].ts

    def _is_stale(self, table_id: int, ts: int, now: float) -> bool:
        written = self._written[table_id]
        behind_ms = physical_ms(ts) - physical_ms(written.ts)
        return now >= written.at + self._renew_s or behind_ms >= BEHIND_MS

    def record(self, table_id: int, ts: int, now: float) -> None:
        """Note that the hold of a table was written."""
        self._written[table_id] = _WrittenHold(ts, now)

    def forget(self, table_ids: Iterable[int]) -> None:
        """Note that the reader holds nothing of these tables any more."""
        for table_id in table_ids:
            self._written.pop(table_id, None)


class HeldHistory(NamedTuple, Generic[R]):
    """What readers of an account hold back together: about so many bytes; None: a part of it is gone."""

    account: str
    nbytes: int | None
    readers: frozenset[R]


def choose_released(held: Collection[HeldHistory[R]], limits: Mapping[str, int]) -> frozenset[R]:
    """Return the readers for which nothing is held any more, so that each account is within its limit. Pure.

    Those that hold back most come first. A reader whose history is gone needs none.
    """
    left: defaultdict[str, int] = defaultdict(int)
    for history in held:
        left[history.account] += history.nbytes or 0
    released: set[R] = set()
    for history in sorted(held, key=lambda history: -(history.nbytes or 0)):
        if history.nbytes is None or left[history.account] > limits[history.account]:
            left[history.account] -= history.nbytes or 0
            released |= history.readers
    return frozenset(released)


def held_limits(settings: Settings) -> dict[str, int]:
    """Return the accounts whose readers may hold back so many bytes and no more."""
    return {
        name: account.bytes_held_max
        for name, account in settings.api.accounts.items()
        if account.bytes_held_max and not account.admin
    }


class StreamHold:
    """Holds history on storage for one stream, in its name. Nothing is released: holds expire.

    When storage cannot be written, a warning says so once, and the stream goes on: a restart then finds its
    history for as long as captures keep it. The next try comes a minute later, so that batches do not wait
    for storage.
    """

    def __init__(self, storage: ObjectStorage, holder: str, clock: Clock = SYSTEM) -> None:
        self._holds = HistoryHolds(storage, clock)
        self._policy = HoldPolicy(renew_s=_STREAM_RENEW_S)
        self._holder = holder
        self._clock = clock
        self._warned = False

    def hold(self, table_ids: Collection[int], ts: int) -> None:
        """Keep the snapshot at `ts` and the changes after it, in place of what the stream held before."""
        if ts <= 0:
            return
        now = self._clock.monotonic()
        due = self._policy.tables_due(dict.fromkeys(table_ids, ts), now)
        for table_id in due:
            self._policy.record(table_id, ts, now)  # a try counts: see the class
        try:
            for table_id in due:
                self._holds.hold(table_id, self._holder, ts, ttl_s=HOLD_TTL_S)
        except PenstockError as error:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "history is not held for the stream: a restart finds it as long as captures keep it",
                    extra={"holder": self._holder, "reason": str(error)},
                )


class ClusterHold:
    """Holds back the cluster's garbage collection at a changefeed's checkpoint, for a day after the last
    `hold`.

    A changefeed needs the DDLs after its checkpoint when it starts again, and reads them from the cluster.
    Collection leaves only the newest description of each table, so a changefeed that is behind could not see
    the earlier ones. Rows come from the event store, whatever the cluster collects.
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
        """Keep the DDLs after `ts`, as far as the cluster still has them. Raises Unavailable."""
        published = await self._point.hold(lambda: ts)
        if published is None or self._warned:
            return
        _, collected_ts = published
        if collected_ts > ts:
            self._warned = True
            _log.warning(
                "the cluster has collected history that a changefeed needs; of tables that were altered since"
                " its checkpoint it knows the last DDL only",
                extra={"changefeed": self._feed_id, "needed_ts": ts, "collected_ts": collected_ts},
            )

    async def release(self) -> None:
        """Let the cluster collect again. Raises Unavailable."""
        await self._point.release()

    async def close(self) -> None:
        """Close the connection; the hold stays for a day."""
        await self._pd.close()
