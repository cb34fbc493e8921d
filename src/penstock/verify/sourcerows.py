"""Rows of a source as a reader of the changefeed's files has them: encoded, and read again."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.changefeeds.codecs.decoder import FileOptions, decoded
from penstock.changefeeds.codecs.encoder import encoder_of, shown_columns
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.codecs.row_changes import INSERT, RowChanges
from penstock.changefeeds.codecs.row_filter import RowFilter
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.schema import TableInfo

__all__ = ["SourceRows"]

_ROWS = 16 * 1024
_ONLY_KEYS: tuple[str, ...] = ()


class SourceRows:
    """What the changefeed's encoder makes of rows: text loses types, so both sides must have been text.

    With `only_keys`, rows have the columns of the primary key alone, and the row filter does not count.
    Raises Invalid when the options do not fit the table.
    """

    def __init__(self, schema: SchemaVersion, options: SinkOptions, *, only_keys: bool = False) -> None:
        encoding = replace(options.encoder(schema), compression="none")
        if only_keys:
            encoding = replace(encoding, columns=_ONLY_KEYS, where="")
        self._options = options
        self._filter = RowFilter.of(schema, encoding.where)
        self._shown = [column.name for column in shown_columns(schema, encoding)]
        self._encoder = encoder_of(schema, encoding)
        looked_at = () if self._filter is None else self._filter.columns
        self.reads = [
            column.name
            for column in schema.table.stored_columns
            if column.name in self._shown or column.name in looked_at
        ]
        """The columns that it needs."""
        self.names = self._shown
        """The columns of what it gives."""
        self.table: TableInfo = SchemaFile.of(schema, 0, columns=self._shown).table_info()
        """The table as a schema file describes it."""

    def read(self, batches: Iterator[pa.RecordBatch], at_ts: int) -> Iterator[pa.RecordBatch]:
        """The rows that the changefeed has of these, in columns of `table`."""
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                yield from self._again(self._kept(batch.slice(start, _ROWS)), at_ts)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.select(self.reads)
        if self._filter is not None:
            rows = rows.filter(pa.array(self._filter.keeps(rows)))
        return rows.select(self._shown)

    def _again(self, rows: pa.RecordBatch, at_ts: int) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        changes = RowChanges(
            kinds=np.full(rows.num_rows, INSERT, np.int8),
            commit_ts=np.full(rows.num_rows, at_ts, np.int64),
            handles=pa.nulls(rows.num_rows, pa.binary()),
            known=np.ones(rows.num_rows, np.bool_),
            rows=rows,
            old=rows.slice(0, 0),
        )
        written = self._encoder.payload([self._encoder.encode(changes)])
        protocol = self._options.protocol
        if protocol == "parquet":
            written = parquet_file([written], {"compression": "none"})
        files = FileOptions(protocol=protocol, terminator=self._options.terminator, csv=self._options.csv)
        for each in decoded(pa.BufferReader(written), protocol, self.table, files):
            yield each.rows
