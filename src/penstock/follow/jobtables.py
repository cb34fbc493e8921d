"""The tables of a cluster by their ids: what they are, were, and what became of those that are gone. Pure."""

from bisect import bisect_right
from dataclasses import dataclass

from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent


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
