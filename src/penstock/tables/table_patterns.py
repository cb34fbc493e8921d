"""Tables by patterns `database.table`, as changefeeds and streams over many tables select them. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate

from penstock.errors import Invalid
from penstock.tables.system_tables import is_named, is_system

__all__ = ["TablePatterns"]


class TablePatterns:
    """Selects tables by patterns with * and ?; a leading ! excludes. The last match decides.

    Names are compared without case. A system table is selected only if a pattern is its very name. Raises
    Invalid for a pattern that is not `database.table`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self.rules = tuple(map(_Rule.parse, reversed(patterns)))
        """The last pattern first."""

    def matches(self, database: str, table: str) -> bool:
        """Return whether the patterns select a table."""
        allowed = not is_system(database) or is_named(database, table, self.patterns)
        return allowed and self.covers(database, table)

    def covers(self, database: str, table: str) -> bool:
        """Return whether the patterns match a name, whether or not it is a system table's."""
        for rule in self.rules:
            if rule.database.match(database.lower()) and rule.table.match(table.lower()):
                return rule.includes
        return False


@dataclass(frozen=True, slots=True)
class _Rule:
    includes: bool
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
