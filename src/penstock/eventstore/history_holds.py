"""History holds: who still needs the history of a table, and from when on.

A hold is a small file on storage, so any process can hold history. On storage the folder is named
`watermarks`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid
from penstock.eventstore import paths
from penstock.object_storage import ObjectStorage

FORMAT = 1
HOLD_TTL_S = 86_400
"""Seconds for which history is held after the last renewal by a reader or a capture."""


@dataclass(frozen=True, slots=True)
class HistoryHold:
    """Changes after `ts`, and the snapshot at it, are needed until `expires_at_ms` (None: until released)."""

    path: str
    ts: int
    expires_at_ms: int | None

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the hold has run out."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


class HistoryHolds:
    """The history holds of all tables at one storage. Thread-safe; every call blocks on storage.

    A hold keeps the history that existed when it was set. History that is older than the time to live may be
    about to be collected: whoever holds it must check afterwards that it can be read.
    """

    def __init__(self, storage: ObjectStorage, clock: Clock = SYSTEM) -> None:
        self._storage = storage
        self._clock = clock

    def hold(self, table_id: int, holder: str, ts: int, *, ttl_s: float | None = None) -> None:
        """Keep history after `ts` for a holder, in place of what it held before.

        With `ttl_s` the hold must be renewed within that time. Raises Unavailable when storage does not
        answer.
        """
        if ts <= 0 or not holder:
            raise Invalid("a history hold needs the name of its holder and a timestamp above 0")
        expires_at_ms = None if ttl_s is None else self._clock.wall_ms() + int(ttl_s * 1000)
        tree = {"format": FORMAT, "ts": ts, "expires_at_ms": expires_at_ms}
        self._storage.write(self._path(table_id, holder), json.dumps(tree, sort_keys=True).encode())

    def release(self, table_id: int, holder: str) -> None:
        """Remove the hold of a holder. Raises Unavailable when storage does not answer."""
        self._storage.delete(self._path(table_id, holder))

    def lowest_ts(self, table_id: int) -> int | None:
        """Return the lowest timestamp that is held; None when nobody holds one.

        Raises Corrupt when a hold is damaged, because what it needs is not known then.
        """
        now_ms = self._clock.wall_ms()
        return min(
            (hold.ts for hold in self.list_holds(table_id) if not hold.is_expired(now_ms)), default=None
        )

    def list_holds(self, table_id: int) -> Iterator[HistoryHold]:
        """Yield every hold on a table, expired ones among them."""
        for path in self._storage.names(paths.history_hold_folder(paths.table_root(table_id))):
            data = self._storage.read(path)
            if data is not None:  # else it was released meanwhile
                yield _read(data, path)

    def _path(self, table_id: int, holder: str) -> str:
        return paths.history_hold(paths.table_root(table_id), holder)


def _read(data: bytes, path: str) -> HistoryHold:
    try:
        tree = json.loads(data)
        if tree["format"] != FORMAT:
            raise Corrupt(
                f"history hold {path} has format {tree['format']!r}, not {FORMAT}; upgrade Penstock"
            )
        expires_at_ms = tree["expires_at_ms"]
        return HistoryHold(path, int(tree["ts"]), None if expires_at_ms is None else int(expires_at_ms))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"history hold {path} is damaged; let its holder set it again, or remove it") from error
