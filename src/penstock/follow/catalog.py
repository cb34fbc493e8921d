"""Many tables as one: which tables match patterns at which time, and up to where all of them can be read.

`TableHistory` is pure: it finds the DDLs that a reader of many tables must see, and what each of them does to
the rows of a name. `TableCatalog` follows captures with one call of each, and reads manifests only of tables
that no capture has.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.read.find import find_histories
from penstock.eventstore.read.partition import (
    CaptureCatalog,
    CaptureProgress,
    Partition,
    PhysicalHistory,
    TableView,
)
from penstock.eventstore.read.partition_sets import Life, lives_of, merge_lives
from penstock.eventstore.schema_version import rewritten_columns
from penstock.follow.captures import CaptureReader, OwnedRows
from penstock.object_storage import StorageRef
from penstock.tables.table_patterns import TablePatterns

__all__ = ["TableCatalog", "TableCut", "TableHistory", "WatchedTable"]

_log = logging.getLogger(__name__)

_OBJECTS_S = 10.0  # for which the progress of a table that no capture has is taken for true
_STALLED_S = 10.0  # after which a capture whose table does not get on may have lost it
_MISSED_S = 30.0  # after which a warning names the tables that hold the others back


class TableCut(NamedTuple):
    """What a reader of many tables reads of (from_ts, to_ts].

    DDLs are at `from_ts + 1` only. They may take all rows of a name away (`ended`: the table as it was), and
    bring all rows of one (`arrived`: read them at `from_ts + 1`), without a change of each row. Of every
    other table the changes are read from `from_ts` on.
    """

    from_ts: int
    to_ts: int
    tables: Mapping[str, Life]
    ended: Mapping[str, Life]
    arrived: frozenset[str]


class TableHistory:
    """The tables that match patterns, by time. Pure; never changes.

    A table is known by its name, whichever table has it. Names are compared without case.
    """

    def __init__(self, patterns: TablePatterns, histories: Mapping[int, PhysicalHistory]) -> None:
        self._lives = merge_lives(
            life
            for table_id, known in histories.items()
            for life in lives_of(table_id, known.versions, known.ends)
        )
        self.matching = [
            life
            for life in self._lives
            if patterns.matches(life.schema.database, life.schema.table.name)
            and life.schema.table.is_base_table
        ]

    def tables_at(self, ts: int) -> dict[str, Life]:
        """Return the tables that exist at `ts`, by name."""
        there = [life for life in self.matching if life.since_ts <= ts < life.until_ts]
        there.sort(key=lambda life: life.since_ts)  # of two that claim one name, the later has it
        return {life.schema.name.lower(): life for life in there}

    def ddl_times(self, from_ts: int, to_ts: int) -> list[int]:
        """Return each time in (from_ts, to_ts] at which a table comes, goes, or has other columns or rows."""
        times = {ts for life in self.matching for ts in (life.since_ts, life.until_ts)}
        inside = sorted(ts for ts in times if from_ts < ts <= to_ts)
        return [ts for ts in inside if _shapes(self.tables_at(ts - 1)) != _shapes(self.tables_at(ts))]

    def cut(self, from_ts: int, to_ts: int) -> TableCut:
        """Return what to read of a range that has a DDL at its start, or none."""
        tables = self.tables_at(to_ts)
        times = self.ddl_times(from_ts, to_ts)
        if not times:
            return TableCut(from_ts, to_ts, tables, {}, frozenset())
        ddl_ts = times[-1]
        before = self.tables_at(ddl_ts - 1)
        ended = {
            name: life
            for name, life in before.items()
            if name not in tables or self._is_broken(life, tables[name], ddl_ts)
        }
        arrived = frozenset(
            name
            for name, life in tables.items()
            if (name not in before or name in ended) and not self._is_new(life.ids, ddl_ts)
        )
        return TableCut(ddl_ts - 1, to_ts, tables, ended, arrived)

    def _is_broken(self, before: Life, after: Life, ddl_ts: int) -> bool:
        """Return whether rows came, went or were rewritten without a change of any row."""
        if before.schema is after.schema:
            return False
        old, new = before.schema.table, after.schema.table
        return (
            old.id != new.id
            or not set(before.ids) <= set(after.ids)
            or not self._is_new(set(after.ids) - set(before.ids), ddl_ts)
            or bool(rewritten_columns(old, new))
        )

    def _is_new(self, physical_ids: Iterable[int], ts: int) -> bool:
        """Return whether nobody had these physical tables before `ts`: they begin without rows."""
        wanted = set(physical_ids)
        return not any(life.since_ts < ts and not wanted.isdisjoint(life.ids) for life in self._lives)


def _shapes(tables: Mapping[str, Life]) -> dict[str, object]:
    return {
        name: (
            life.schema.table.id,
            life.ids,
            [(column.id, column.name, column.type) for column in life.schema.table.stored_columns],
        )
        for name, life in tables.items()
    }


@dataclass(slots=True)
class _Objects:
    """How far the objects of a table go that no capture has."""

    flushed_ts: int
    changed_ts: int
    read_at: float


class TableCatalog:
    """Follows the tables that match patterns. Blocks; for one thread.

    `readers` returns the captures that are alive. A capture that does not answer is left out: what it owns
    holds the others back until somebody has it.
    """

    def __init__(
        self,
        storage: StorageRef,
        patterns: TablePatterns,
        readers: Callable[[], Sequence[CaptureReader]],
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._storage = storage
        self._patterns = patterns
        self._readers = readers
        self._clock = clock
        self._known: dict[CaptureReader, int] = {}  # the last DDL that a capture has reported
        self._older_asked_at = 0.0
        self._histories: dict[int, PhysicalHistory] | None = None
        self._objects: dict[int, _Objects] = {}
        self._owners: dict[int, OwnedRows] = {}
        self._silent: frozenset[CaptureReader] = frozenset()
        self._late_since: float | None = None
        self._warned = False
        self.history = TableHistory(patterns, {})
        self.resolved_ts = 0
        """Every DDL up to it is known."""

    def refresh(self) -> None:
        """Ask every capture once; read names and manifests from storage the first time.

        Raises Unavailable when no capture or storage does not answer, Invalid when a capture refuses.
        """
        answers = self._ask()
        if self._histories is None:
            # Captures forget schemas that the cluster has collected; manifests keep them.
            self._histories = find_histories(self._storage, self._patterns.matches)
        self._ask_for_older(answers)
        changed = {table_id for _, answer in answers for table_id in answer.histories}
        for _, answer in answers:
            for table_id, found in answer.histories.items():
                self._histories[table_id] = _merge(self._histories.get(table_id), found)
        if changed or not self._known:
            self.history = TableHistory(self._patterns, self._histories)
        owners: dict[int, OwnedRows] = {}
        for reader, answer in answers:
            self._known[reader] = answer.ddl_ts
            for table in answer.progress:
                known = owners.get(table.table_id)
                # A table that moves has two owners for a while: the one that is further is the new one.
                if known is None or known.seen.readable_ts < table.readable_ts:
                    owners[table.table_id] = OwnedRows(reader, table)
        self._owners = owners
        self.resolved_ts = max(self.resolved_ts, *(answer.resolved_ts for _, answer in answers))

    def _ask_for_older(self, answers: list[tuple[CaptureReader, CaptureCatalog]]) -> None:
        """Add the answers of captures that came back with a wider `capture.tables`, to all of the question.

        They have tables that are older than what they were asked for, and of which they told nothing before.
        """
        assert self._histories is not None
        now = self._clock.monotonic()
        told = self._histories.keys() | {table_id for _, answer in answers for table_id in answer.histories}
        for reader, answer in list(answers):
            unknown = {table.table_id for table in answer.progress} - told
            if unknown and now >= self._older_asked_at + _OBJECTS_S:
                answers.append((reader, reader.catalog(self._patterns.patterns, 0)))
                self._older_asked_at = now

    def _ask(self) -> list[tuple[CaptureReader, CaptureCatalog]]:
        readers = self._readers()
        self._known = {reader: ts for reader, ts in self._known.items() if reader in readers}
        answers: list[tuple[CaptureReader, CaptureCatalog]] = []
        failure: Unavailable | None = None
        silent: set[CaptureReader] = set()
        for reader in readers:
            try:
                answers.append((reader, reader.catalog(self._patterns.patterns, self._known.get(reader, 0))))
            except Unavailable as error:
                failure = error
                silent.add(reader)
                self._known.pop(reader, None)  # another process may answer next
                reader.close()  # a connection that failed tries again only after a while; a new one at once
                if reader not in self._silent:
                    _log.warning("a capture does not answer", extra={"reason": str(error)})
        self._silent = frozenset(silent)
        if not answers:
            raise Unavailable(
                "a read of many tables needs a capture, and none answers; start one, or give pdAddrs or"
                " flightAddr"
            ) from failure
        return answers

    def readable_ts(self, from_ts: int) -> int:
        """Return up to when every table that exists after `from_ts` can be read.

        Raises Unavailable when storage does not answer.
        """
        end_ts, late = self.resolved_ts, ""
        for life in self.history.matching:
            if life.until_ts <= from_ts or life.since_ts > end_ts:
                continue
            needed_ts = min(end_ts, life.until_ts - 1)
            reached_ts = min((self._reach(table_id, needed_ts) for table_id in life.ids), default=needed_ts)
            if reached_ts < needed_ts:
                owned = all(table_id in self._owners for table_id in life.ids)
                end_ts, late = max(reached_ts, life.since_ts - 1), "" if owned else life.schema.name
        self._warn_of(late)
        return end_ts

    def newest_ts(self) -> int:
        """Return the newest timestamp at which every table that exists then can be read."""
        ts = self.resolved_ts
        while True:
            reached_ts = self.readable_ts(ts)  # of tables that are there at `ts` or later
            if reached_ts >= ts:
                return ts
            ts = reached_ts

    def require_readable(self, ts: int, tables: Iterable[Life]) -> None:
        """Raise Unavailable unless every DDL is known and some tables, which exist then, can be read at `ts`.

        Without that, `changed_since` may leave out a table whose owner is gone, or has not caught up.
        """
        if self.resolved_ts < ts:
            raise Unavailable(f"the captures know DDLs up to {self.resolved_ts}, not {ts}; wait for them")
        for life in tables:
            reached_ts = min((self._reach(table_id, ts, kept_s=0) for table_id in life.ids), default=ts)
            if reached_ts < ts:
                raise Unavailable(
                    f"table {life.schema.name} can be read up to {reached_ts}, not {ts}; wait for its capture"
                )

    def changed_since(self, ts: int, tables: Iterable[Life]) -> list[Life]:
        """Return those of some tables that may have changes after `ts`, up to where they can be read."""
        return [life for life in tables if any(self._changed_ts(table_id) > ts for table_id in life.ids)]

    def view(self, life: Life) -> TableView:
        """Return the table with exactly the physical tables of a life, for reads up to `readable_ts`."""
        members = (Partition(self._storage, table_id, self._owners.get(table_id)) for table_id in life.ids)
        return TableView(life.schema.name, tuple(members), table_id=life.schema.table.id, fixed=True)

    def _reach(self, table_id: int, needed_ts: int, *, kept_s: float = _OBJECTS_S) -> int:
        owner = self._owners.get(table_id)
        if owner is not None:
            return owner.seen.readable_ts
        return self._read_objects(table_id, needed_ts, kept_s).flushed_ts

    def _changed_ts(self, table_id: int) -> int:
        owner = self._owners.get(table_id)
        return owner.seen.changed_ts if owner is not None else self._read_objects(table_id, 0).changed_ts

    def _read_objects(self, table_id: int, needed_ts: int, kept_s: float = _OBJECTS_S) -> _Objects:
        """Return how far a table's objects go; read its manifest again if that is too little for a while."""
        now = self._clock.monotonic()
        found = self._objects.get(table_id)
        if found is None or (found.flushed_ts < needed_ts and now >= found.read_at + kept_s):
            manifest = Partition(self._storage, table_id).state().manifest
            found = self._objects[table_id] = _Objects(manifest.flushed_ts, manifest.changed_ts, now)
        return found

    def _warn_of(self, table: str) -> None:
        now = self._clock.monotonic()
        if not table or self._late_since is None:
            self._late_since = now if table else None
            self._warned = False
        elif not self._warned and now >= self._late_since + _MISSED_S:
            self._warned = True
            _log.warning(
                "tables wait for one that no capture has; start a capture whose capture.tables name it",
                extra={"table": table},
            )


class WatchedTable:
    """Says with one call of each capture how far a table is that somebody has looked at. For one thread.

    `owners` are the captures of its physical tables, and no DDL up to `since_ts` is news.
    """

    def __init__(
        self, name: str, owners: Mapping[int, CaptureReader], since_ts: int, *, clock: Clock = SYSTEM
    ) -> None:
        self._pattern = re.sub(r"([*?[])", r"[\1]", name)  # its name, whatever signs that has
        self._owners = owners
        self._since_ts = since_ts
        self._clock = clock
        self._newest_ts = 0
        self._moved_at = clock.monotonic()

    def read_progress(self) -> dict[int, CaptureProgress] | None:
        """Return the progress of each physical table; None when somebody must look at the table again.

        That is so when a DDL came, when a capture does not answer or has lost a table, and when it does not
        get on: somebody else may own the table by now.
        """
        seen = self._ask()
        if seen is None:
            return None
        newest_ts = min(progress.readable_ts for progress in seen.values())
        now = self._clock.monotonic()
        if newest_ts > self._newest_ts:
            self._newest_ts, self._moved_at = newest_ts, now
        return seen if now < self._moved_at + _STALLED_S else None

    def _ask(self) -> dict[int, CaptureProgress] | None:
        seen: dict[int, CaptureProgress] = {}
        for reader in set(self._owners.values()):
            try:
                answer = reader.catalog([self._pattern], self._since_ts)
            except (Invalid, Unavailable):  # gone, or of a release that cannot answer
                return None
            mine = [table for table in answer.progress if self._owners.get(table.table_id) is reader]
            if answer.histories or any(table.ended_ts for table in mine):
                return None
            seen |= {table.table_id: table for table in mine}
        return seen if len(seen) == len(self._owners) else None


def _merge(known: PhysicalHistory | None, found: PhysicalHistory) -> PhysicalHistory:
    """Return what storage and a capture know of a physical table together."""
    if known is None:
        return found
    versions = {version.since_ts: version for version in (*known.versions, *found.versions)}
    ends = sorted({*known.ends, *found.ends})
    return PhysicalHistory(tuple(versions[ts] for ts in sorted(versions)), tuple(ends))
