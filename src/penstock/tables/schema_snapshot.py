"""All schemas at one moment, to be found by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from penstock.errors import Invalid
from penstock.tables.meta import MetaReader
from penstock.tables.schema import DatabaseInfo, TableInfo


class TablePlace(NamedTuple):
    """A table and the database it is in."""

    database: DatabaseInfo
    table: TableInfo


@dataclass(frozen=True, slots=True)
class SchemaSnapshot:
    """Databases and tables at one schema version. Names are compared without case."""

    version: int
    databases: Mapping[str, DatabaseInfo]
    tables: Mapping[int, Mapping[str, TableInfo]]

    @classmethod
    def load(cls, meta: MetaReader) -> Self:
        """Read all databases and tables, unreadable tables among them."""
        databases = {database.name.lower(): database for database in meta.databases()}
        tables = {
            database.id: {table.name.lower(): table for table in map(_name_damaged, meta.tables(database.id))}
            for database in databases.values()
        }
        return cls(meta.schema_version(), databases, tables)

    def database(self, name: str) -> DatabaseInfo:
        """Return the database of that name; raise Invalid when there is none."""
        try:
            return self.databases[name.lower()]
        except KeyError:
            raise Invalid(f"there is no database {name!r}; {choices(self.databases)}") from None

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of that name, written `database.table`."""
        database_name, table_name = split_name(name)
        database = self.databases.get(database_name.lower())
        return database is not None and table_name.lower() in self.tables[database.id]

    def place(self, name: str, *, unreadable: bool = False) -> TablePlace:
        """Return the table of that name, written `database.table`.

        Raises Invalid when there is none, and when its description cannot be read, unless that is asked for.
        """
        database_name, table_name = split_name(name)
        database = self.database(database_name)
        table = self.tables[database.id].get(table_name.lower())
        if table is None:
            others = choices(table.name for table in self.tables[database.id].values())
            raise Invalid(f"there is no table {name!r}; {others}")
        if table.unreadable and not unreadable:
            raise Invalid(f"table {database.name}.{table.name} cannot be read: {table.unreadable}")
        return TablePlace(database, table)


def _name_damaged(table: TableInfo) -> TableInfo:
    """Return a table with a name: that of a damaged description is its id, so that it can be dropped."""
    return table if table.name else replace(table, name=f"#{table.id}")


def split_name(name: str) -> tuple[str, str]:
    """Return the two names of `database.table`; raise Invalid for another form."""
    database, dot, table = name.partition(".")
    if not dot or not database or not table:
        raise Invalid(f"{name!r} must be written database.table, such as shop.orders")
    return database, table


def choices(names: Iterable[str]) -> str:
    """Return the existing names, for the message about one that does not exist."""
    known = sorted(names)
    return (
        f"there are {', '.join(known[:10])}{' …' if len(known) > 10 else ''}"
        if known
        else "there are none yet"
    )
