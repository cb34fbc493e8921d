"""What a changefeed replicates: tables by patterns, their columns and rows, its part of a DDL. Pure."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain

from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.tables.accounts import SYSTEM_ACCOUNT
from penstock.tables.system_tables import is_system
from penstock.tables.table_patterns import TablePatterns

_WILD = frozenset("*?[!")


class TableFilter:
    """Selects tables by patterns `database.table` with * and ?; a leading ! excludes. The last match decides.

    Names are compared without case. A table that no pattern matches is not replicated. A system table is
    replicated only if a pattern is its very name. Raises Invalid when no pattern includes anything.

    For an account other than `sys`, tables and databases count only while they belong to that account, by the
    order of commits: a name that goes to somebody else does not bring somebody else's rows.
    """

    def __init__(self, patterns: Sequence[str] = ("*.*",), *, account: str = SYSTEM_ACCOUNT.name) -> None:
        if not any(not pattern.startswith("!") for pattern in patterns):
            raise Invalid(
                "a changefeed replicates no table; name one in `tables`, as in database.table or *.*"
            )
        self._patterns = TablePatterns(patterns)
        self._tenant = None if account == SYSTEM_ACCOUNT.name else account
        self._excluded: frozenset[int] = frozenset()

    def excluding(self, table_ids: Iterable[int]) -> "TableFilter":
        """Return the same filter for all but these logical tables, and those that it excludes already."""
        found = copy(self)
        found._excluded = self._excluded.union(table_ids)
        return found

    def matches(self, schema: SchemaVersion) -> bool:
        """Return whether the table is replicated under its current name, and of its current account."""
        if schema.table.id in self._excluded or not self._may_see(schema.account):
            return False
        return self._patterns.matches(schema.database, schema.table.name)

    def _may_see(self, account: str) -> bool:
        return self._tenant is None or account == self._tenant

    def covers(self, schema: SchemaVersion) -> bool:
        """Return whether the patterns match the table's name, whether or not it is a system table."""
        return self._patterns.covers(schema.database, schema.table.name)

    def matches_database(self, name: str) -> bool:
        """Return whether a table of the database could be replicated."""
        patterns = self._patterns.patterns
        exact = (pattern.strip().lower() for pattern in patterns if not _WILD.intersection(pattern))
        if is_system(name) and not any(pattern.startswith(f"{name.lower()}.") for pattern in exact):
            return False
        for rule in self._patterns.rules:
            if rule.database.match(name.lower()) and (rule.includes or rule.every_table):
                return rule.includes
        return False

    def filter_ddl(self, event: DdlEvent) -> DdlEvent | None:
        """Return a DDL as if tables outside the filter did not exist; None when nothing of it is left.

        So a table that is renamed out of the filter is dropped by it, and one that is renamed into the
        filter is new. The same holds for tables that come to belong to another account; where the filter
        has them before and after it, nothing happens.
        """
        sides = ((self._if_matched(change.before), self._if_matched(change.after)) for change in event.tables)
        matched = (TableChange(before, after) for before, after in sides if before or after)
        left = tuple(change for change in matched if not change.only_owner)
        of_database = event.scope is DdlScope.DATABASE and self._may_see(event.account)
        if not left and not (of_database and self.matches_database(event.database)):
            return None
        moved = self._tenant is not None and any(
            not self._may_see(side.account)
            for change in event.tables
            for side in (change.before, change.after)
            if side is not None
        )
        # The statement names tables of another account; a sink writes one of its own for each table.
        return replace(event, tables=left, query="" if moved else event.query)

    def arriving_ids(self, event: DdlEvent) -> frozenset[int]:
        """Return the physical tables that existed before a DDL and are replicated only after it."""
        outside_before = chain.from_iterable(
            change.before.table.physical_ids
            for change in event.tables
            if change.before and not self.matches(change.before)
        )
        inside_after = chain.from_iterable(
            change.after.table.physical_ids
            for change in event.tables
            if change.after and self.matches(change.after)
        )
        return frozenset(outside_before) & frozenset(inside_after)

    def _if_matched(self, schema: SchemaVersion | None) -> SchemaVersion | None:
        return schema if schema is not None and self.matches(schema) else None


@dataclass(frozen=True, slots=True)
class ColumnSelector:
    """For tables that match `tables`: the columns to send, by name with * and ?; !name excludes one.

    The last rule that matches a column decides. A list that begins with an exclusion starts from all columns.
    Raises Invalid for patterns that select no table.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        _table_filter(self.tables)

    def selects(self, column: str) -> bool:
        """Return whether the rules send a column."""
        for rule in reversed(self.columns):
            if fnmatchcase(column.lower(), rule.removeprefix("!").lower()):
                return not rule.startswith("!")
        return self.columns[0].startswith("!")


@dataclass(frozen=True, slots=True)
class RowFilterRule:
    """For tables that match `tables`: a SQL predicate that rows must satisfy to exist for the consumer.

    Raises Invalid for patterns that select no table.
    """

    tables: tuple[str, ...]
    where: str

    def __post_init__(self) -> None:
        _table_filter(self.tables)


def selected_columns(schema: SchemaVersion, selectors: Sequence[ColumnSelector]) -> tuple[str, ...] | None:
    """Return the columns that the first matching selector sends, keys among them; None for all columns."""
    selector = next((rule for rule in selectors if _table_filter(rule.tables).covers(schema)), None)
    if selector is None:
        return None
    keys = {column.id for column in schema.table.primary_key}
    stored = schema.table.stored_columns
    return tuple(column.name for column in stored if column.id in keys or selector.selects(column.name))


def row_predicate(schema: SchemaVersion, filters: Sequence[RowFilterRule]) -> str:
    """Return the predicate of the first filter that matches the table; empty for all rows."""
    return next((rule.where for rule in filters if _table_filter(rule.tables).covers(schema)), "")


@lru_cache(maxsize=1024)
def _table_filter(tables: tuple[str, ...]) -> TableFilter:
    return TableFilter(tables)
