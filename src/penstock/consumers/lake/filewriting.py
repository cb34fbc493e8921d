"""How a stream of rows becomes Parquet files of about one size."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.consumers.lake.files import FileStore, WrittenFile

__all__ = ["FileWriter"]

FILE_BYTES = 64 << 20
"""Bytes of rows in memory that make a file; on storage it is some times smaller."""
GROUP_BYTES = 16 << 20
"""Bytes of rows in memory that make a row group."""


class FileWriter:
    """Cuts rows into files. `schema` has, beside the columns, what a format wants of its files.

    A file that is full ends when there are rows for half of another: else each time that it is written again
    with few rows more, there would be one small file more. Names are `folder/name-00000.parquet` and so on:
    two writers of one folder need two names.
    """

    def __init__(
        self,
        store: FileStore,
        schema: pa.Schema,
        *,
        folder: str,
        name: str,
        written: list[WrittenFile] | None = None,
        file_bytes: int | None = None,
    ) -> None:
        self.written = [] if written is None else written
        self._store = store
        self._schema = schema
        self._prefix = f"{folder}/{name}"
        self._file_bytes = file_bytes or FILE_BYTES
        self._number = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._bytes = 0
        self._output = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Add rows; those of one call are no larger than a file should be."""
        for batch in rows:
            if batch.num_rows:
                self._held.append(batch)
                self._held_bytes += batch.nbytes
        if self._bytes >= self._file_bytes and self._held_bytes >= self._file_bytes // 2:
            self._end()
        if self._bytes < self._file_bytes and self._held_bytes >= GROUP_BYTES:
            self._write_held()

    def cut(self) -> None:
        """End the current file: rows that come belong to another stretch of keys."""
        self._write_held()
        self._end()

    def _write_held(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        rows = pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(each.columns, schema=self._schema) for each in self._held]
        )
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._bytes += self._held_bytes
        self._held, self._held_bytes = [], 0

    def _end(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        data = self._output.getvalue()
        path = f"{self._prefix}-{self._number:05}.parquet"
        self._store.write(path, data.to_pybytes())
        self.written.append(WrittenFile(path, data.size, self._writer.writer.metadata))
        self._number += 1
        self._begin()
