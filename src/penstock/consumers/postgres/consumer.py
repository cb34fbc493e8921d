"""The consumer: rows and watermark in one transaction of PostgreSQL.

What goes wrong in PostgreSQL, said without a row's values, and split by what the caller does next.

The details of an error may quote rows, and so may the messages of errors about data: neither is shown, and
errors are not chained, because tracebacks are logged.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import Field, SecretStr

from penstock.changes.columns import choose_columns, key_names
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
from penstock.consumers.postgres.target_table import TargetTable
from penstock.consumers.schema_evolution import ColumnChange, SchemaEvolution, TargetColumn, evolved
from penstock.errors import Fenced, Invalid, PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext, iter_batches, read_net_changes
from penstock.tables.arrow import arrow_type
from penstock.tables.records import origin_cell
from penstock.tables.values import from_cell

_FATAL = re.compile(r"FATAL:\s+(.+)")
_CONNECTING = ("Connection refused", "timeout expired", "No such file or directory", "SSL", "certificate")
_COPY_COLUMN = re.compile(r"^COPY [^,]+, line \d+, column ([^:]+)", re.MULTILINE)
_DATA = "22"
_PERMANENT = frozenset({"0A", _DATA, "23", "2B", "3D", "3F", "42", "54", "P0"})
_QUIET = frozenset({_DATA, "P0"})  # their messages quote values, or say what a trigger's author likes


def connecting(error: psycopg.Error) -> PenstockError:
    """Why there is no connection; neither the connection string nor a password is shown."""
    text = str(error)
    fatal = _FATAL.search(text)
    why = fatal[1] if fatal else next((each for each in _CONNECTING if each in text), type(error).__name__)
    return Unavailable(f"PostgreSQL does not take the connection ({why}); check that it runs, and option dsn")


def failing(what: str, error: psycopg.Error) -> PenstockError:
    """Why a statement on a table failed."""
    state = error.sqlstate or ""
    reason = _reason(error, state)
    if state[:2] in _PERMANENT:
        return Invalid(f"{what} in PostgreSQL refuses the changes: {reason}")
    return Unavailable(f"{what} in PostgreSQL did not take the changes: {reason}; they are tried again")


def _reason(error: psycopg.Error, state: str) -> str:
    kind = type(error).__name__
    if state and state[:2] not in _QUIET and error.diag.message_primary:
        return error.diag.message_primary
    place = _COPY_COLUMN.search(error.diag.context or "")
    column = error.diag.column_name or (place and place[1])
    return f"{kind} in column {column}" if column else kind


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise ours instead of PostgreSQL's errors."""
    try:
        yield
    except psycopg.Error as error:
        raise failing(what, error) from None


_DEFAULTS = {"application_name": "penstock", "connect_timeout": "10"}
# A role's own limits are for queries; a first sync takes as long as it takes.
_PATIENT = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
_IDLE_MS = 60_000
"""After how long the server gives up a process that stands still and holds the target: others wait for it."""
_HEAD_BYTES = 40  # with what comes behind it, a name stays below 63
_LOCK_TRIES = 60
_LOCK_MS = 2_000
_LOCK_PAUSE_S = 0.5

Cursor = psycopg.Cursor[Any]
Batches = Iterator[pa.RecordBatch]


class PostgresOptions(ConsumerOptions):
    """Where the target is."""

    dsn: SecretStr
    """How to connect: postgresql://user@host/database, or host=… dbname=…; libpq's password file counts."""
    table: str | None = None
    """The target; without it, it is called as the source."""
    schema_name: str = Field("public", alias="schema")
    """Where the target is."""
    nul: Literal["refuse", "replace"] = "refuse"
    """The character U+0000 in texts, which PostgreSQL does not take: stop the job, or write U+FFFD."""


class Postgres(Consumer):
    """Keeps a table of PostgreSQL equal to its source. The table is made, and changed, as the source is.

    Readers see each iteration whole or not at all, the first one too; the target's own indexes, views and
    grants stay, unless an incompatible change of the source makes it necessary to rebuild it.
    """

    options_type = PostgresOptions

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        options = PostgresOptions.parse(job.info)
        self._conninfo = _conninfo(options.dsn)
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
        """See Consumer."""
        self._compared = None  # whoever asks where the target is compares it next
        with self._transaction() as cursor:
            self._seen_ts = self._marks.committed_ts(cursor)
        return self._seen_ts

    def check(self, schema: SchemaVersion) -> None:
        """See Consumer."""
        columns = choose_columns(schema.table, self.job.info.columns)
        target_columns(schema, columns, key_names(schema.table))

    def consume(self, data: DataRetriever) -> None:
        """See Consumer."""
        wanted = target_columns(data.schema, data.columns, data.keys)
        if data.data_type is DataType.SNAPSHOT:
            self._replace(data, wanted)
        else:
            self._follow(data, wanted)

    def _replace(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        """A first sync: everything in one transaction, so that nothing is left of one that failed."""
        with self._transaction() as cursor:
            mark = self._marks.claim(cursor, self._seen_ts)
        fits = mark.columns and _possible(mark, wanted) is not None
        rows = (batch.inserts for batch in iter_batches(data))
        with self._transaction() as cursor:
            if fits:
                self._merge(cursor, mark, data, wanted, rows)
            else:
                self._make(cursor, mark, data, wanted, rows)

    def _merge(
        self,
        cursor: Cursor,
        mark: PostgresWatermark,
        data: DataRetriever,
        wanted: Sequence[TargetColumn],
        rows: Batches,
    ) -> None:
        """Bring what is there to what should be: rows that are so already are not written."""
        self._table.stage_upserts(cursor, wanted, rows)
        evolution = _possible(self._marks.claimed(cursor, mark.attempt), wanted)
        if evolution is None:
            raise Unavailable(f"table {self._name} was changed meanwhile; the first sync begins again")
        self._marks.keep(cursor, data.to_ts, evolution.columns, data.schema.table.max_column_id)
        self._evolve(cursor, evolution, data.schema)
        self._table.delete_others(cursor, wanted)
        self._table.upsert(cursor, evolution.columns, changed=True)

    def _make(
        self,
        cursor: Cursor,
        mark: PostgresWatermark,
        data: DataRetriever,
        wanted: Sequence[TargetColumn],
        rows: Batches,
    ) -> None:
        """Make the table anew, and put it in the place of one that does not fit."""
        fresh = self._fresh()
        fresh.create(cursor, wanted)
        fresh.load(cursor, wanted, rows)
        fresh.add_key(cursor, wanted)
        self._marks.claimed(cursor, mark.attempt)
        self._marks.keep(cursor, data.to_ts, wanted, data.schema.table.max_column_id)
        if mark.columns:
            self._lock(cursor)
            self._table.drop(cursor)
        fresh.rename(cursor, self._target)

    def _fresh(self) -> TargetTable:
        """A table under a name of its own: an iteration that was given up may still hold that of another."""
        head = self._target.encode()[:_HEAD_BYTES].decode(errors="ignore")
        return TargetTable(self._schema, f"{head}_{self.job.clock.unique_id()[:12]}", nul=self._nul)

    def _lock(self, cursor: Cursor) -> None:
        """Wait for those who use the target; in between let those in who come, or nobody could read."""
        for _ in range(_LOCK_TRIES):
            cursor.execute(f"SAVEPOINT waiting; SET LOCAL lock_timeout = {_LOCK_MS}")
            try:
                self._table.lock(cursor)
            except psycopg.errors.LockNotAvailable:
                cursor.execute("ROLLBACK TO SAVEPOINT waiting")
                self.job.clock.pause(_LOCK_PAUSE_S)
            else:
                return
        raise Unavailable(f"table {self._name} is always in use; its columns could not be changed")

    def _follow(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        net = read_net_changes(data, self.job.scratch)
        seen_id = data.schema.table.max_column_id
        with self._transaction() as cursor:
            self._stage(cursor, wanted, net.upserts, net.deletes)
            mark = self._marks.advance(cursor, data.from_ts, data.to_ts)
            evolution = evolved(mark.columns, mark.seen_id, wanted, is_wider)
            self._evolve(cursor, evolution, data.schema)
            if (mark.columns, mark.seen_id) != (list(evolution.columns), seen_id):
                self._marks.keep(cursor, data.to_ts, evolution.columns, seen_id)
            self._apply(cursor, evolution.columns, net.upserts, net.deletes)

    def _stage(
        self, cursor: Cursor, columns: Sequence[TargetColumn], upserts: pa.Table, deletes: pa.Table
    ) -> None:
        """Bring the changes to the server; the target is not held meanwhile."""
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
        """See Comparable."""
        return compare.of_source(self._known_columns(), rows, nul=self._nul)

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """See Comparable."""
        with self._transaction("REPEATABLE READ READ ONLY", idle_ms=0) as cursor:
            if self._marks.committed_ts(cursor) != at_ts:
                raise Fenced(f"table {self._name} is not at {at_ts} any more")
            columns = self._compared = self._marks.columns(cursor)
            yield from compare.of_target(cursor, self._schema, self._target, columns)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """See Comparable."""
        with self._transaction() as cursor:
            columns = self._marks.advance(cursor, at_ts, at_ts).columns
            self._stage(cursor, [each for each in columns if not each.gone], upserts, deletes)
            self._apply(cursor, columns, upserts, deletes)

    def _known_columns(self) -> list[TargetColumn]:
        if self._compared is None:
            with self._transaction() as cursor:
                self._compared = self._marks.columns(cursor)
        return self._compared

    def close(self) -> None:
        """See Consumer."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _transaction(
        self, isolation: str = "READ COMMITTED", *, idle_ms: int | None = None
    ) -> Iterator[Cursor]:
        """A transaction: committed at the end, rolled back when something is raised."""
        patience = _PATIENT.format(idle_ms=_IDLE_MS if idle_ms is None else idle_ms)
        connection = self._connected()
        with told(f"table {self._name}"), connection.transaction(), connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}; {patience}")
            yield cursor

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
            except psycopg.Error as error:
                raise connecting(error) from None
        return self._connection


def _conninfo(dsn: SecretStr) -> str:
    try:
        given = conninfo_to_dict(dsn.get_secret_value())
    except psycopg.Error:
        raise Invalid(
            "option dsn of consumer postgres is no connection string;"
            " write postgresql://user@host/database or host=… dbname=…"
        ) from None
    return make_conninfo("", **{**_DEFAULTS, **given, "client_encoding": "utf8"})


def _possible(mark: PostgresWatermark, wanted: Sequence[TargetColumn]) -> SchemaEvolution | None:
    """How the target can get its columns; None where it has to be made anew: all of its rows come again."""
    try:
        return evolved(mark.columns, mark.seen_id, wanted, is_wider)
    except Invalid:
        return None


def _default(schema: SchemaVersion, name: str) -> pa.Array:
    """What a column that was added reads as in the rows from before."""
    column = schema.table.column(name)
    value = from_cell(column.type, origin_cell(column))
    kind = arrow_type(column.type)
    return pa.array([str(value) if value is not None and pa.types.is_string(kind) else value], kind)
