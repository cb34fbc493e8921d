"""Where a stream must stop because its table no longer has the columns that it was declared with. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_type
from penstock.tables.schema import TableInfo

Shape = dict[str, tuple[int, pa.DataType]]
"""Columns by name, with their ids and types."""


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """The table at the moment that a stream was declared, with the columns that are wanted.

    `wanted` is None for all of the table's columns: then new ones matter, too.
    """

    table: TableInfo
    ts: int
    wanted: tuple[str, ...] | None = None

    def first_change(self, versions: Iterable[SchemaVersion]) -> SchemaVersion | None:
        """The first of a table's versions, by time, that came later and has other columns.

        Rows of versions that came before are read as the declared one.
        """
        shape = _shape(self.table, self.wanted)
        later = (each for each in versions if each.since_ts > self.ts)
        return next((each for each in later if _shape(each.table, self.wanted) != shape), None)

    def stopped_by(self, change: SchemaVersion) -> Invalid:
        """The error that ends a stream there: what is different, and what to do."""
        before, after = _shape(self.table, self.wanted), _shape(change.table, self.wanted)
        said = [
            *(f"{name} is new" for name in after if name not in before),
            *(f"{name} is gone" for name in before if name not in after),
            *(f"{name} is another" for name in before if name in after and before[name] != after[name]),
        ]
        return Invalid(
            f"columns of {change.name} change at version {change.since_ts} ({', '.join(said)});"
            " load the stream again and restart the query from its checkpoint"
        )


def _shape(table: TableInfo, wanted: Collection[str] | None) -> Shape:
    names = None if wanted is None else {name.lower() for name in wanted}
    return {
        column.name: (column.id, arrow_type(column.type))
        for column in table.stored_columns
        if names is None or column.name.lower() in names
    }
