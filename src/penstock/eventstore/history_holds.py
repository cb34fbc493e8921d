"""Watermarks: who still needs a table's history, and from when on. On storage: anybody can hold one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid
from penstock.eventstore import paths
from penstock.object_storage import ObjectStorage

FORMAT = 1
HOLD_TTL_S = 86_400
"""How long after its last sign of life a reader or a capture finds the history that it needs."""


@dataclass(frozen=True, slots=True)
class HistoryHold:
    """Changes after `ts`, and the snapshot at it, are needed until `expires_at_ms` (None: until released)."""

    path: str
    ts: int
    expires_at_ms: int | None

    def is_expired(self, now_ms: int) -> bool:
        """Whether it holds nothing back any more."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


class HistoryHolds:
    """The watermarks of all tables at one storage. Thread-safe; every call blocks on storage.

    A watermark keeps what was there when it was set. History that is older than the time to live may be on
    its way out already: whoever sets a watermark there must find it readable afterwards.
    """

    def __init__(self, storage: ObjectStorage, clock: Clock = SYSTEM) -> None:
        self._storage = storage
        self._clock = clock

    def hold(self, table_id: int, holder: str, ts: int, *, ttl_s: float | None = None) -> None:
        """Keep history after `ts` for a holder, in place of what it held before.

        With `ttl_s` it must be set again within that time. Raises Unavailable.
        """
        if ts <= 0 or not holder:
            raise Invalid("a watermark needs a holder's name and a timestamp above 0")
        expires_at_ms = None if ttl_s is None else self._clock.wall_ms() + int(ttl_s * 1000)
        tree = {"format": FORMAT, "ts": ts, "expires_at_ms": expires_at_ms}
        self._storage.write(self._path(table_id, holder), json.dumps(tree, sort_keys=True).encode())

    def release(self, table_id: int, holder: str) -> None:
        """Hold nothing for a holder any more. Raises Unavailable."""
        self._storage.delete(self._path(table_id, holder))

    def lowest_ts(self, table_id: int) -> int | None:
        """The lowest timestamp that is held; None when nobody holds one.

        Raises Corrupt when a watermark is damaged: nobody knows then what it holds.
        """
        now_ms = self._clock.wall_ms()
        return min((hold.ts for hold in self.list_holds(table_id) if not hold.is_expired(now_ms)), default=None)

    def list_holds(self, table_id: int) -> Iterator[HistoryHold]:
        """Every watermark of a table, expired ones among them."""
        for path in self._storage.names(paths.history_hold_folder(paths.table_root(table_id))):
            data = self._storage.read(path)
            if data is not None:  # else released meanwhile
                yield _read(data, path)

    def _path(self, table_id: int, holder: str) -> str:
        return paths.history_hold(paths.table_root(table_id), holder)


def _read(data: bytes, path: str) -> HistoryHold:
    try:
        tree = json.loads(data)
        if tree["format"] != FORMAT:
            raise Corrupt(f"watermark {path} has format {tree['format']!r}, not {FORMAT}; upgrade Penstock")
        expires_at_ms = tree["expires_at_ms"]
        return HistoryHold(path, int(tree["ts"]), None if expires_at_ms is None else int(expires_at_ms))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"watermark {path} is damaged; let its holder set it again, or remove it") from error
