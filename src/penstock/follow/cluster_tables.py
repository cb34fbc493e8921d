"""The tables of a cluster by their logical ids: what they are, what they were, and how they ended.

`FollowedTables` subscribes to the cluster's meta keys and answers from `KnownTables`, which is pure.
"""

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import PenstockError, StaleRead, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.source import TableGone, describe_other_account
from penstock.tables.accounts import SYSTEM_ACCOUNT

_log = logging.getLogger(__name__)

UNKNOWN_MS = 60_000
"""How much of the cluster's time passes before a table that was never heard of counts as gone."""


@dataclass(frozen=True, slots=True)
class _EndedTable:
    """A table that does not exist any more, and the id of the table that has its name now."""

    name: str
    account: str
    heir_id: int | None

    def describe(self, table_id: int, account: str) -> str:
        """Return what happened to the table, and the remedy, for readers of an account."""
        if account not in {SYSTEM_ACCOUNT.name, self.account}:
            return describe_other_account(account, ())
        if self.heir_id is None:
            return f"table {self.name} was dropped; unregister its jobs with `penstock job unregister`"
        return (
            f"table {self.name} was truncated or replaced: it has the id {self.heir_id}, not {table_id};"
            " fill the target anew with `penstock job repair --rebuild`"
        )


class KnownTables:
    """Learns DDLs in their order. A table keeps its id until it is dropped, truncated or replaced."""

    def __init__(self) -> None:
        self._versions: dict[int, list[SchemaVersion]] = {}
        self._ended: dict[int, _EndedTable] = {}
        self._owners: dict[int, list[tuple[int, str]]] = {}  # (since when, account); a version may have two

    def learn(self, event: DdlEvent) -> None:
        """Apply a DDL that was committed after all that were learned."""
        for before, after in ((change.before, change.after) for change in event.tables):
            if any(side is not None and not side.table.is_base_table for side in (before, after)):
                continue  # a view
            if before is not None and (after is None or after.table.id != before.table.id):
                last = self._versions.pop(before.table.id, [before])[-1]
                self._owners.pop(before.table.id, None)
                heir_id = None if after is None else after.table.id
                self._ended[before.table.id] = _EndedTable(before.name, last.account, heir_id)
            if after is not None:
                self._versions.setdefault(after.table.id, []).append(after)
                self._ended.pop(after.table.id, None)  # some databases bring dropped tables back
                owners = self._owners.setdefault(after.table.id, [])
                if not owners or owners[-1][1] != after.account:
                    owners.append((event.commit_ts, after.account))

    def now(self, table_id: int) -> SchemaVersion | None:
        """Return the table as it is; None when there is none."""
        versions = self._versions.get(table_id)
        return versions[-1] if versions else None

    def versions(self, table_id: int) -> Sequence[SchemaVersion]:
        """Return what is known of the table as it was and is, in order."""
        return self._versions.get(table_id, ())

    def at(self, table_id: int, ts: int) -> SchemaVersion | None:
        """Return the table as it was at `ts`, or its first known version after it; None if there is none."""
        versions = self._versions.get(table_id, [])
        place = bisect_right(versions, ts, key=_since_ts)
        return versions[max(0, place - 1)] if versions else None

    def ids_since(self, table_id: int, ts: int) -> set[int]:
        """Return the physical tables that had the table's rows at `ts` or later."""
        versions = self._versions.get(table_id, [])
        first = max(0, bisect_right(versions, ts, key=_since_ts) - 1)
        return {physical_id for version in versions[first:] for physical_id in version.table.physical_ids}

    def accounts_since(self, table_id: int, ts: int) -> set[str]:
        """Return the accounts that the table belonged to at `ts` or later."""
        owners = self._owners.get(table_id, [])
        first = max(0, bisect_right(owners, ts, key=lambda owner: owner[0]) - 1)
        return {account for _, account in owners[first:]}

    def fate(self, table_id: int, account: str = SYSTEM_ACCOUNT.name) -> str | None:
        """Return what became of a table that ended, to tell an account; None when it exists or was never
        known.
        """
        ended = self._ended.get(table_id)
        return None if ended is None else ended.describe(table_id, account)

    def forget(self, upto_ts: int) -> None:
        """Drop the versions that were replaced before `upto_ts`: no caller asks for them any more."""
        for versions in self._versions.values():
            del versions[: max(0, bisect_right(versions, upto_ts, key=_since_ts) - 1)]
        for owners in self._owners.values():
            del owners[: max(0, bisect_right(owners, upto_ts, key=lambda owner: owner[0]) - 1)]


def _since_ts(version: SchemaVersion) -> int:
    return version.since_ts


class Subscription(Protocol):
    """Feeds a history with DDLs until it is closed, or until `failure` has the reason why it cannot."""

    failure: PenstockError | None

    async def close(self) -> None:
        """End the subscription."""


class FollowedTables:
    """What every table is and was, as far as DDLs are known. Thread-safe, except `start` and `close`.

    Versions that the cluster's garbage collection has taken are missing; the newest of each table never is.
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
        self._start_over()

    def _start_over(self) -> None:
        self._history = DdlHistory(job_wait_ms=0)  # no wait for the text of a DDL: nobody needs it here
        self._tables = KnownTables()
        self._learned_ts = 0

    async def start(self) -> None:
        """Subscribe, if that is not done yet or the subscription has failed. Raises Unavailable."""
        async with self._turn:
            if self._subscription is not None:
                if self._subscription.failure is None:
                    return
                _log.warning(
                    "the cluster's schemas are read again from the start",
                    extra={"reason": str(self._subscription.failure)},
                )
                await self._subscription.close()
                self._subscription = None
                with self._lock:
                    self._start_over()
            self._subscription = await self._subscribe(self._history)

    async def close(self) -> None:
        """End the subscription."""
        if self._subscription is not None:
            await self._subscription.close()

    def now(self, table_ids: Iterable[int]) -> tuple[int, dict[int, SchemaVersion]]:
        """Return the timestamp up to which DDLs are known, and the tables that exist then, by id."""
        with self._lock:
            self._learn()
            versions = {table_id: self._tables.now(table_id) for table_id in table_ids}
            existing = {key: version for key, version in versions.items() if version is not None}
            return self._learned_ts, existing

    def at(self, table_id: int, ts: int) -> SchemaVersion:
        """Return a table as it was at `ts`.

        Raises Unavailable when that is not known yet, TableGone when the table does not exist any more, and
        StaleRead when only its later partitions are known.
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
        """Return the physical tables that had the table's rows at `since_ts` or later.

        Raises Unavailable when no schemas are known yet.
        """
        with self._lock:
            self._learn()
            if not self._learned_ts:
                raise Unavailable("the cluster's schemas are not known yet; wait")
            return self._tables.ids_since(table_id, since_ts)

    def accounts(self, table_id: int, since_ts: int) -> frozenset[str]:
        """Return the accounts that a table belonged to at `since_ts` or later.

        Raises Unavailable when none is known: schemas are read again after a failure.
        """
        with self._lock:
            self._learn()
            found = frozenset(self._tables.accounts_since(table_id, since_ts))
        if not found:
            raise Unavailable(f"the account of table {table_id} is not known yet; wait for it")
        return found

    def unreadable(self, table_ids: Iterable[int]) -> dict[int, SchemaVersion]:
        """Return those of some tables whose descriptions cannot be read, by id, each since it is so."""
        with self._lock:
            self._learn()
            found = self._history.unreadable()
        return {table_id: found[table_id] for table_id in table_ids if table_id in found}

    def why_gone(self, table_id: int, account: str = SYSTEM_ACCOUNT.name) -> str | None:
        """Return what became of a table that does not exist any more, and the remedy; None when it exists.

        A table that went to another account is gone for an account other than `sys`.
        """
        with self._lock:
            self._learn()
            now = self._tables.now(table_id)
            if now is not None and account not in {SYSTEM_ACCOUNT.name, now.account}:
                return describe_other_account(account, self._tables.versions(table_id))
            if now is not None or table_id in self._history.unreadable():
                self._unknown.pop(table_id, None)
                return None
            return self._tables.fate(table_id, account) or self._never_there(table_id)

    def _never_there(self, table_id: int) -> str | None:
        """Return why a table that was never heard of counts as gone; None while news of it may still come."""
        learned_ms = physical_ms(self._learned_ts)  # this machine's clock may be behind it
        asked_ms = self._unknown.setdefault(table_id, max(self._clock.wall_ms(), learned_ms))
        if learned_ms < asked_ms + UNKNOWN_MS:
            return None
        return (
            f"table {table_id} does not exist any more; unregister its jobs with `penstock job unregister`,"
            " or fill the target anew with `penstock job repair --rebuild` if it was truncated"
        )

    def forget(self, upto_ts: int, table_ids: Collection[int]) -> None:
        """Drop versions that were replaced before `upto_ts`, and unknown tables other than `table_ids`."""
        with self._lock:
            self._tables.forget(upto_ts)
            self._unknown = {
                table_id: asked_ms for table_id, asked_ms in self._unknown.items() if table_id in table_ids
            }

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
