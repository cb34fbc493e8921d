"""Finds the lock that holds a table back: changes are complete only up to the oldest open transaction."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.clock import compose_ts, physical_ms
from penstock.errors import PenstockError, show_key
from penstock.kv import AsyncClient
from penstock.kv.locks import Lock
from penstock.tables.codec.ordered import decode_int
from penstock.tables.keys import PREFIX_BYTES, TABLE_PREFIX, record_range

__all__ = ["HoldingLock", "find_holding_locks", "oldest_lock"]

FENCE_MS = 1_000
"""A transaction that began more than this after the complete timestamp does not hold the table back."""
_COUNT_MAX = 4_096


@dataclass(frozen=True, slots=True)
class HoldingLock:
    """The oldest transaction with a lock in a table, and its primary key, which decides its outcome."""

    start_ts: int
    primary_table_id: int | None
    """The table of its primary key; None when that key is in no table."""
    primary: str
    """The primary key as text, without the key of the row."""

    def age_s(self, now_ts: int) -> float:
        """Return how many seconds ago the transaction began."""
        return max(0, physical_ms(now_ts) - physical_ms(self.start_ts)) / 1000


def oldest_lock(locks: Sequence[Lock]) -> HoldingLock | None:
    """Return the oldest lock of a write. Pessimistic locks are skipped: they announce no write yet."""
    found = min(
        (lock for lock in locks if not lock.pessimistic), key=lambda lock: lock.start_ts, default=None
    )
    if found is None:
        return None
    return HoldingLock(found.start_ts, _table_id(found.primary), show_key(found.primary))


def _table_id(key: bytes) -> int | None:
    return decode_int(key, 1) if len(key) >= PREFIX_BYTES and key[:1] == TABLE_PREFIX else None


async def find_holding_locks(
    client: AsyncClient, tables: Mapping[int, tuple[int, Collection[int]]], *, timeout_s: float
) -> dict[int, HoldingLock]:
    """Return the lock that holds each table back, for tables where one is found within the timeout.

    `tables` has, by id, the timestamp up to which the table is complete, and its physical ids.
    """

    async def find(readable_ts: int, physical_ids: Collection[int]) -> HoldingLock | None:
        upto_ts = compose_ts(physical_ms(readable_ts) + FENCE_MS)
        pages = await asyncio.gather(
            *(
                client.locks_before(upto_ts, *record_range(physical_id), count_max=_COUNT_MAX)
                for physical_id in physical_ids
            )
        )
        return oldest_lock([lock for page in pages for lock in page])

    searches = {table_id: asyncio.ensure_future(find(*table)) for table_id, table in tables.items()}
    if not searches:
        return {}
    _, late = await asyncio.wait(searches.values(), timeout=timeout_s)
    for search in late:
        search.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    found: dict[int, HoldingLock] = {}
    for table_id, search in searches.items():
        lock = _outcome(search)
        if lock is not None:
            found[table_id] = lock
    return found


def _outcome(task: "asyncio.Task[HoldingLock | None]") -> HoldingLock | None:
    """Return the lock that was found; None when the search was late or the cluster did not answer."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, PenstockError):
        return None
    raise error
