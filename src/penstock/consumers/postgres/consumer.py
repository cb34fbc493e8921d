"""The consumer: rows and watermark in one transaction of PostgreSQL.

Errors of PostgreSQL are translated to ours, split by what the caller does next, and without values of rows.
The details of an error may quote rows, and so may the messages of errors about data: neither is shown, and
errors are not chained, because tracebacks are logged.
"""

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Literal

import psycopg
import pyarrow as pa
from pydantic import Field, SecretStr

from penstock.changes.columns import own_columns, own_key_names
from penstock.consumers.options import ConsumerOptions
from penstock.consumers.postgres import compare
from penstock.consumers.postgres.columns import (
    NAME,
    PostgresWatermark,
    TargetWatermarks,
    check_name,
    is_wider,
    target_columns,
)
from penstock.consumers.postgres.dsn import (
    connection_string,
    read_dsn,
    tenant_connection_string,
    tenant_target,
)
from penstock.consumers.postgres.target_table import TargetTable
from penstock.consumers.schema_evolution import ColumnChange, SchemaEvolution, TargetColumn, plan_evolution
from penstock.errors import Fenced, Invalid, PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import (
    Consumer,
    DataRetriever,
    DataType,
    JobContext,
    iter_batches,
    read_net_changes,
)
from penstock.jobs.spec import ConsumerInfo
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.impossible_dates import hide_scalar
from penstock.targets import Target

# The limits of a role are made for queries; a first sync may take longer.
_PATIENT = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
_IDLE_MS = 60_000
"""How long a process may stand still inside a transaction before the server ends it: others wait for the
target."""
_HEAD_BYTES = 40  # of the target's name: with a suffix, the name of a new table stays below 63 bytes
_LOCK_TRIES = 60
_LOCK_MS = 2_000
_LOCK_PAUSE_S = 0.5

Cursor = psycopg.Cursor[Any]
Batches = Iterator[pa.RecordBatch]


class PostgresOptions(ConsumerOptions):
    """Where the target is, and how to connect."""

    dsn: SecretStr
    """How to connect: postgresql://user@host/database, or host=… dbname=…; libpq's password file is used.
    Tenants write the URL, with nothing but user, password, host, port, database and sslmode; their jobs use
    no file and no environment of the runner."""
    table: str | None = None
    """The target; by default it has the name of the source."""
    schema_name: str = Field("public", alias="schema")
    """The schema of the target."""
    nul: Literal["refuse", "replace"] = "refuse"
    """The character U+0000 in texts, which PostgreSQL does not accept: stop the job, or write U+FFFD."""


class Postgres(Consumer):
    """Keeps a table of PostgreSQL equal to its source; creates it, and changes it as the source changes.

    Readers see each iteration whole or not at all, including the first. The target's own indexes, views and
    grants stay, unless an incompatible change of the source makes a rebuild necessary.
    """

    options_type = PostgresOptions
    patience: ClassVar[int] = 4  # one statement writes all rows of a first sync

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...]:
        """Return the server and the database."""
        return (tenant_target(PostgresOptions.parse(info).dsn),)

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        options = PostgresOptions.parse(job.info)
        self._dsn = options.dsn
        self._server = None if job.tenant is None else tenant_target(options.dsn)
        read_dsn(options.dsn)
        self._schema, self._target = options.schema_name, options.table or job.id.table
        check_name("schema", self._schema)
        check_name("table", self._target)
        if self._target == NAME:
            raise Invalid(f"table {NAME} is where watermarks are kept; choose another with option table")
        self._name = f"{self._schema}.{self._target}"
        self._nul = options.nul
        self._table = TargetTable(self._schema, self._target, nul=options.nul)
        self._marks = TargetWatermarks(self._schema, self._target, job)
        self._connection: psycopg.Connection[Any] | None = None
        self._compared: list[TargetColumn] | None = None
        self._seen_ts: int | None = None

    def committed_ts(self) -> int:
        """Return the watermark of this job's row, 0 if there is none or no target."""
        self._compared = None  # a comparison begins with this call
        with self._transaction() as cursor:
            self._seen_ts = self._marks.committed_ts(cursor)
        return self._seen_ts

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when PostgreSQL cannot have such a table."""
        columns = own_columns(schema.table, self.job.info.columns)
        target_columns(schema, columns, own_key_names(schema.table))

    def consume(self, data: DataRetriever) -> None:
        """Apply all changes and the watermark in one transaction."""
        wanted = target_columns(data.schema, data.columns, data.keys)
        if data.data_type is DataType.SNAPSHOT:
            self._replace(data, wanted)
        else:
            self._follow(data, wanted)

    def _replace(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        """Do a first sync in one transaction, so that nothing is left of one that failed."""
        with self._transaction() as cursor:
            mark = self._marks.claim(cursor, self._seen_ts)
        fits = mark.columns and _plan_if_possible(mark, wanted) is not None
        rows = (batch.inserts for batch in iter_batches(data))
        with self._transaction() as cursor:
            if fits:
                self._merge(cursor, mark, data, wanted, rows)
            else:
                self._create(cursor, mark, data, wanted, rows)

    def _merge(
        self,
        cursor: Cursor,
        mark: PostgresWatermark,
        data: DataRetriever,
        wanted: Sequence[TargetColumn],
        rows: Batches,
    ) -> None:
        """Change an existing table to what it should be; rows that are equal already are not written."""
        self._table.stage_upserts(cursor, wanted, rows)
        evolution = _plan_if_possible(self._marks.check_claim(cursor, mark.attempt), wanted)
        if evolution is None:
            raise Unavailable(f"table {self._name} was changed in the meantime; the first sync begins again")
        self._marks.put(cursor, data.to_ts, evolution.columns, data.schema.table.settled_column_id)
        self._evolve(cursor, evolution, data.schema)
        self._table.delete_others(cursor, wanted)
        self._table.upsert(cursor, evolution.columns, changed=True)

    def _create(
        self,
        cursor: Cursor,
        mark: PostgresWatermark,
        data: DataRetriever,
        wanted: Sequence[TargetColumn],
        rows: Batches,
    ) -> None:
        """Create a table, and put it in the place of one that does not fit."""
        fresh = self._new_table()
        fresh.create(cursor, wanted)
        fresh.load(cursor, wanted, rows)
        fresh.add_key(cursor, wanted)
        self._marks.check_claim(cursor, mark.attempt)
        self._marks.put(cursor, data.to_ts, wanted, data.schema.table.settled_column_id)
        if mark.columns:
            self._lock(cursor)
            self._table.drop(cursor)
        fresh.rename(cursor, self._target)

    def _new_table(self) -> TargetTable:
        """Return a table with a unique name: an abandoned iteration may still hold the name of another."""
        head = self._target.encode()[:_HEAD_BYTES].decode(errors="ignore")
        return TargetTable(self._schema, f"{head}_{self.job.clock.unique_id()[:12]}", nul=self._nul)

    def _lock(self, cursor: Cursor) -> None:
        """Wait for the users of the target; between tries let new ones in, so that it can still be read."""
        for _ in range(_LOCK_TRIES):
            cursor.execute(f"SAVEPOINT waiting; SET LOCAL lock_timeout = {_LOCK_MS}")
            try:
                self._table.lock(cursor)
            except psycopg.errors.LockNotAvailable:
                cursor.execute("ROLLBACK TO SAVEPOINT waiting")
                self.job.clock.pause(_LOCK_PAUSE_S)
            else:
                return
        raise Unavailable(f"table {self._name} is always in use; changing its columns is retried")

    def _follow(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        net = read_net_changes(data, self.job.scratch)
        seen_id = data.schema.table.settled_column_id
        with self._transaction() as cursor:
            self._stage(cursor, wanted, net.upserts, net.deletes)
            mark = self._marks.advance(cursor, data.from_ts, data.to_ts)
            evolution = plan_evolution(mark.columns, mark.seen_id, wanted, is_wider)
            self._evolve(cursor, evolution, data.schema)
            if (mark.columns, mark.seen_id) != (list(evolution.columns), seen_id):
                self._marks.put(cursor, data.to_ts, evolution.columns, seen_id)
            self._apply(cursor, evolution.columns, net.upserts, net.deletes)

    def _stage(
        self, cursor: Cursor, columns: Sequence[TargetColumn], upserts: pa.Table, deletes: pa.Table
    ) -> None:
        """Copy the changes to the server; the target is not locked meanwhile."""
        if deletes.num_rows:
            self._table.stage_deletes(cursor, columns, deletes.to_batches())
        if upserts.num_rows:
            self._table.stage_upserts(cursor, columns, upserts.to_batches())

    def _apply(
        self, cursor: Cursor, columns: Sequence[TargetColumn], upserts: pa.Table, deletes: pa.Table
    ) -> None:
        if deletes.num_rows:
            self._table.delete(cursor, columns)
        if upserts.num_rows:
            self._table.upsert(cursor, columns, changed=False)

    def _evolve(self, cursor: Cursor, evolution: SchemaEvolution, schema: SchemaVersion) -> None:
        if evolution.alterations:
            self._lock(cursor)
        for change in evolution.alterations:
            self._table.alter(
                cursor,
                change,
                _default(schema, change.column.name) if change.act is ColumnChange.ADD else None,
            )

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the form that is compared; raise Invalid when the job has other columns."""
        return compare.render_source(self._read_columns(), rows, nul=self._nul)

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the target in the same form; raise Fenced when it is not at `at_ts`."""
        with self._transaction("REPEATABLE READ READ ONLY", idle_ms=0) as cursor:
            if self._marks.committed_ts(cursor) != at_ts:
                raise Fenced(f"table {self._name} is not at {at_ts} any more")
            columns = self._compared = self._marks.columns(cursor)
            yield from compare.read_target(cursor, self._schema, self._target, columns)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """Put rows in and delete keys in one transaction; raise Fenced when the target is not at `at_ts`."""
        with self._transaction() as cursor:
            columns = self._marks.advance(cursor, at_ts, at_ts).columns
            self._stage(cursor, [column for column in columns if not column.gone], upserts, deletes)
            self._apply(cursor, columns, upserts, deletes)

    def _read_columns(self) -> list[TargetColumn]:
        if self._compared is None:
            with self._transaction() as cursor:
                self._compared = self._marks.columns(cursor)
        return self._compared

    def interrupt(self) -> None:
        """Break the connection: a server that does not answer is not waited for."""
        connection = self._connection
        with suppress(psycopg.Error, OSError):  # it is closed, or not made yet
            if connection is not None:
                with socket.socket(fileno=os.dup(connection.fileno())) as broken:
                    broken.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _transaction(
        self, isolation: str = "READ COMMITTED", *, idle_ms: int | None = None
    ) -> Iterator[Cursor]:
        """Run a transaction: commit at the end, roll back when something is raised."""
        patience = _PATIENT.format(idle_ms=_IDLE_MS if idle_ms is None else idle_ms)
        connection = self._connect()
        with translate_errors(f"table {self._name}"), connection.transaction(), connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}; {patience}")
            yield cursor

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            failure: psycopg.Error | None = None
            for conninfo in self._connection_strings():
                try:
                    self._connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
                except psycopg.Error as error:
                    failure = error
                else:
                    return self._connection
            assert failure is not None, "there is a connection string"
            raise connection_error(failure) from None
        return self._connection

    def _connection_strings(self) -> list[str]:
        """Return how to connect, one after the other; for tenants, to addresses that were just checked."""
        if self.job.tenant is None or self._server is None:
            return [connection_string(read_dsn(self._dsn))]
        addresses = self.job.tenant.resolve(self._server)
        return [tenant_connection_string(self._dsn, self._server, address) for address in addresses]


def _plan_if_possible(mark: PostgresWatermark, wanted: Sequence[TargetColumn]) -> SchemaEvolution | None:
    """Plan how the target gets its columns; return None if it has to be created again with all rows."""
    try:
        return plan_evolution(mark.columns, mark.seen_id, wanted, is_wider)
    except Invalid:
        return None


def _default(schema: SchemaVersion, name: str) -> pa.Array:
    """Return the value of an added column in older rows; a date that no calendar has is NULL, as in rows."""
    return pa.repeat(hide_scalar(origin_scalar(schema.table.column(name))), 1)


_FATAL = re.compile(r"FATAL:\s+(.+)")
_CONNECTING = ("Connection refused", "timeout expired", "No such file or directory", "SSL", "certificate")
_COPY_COLUMN = re.compile(r"^COPY [^,]+, line \d+, column ([^:]+)", re.MULTILINE)
_DATA = "22"
_PERMANENT = frozenset({"0A", _DATA, "23", "2B", "3D", "3F", "42", "54", "P0"})
_QUIET = frozenset({_DATA, "P0"})  # their messages quote values, or whatever a trigger raises


def connection_error(error: psycopg.Error) -> PenstockError:
    """Return the error for a failed connection; it shows neither the connection string nor a password."""
    text = str(error)
    fatal = _FATAL.search(text)
    why = fatal[1] if fatal else next((known for known in _CONNECTING if known in text), type(error).__name__)
    return Unavailable(
        f"PostgreSQL does not accept the connection ({why}); check that it runs, and option dsn"
    )


def statement_error(what: str, error: psycopg.Error) -> PenstockError:
    """Return the error for a statement on a table that failed."""
    state = error.sqlstate or ""
    reason = _reason(error, state)
    if state[:2] in _PERMANENT:
        return Invalid(f"{what} in PostgreSQL refuses the changes: {reason}")
    return Unavailable(f"{what} in PostgreSQL did not accept the changes: {reason}; they are retried")


def _reason(error: psycopg.Error, state: str) -> str:
    kind = type(error).__name__
    if state and state[:2] not in _QUIET and error.diag.message_primary:
        return error.diag.message_primary
    place = _COPY_COLUMN.search(error.diag.context or "")
    column = error.diag.column_name or (place and place[1])
    return f"{kind} in column {column}" if column else kind


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise our errors instead of PostgreSQL's."""
    try:
        yield
    except psycopg.Error as error:
        raise statement_error(what, error) from None
