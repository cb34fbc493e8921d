"""The tables of a database as they were at any moment, to hold what was read elsewhere against."""

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.tables import Catalog, Table

__all__ = ["TablesAt", "tables_with_rows"]

Row = dict[str, Any]


class TablesAt:
    """Remembers every table that it was told of, so that those that are gone can be read as well."""

    def __init__(self, db: Catalog, database: str) -> None:
        self._db = db
        self._database = database
        self._tables: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """Return a table that is there now."""
        full = f"{self._database}.{name}"
        return self._tables.setdefault(full, self._db.table(full))

    def rows(self, ts: int) -> dict[str, list[Row]]:
        """Return the tables that had rows at a timestamp, with their rows; fail when one is unknown."""
        names = [f"{self._database}.{table.name}" for table in self._db.tables(self._database, ts)]
        return tables_with_rows({name: self._tables[name].to_arrow(at_ts=ts).to_pylist() for name in names})


def tables_with_rows(tables: Mapping[str, Iterable[Row]]) -> dict[str, list[Row]]:
    """Return tables with sorted rows, for comparisons; leave out tables without rows."""
    ordered = {name: sorted(rows, key=repr) for name, rows in sorted(tables.items())}
    return {name: rows for name, rows in ordered.items() if rows}
