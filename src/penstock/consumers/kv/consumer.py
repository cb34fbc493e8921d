"""The consumer: rows, the target's mark and the job's watermark in one transaction of the key-value store."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from penstock.changes.columns import own_columns, own_key_names
from penstock.consumers.kv.target import (
    KvWatermark,
    KvWatermarks,
    TargetSchema,
    definition,
    target_columns,
    to_source,
    to_target,
)
from penstock.consumers.options import ConsumerOptions
from penstock.consumers.schema_evolution import REBUILD, TargetColumn
from penstock.errors import Fenced, Invalid
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
from penstock.kv import Client, Transaction
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.transact import transact
from penstock.tables import Catalog, Table
from penstock.tables.arrow import arrow_field
from penstock.tables.columns import PACKED_TIMES
from penstock.tables.encoding import encode_batch
from penstock.tables.impossible_dates import find, hide
from penstock.tables.keys import record_key, record_range
from penstock.tables.online import WriteForm
from penstock.tables.records import check_datum, handle_of, to_record, value_of
from penstock.tables.schema import HandleKind, TableInfo
from penstock.tables.schema_snapshot import split_name
from penstock.tables.system_tables import PENSTOCK_DATABASE
from penstock.tables.text_values import texts
from penstock.targets import Target

_lock = threading.Lock()
_catalogs: dict[ClusterRef, tuple[Client, Catalog]] = {}


class KvOptions(ConsumerOptions):
    """The table that is the target."""

    table: str
    """The target, as database.table."""
    create: bool = True
    """Whether the job creates and changes the target; if not, it must exist, and all its rows are deleted."""


class KvTable(Consumer):
    """Keeps a table of the key-value store equal to another one.

    A tail is one transaction. A first sync is many: the existing rows are deleted first, and readers see the
    target grow. The target belongs to the job's own account.
    """

    options_type = KvOptions
    patience: ClassVar[int] = 4  # a tail is one transaction, and a first sync deletes all rows at first

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...]:
        """Return nothing: the target is in the cluster, and `TargetSchema` checks whose it is."""
        del info
        return ()

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        options = KvOptions.parse(job.info)
        self._name = options.table
        self._create = options.create
        database, self._table = split_name(options.table)
        if self._name.lower() == job.id.table_name.lower():
            raise Invalid(f"table {self._name} is the source itself; choose another with option table")
        if database.lower() == PENSTOCK_DATABASE:
            raise Invalid(f"database {PENSTOCK_DATABASE} is Penstock's own; choose another with option table")
        self._marks = KvWatermarks(
            self._name,
            owner=job.owner,
            job=str(job.id),
            check_account=lambda at_ts: self._schema().check_account(at_ts),
        )
        self._compared: KvWatermark | None = None
        self._seen_ts: int | None = None

    def committed_ts(self) -> int:
        """Return the watermark of this job's mark, 0 if the target has none."""
        mark, _ = self._schema().read_mark()
        self._compared = mark  # a comparison begins with this call
        self._seen_ts = 0 if mark is None else mark.ts
        return self._seen_ts

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when the key-value store cannot have such a table."""
        columns = own_columns(schema.table, self.job.info.columns)
        definition(self._table, target_columns(schema, columns, own_key_names(schema.table)))

    def consume(self, data: DataRetriever) -> None:
        """Apply all changes: a tail in one transaction with the watermark, a snapshot in many."""
        wanted = target_columns(data.schema, data.columns, data.keys)
        if data.data_type is DataType.SNAPSHOT:
            self._replace(data, wanted)
        else:
            self._follow(data, wanted)

    def _follow(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        net = read_net_changes(data, self.job.scratch)
        schema = self._schema()
        mark, _ = schema.read_mark()
        if mark is None or mark.ts != data.from_ts:
            raise Fenced(f"table {self._name} is not at {data.from_ts} any more")
        columns = schema.evolve(
            mark, wanted, data.schema, lambda txn: self._marks.check_at(txn, data.from_ts)
        )
        rows = TargetRows(self._catalog, self._name)
        with self._catalog.begin() as txn:
            mark = self._marks.check_at(txn, data.from_ts)
            rows.begin(txn)
            # Deletes come first: keys that differ in trailing spaces may be equal in an older table.
            rows.delete(txn, to_target(net.deletes.select(list(data.keys)), columns))
            rows.put(txn, columns, to_target(net.upserts, columns))
            self._finish(txn, mark, data, columns)

    def _replace(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        schema = self._schema()
        mark = schema.claim(wanted, self._seen_ts)
        attempt = mark.attempt
        columns = schema.evolve(mark, wanted, data.schema, lambda txn: self._marks.check_claim(txn, attempt))
        rows = TargetRows(self._catalog, self._name)

        def write(work: Callable[[Transaction], None]) -> None:
            def claim_and_work(txn: Transaction) -> None:
                self._marks.check_claim(txn, attempt)
                rows.begin(txn)
                work(txn)

            transact(self._catalog.begin, claim_and_work, clock=self.job.clock)

        for page in rows.pages(self._client):
            write(partial(rows.remove, page=page))
        for batch in iter_batches(data):
            for part in split_for_transactions(batch.inserts):
                write(partial(rows.put, columns=columns, rows=to_target(part, columns)))
        with self._catalog.begin() as txn:
            self._finish(txn, self._marks.check_claim(txn, attempt), data, columns)

    def _finish(
        self, txn: Transaction, mark: KvWatermark, data: DataRetriever, columns: Sequence[TargetColumn]
    ) -> None:
        seen_id = data.schema.table.settled_column_id
        self._marks.put(txn, replace(mark, ts=data.to_ts, columns=tuple(columns), seen_id=seen_id))
        data.update_watermark(txn)

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the columns of the target; raise Invalid when the job has other columns.

        Dates that no calendar has are NULL, as in `present`.
        """
        if self._compared is None:
            self._compared, _ = self._schema().read_mark()
        columns = () if self._compared is None else self._compared.columns
        names = _compared_names(columns)
        shown, _ = hide(rows)
        given = to_target(shown, columns) if columns else shown
        if set(names) != set(given.schema.names):
            raise Invalid(f"table {self._name} has other columns than its job selects now; {REBUILD}")
        return to_source(given.select(names), columns)

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the target at `at_ts`; raise Fenced when it is not there any more."""
        mark, ts = self._schema().read_mark()
        if mark is None or mark.ts != at_ts:
            raise Fenced(f"table {self._name} is not at {at_ts} any more")
        self._compared = mark
        for batch in TargetRows(self._catalog, self._name).scan(_compared_names(mark.columns), ts):
            yield to_source(batch, mark.columns)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """Put rows in and delete keys in one transaction; raise Fenced when the target is not at `at_ts`."""
        rows = TargetRows(self._catalog, self._name)
        with self._catalog.begin() as txn:
            mark = self._marks.check_at(txn, at_ts)
            rows.begin(txn)
            rows.delete(txn, to_target(deletes, mark.columns))
            rows.put(txn, mark.columns, to_target(upserts, mark.columns))
            self._marks.put(txn, mark)

    def _schema(self) -> TargetSchema:
        return TargetSchema(
            self.job, self._name, self._marks, self._client, self._catalog, create=self._create
        )

    @property
    def _client(self) -> Client:
        return ClusterRef.of(self.job.settings).client()

    @property
    def _catalog(self) -> Catalog:
        """The catalog of the cluster, which caches schemas; one for each cluster."""
        cluster, client = ClusterRef.of(self.job.settings), self._client
        with _lock:
            known = _catalogs.get(cluster)
            if known is None or known[0] is not client:
                known = _catalogs[cluster] = (client, Catalog(client))
            return known[1]


def _compared_names(columns: Sequence[TargetColumn]) -> list[str]:
    """Return the columns that are compared, the key's first."""
    current = [column for column in columns if not column.gone]
    return [column.name for column in sorted(current, key=lambda column: not column.key)]


PAGE_ROWS = 4096
_PAGE_BYTES = 4 << 20


class TargetRows:
    """The rows of one table, in the schema that it has now.

    Rows of a table without further indexes are written without being read; others through `Table`.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._rows: Table = catalog.table(name)
        self._use(self._rows.info)

    def _use(self, info: TableInfo) -> None:
        self.info = info
        self._plain = info.handle_kind is not HandleKind.ROWID and WriteForm(info).is_plain

    def begin(self, txn: Transaction) -> None:
        """Let a transaction commit only if its rows fit the table by then; raise Invalid for other tables."""
        self._use(self._rows.schema_in(txn))

    def put(self, txn: Transaction, columns: Sequence[TargetColumn], rows: pa.Table | pa.RecordBatch) -> None:
        """Write rows, and replace those with the same key. Columns gone at the source become NULL."""
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            self._put(txn, _spell_dates(self._add_gone(columns, batch), self.info))

    def _add_gone(self, columns: Sequence[TargetColumn], batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with NULLs in the columns that are gone at the source."""
        given = [column.name for column in columns if not column.gone]
        gone = [arrow_field(self.info.column(column.name)) for column in columns if column.gone]
        values = [
            *(batch.column(name) for name in given),
            *(pa.nulls(batch.num_rows, field.type) for field in gone),
        ]
        return pa.RecordBatch.from_arrays(values, [*given, *(field.name for field in gone)])

    def _put(self, txn: Transaction, batch: pa.RecordBatch) -> None:
        if not self._plain:
            self._rows.upsert(batch, txn=txn)
        elif self.info.handle_kind is HandleKind.INT:
            encoded = encode_batch(self.info, batch, start_ts=txn.start_ts)
            for key, value in zip(encoded.keys, encoded.values, strict=True):
                txn.put(key, value)
        else:
            for row in batch.to_pylist():
                record = to_record(self.info, row, start_ts=txn.start_ts)
                txn.put(record_key(self.info.id, handle_of(self.info, record)), value_of(self.info, record))

    def delete(self, txn: Transaction, keys: pa.Table | pa.RecordBatch) -> None:
        """Delete rows, given by the columns of their keys."""
        batches = keys.to_batches() if isinstance(keys, pa.Table) else [keys]
        rows = [row for batch in batches for row in _spell_dates(batch, self.info).to_pylist()]
        if not self._plain:
            self._rows.delete(rows, txn=txn)
            return
        for row in rows:
            record = {column.id: check_datum(column, row[column.name]) for column in self.info.primary_key}
            txn.delete(record_key(self.info.id, handle_of(self.info, record)))

    def pages(self, client: Client) -> Iterator[list[bytes] | pa.RecordBatch]:
        """Yield the existing rows for `remove`, a page at a time."""
        ts = client.timestamp()
        if not self._plain:
            keys = [column.name for column in self.info.primary_key]
            yield from self._rows.scan(columns=keys, batch_rows=PAGE_ROWS, at_ts=ts)
            return
        for page in client.snapshot(ts).scan_pages(*record_range(self.info.id), key_only=True):
            found = [key for key, _ in page]
            yield from (found[start : start + PAGE_ROWS] for start in range(0, len(found), PAGE_ROWS))

    def remove(self, txn: Transaction, page: list[bytes] | pa.RecordBatch) -> None:
        """Delete a page of `pages`."""
        if isinstance(page, pa.RecordBatch):
            self._rows.delete(page.to_pylist(), txn=txn)
            return
        for key in page:
            txn.delete(key)

    def scan(self, columns: Sequence[str], at_ts: int) -> Iterator[pa.RecordBatch]:
        """Return the rows as of a timestamp."""
        return self._rows.scan(columns=columns, at_ts=at_ts)


def _spell_dates(rows: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Return rows with texts in columns with dates that no calendar has: so a table takes them."""
    for place, field in enumerate(rows.schema):
        kind = table.column(field.name).type
        if kind.tp in PACKED_TIMES and find(rows.column(place)) is not None:
            rows = rows.set_column(place, field.name, texts(kind, rows.column(place)))
    return rows


def split_for_transactions(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into parts, each of a size for one transaction."""
    step = max(1, min(PAGE_ROWS, batch.num_rows * _PAGE_BYTES // max(1, batch.nbytes)))
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))
