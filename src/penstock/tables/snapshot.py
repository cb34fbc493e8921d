"""Every schema as of one moment, found by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from penstock.errors import Invalid
from penstock.tables.accounts import SYSTEM, Account
from penstock.tables.meta import ACCOUNTS, MetaReader, parse_json
from penstock.tables.schema import DatabaseInfo, TableInfo

_ACCOUNT_FIELD = b"Account:"
_DATABASE_FIELD = b"DB:"


def account_field(account_id: int) -> bytes:
    """The field of an account among the accounts."""
    return _ACCOUNT_FIELD + b"%d" % account_id


def owner_field(database_id: int) -> bytes:
    """The field that says which account a database belongs to."""
    return _DATABASE_FIELD + b"%d" % database_id


class Place(NamedTuple):
    """A table and the database it is in."""

    database: DatabaseInfo
    table: TableInfo


@dataclass(frozen=True, slots=True)
class SchemaSnapshot:
    """Databases, tables and accounts at one schema version. Names are compared without case."""

    version: int
    databases: Mapping[str, DatabaseInfo]
    tables: Mapping[int, Mapping[str, TableInfo]]
    accounts: Mapping[str, Account]
    owners: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def load(cls, meta: MetaReader) -> Self:
        """Read everything; Corrupt when a schema is damaged."""
        databases = {database.name.lower(): database for database in meta.databases()}
        tables = {
            database.id: {table.name.lower(): table for table in meta.tables(database.id)}
            for database in databases.values()
        }
        accounts, owners = {SYSTEM.name: SYSTEM}, {}
        for name, value in meta.fields(ACCOUNTS):
            if name.startswith(_ACCOUNT_FIELD):
                account = Account.from_json(parse_json(value))
                accounts[account.name.lower()] = account
            else:
                owners[int(name.removeprefix(_DATABASE_FIELD))] = int(parse_json(value))
        return cls(meta.schema_version(), databases, tables, accounts, owners)

    def database(self, name: str) -> DatabaseInfo:
        """The database of that name; Invalid when there is none."""
        try:
            return self.databases[name.lower()]
        except KeyError:
            raise Invalid(f"there is no database {name!r}; {_choices(self.databases)}") from None

    def place(self, name: str) -> Place:
        """The table of that name, written `database.table`; Invalid when there is none."""
        database_name, table_name = split_name(name)
        database = self.database(database_name)
        found = self.tables[database.id].get(table_name.lower())
        if found is None:
            choices = _choices(table.name for table in self.tables[database.id].values())
            raise Invalid(f"there is no table {name!r}; {choices}")
        return Place(database, found)

    def account(self, name: str) -> Account:
        """The account of that name; Invalid when there is none."""
        try:
            return self.accounts[name.lower()]
        except KeyError:
            raise Invalid(f"there is no account {name!r}; {_choices(self.accounts)}") from None

    def account_of(self, database: DatabaseInfo) -> Account:
        """The account that a database belongs to."""
        owner = self.owners.get(database.id, SYSTEM.id)
        return next((account for account in self.accounts.values() if account.id == owner), SYSTEM)


def split_name(name: str) -> tuple[str, str]:
    """Database and table of `database.table`; Invalid when it is not written so."""
    database, dot, table = name.partition(".")
    if not dot or not database or not table:
        raise Invalid(f"{name!r} must be written database.table, such as shop.orders")
    return database, table


def _choices(names: Iterable[str]) -> str:
    known = sorted(names)
    return (
        f"there are {', '.join(known[:10])}{' …' if len(known) > 10 else ''}"
        if known
        else "there are none yet"
    )
