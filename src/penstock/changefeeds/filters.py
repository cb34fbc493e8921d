"""Which tables a changefeed carries, by patterns, and what of a DDL concerns them. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
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
