"""The catalog: databases, tables and accounts on the key-value store, and access to their rows."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables import alter, statements
from penstock.tables.accounts import SYSTEM_ACCOUNT, Account, Accounts
from penstock.tables.auto_ids import AutoIds
from penstock.tables.columns import SchemaState
from penstock.tables.create_statement import CreateTable, parse_create_table
from penstock.tables.ddl import SchemaChange, TableBusy
from penstock.tables.ddl_jobs import DdlAction, DdlJob, RunningJob
from penstock.tables.define import Index, define_column, define_table
from penstock.tables.guard import Guards
from penstock.tables.meta import MetaReader
from penstock.tables.online_ddl import OnlineDdl, Progress
from penstock.tables.partitions import PartitionBy
from penstock.tables.schema import DatabaseInfo, TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot, TablePlace, split_name
from penstock.tables.statements import quote
from penstock.tables.system_tables import is_system
from penstock.tables.table import Table, TableServices

T = TypeVar("T")
_RECENT_MAX = 64


class Catalog:
    """The tables of a cluster, in TiDB's own encoding. Thread-safe.

        db = Catalog(client)
        db.create_database("shop")
        db.create_table("shop.orders", [("id", "bigint primary key"), ("customer", "varchar(64)")])
        db.table("shop.orders").insert([{"id": 1, "customer": "Ada"}])

    A schema change writes a finished job into the DDL history. Most are one transaction. Those that must
    touch rows (an index, a column of another type) go through TiDB's online states beside writers and fill
    the rows in, batch by batch. If the process dies meanwhile, the same call, any other change of the table
    or `finish_ddl` goes on where it stopped.

    A change raises Invalid when it does not fit the schema or the rows, Conflict when others kept changing
    the schema, Unavailable while TiDB changes the table.
    """

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock
        self._row_ids = AutoIds(client, clock=clock)
        self._guards = Guards(client)
        self._online = OnlineDdl(client, clock=clock)
        self._lock = threading.Lock()
        self._newest: tuple[tuple[int, bool], SchemaSnapshot] | None = None
        """The newest schemas, with the version and whether its change was there already."""
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
        number = meta.schema_version()
        # TiDB takes a version in a transaction of its own, before the one that changes the schema and writes
        # the version's diff: until the diff is there, the schema is still that of the version before.
        version = (number, meta.diff(number) is not None)
        with self._lock:
            if self._newest is not None and self._newest[0] == version:
                return self._newest[1]
        loaded = SchemaSnapshot.load(meta)
        with self._lock:
            if self._newest is None or self._newest[0] < version:
                self._newest = (version, loaded)
        return loaded

    def _find_known(self, name: str) -> TablePlace | None:
        """Return a table as it was when schemas were read last, without a request; None if there was none."""
        with self._lock:
            newest = self._newest
        return newest[1].place(name) if newest is not None and newest[1].has_table(name) else None

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

    def table(self, name: str, *, at_ts: int | None = None) -> Table:
        """Return access to the rows of `database.table`; raise Invalid when there is no such table.

        With `at_ts`, the table that had the name at that time: it may have been dropped or renamed since.
        """
        self.schema(at_ts).place(name)
        services = TableServices(
            client=self._client,
            schema=self.schema,
            known=self._find_known,
            guards=self._guards,
            row_ids=self._row_ids,
            clock=self._clock,
        )
        return Table(name, services)

    def begin(self, *, pessimistic: bool = False) -> Transaction:
        """Begin a transaction for rows of any tables; pass it to their methods as `txn`.

        Its commit raises Conflict when one of the tables was dropped or has other columns or indexes by then;
        run the transaction again. The check sees every change up to the commit timestamp. It is made also for
        a transaction of the client itself that is passed to a table.
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
        if at_ts is None:
            at_ts = self._client.timestamp()
        owned = self.schema(at_ts).database(database)
        return Accounts.load(self._meta(at_ts)).of(owned)

    def owned_databases(self, account: str | None = None, at_ts: int | None = None) -> dict[str, Account]:
        """Return the account of each database by name; with `account`, only the databases of that account.

        No account has a system database, whatever its name is.
        """
        if at_ts is None:
            at_ts = self._client.timestamp()  # one moment: a name may go from one account to another
        accounts = Accounts.load(self._meta(at_ts))
        owners = {database.name: accounts.of(database) for database in self.databases(at_ts)}
        if account is None:
            return owners
        return {
            name: owner for name, owner in owners.items() if owner.name == account and not is_system(name)
        }

    def create_account(self, name: str) -> Account:
        """Make an account."""
        return self._change(lambda change: change.create_account(name))

    def drop_account(self, name: str) -> None:
        """Remove an account that owns no database."""
        self._change(lambda change: change.drop_account(name))

    def create_database(
        self, name: str, *, account: str = SYSTEM_ACCOUNT.name, if_not_exists: bool = False
    ) -> DatabaseInfo:
        """Make a database. With `if_not_exists`, return the one that has the name already."""

        def create(change: SchemaChange) -> DatabaseInfo:
            existing = change.schema.databases.get(name.lower())
            return existing if existing and if_not_exists else change.create_database(name, account)

        return self._change(create)

    def drop_database(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a database and its tables. With `if_exists`, do nothing when there is none."""

        def drop(change: SchemaChange) -> None:
            if not if_exists or name.lower() in change.schema.databases:
                change.drop_database(name)

        self._change(drop)

    def create_table(
        self,
        name: str,
        columns: Iterable[tuple[str, str]] | None = None,
        *,
        primary_key: Sequence[str] = (),
        indexes: Sequence[Index] = (),
        clustered: bool = True,
        comment: str = "",
        partition_by: PartitionBy | None = None,
        if_not_exists: bool = False,
    ) -> TableInfo:
        """Make `database.table`. Columns are pairs of a name and a MySQL definition, as in `define_table`.

        Instead of a name and columns the first argument may be a CREATE TABLE statement, which then says
        everything; `if_not_exists` may be in it or an argument. Invalid names what of it is not supported.

        `partition_by` divides its rows, as in `PartitionBy.hash("id", 4)`; the primary key and every unique
        index must have the columns that decide. With `if_not_exists`, return the table that has the name
        already, whatever its columns.
        """
        if columns is None:
            parts = parse_create_table(name)
            if primary_key or indexes or comment or partition_by is not None or not clustered:
                raise Invalid(
                    "a CREATE TABLE statement says everything about the table; write all of it there"
                )
            name, if_not_exists = parts.name, if_not_exists or parts.if_not_exists
        else:
            parts = CreateTable(
                name, list(columns), primary_key, indexes, clustered, comment, partition_by, if_not_exists
            )
        database, table_name = split_name(name)
        definition = define_table(
            table_name,
            parts.columns,
            primary_key=parts.primary_key,
            indexes=parts.indexes,
            clustered=parts.clustered,
            comment=parts.comment,
            partition_by=parts.partition_by,
        )

        def create(change: SchemaChange) -> TableInfo:
            if if_not_exists and change.schema.has_table(name):
                return change.schema.place(name).table
            return change.create_table(database, definition)

        return self._change(create)

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a table. With `if_exists`, do nothing when there is none."""

        def drop(change: SchemaChange) -> None:
            if not if_exists or change.schema.has_table(name):
                change.drop_table(name)

        self._change(drop)

    def truncate_table(self, name: str) -> TableInfo:
        """Empty a table: it continues under a new id."""
        return self._change(lambda change: change.truncate_table(name))

    def rename_table(self, name: str, new_name: str) -> TableInfo:
        """Rename a table to another `database.table`."""
        return self._change(lambda change: change.rename_table(name, new_name))

    def add_column(
        self,
        table: str,
        name: str,
        definition: str,
        *,
        after: str | None = None,
        if_not_exists: bool = False,
    ) -> TableInfo:
        """Add a column, last or after another one; existing rows read as its default.

        With `if_not_exists`, do nothing when the table has a column of that name.
        """

        def add(change: SchemaChange) -> TableInfo:
            place = change.schema.place(table)
            if if_not_exists and place.table.has_column(name):
                return place.table
            changed = alter.add_column(place.table, name, definition, after=after, start_ts=change.start_ts)
            where = f" AFTER {quote(after)}" if after else ""
            query = statements.alter_column("ADD", changed, changed.column(name), where)
            return change.alter_table(DdlAction.ADD_COLUMN, place, changed, query)

        return self._change(add)

    def drop_column(self, table: str, name: str, *, if_exists: bool = False) -> TableInfo:
        """Remove a column. With `if_exists`, do nothing when there is none."""

        def drop(change: SchemaChange) -> TableInfo:
            place = change.schema.place(table)
            if if_exists and not place.table.has_column(name):
                return place.table
            changed = alter.drop_column(place.table, name)
            query = f"ALTER TABLE {quote(changed.name)} DROP COLUMN {quote(name)}"
            return change.alter_table(DdlAction.DROP_COLUMN, place, changed, query)

        return self._change(drop)

    def rename_column(self, table: str, name: str, new_name: str) -> TableInfo:
        """Rename a column."""

        def rename(change: SchemaChange) -> TableInfo:
            place = change.schema.place(table)
            changed = alter.rename_column(place.table, name, new_name)
            query = statements.rename_column(place.table, name, new_name)
            return change.alter_table(DdlAction.MODIFY_COLUMN, place, changed, query)

        return self._change(rename)

    def modify_column(
        self, table: str, name: str, definition: str, *, progress: Progress | None = None
    ) -> TableInfo:
        """Give a column another definition; rewrite the rows when their bytes do not fit the new type.

        While rows are rewritten they are written under both types. Raise Invalid, with everything as it was,
        when a value cannot be converted (`penstock.tables.conversion` says how values are). `progress` is
        called after each step with a `DdlProgress`.
        """

        def modify(change: SchemaChange) -> TableInfo | RunningJob:
            place = change.schema.place(table)
            column, _, _ = define_column(name, definition, column_id=0)
            query = statements.alter_column("MODIFY", place.table, column)
            changed = alter.widen_column(place.table, name, definition)
            if changed is not None:
                return change.alter_table(DdlAction.MODIFY_COLUMN, place, changed, query)
            begun, column_id, index_ids = alter.begin_rewrite(place.table, name, definition)
            return change.start_job(
                *(DdlAction.MODIFY_COLUMN, place, begun, query),
                state=SchemaState.DELETE_ONLY,
                column_id=column_id,
                index_ids=index_ids,
            )

        return self._run(modify, progress)

    def add_index(
        self,
        table: str,
        name: str,
        columns: Sequence[str],
        *,
        unique: bool = False,
        if_not_exists: bool = False,
        progress: Progress | None = None,
    ) -> TableInfo:
        """Add an index and fill in the entries of existing rows, while others go on writing.

        A column may be limited to its first characters: `"title(20)"`. Raise Invalid, with everything as it
        was, when the index is unique and two rows have the same values. With `if_not_exists`, do nothing when
        the table has an index of that name. `progress` is called after each step with a `DdlProgress`.
        """

        def add(change: SchemaChange) -> TableInfo | RunningJob:
            place = change.schema.place(table)
            existing = place.table.find_index(name)
            if existing is not None and existing.state is SchemaState.PUBLIC and if_not_exists:
                return place.table
            rest = [index for index in place.table.indexes if index.state is SchemaState.PUBLIC]
            others = replace(place.table, indexes=tuple(rest))  # without it the statement is the same again
            begun, index_id = alter.begin_index(others, Index(name, columns, unique=unique))
            query = statements.add_index(begun, begun.indexes[-1])
            return change.start_job(
                *(DdlAction.ADD_INDEX, place, begun, query),
                state=SchemaState.DELETE_ONLY,
                index_ids=(index_id,),
            )

        return self._run(add, progress)

    def drop_index(
        self, table: str, name: str, *, if_exists: bool = False, progress: Progress | None = None
    ) -> TableInfo:
        """Remove an index; its entries are deleted with the garbage of dropped tables.

        With `if_exists`, do nothing when there is none. `progress` is called after each step.
        """

        def drop(change: SchemaChange) -> TableInfo | RunningJob:
            place = change.schema.place(table)
            if if_exists and place.table.find_index(name) is None:
                return place.table
            index = place.table.index(name)
            if index.primary:
                raise Invalid(f"{index.name} is the primary key of {place.table.name}; create a new table")
            begun = alter.set_state(place.table, 0, (index.id,), SchemaState.WRITE_ONLY)
            query = statements.drop_index(place.table, index)
            return change.start_job(
                *(DdlAction.DROP_INDEX, place, begun, query),
                state=SchemaState.WRITE_ONLY,
                index_ids=(index.id,),
            )

        return self._run(drop, progress)

    def unfinished_ddl(self) -> list[RunningJob]:
        """Return the schema changes that run now, or whose process died, oldest first."""
        return list(self._meta(None).running_jobs())

    def finish_ddl(self, job_id: int, *, progress: Progress | None = None) -> TableInfo:
        """Go on with a schema change whose process died, to its end; return its table.

        Raise Invalid when the change was rolled back. Nothing happens twice if its process is still alive.
        """
        return self._online.run(job_id, progress)

    def cancel_ddl(self, job_id: int) -> None:
        """Roll a schema change back; raise Invalid when it is finished or cannot go back."""
        self._change(lambda change: change.roll_back_job(job_id))
        with suppress(Invalid):
            self._online.run(job_id)

    def _meta(self, at_ts: int | None) -> MetaReader:
        return MetaReader(self._client.snapshot(self._client.timestamp() if at_ts is None else at_ts))

    def _change(self, make: Callable[[SchemaChange], T]) -> T:
        while True:
            try:
                return transact(self._client.begin, lambda txn: make(SchemaChange(txn)), clock=self._clock)
            except TableBusy as busy:
                with suppress(Invalid):  # rolled back, or gone: either way this change can be made now
                    self._online.run(busy.job.id)

    def _run(
        self, start: Callable[[SchemaChange], TableInfo | RunningJob], progress: Progress | None
    ) -> TableInfo:
        started = self._change(start)
        return started if isinstance(started, TableInfo) else self._online.run(started.id, progress)
