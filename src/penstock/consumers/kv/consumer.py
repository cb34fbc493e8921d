"""The consumer: rows, the target's mark and the job's watermark in one transaction of the key-value store."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.changes.columns import chosen_columns, key_names
from penstock.consumers.kv.columns import definition, target_columns, to_source, to_target
from penstock.consumers.kv.marks import KvWatermark, KvWatermarks
from penstock.consumers.kv.rows import TargetRows, slices
from penstock.consumers.kv.target import TargetSchema
from penstock.consumers.options import ConsumerOptions
from penstock.consumers.schema_evolution import REBUILD, TargetColumn
from penstock.errors import Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext, every, gather
from penstock.jobs.log.job_rows import DATABASE
from penstock.kv import Client, Transaction
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.transact import retried
from penstock.tables import Catalog
from penstock.tables.schema_snapshot import split_name

_lock = threading.Lock()
_catalogs: dict[ClusterRef, tuple[Client, Catalog]] = {}


class KvOptions(ConsumerOptions):
    """Which table the target is."""

    table: str
    """The target, as database.table."""
    create: bool = True
    """Whether the target is made, and changed as the source is. Else it is there, and all of its rows go."""


class KvTable(Consumer):
    """Keeps a table of the key-value store equal to another one.

    A tail is one transaction. A first sync is many: the rows that are there go first, and readers see the
    target grow. The target is of the job's own account.
    """

    options_type = KvOptions

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        options = KvOptions.parse(job.info)
        self._name = options.table
        self._create = options.create
        database, self._table = split_name(options.table)
        if self._name.lower() == job.id.table_name.lower():
            raise Invalid(f"table {self._name} is the source itself; choose another with option table")
        if database.lower() == DATABASE:
            raise Invalid(f"database {DATABASE} is Penstock's own; choose another with option table")
        self._marks = KvWatermarks(self._name, owner=job.owner, job=str(job.id))
        self._compared: KvWatermark | None = None
        self._seen_ts: int | None = None

    def committed_ts(self) -> int:
        """See Consumer."""
        mark, _ = self._schema().seen()
        self._compared = mark  # whoever asks where the target is compares it next
        self._seen_ts = 0 if mark is None else mark.ts
        return self._seen_ts

    def check(self, schema: SchemaVersion) -> None:
        """See Consumer."""
        columns = chosen_columns(schema.table, self.job.info.columns)
        definition(self._table, target_columns(schema, columns, key_names(schema.table)))

    def consume(self, data: DataRetriever) -> None:
        """See Consumer."""
        wanted = target_columns(data.schema, data.columns, data.keys)
        if data.data_type is DataType.SNAPSHOT:
            self._replace(data, wanted)
        else:
            self._follow(data, wanted)

    def _follow(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        net = gather(data, self.job.scratch)
        schema = self._schema()
        mark, _ = schema.seen()
        if mark is None or mark.ts != data.from_ts:
            raise Fenced(f"table {self._name} is not at {data.from_ts} any more")
        columns = schema.evolve(mark, wanted, data.schema, lambda txn: self._marks.at(txn, data.from_ts))
        rows = TargetRows(self._catalog, self._name)
        with self._catalog.begin() as txn:
            mark = self._marks.at(txn, data.from_ts)
            rows.begin(txn)
            # First what goes: keys that differ in their last spaces may be one in a table that was there.
            rows.delete(txn, to_target(net.deletes.select(list(data.keys))))
            rows.put(txn, columns, to_target(net.upserts))
            self._finish(txn, mark, data, columns)

    def _replace(self, data: DataRetriever, wanted: Sequence[TargetColumn]) -> None:
        schema = self._schema()
        mark = schema.claim(wanted, self._seen_ts)
        attempt = mark.attempt
        columns = schema.evolve(mark, wanted, data.schema, lambda txn: self._marks.claimed(txn, attempt))
        rows = TargetRows(self._catalog, self._name)

        def write(work: Callable[[Transaction], None]) -> None:
            def transaction() -> None:
                with self._catalog.begin() as txn:
                    self._marks.claimed(txn, attempt)
                    rows.begin(txn)
                    work(txn)

            retried(transaction, clock=self.job.clock)

        for page in rows.pages(self._client):
            write(partial(rows.remove, page=page))
        for batch in every(data):
            for piece in slices(batch.inserts):
                write(partial(rows.put, columns=columns, rows=to_target(piece)))
        with self._catalog.begin() as txn:
            self._finish(txn, self._marks.claimed(txn, attempt), data, columns)

    def _finish(
        self, txn: Transaction, mark: KvWatermark, data: DataRetriever, columns: Sequence[TargetColumn]
    ) -> None:
        seen_id = data.schema.table.max_column_id
        self._marks.put(txn, replace(mark, ts=data.to_ts, columns=tuple(columns), seen_id=seen_id))
        data.update_watermark(txn)

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See Comparable."""
        if self._compared is None:
            self._compared, _ = self._schema().seen()
        names = [] if self._compared is None else _names(self._compared.columns)
        given = to_target(rows)
        if set(names) != set(given.schema.names):
            raise Invalid(f"table {self._name} has other columns than its job wants now; {REBUILD}")
        return to_source(given.select(names))

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """See Comparable."""
        mark, ts = self._schema().seen()
        if mark is None or mark.ts != at_ts:
            raise Fenced(f"table {self._name} is not at {at_ts} any more")
        self._compared = mark
        for batch in TargetRows(self._catalog, self._name).scan(_names(mark.columns), ts):
            yield to_source(batch)

    def mend(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """See Comparable."""
        rows = TargetRows(self._catalog, self._name)
        with self._catalog.begin() as txn:
            mark = self._marks.at(txn, at_ts)
            rows.begin(txn)
            rows.delete(txn, to_target(deletes))
            rows.put(txn, mark.columns, to_target(upserts))
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
        """One for each cluster: it remembers schemas."""
        cluster, client = ClusterRef.of(self.job.settings), self._client
        with _lock:
            known = _catalogs.get(cluster)
            if known is None or known[0] is not client:
                known = _catalogs[cluster] = (client, Catalog(client))
            return known[1]


def _names(columns: Sequence[TargetColumn]) -> list[str]:
    """The columns that are compared, the key's first."""
    there = [column for column in columns if not column.gone]
    return [column.name for column in sorted(there, key=lambda column: not column.key)]
