"""The lock that holds a table back: changes are complete only up to the oldest transaction under way."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.clock import compose_ts, physical_ms
from penstock.errors import PenstockError, show_key
from penstock.kv import AsyncClient
from penstock.kv.locks import Lock
from penstock.tables.codec.ordered import decode_int
from penstock.tables.keys import PREFIX_BYTES, TABLE_PREFIX, record_range

__all__ = ["HoldingLock", "holding_locks", "oldest"]

FENCE_MS = 1_000
"""Transactions that began this long after what is complete do not hold it back."""
_COUNT_MAX = 4_096


@dataclass(frozen=True, slots=True)
class HoldingLock:
    """The transaction whose lock is the oldest in a table, and where its fate is decided."""

    start_ts: int
    primary_table_id: int | None
    """The table of its primary key; None: that is in none."""
    primary: str
    """The primary key, without the row's."""

    def age_s(self, now_ts: int) -> float:
        """How long ago the transaction began."""
        return max(0, physical_ms(now_ts) - physical_ms(self.start_ts)) / 1000


def oldest(locks: Sequence[Lock]) -> HoldingLock | None:
    """The one that holds back: of those of a write, because locks that only reserve a key announce none."""
    found = min(
        (lock for lock in locks if not lock.pessimistic), key=lambda lock: lock.start_ts, default=None
    )
    if found is None:
        return None
    return HoldingLock(found.start_ts, _table_id(found.primary), show_key(found.primary))


def _table_id(key: bytes) -> int | None:
    return decode_int(key, 1) if len(key) >= PREFIX_BYTES and key[:1] == TABLE_PREFIX else None


async def holding_locks(
    client: AsyncClient, tables: Mapping[int, tuple[int, Collection[int]]], *, timeout_s: float
) -> dict[int, HoldingLock]:
    """The lock that holds each table back, where there is one and it is found in time.

    `tables` has, by id, up to where a table is complete, and its physical ids.
    """

    async def find(readable_ts: int, physical_ids: Collection[int]) -> HoldingLock | None:
        upto_ts = compose_ts(physical_ms(readable_ts) + FENCE_MS)
        pages = await asyncio.gather(
            *(
                client.locks_before(upto_ts, *record_range(each), count_max=_COUNT_MAX)
                for each in physical_ids
            )
        )
        return oldest([lock for page in pages for lock in page])

    work = {table_id: asyncio.ensure_future(find(*each)) for table_id, each in tables.items()}
    if not work:
        return {}
    _, late = await asyncio.wait(work.values(), timeout=timeout_s)
    for each in late:
        each.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    found: dict[int, HoldingLock] = {}
    for table_id, task in work.items():
        lock = _outcome(task)
        if lock is not None:
            found[table_id] = lock
    return found


def _outcome(task: "asyncio.Task[HoldingLock | None]") -> HoldingLock | None:
    """What was found; nothing where nobody answered: then the table is explained without it."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, PenstockError):
        return None
    raise error
