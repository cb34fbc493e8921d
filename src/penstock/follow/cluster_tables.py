"""The tables of a cluster as they are now, learned by a subscription of its meta keys.

The tables of a cluster by their ids: what they are, were, and what became of those that are gone. Pure.
"""

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.ddl_history import DdlHistory


@dataclass(frozen=True, slots=True)
class _Ended:
    """A table that is gone, and the one that has its name now."""

    name: str
    heir_id: int | None

    def told(self, table_id: int) -> str:
        """What happened, and the remedy."""
        if self.heir_id is None:
            return f"table {self.name} was dropped; unregister its jobs with `penstock job unregister`"
        return (
            f"table {self.name} was truncated or replaced: it has the id {self.heir_id}, not {table_id};"
            " fill the target anew with `penstock job repair --rebuild`"
        )


class JobTables:
    """Learns DDLs in their order. A table keeps its id until it is dropped, truncated or replaced."""

    def __init__(self) -> None:
        self._versions: dict[int, list[SchemaVersion]] = {}
        self._ended: dict[int, _Ended] = {}

    def learn(self, event: DdlEvent) -> None:
        """A DDL has happened after all that were learned."""
        for before, after in ((each.before, each.after) for each in event.tables):
            if before is not None and (after is None or after.table.id != before.table.id):
                self._versions.pop(before.table.id, None)
                heir_id = None if after is None else after.table.id
                self._ended[before.table.id] = _Ended(before.name, heir_id)
            if after is not None:
                self._versions.setdefault(after.table.id, []).append(after)
                self._ended.pop(after.table.id, None)  # some databases bring dropped tables back

    def now(self, table_id: int) -> SchemaVersion | None:
        """The table as it is; None: there is none."""
        versions = self._versions.get(table_id)
        return versions[-1] if versions else None

    def at(self, table_id: int, ts: int) -> SchemaVersion | None:
        """The table as it was at `ts`; before the first version that is known, that one."""
        versions = self._versions.get(table_id, [])
        place = bisect_right(versions, ts, key=_since_ts)
        return versions[max(0, place - 1)] if versions else None

    def ids_since(self, table_id: int, ts: int) -> set[int]:
        """The physical tables that had its rows at `ts` or later."""
        versions = self._versions.get(table_id, [])
        first = max(0, bisect_right(versions, ts, key=_since_ts) - 1)
        return {each for version in versions[first:] for each in version.table.physical_ids}

    def fate(self, table_id: int) -> str | None:
        """What became of a table that is gone; None when it is there, or was never known."""
        ended = self._ended.get(table_id)
        return None if ended is None else ended.told(table_id)

    def forget(self, upto_ts: int) -> None:
        """Nobody asks any more for what was in force before `upto_ts`."""
        for versions in self._versions.values():
            del versions[: max(0, bisect_right(versions, upto_ts, key=_since_ts) - 1)]


def _since_ts(version: SchemaVersion) -> int:
    return version.since_ts


_log = logging.getLogger(__name__)

UNKNOWN_MS = 60_000
"""How much of the cluster's time passes before a table that was never heard of counts as gone."""


class Subscription(Protocol):
    """Feeds a history; see MetaSubscription."""

    failure: PenstockError | None

    async def close(self) -> None:
        """End."""


class FollowedTables:
    """What every table is and was, complete up to `resolved_ts`. Thread-safe, but for `start` and `close`.

    What the cluster's garbage collection has taken is older than the newest version of each table.
    """

    def __init__(
        self, subscribe: Callable[[DdlHistory], Awaitable[Subscription]], *, clock: Clock = SYSTEM
    ) -> None:
        self._subscribe = subscribe
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._unknown: dict[int, int] = {}  # tables that were never heard of: since when they are asked for
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._history = DdlHistory(job_wait_ms=0)  # what a DDL is called does not matter here
        self._tables = JobTables()
        self._learned_ts = 0

    async def start(self) -> None:
        """Subscribe, or again when the subscription has failed. Raises Unavailable."""
        async with self._turn:
            if self._subscription is not None:
                if self._subscription.failure is None:
                    return
                _log.warning(
                    "the cluster's schemas are read anew", extra={"reason": str(self._subscription.failure)}
                )
                await self._subscription.close()
                self._subscription = None
                with self._lock:
                    self._begin_anew()
            self._subscription = await self._subscribe(self._history)

    async def close(self) -> None:
        """End."""
        if self._subscription is not None:
            await self._subscription.close()

    def now(self, table_ids: Iterable[int]) -> tuple[int, dict[int, SchemaVersion]]:
        """Tables as they are at a timestamp, which is the first answer; those not there are left out."""
        with self._lock:
            self._learn()
            found = ((each, self._tables.now(each)) for each in table_ids)
            return self._learned_ts, {each: version for each, version in found if version is not None}

    def at(self, table_id: int, ts: int) -> SchemaVersion:
        """A table as it was at `ts`.

        Raises Unavailable when that is not known yet, TableGone when it is gone, and StaleRead when only its
        later partitions are known.
        """
        with self._lock:
            self._learn()
            if ts > self._learned_ts:
                raise Unavailable(f"schemas are known up to {self._learned_ts}, not {ts}; wait")
            found = self._tables.at(table_id, ts)
            fate = self._tables.fate(table_id)
        if found is None:
            raise TableGone(fate) if fate else Unavailable(f"table {table_id} is not known; wait for it")
        if ts < found.since_ts and found.table.physical_ids != (found.table.id,):
            raise StaleRead(found.name, ts, oldest_ts=found.since_ts)
        return found

    def physical_ids(self, table_id: int, since_ts: int) -> set[int]:
        """The physical tables that had its rows since; raise Unavailable when nothing is known yet."""
        with self._lock:
            self._learn()
            if not self._learned_ts:
                raise Unavailable("the cluster's schemas are not known yet; wait")
            return self._tables.ids_since(table_id, since_ts)

    def gone(self, table_id: int) -> str | None:
        """See ScanSource."""
        with self._lock:
            self._learn()
            if self._tables.now(table_id) is not None:
                self._unknown.pop(table_id, None)
                return None
            return self._tables.fate(table_id) or self._never_there(table_id)

    def _never_there(self, table_id: int) -> str | None:
        """What is known of a table that was never heard of: the news of it may be on their way."""
        learned_ms = physical_ms(self._learned_ts)  # the clock of the wall may be behind it
        asked_ms = self._unknown.setdefault(table_id, max(self._clock.wall_ms(), learned_ms))
        if learned_ms < asked_ms + UNKNOWN_MS:
            return None
        return (
            f"table {table_id} is not there any more; unregister its jobs with `penstock job unregister`, or"
            " fill the target anew with `penstock job repair --rebuild` if it was truncated"
        )

    def forget(self, upto_ts: int, table_ids: Collection[int]) -> None:
        """Nobody asks for what was before, and of tables that were never heard of for these only."""
        with self._lock:
            self._tables.forget(upto_ts)
            self._unknown = {each: at for each, at in self._unknown.items() if each in table_ids}

    def _learn(self) -> None:
        upto_ts = self._history.resolved_ts()
        if upto_ts <= self._learned_ts:
            return
        events = self._history.ddls(self._learned_ts, upto_ts)
        for event in events:
            self._tables.learn(event)
        self._learned_ts = upto_ts
        if events:
            self._history.forget(upto_ts)


class TableGone(Invalid):
    """The source was dropped or truncated."""
