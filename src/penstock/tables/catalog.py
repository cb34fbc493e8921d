"""The catalog: databases, tables and accounts on the key-value store, and access to their rows."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from penstock.clock import SYSTEM, Clock
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables import alter, statements
from penstock.tables.accounts import SYSTEM_ACCOUNT, Account, Accounts
from penstock.tables.auto_ids import AutoIds
from penstock.tables.ddl import SchemaChange
from penstock.tables.ddl_jobs import DdlAction, DdlJob
from penstock.tables.define import Index, define_table
from penstock.tables.guard import Guards
from penstock.tables.meta import MetaReader
from penstock.tables.schema import DatabaseInfo, TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot, split_name
from penstock.tables.statements import quote
from penstock.tables.table import Table, TableServices

T = TypeVar("T")
_RECENT_MAX = 64


class Catalog:
    """The tables of a cluster, in TiDB's own encoding. Thread-safe.

        db = Catalog(client)
        db.create_database("shop")
        db.create_table("shop.orders", [("id", "bigint primary key"), ("customer", "varchar(64)")])
        db.table("shop.orders").insert([{"id": 1, "customer": "Ada"}])

    Each schema change is one transaction, which also writes a finished job into the DDL history. It raises
    Invalid when it does not fit the schema, Conflict when others kept changing the schema.
    """

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock
        self._row_ids = AutoIds(client, clock=clock)
        self._guards = Guards(client)
        self._lock = threading.Lock()
        self._newest: SchemaSnapshot | None = None
        self._recent: dict[int, SchemaSnapshot] = {}
        """Schemas by timestamp; they can be cached because the past does not change."""

    def schema(self, at_ts: int | None = None) -> SchemaSnapshot:
        """Return all schemas at a timestamp, by default now."""
        if at_ts is None:
            return self._load(None)
        with self._lock:
            snapshot = self._recent.get(at_ts)
        if snapshot is None:
            snapshot = self._load(at_ts)
            with self._lock:
                self._recent[at_ts] = snapshot
                while len(self._recent) > _RECENT_MAX:
                    del self._recent[next(iter(self._recent))]
        return snapshot

    def _load(self, at_ts: int | None) -> SchemaSnapshot:
        meta = self._meta(at_ts)
        version = meta.schema_version()
        with self._lock:
            if self._newest is not None and self._newest.version == version:
                return self._newest
        loaded = SchemaSnapshot.load(meta)
        with self._lock:
            if self._newest is None or self._newest.version < loaded.version:
                self._newest = loaded
        return loaded

    def databases(self, at_ts: int | None = None) -> list[DatabaseInfo]:
        """Return every database, by name."""
        return [database for _, database in sorted(self.schema(at_ts).databases.items())]

    def tables(self, database: str, at_ts: int | None = None) -> list[TableInfo]:
        """Return every table of a database, by name."""
        schema = self.schema(at_ts)
        return [table for _, table in sorted(schema.tables[schema.database(database).id].items())]

    def table_info(self, name: str, at_ts: int | None = None) -> TableInfo:
        """Return the schema of `database.table`; raise Invalid when there is none."""
        return self.schema(at_ts).place(name).table

    def table(self, name: str) -> Table:
        """Return access to the rows of `database.table`; raise Invalid when there is no such table."""
        self.schema().place(name)
        return Table(name, TableServices(self._client, self.schema, self._guards, self._row_ids, self._clock))

    def begin(self, *, pessimistic: bool = False) -> Transaction:
        """Begin a transaction for rows of any tables; pass it to their methods as `txn`.

        Its commit raises Conflict when one of the tables was dropped or has other columns or indexes by then;
        run the transaction again. The check happens at the commit timestamp, so the transaction commits in
        two phases. So does a transaction of the client itself that is passed to a table.
        """
        return self._guards.begin(pessimistic=pessimistic)

    def history(self) -> list[DdlJob]:
        """Return the finished DDL jobs, oldest first."""
        return list(self._meta(None).jobs())

    def accounts(self, at_ts: int | None = None) -> list[Account]:
        """Return every account, by name."""
        return [account for _, account in sorted(Accounts.load(self._meta(at_ts)).by_name.items())]

    def account_of(self, database: str, at_ts: int | None = None) -> Account:
        """Return the account that a database belongs to."""
        owned = self.schema(at_ts).database(database)
        return Accounts.load(self._meta(at_ts)).of(owned)

    def owned_databases(self, account: str | None = None, at_ts: int | None = None) -> dict[str, Account]:
        """Return the account of each database by name; with `account`, only the databases of that account."""
        accounts = Accounts.load(self._meta(at_ts))
        owners = {database.name: accounts.of(database) for database in self.databases(at_ts)}
        return {name: owner for name, owner in owners.items() if account in {None, owner.name}}

    def create_account(self, name: str) -> Account:
        """Make an account."""
        return self._change(lambda change: change.create_account(name))

    def drop_account(self, name: str) -> None:
        """Remove an account that owns no database."""
        self._change(lambda change: change.drop_account(name))

    def create_database(self, name: str, *, account: str = SYSTEM_ACCOUNT.name) -> DatabaseInfo:
        """Make a database."""
        return self._change(lambda change: change.create_database(name, account))

    def drop_database(self, name: str) -> None:
        """Remove a database and its tables."""
        self._change(lambda change: change.drop_database(name))

    def create_table(
        self,
        name: str,
        columns: Iterable[tuple[str, str]],
        *,
        primary_key: Sequence[str] = (),
        indexes: Sequence[Index] = (),
        clustered: bool = True,
        comment: str = "",
    ) -> TableInfo:
        """Make `database.table`. Columns are pairs of a name and a MySQL definition, as in `define_table`."""
        database, table_name = split_name(name)
        definition = define_table(
            table_name,
            columns,
            primary_key=primary_key,
            indexes=indexes,
            clustered=clustered,
            comment=comment,
        )
        return self._change(lambda change: change.create_table(database, definition))

    def drop_table(self, name: str) -> None:
        """Remove a table."""
        self._change(lambda change: change.drop_table(name))

    def truncate_table(self, name: str) -> TableInfo:
        """Empty a table: it continues under a new id."""
        return self._change(lambda change: change.truncate_table(name))

    def rename_table(self, name: str, new_name: str) -> TableInfo:
        """Rename a table to another `database.table`."""
        return self._change(lambda change: change.rename_table(name, new_name))

    def add_column(self, table: str, name: str, definition: str, *, after: str | None = None) -> TableInfo:
        """Add a column, last or after another one; existing rows read as its default."""

        def add(change: SchemaChange) -> TableInfo:
            place = change.schema.place(table)
            changed = alter.add_column(place.table, name, definition, after=after)
            where = f" AFTER {quote(after)}" if after else ""
            query = statements.alter_column("ADD", changed, changed.column(name), where)
            return change.alter_table(DdlAction.ADD_COLUMN, place, changed, query)

        return self._change(add)

    def drop_column(self, table: str, name: str) -> TableInfo:
        """Remove a column."""

        def drop(change: SchemaChange) -> TableInfo:
            place = change.schema.place(table)
            changed = alter.drop_column(place.table, name)
            query = f"ALTER TABLE {quote(changed.name)} DROP COLUMN {quote(name)}"
            return change.alter_table(DdlAction.DROP_COLUMN, place, changed, query)

        return self._change(drop)

    def modify_column(self, table: str, name: str, definition: str) -> TableInfo:
        """Widen a column or change its default or comment; raise Invalid if rows would need a rewrite."""

        def modify(change: SchemaChange) -> TableInfo:
            place = change.schema.place(table)
            changed = alter.modify_column(place.table, name, definition)
            query = statements.alter_column("MODIFY", changed, changed.column(name))
            return change.alter_table(DdlAction.MODIFY_COLUMN, place, changed, query)

        return self._change(modify)

    def _meta(self, at_ts: int | None) -> MetaReader:
        return MetaReader(self._client.snapshot(self._client.timestamp() if at_ts is None else at_ts))

    def _change(self, make: Callable[[SchemaChange], T]) -> T:
        return transact(self._client.begin, lambda txn: make(SchemaChange(txn)), clock=self._clock)
