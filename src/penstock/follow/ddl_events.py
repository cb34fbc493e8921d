"""DDLs as dispatchers see them: what changed, when, and whom it blocks. Pure."""

from dataclasses import dataclass, field
from enum import Enum

from penstock.eventstore.schema_version import SchemaVersion


class DdlScope(Enum):
    """Whose dispatchers a DDL blocks: its own tables', or every one of the database."""

    TABLES = "tables"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table before and after a DDL; None: it is not there. `after.since_ts` is the DDL's commit_ts."""

    before: SchemaVersion | None
    after: SchemaVersion | None

    @property
    def ended_ids(self) -> frozenset[int]:
        """Physical tables that have no changes after the DDL."""
        return _ids(self.before) - _ids(self.after)

    @property
    def begun_ids(self) -> frozenset[int]:
        """Physical tables that have no changes before it."""
        return _ids(self.after) - _ids(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEvent:
    """A DDL at `commit_ts`. `type` is TiDB's number of its action.

    `tables` is empty for a new database, and for one that was dropped it has the tables that were in it. Rows
    that were committed at `commit_ts` or after have the schema after it.
    """

    commit_ts: int
    type: int
    query: str = field(repr=False)
    database: str
    tables: tuple[TableChange, ...] = ()
    scope: DdlScope = DdlScope.TABLES


def _ids(schema: SchemaVersion | None) -> frozenset[int]:
    return frozenset(schema.table.physical_ids) if schema is not None else frozenset()
