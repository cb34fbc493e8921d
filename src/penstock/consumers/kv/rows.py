"""Rows of Arrow into a table of the key-value store, within a transaction."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.consumers.schema_evolution import TargetColumn
from penstock.kv import Client, Transaction
from penstock.tables import Catalog, Table
from penstock.tables.arrow import arrow_field
from penstock.tables.bulk import encode_batch
from penstock.tables.indexes import written_indexes
from penstock.tables.keys import record_key, record_range
from penstock.tables.records import checked_datum, handle_of, to_record, value_of
from penstock.tables.schema import HandleKind, TableInfo

PAGE_ROWS = 4096
_PAGE_BYTES = 4 << 20


class TargetRows:
    """The rows of one table as of the schema that it has now.

    Rows of a table without further indexes are written without being read; others through `Table`.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._rows: Table = catalog.table(name)
        self.info: TableInfo = self._rows.info
        self._plain = self.info.handle_kind is not HandleKind.ROWID and not list(written_indexes(self.info))

    def begin(self, txn: Transaction) -> None:
        """Let a transaction commit only while the table is there; raise Invalid when it cannot be written."""
        self._rows.upsert([], txn=txn)

    def put(self, txn: Transaction, columns: Sequence[TargetColumn], rows: pa.Table | pa.RecordBatch) -> None:
        """Write rows; those with the same key are replaced. What is gone at the source becomes NULL."""
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            self._put(txn, self._whole(columns, batch))

    def _whole(self, columns: Sequence[TargetColumn], batch: pa.RecordBatch) -> pa.RecordBatch:
        given = [column.name for column in columns if not column.gone]
        gone = [arrow_field(self.info.column(column.name)) for column in columns if column.gone]
        values = [
            *(batch.column(name) for name in given),
            *(pa.nulls(batch.num_rows, each.type) for each in gone),
        ]
        return pa.RecordBatch.from_arrays(values, [*given, *(each.name for each in gone)])

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
        """Take rows out, given by the columns of their keys."""
        rows = keys.to_pylist()
        if not self._plain:
            self._rows.delete(rows, txn=txn)
            return
        for row in rows:
            record = {column.id: checked_datum(column, row[column.name]) for column in self.info.primary_key}
            txn.delete(record_key(self.info.id, handle_of(self.info, record)))

    def pages(self, client: Client) -> Iterator[list[bytes] | pa.RecordBatch]:
        """What there is now, for `remove`, some of it at a time."""
        ts = client.timestamp()
        if not self._plain:
            keys = [column.name for column in self.info.primary_key]
            yield from self._rows.scan(columns=keys, batch_rows=PAGE_ROWS, at_ts=ts)
            return
        for page in client.snapshot(ts).scan_pages(*record_range(self.info.id), key_only=True):
            found = [key for key, _ in page]
            yield from (found[start : start + PAGE_ROWS] for start in range(0, len(found), PAGE_ROWS))

    def remove(self, txn: Transaction, page: list[bytes] | pa.RecordBatch) -> None:
        """Take out what `pages` gave."""
        if isinstance(page, pa.RecordBatch):
            self._rows.delete(page.to_pylist(), txn=txn)
            return
        for key in page:
            txn.delete(key)

    def scan(self, columns: Sequence[str], at_ts: int) -> Iterator[pa.RecordBatch]:
        """Rows as of a timestamp."""
        return self._rows.scan(columns=columns, at_ts=at_ts)


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in pieces, each of a size for one transaction."""
    step = max(1, min(PAGE_ROWS, batch.num_rows * _PAGE_BYTES // max(1, batch.nbytes)))
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))
