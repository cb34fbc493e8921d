"""Tables as readers see them, version by version: online changes show when they show to readers. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.eventstore.metachanges import TableDescribed
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import TableChange
from penstock.follow.ddlchanges import same_to_readers


class _Seen(NamedTuple):
    """A table from `since_ts` on; None: it is not there."""

    since_ts: int
    schema: SchemaVersion | None


class SeenTables:
    """The versions of every table that has rows, fed in the order of their commits."""

    def __init__(self) -> None:
        self._seen: dict[int, list[_Seen]] = {}
        self._logical: dict[int, set[int]] = {}  # physical table -> the tables that it was part of

    def changes(
        self, commit_ts: int, said: Iterable[TableDescribed], databases: Mapping[int, str]
    ) -> Iterator[TableChange]:
        """What a transaction after all that was entered changes for readers; views and sequences do not."""
        for database_id, table_id, table in said:
            seen = self._seen.get(table_id)
            before = seen[-1].schema if seen else None
            after = None
            if table is not None and table.is_base_table:
                after = SchemaVersion(commit_ts, commit_ts, table, databases.get(database_id, ""))
            if before is not None and after is not None and same_to_readers(before, after):
                continue
            if before is not None or after is not None:
                yield TableChange(before, after)

    def enter(self, commit_ts: int, changes: Iterable[TableChange]) -> None:
        """Changes that `changes` gave have happened."""
        for before, after in ((each.before, each.after) for each in changes):
            if before is not None and (after is None or after.table.id != before.table.id):
                self._seen[before.table.id].append(_Seen(commit_ts, None))
            if after is not None:
                self._seen.setdefault(after.table.id, []).append(_Seen(commit_ts, after))
                for each in after.table.physical_ids:
                    self._logical.setdefault(each, set()).add(after.table.id)

    def __len__(self) -> int:
        """Versions that are kept."""
        return sum(map(len, self._seen.values()))

    def forget(self, upto_ts: int) -> None:
        """Nobody asks any more for what was there before `upto_ts`."""
        left = {table_id: _from(seen, upto_ts) for table_id, seen in self._seen.items()}
        gone = {table_id for table_id, seen in left.items() if not seen}
        self._seen = {table_id: seen for table_id, seen in left.items() if seen}
        if gone:
            logical = {each: tables - gone for each, tables in self._logical.items()}
            self._logical = {each: tables for each, tables in logical.items() if tables}

    def at(self, ts: int) -> list[SchemaVersion]:
        """The tables that are there, by id."""
        found = (_at(seen, ts) for _, seen in sorted(self._seen.items()))
        return [each for each in found if each is not None]

    def of_physical(self, physical_id: int, ts: int) -> SchemaVersion | None:
        """The table whose part a physical table is; before the first that is known, that one."""
        known = [self._seen[each] for each in self._logical.get(physical_id, ())]
        now = [_at(seen, ts) for seen in known]
        ever = sorted((each for seen in known for each in seen), key=lambda each: each.since_ts)
        for schema in (*now, *(each.schema for each in ever)):
            if schema is not None and physical_id in schema.table.physical_ids:
                return schema
        return None


def _at(seen: list[_Seen], ts: int) -> SchemaVersion | None:
    end = bisect_right(seen, ts, key=lambda each: each.since_ts)
    return seen[end - 1].schema if end else None


def _from(seen: list[_Seen], ts: int) -> list[_Seen]:
    """The version that is in force at `ts`, and those after it; none of a table that is not there then."""
    end = bisect_right(seen, ts, key=lambda each: each.since_ts)
    return seen[end if end and seen[end - 1].schema is None else max(end - 1, 0) :]
