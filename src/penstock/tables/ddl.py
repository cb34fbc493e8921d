"""A schema change in one transaction: the changed schemas, the job and the version.

Two changes cannot commit at once, because both increment the schema version; the loser runs again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.errors import Invalid, Unavailable
from penstock.kv import Transaction
from penstock.tables import statements
from penstock.tables.accounts import SYSTEM_ACCOUNT, Account, Accounts, account_field, owner_field
from penstock.tables.columns import SchemaState
from penstock.tables.ddl_jobs import ROLLED_BACK, DdlAction, DdlJob, RunningJob, SchemaDiff
from penstock.tables.define import check_name
from penstock.tables.garbage import KeyRange, ranges_of_table, record_dropped
from penstock.tables.meta import ACCOUNTS, MetaWriter
from penstock.tables.schema import DatabaseInfo, TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot, TablePlace, split_name
from penstock.tables.statements import quote


class TableBusy(Unavailable):
    """Another schema change of the table still runs, or its process died; finish it first."""

    def __init__(self, table: TableInfo, job: RunningJob) -> None:
        super().__init__(
            f"DDL job {job.id} still changes table {table.name}; wait for it, or finish it by"
            f" Catalog.finish_ddl({job.id})"
        )
        self.job = job


@dataclass(frozen=True, slots=True)
class _JobSteps:
    """The content of a job without its ids."""

    action: DdlAction
    query: str
    database: DatabaseInfo
    table: TableInfo | None = None
    table_id: int = 0
    old_table_id: int = 0
    old_database_id: int = 0


class SchemaChange:
    """The schema changes that a transaction can make. The caller commits it."""

    def __init__(self, txn: Transaction) -> None:
        self.start_ts = txn.start_ts
        self._meta = MetaWriter(txn)
        self._accounts = Accounts.load(self._meta)
        self.schema = SchemaSnapshot.load(self._meta)
        self.running = {job.id: job for job in self._meta.running_jobs()}
        """The unfinished jobs by their ids."""

    def create_account(self, name: str) -> Account:
        """Make an account; raise Invalid when the name is taken."""
        check_name("account", name)
        if name.lower() in self._accounts.by_name:
            raise Invalid(f"account {name} already exists; choose another name")
        account = Account(self._meta.next_id(), name)
        self._meta.put_field(ACCOUNTS, account_field(account.id), account.to_json())
        return account

    def drop_account(self, name: str) -> None:
        """Remove an account; raise Invalid when it owns a database."""
        account = self._accounts.find(name)
        owned = [one.name for one in self.schema.databases.values() if self._accounts.of(one) == account]
        if account == SYSTEM_ACCOUNT or owned:
            why = "is built in" if account == SYSTEM_ACCOUNT else f"owns database {owned[0]}; drop it first"
            raise Invalid(f"account {account.name} cannot be dropped: it {why}")
        self._meta.delete_field(ACCOUNTS, account_field(account.id))

    def create_database(self, name: str, account: str = SYSTEM_ACCOUNT.name) -> DatabaseInfo:
        """Make a database; raise Invalid when the name is taken."""
        check_name("database", name)
        if name.lower() in self.schema.databases:
            raise Invalid(f"database {name} already exists; choose another name")
        owner = self._accounts.find(account)
        database = DatabaseInfo(self._meta.next_id(), name)
        self._meta.put_database(database)
        if owner != SYSTEM_ACCOUNT:
            self._meta.put_field(
                ACCOUNTS, account_field(owner.id), owner.to_json()
            )  # conflicts with its drop
            self._meta.put_field(ACCOUNTS, owner_field(database.id), owner.id)
        query = f"CREATE DATABASE {quote(name)} CHARSET={database.charset} COLLATE={database.collate}"
        self._finish(_JobSteps(DdlAction.CREATE_SCHEMA, query, database))
        return database

    def drop_database(self, name: str) -> None:
        """Remove a database with its tables."""
        database = self.schema.database(name)
        dropped = self.schema.tables[database.id].values()
        for table in dropped:
            self._end_jobs(table)
        self._meta.delete_database(database.id)
        self._meta.delete_field(ACCOUNTS, owner_field(database.id))
        change = _JobSteps(DdlAction.DROP_SCHEMA, f"DROP DATABASE {quote(database.name)}", database)
        self._finish(change, garbage=[one for table in dropped for one in ranges_of_table(table)])

    def create_table(self, database_name: str, definition: TableInfo) -> TableInfo:
        """Make a table from a definition; raise Invalid when the name is taken."""
        database = self.schema.database(database_name)
        self._check_free(database, definition.name)
        table = self._with_new_ids(definition)
        self._meta.put_table(database.id, table)
        self._finish(
            _JobSteps(DdlAction.CREATE_TABLE, statements.create_table(table), database, table, table.id)
        )
        return table

    def drop_table(self, name: str) -> None:
        """Remove a table, also one that cannot be read."""
        database, table = self.schema.place(name, unreadable=True)
        self._end_jobs(table)
        self._meta.delete_table(database.id, table)
        query = f"DROP TABLE {quote(database.name)}.{quote(table.name)}"
        change = _JobSteps(DdlAction.DROP_TABLE, query, database, table, table.id)
        self._finish(change, garbage=ranges_of_table(table))

    def truncate_table(self, name: str) -> TableInfo:
        """Empty a table: it continues under a new id."""
        database, old = self.schema.place(name)
        self._check_idle(old)
        extra = {name: member for name, member in old.extra.items() if name != "old_schema_id"}
        table = self._with_new_ids(replace(old, extra=extra))
        self._meta.delete_table(database.id, old)
        self._meta.put_table(database.id, table)
        query = f"TRUNCATE TABLE {quote(database.name)}.{quote(table.name)}"
        change = _JobSteps(DdlAction.TRUNCATE_TABLE, query, database, table, old.id, old_table_id=old.id)
        self._finish(change, diff_table_id=table.id, garbage=ranges_of_table(old))
        return table

    def rename_table(self, name: str, new_name: str) -> TableInfo:
        """Rename a table, maybe into another database."""
        source, old = self.schema.place(name)
        self._check_idle(old)
        database_name, table_name = split_name(new_name)
        check_name("table", table_name)
        target = self.schema.database(database_name)
        if (source.id, old.name.lower()) != (target.id, table_name.lower()):
            self._check_free(target, table_name)
        extra = dict(old.extra)
        if source.id != target.id:
            extra.setdefault("old_schema_id", source.id)  # the counter of row ids stays where it was
        table = replace(old, name=table_name, extra=extra)
        self._meta.delete_table(source.id, old, keep_counter=True)
        self._meta.put_table(target.id, table)
        old_name = f"{quote(source.name)}.{quote(old.name)}"
        query = f"RENAME TABLE {old_name} TO {quote(target.name)}.{quote(table.name)}"
        self._finish(
            _JobSteps(DdlAction.RENAME_TABLE, query, target, table, table.id, old_database_id=source.id)
        )
        return table

    def alter_table(self, action: DdlAction, place: TablePlace, changed: TableInfo, query: str) -> TableInfo:
        """Give a table other columns."""
        self._check_idle(place.table)
        table = replace(changed, update_ts=self.start_ts)
        self._meta.put_table(place.database.id, table)
        self._finish(_JobSteps(action, query, place.database, table, table.id))
        return table

    def start_job(
        self,
        action: DdlAction,
        place: TablePlace,
        changed: TableInfo,
        query: str,
        *,
        state: SchemaState,
        column_id: int = 0,
        index_ids: tuple[int, ...] = (),
    ) -> RunningJob:
        """Begin a change of several transactions by its first state, which `changed` has; return its job.

        A job of the same statement that still runs is returned instead: it continues.
        """
        for job in self.running.values():
            if (job.table_id, job.type, job.query) == (place.table.id, action, query) and not job.error:
                return job
        self._check_idle(place.table)
        job = RunningJob(
            id=self._meta.next_id(),
            type=action,
            database_id=place.database.id,
            table_id=place.table.id,
            query=query,
            start_ts=self.start_ts,
            state=state,
            column_id=column_id,
            index_ids=index_ids,
        )
        self.continue_job(job, place, changed)
        return job

    def place_of(self, job: RunningJob) -> TablePlace | None:
        """Return the table of a job; None when it is gone."""
        for database in self.schema.databases.values():
            for table in self.schema.tables[database.id].values():
                if table.id == job.table_id:
                    return TablePlace(database, table)
        return None

    def drop_job(self, job: RunningJob) -> None:
        """Forget a job whose table is gone."""
        self._meta.delete_running_job(job.id)

    def continue_job(self, job: RunningJob, place: TablePlace, changed: TableInfo) -> None:
        """Bring a job into its next state, which is one version of the schema."""
        self._meta.put_table(place.database.id, replace(changed, update_ts=self.start_ts))
        self._meta.put_running_job(job)
        version = self._meta.next_schema_version()
        self._meta.put_diff(SchemaDiff(version, job.type, place.database.id, job.table_id))

    def finish_job(
        self, job: RunningJob, place: TablePlace, changed: TableInfo, garbage: Iterable[KeyRange]
    ) -> DdlJob:
        """End a job, done or rolled back, and return it as the history has it."""
        table = replace(changed, update_ts=self.start_ts)
        self._meta.put_table(place.database.id, table)
        self._meta.delete_running_job(job.id)
        change = _JobSteps(job.type, job.query, place.database, table, job.table_id)
        return self._finish(change, garbage=garbage, running=job)

    def roll_back_job(self, job_id: int) -> None:
        """Send a job back; raise Invalid when it is finished or cannot go back."""
        job = self.running.get(job_id)
        if job is None:
            raise Invalid(f"DDL job {job_id} is not running; Catalog.unfinished_ddl() lists those that are")
        if job.type is DdlAction.DROP_INDEX:
            raise Invalid(f"DDL job {job_id} drops an index and cannot go back; finish it")
        if not job.error:
            self._meta.put_running_job(job.roll_back(f"DDL job {job_id} was cancelled"))

    def _check_idle(self, table: TableInfo) -> None:
        """Raise TableBusy while a job of ours changes the table, Unavailable while TiDB does."""
        for job in self.running.values():
            if job.table_id == table.id:
                raise TableBusy(table, job)
        states = {column.state for column in table.columns} | {index.state for index in table.indexes}
        if states - {SchemaState.PUBLIC}:
            raise Unavailable(f"TiDB is changing the schema of {table.name}; wait until it is finished")

    def _end_jobs(self, table: TableInfo) -> None:
        for job in self.running.values():
            if job.table_id == table.id:
                self._meta.delete_running_job(job.id)

    def _with_new_ids(self, table: TableInfo) -> TableInfo:
        made = replace(table, id=self._meta.next_id(), update_ts=self.start_ts)
        partition = made.extra.get("partition")
        if not partition or not partition.get("enable"):
            return made
        parts = [{**part, "id": self._meta.next_id()} for part in partition["definitions"]]
        return replace(made, extra={**made.extra, "partition": {**partition, "definitions": parts}})

    def _check_free(self, database: DatabaseInfo, name: str) -> None:
        if name.lower() in self.schema.tables[database.id]:
            raise Invalid(
                f"table {database.name}.{name} already exists; choose another name or drop it first"
            )

    def _finish(
        self,
        change: _JobSteps,
        *,
        diff_table_id: int | None = None,
        garbage: Iterable[KeyRange] = (),
        running: RunningJob | None = None,
    ) -> DdlJob:
        version = self._meta.next_schema_version()
        of_database = change.action in {DdlAction.CREATE_SCHEMA, DdlAction.DROP_SCHEMA}
        job = DdlJob(
            id=self._meta.next_id() if running is None else running.id,
            type=change.action,
            database_id=change.database.id,
            table_id=change.table_id,
            database_name=change.database.name,
            table_name=change.table.name if change.table else "",
            query=change.query,
            start_ts=self.start_ts if running is None else running.start_ts,
            schema_version=version,
            database=change.database if of_database else None,
            table=change.table,
            finished_ts=self.start_ts,
        )
        if running is not None:
            job = replace(job, extra={"row_count": running.rows})
        if running is not None and running.error:
            job = replace(job, state=ROLLED_BACK, extra={**job.extra, "err": {"message": running.error}})
        diff = SchemaDiff(
            version=version,
            type=change.action,
            database_id=change.database.id,
            table_id=change.table_id if diff_table_id is None else diff_table_id,
            old_table_id=change.old_table_id,
            old_database_id=change.old_database_id,
        )
        self._meta.put_job(job, diff)
        record_dropped(self._meta, job.id, garbage)
        return job
