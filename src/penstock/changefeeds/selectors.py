"""Which columns of a table are sent, and which of its rows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from penstock.changefeeds.filters import TableFilter
from penstock.eventstore.schema_version import SchemaVersion


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
