"""The rows of one table: insert, update, delete, get, scan, find."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import Invalid, KeyExists, Unavailable
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables.auto_ids import AutoIds
from penstock.tables.decoding.decoder import decode_rows, int_handles
from penstock.tables.guard import Guards
from penstock.tables.impossible_dates import hide_and_log
from penstock.tables.keys import decode_index_prefix, is_record_key
from penstock.tables.records import row_of
from penstock.tables.row_reader import RowReader
from penstock.tables.row_writer import RowWriter
from penstock.tables.schema import ROWID_COLUMN, HandleKind, TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot, TablePlace
from penstock.tables.temp_index import index_id_of


class DuplicateRow(KeyExists):
    """A row with the same primary key, or the same values in a unique index, already exists."""

    def __init__(self, name: str, table: TableInfo, key: bytes) -> None:
        super().__init__(key)
        self.args = (
            f"{name} has a row with the same {_what(table, key)} already; update or upsert it instead",
        )


def _what(table: TableInfo, key: bytes) -> str:
    if is_record_key(key):
        return "primary key"
    _, number = decode_index_prefix(key)
    index = next((index for index in table.indexes if index.id == index_id_of(number)), None)
    if index is None:
        return "unique values"
    return "primary key" if index.primary else f"values in unique index {index.name}"


T = TypeVar("T")
Row = Mapping[str, Any]


class ArrowRows(Protocol):
    """Rows that give themselves as Arrow columns: tables of Arrow, frames of pandas."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a stream of Arrow's C interface."""


RowsIn: TypeAlias = "Iterable[Row] | ArrowRows"
"""Rows to write: mappings of column names to values, or columns of Arrow or pandas."""


BATCH_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class TableServices:
    """The parts that the tables of one catalog share."""

    client: Client
    schema: Callable[[int | None], SchemaSnapshot]
    known: Callable[[str], TablePlace | None]
    guards: Guards
    row_ids: AutoIds
    clock: Clock


class Table:
    """The rows of a table, found by its name at each call: the next call sees a schema change.

    Every method takes a transaction as `txn`; its writes become visible when it commits. Without one a method
    runs its own transaction, again on conflicts: the writes of a call are atomic, and reads see one moment,
    `at_ts` or now. Rows are dicts, Arrow tables or pandas frames; all rows of a call are encoded together.
    """

    def __init__(self, name: str, services: TableServices) -> None:
        self.name = name
        self._services = services

    @property
    def info(self) -> TableInfo:
        """The current schema."""
        return self._place(None).table

    def insert(self, rows: RowsIn, *, txn: Transaction | None = None) -> list[Any]:
        """Add rows; return their primary keys, or their row ids when the table has no primary key.

        Raise DuplicateRow when a key is taken. In a transaction of the caller, its commit raises KeyExists.
        """
        new = _rows_in(rows)
        return self._write(txn, lambda store: store.insert(new), remembered=True)

    def upsert(self, rows: RowsIn, *, txn: Transaction | None = None) -> list[Any]:
        """Add rows or replace those with the same primary key; return the primary keys."""
        new = _rows_in(rows)
        return self._write(txn, lambda store: store.upsert(new), remembered=True)

    def update(self, rows: RowsIn, *, txn: Transaction | None = None) -> int:
        """Change rows, given as their primary keys with the changed columns; return how many rows exist."""
        changes = _to_list(rows)
        return self._write(txn, lambda store: store.update(changes))

    def delete(self, keys: "Iterable[Any] | RowsIn", *, txn: Transaction | None = None) -> int:
        """Remove the rows of these primary keys; return how many rows existed.

        A key is a value, a tuple, or a row that has the columns of the key.
        """
        listed = _to_list(keys)
        return self._write(txn, lambda store: store.delete(listed))

    def get(
        self, key: Any, *, txn: Transaction | None = None, at_ts: int | None = None
    ) -> dict[str, Any] | None:
        """Return the row of a primary key (a tuple if it has several columns), or None."""
        store = self._reader(txn, at_ts)
        record = store.read(store.refs([key])).get(0)
        return None if record is None else row_of(store.table, record)

    def find(
        self, index: str, *values: Any, txn: Transaction | None = None, at_ts: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows whose first indexed columns have these values, in the order of the index."""
        store = self._reader(txn, at_ts)
        return [row_of(store.table, record) for record in store.find(store.table.index(index), values)]

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Any = None,
        end: Any = None,
        limit: int | None = None,
        row_ids: bool = False,
        batch_rows: int = BATCH_ROWS,
        txn: Transaction | None = None,
        at_ts: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows in key order, as Arrow batches; of a partitioned table, partition by partition.

        `start` (inclusive) and `end` (exclusive) bound the primary key of a clustered table, or the row id; a
        tuple may have only the first columns. `row_ids` adds the implicit row id as a column.
        """
        store = self._reader(txn, at_ts)
        if row_ids and store.table.handle_kind is not HandleKind.ROWID:
            raise Invalid(f"rows of {self.name} have no implicit ids; their primary key identifies them")
        names = None if columns is None else [store.table.column(name).name for name in columns]
        return _batches(store, (start, end), limit, batch_rows, names, row_ids=row_ids)

    def to_arrow(self, **options: Any) -> pa.Table:
        """Return everything that `scan` with these options yields, as one Arrow table."""
        batches = list(self.scan(**options))
        return pa.Table.from_batches(batches)

    def _place(self, at_ts: int | None) -> TablePlace:
        return self._services.schema(at_ts).place(self.name)

    def _reader(self, txn: Transaction | None, at_ts: int | None) -> RowReader:
        if txn is not None and at_ts is not None:
            raise Invalid("a transaction reads at its own timestamp; pass txn or at_ts, not both")
        if txn is not None:
            return RowReader(self._place(txn.start_ts), txn)
        ts = self._services.client.timestamp() if at_ts is None else at_ts
        return RowReader(self._place(ts), self._services.client.snapshot(ts))

    def _write(
        self, txn: Transaction | None, write: Callable[[RowWriter], T], *, remembered: bool = False
    ) -> T:
        """Write rows. One that surely changes rows may use the remembered schema, which its commit checks."""
        if txn is not None:
            with txn.savepoint():
                return write(self._writer(txn))

        services = self._services
        trusted = remembered

        def work(own: Transaction) -> T:
            nonlocal trusted
            place = services.known(self.name) if trusted else None
            trusted = False  # a second try is under the schema of its start
            if place is not None:
                try:
                    with own.savepoint():
                        services.guards.uses(own, place, remembered=True)
                        return write(RowWriter(place, own, services.row_ids))
                except (Invalid, Unavailable):
                    pass  # perhaps because of the schema, which may have changed
            return write(self._writer(own))

        def begin() -> Transaction:
            return services.guards.begin(commits_soon=True)

        try:
            return transact(begin, work, clock=services.clock)
        except KeyExists as error:
            raise DuplicateRow(self.name, self.info, error.key) from error

    def schema_in(self, txn: Transaction) -> TableInfo:
        """Return the schema to write rows under in a transaction, for callers that encode rows themselves.

        The commit raises Conflict when such rows would be incomplete by then: with the table gone, or with
        other columns or indexes. Raise Invalid or Unavailable when Penstock cannot write the table now.
        """
        return self._writer(txn).table

    def _writer(self, txn: Transaction) -> RowWriter:
        place = self._place(txn.start_ts)
        self._services.guards.uses(txn, place)
        return RowWriter(place, txn, self._services.row_ids)


def _rows_in(rows: Any) -> "list[Row] | pa.Table | pa.RecordBatch":
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    # A caller that passes a frame has imported pandas; another thread may be in the middle of doing so.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame is not None and isinstance(rows, frame):
        return pa.Table.from_pandas(rows, preserve_index=False)
    return pa.table(rows) if hasattr(rows, "__arrow_c_stream__") else list(rows)


def _to_list(rows: Any) -> list[Any]:
    taken = _rows_in(rows)
    return taken if isinstance(taken, list) else taken.to_pylist()


def _batches(
    reader: RowReader,
    bounds: tuple[Any, Any],
    limit: int | None,
    batch_rows: int,
    columns: list[str] | None,
    *,
    row_ids: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches, at least one batch, so that an empty result has a schema too."""
    pairs = reader.records(*bounds, limit)
    page = list(islice(pairs, batch_rows))
    while True:
        yield _batch(reader.table, page, columns, row_ids=row_ids)
        page = list(islice(pairs, batch_rows))
        if not page:
            return


def _batch(
    table: TableInfo, page: list[tuple[bytes, bytes]], columns: list[str] | None, *, row_ids: bool
) -> pa.RecordBatch:
    keys = pa.array([key for key, _ in page], pa.binary())
    decoded = decode_rows(table, keys, pa.array([value for _, value in page], pa.binary()))
    rows = hide_and_log(table.name, decoded)
    batch = rows.rename_columns([column.name for column in table.stored_columns])
    if columns is not None:
        batch = batch.select(columns)
    return batch.append_column(ROWID_COLUMN, int_handles(keys)) if row_ids else batch
