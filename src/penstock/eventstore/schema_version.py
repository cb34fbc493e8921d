"""A table's schema between two changes of it, and how a manifest and a Flight endpoint say it. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Corrupt
from penstock.tables.schema import TableInfo

SCHEMA_FACT = "schema"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A table as it is from `since_ts` on, until its next version."""

    since_ts: int
    version: int
    table: TableInfo
    database: str = ""

    @property
    def name(self) -> str:
        """What the table is called, with its database."""
        return f"{self.database}.{self.table.name}"

    def as_fact(self) -> dict[str, Any]:
        """What a manifest says of it, so that whoever reads the table needs nothing else."""
        return {
            "kind": SCHEMA_FACT,
            "version": self.version,
            "since_ts": self.since_ts,
            "database": self.database,
            "table": self.table.to_json(),
        }

    @classmethod
    def from_fact(cls, fact: Mapping[str, Any]) -> "SchemaVersion":
        """The version that a fact describes; raise Corrupt when it describes none."""
        try:
            return cls(
                since_ts=int(fact["since_ts"]),
                version=int(fact["version"]),
                table=TableInfo.from_json(fact["table"]),
                database=str(fact["database"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt("a fact that should be a schema lacks a field or has a wrong one") from error


def schemas_in(facts: Iterable[Mapping[str, Any]]) -> list[SchemaVersion]:
    """The schema versions among a manifest's facts, by time."""
    found = [SchemaVersion.from_fact(fact) for fact in facts if fact["kind"] == SCHEMA_FACT]
    return sorted(found, key=lambda each: each.since_ts)


def in_force(versions: Sequence[SchemaVersion], from_ts: int, to_ts: int) -> list[SchemaVersion]:
    """Those of a table's versions, by time, that changes in (from_ts, to_ts] were committed under.

    Changes before the first version that is known read with that one.
    """
    known = [each for each in versions if each.since_ts <= to_ts] or list(versions[:1])
    first = max((index for index, each in enumerate(known) if each.since_ts <= from_ts + 1), default=0)
    return known[first:]


def cut_at_changes(
    versions: Sequence[SchemaVersion], from_ts: int, to_ts: int
) -> list[tuple[int, int, SchemaVersion]]:
    """Divide a range among the versions in force in it: (from_ts, to_ts, version) of each part, in order."""
    starts = [from_ts, *(each.since_ts - 1 for each in versions[1:])]
    return list(zip(starts, [*starts[1:], to_ts], versions, strict=True))
