"""Which tables a changefeed carries, by patterns, and what of a DDL concerns them. Pure.

Which columns of a table are sent, and which of its rows. Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import chain

from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange


@dataclass(frozen=True, slots=True)
class _Rule:
    takes: bool
    database: re.Pattern[str]
    table: re.Pattern[str]
    every_table: bool

    @classmethod
    def parse(cls, pattern: str) -> "_Rule":
        database, dot, table = pattern.removeprefix("!").strip().lower().partition(".")
        if not dot or not database or not table:
            raise Invalid(f"{pattern!r} selects no tables; write database.table, with * and ? for any name")
        return cls(
            not pattern.startswith("!"),
            re.compile(translate(database)),
            re.compile(translate(table)),
            table == "*",
        )


class TableFilter:
    """Tables by patterns `database.table` with * and ?; ! takes out. Of the rules that fit, the last decides.

    Names are compared without case. A table that no rule fits is not carried; without patterns none is, and
    Invalid is raised.
    """

    def __init__(self, patterns: Sequence[str] = ("*.*",)) -> None:
        if not any(not pattern.startswith("!") for pattern in patterns):
            raise Invalid("a changefeed carries no table: name one in `tables`, as in database.table or *.*")
        self._rules = tuple(map(_Rule.parse, reversed(patterns)))

    def takes(self, schema: SchemaVersion) -> bool:
        """Whether the table is carried under the name that it has."""
        database, table = schema.database.lower(), schema.table.name.lower()
        for rule in self._rules:
            if rule.database.match(database) and rule.table.match(table):
                return rule.takes
        return False

    def takes_database(self, name: str) -> bool:
        """Whether a table of the database could be carried."""
        for rule in self._rules:
            if rule.database.match(name.lower()) and (rule.takes or rule.every_table):
                return rule.takes
        return False

    def part_of(self, event: DdlEvent) -> DdlEvent | None:
        """A DDL as if tables outside the filter did not exist; None when nothing of it is left.

        So a table that is renamed out of the filter is gone after it, and one that is renamed into it is new.
        """
        sides = ((self._seen(change.before), self._seen(change.after)) for change in event.tables)
        left = tuple(TableChange(before, after) for before, after in sides if before or after)
        if not left and not (event.scope is DdlScope.DATABASE and self.takes_database(event.database)):
            return None
        return replace(event, tables=left)

    def arriving_ids(self, event: DdlEvent) -> frozenset[int]:
        """The physical tables that were there before a DDL, and are carried from it on."""
        there = chain.from_iterable(
            each.before.table.physical_ids
            for each in event.tables
            if each.before and not self.takes(each.before)
        )
        taken = chain.from_iterable(
            each.after.table.physical_ids for each in event.tables if each.after and self.takes(each.after)
        )
        return frozenset(there) & frozenset(taken)

    def _seen(self, schema: SchemaVersion | None) -> SchemaVersion | None:
        return schema if schema is not None and self.takes(schema) else None


@dataclass(frozen=True, slots=True)
class ColumnSelector:
    """For tables that fit `tables`: the columns to send, by name with * and ?; !name takes one out.

    The last rule that fits a column decides. A list that begins with an exclusion starts from all columns.
    Raises Invalid for patterns that select no table.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        _filter(self.tables)

    def takes(self, column: str) -> bool:
        """Whether the rules send a column."""
        for rule in reversed(self.columns):
            if fnmatchcase(column.lower(), rule.removeprefix("!").lower()):
                return not rule.startswith("!")
        return self.columns[0].startswith("!")


@dataclass(frozen=True, slots=True)
class RowFilterRule:
    """For tables that fit `tables`: a SQL predicate that rows must satisfy to exist for the consumer.

    Raises Invalid for patterns that select no table.
    """

    tables: tuple[str, ...]
    where: str

    def __post_init__(self) -> None:
        _filter(self.tables)


def sent_columns(schema: SchemaVersion, selectors: Sequence[ColumnSelector]) -> tuple[str, ...] | None:
    """The columns to send by the first selector that fits the table, keys among them; None: all."""
    selector = next((each for each in selectors if _filter(each.tables).takes(schema)), None)
    if selector is None:
        return None
    keys = {column.id for column in schema.table.primary_key}
    stored = schema.table.stored_columns
    return tuple(column.name for column in stored if column.id in keys or selector.takes(column.name))


def sent_rows(schema: SchemaVersion, filters: Sequence[RowFilterRule]) -> str:
    """The predicate of the first filter that fits the table; empty: all rows."""
    return next((each.where for each in filters if _filter(each.tables).takes(schema)), "")


@lru_cache(maxsize=1024)
def _filter(tables: tuple[str, ...]) -> TableFilter:
    return TableFilter(tables)
