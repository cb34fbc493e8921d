"""How a stream of rows becomes Parquet files of about one size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.consumers.lake.lakefiles import FileStore, Written

__all__ = ["FileWriter"]

FILE_BYTES = 64 << 20
"""Bytes of rows in memory that make a file; on storage it is some times smaller."""
GROUP_BYTES = 16 << 20
"""Bytes of rows in memory that make a row group."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A file that is not written yet."""

    data: pa.Buffer = field(repr=False)
    footer: pq.FileMetaData = field(repr=False)
    row_bytes: int

    def groups(self) -> Iterable[pa.Table]:
        file = pq.ParquetFile(pa.BufferReader(self.data))
        return (file.read_row_group(at) for at in range(file.num_row_groups))


class FileWriter:
    """Cuts rows into files. `schema` has, beside the columns, what a format wants of its files.

    The last full file waits for what comes after it: a small rest joins it. Else each time that a file is
    written again with few rows more, there would be one small file more. Names are
    `folder/name-00000.parquet` and so on: two writers of one folder need two names.
    """

    def __init__(
        self,
        store: FileStore,
        schema: pa.Schema,
        *,
        folder: str,
        name: str,
        written: list[Written] | None = None,
        file_bytes: int | None = None,
    ) -> None:
        self.written = [] if written is None else written
        self._store = store
        self._schema = schema
        self._prefix = f"{folder}/{name}"
        self._file_bytes = file_bytes or FILE_BYTES
        self._number = 0
        self._full: _Encoded | None = None
        self._begin()

    def _begin(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._bytes = 0
        self._output = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Add rows; those of one call are no larger than a file should be."""
        for batch in rows:
            if batch.num_rows:
                self._held.append(batch)
                self._held_bytes += batch.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._write_held()
        if self._bytes >= self._file_bytes:
            self._put(self._full)
            self._full = self._ended()

    def cut(self) -> None:
        """End the current file: rows that come belong to another stretch of keys."""
        self._write_held()
        full, rest = self._full, self._ended()
        self._full = None
        if full and rest and rest.row_bytes < self._file_bytes // 2:
            self._put(self._joined(full, rest))
        else:
            self._put(full)
            self._put(rest)

    def _write_held(self) -> None:
        if self._held:
            held, self._held = self._held, []
            rows = [pa.RecordBatch.from_arrays(each.columns, schema=self._schema) for each in held]
            self._write_group(pa.Table.from_batches(rows))
            self._bytes += self._held_bytes
            self._held_bytes = 0

    def _write_group(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def _ended(self) -> _Encoded | None:
        if self._writer is None:
            return None
        self._writer.close()
        ended = _Encoded(self._output.getvalue(), self._writer.writer.metadata, self._bytes)
        self._begin()
        return ended

    def _joined(self, full: _Encoded, rest: _Encoded) -> _Encoded | None:
        for each in (full, rest):
            for rows in each.groups():
                self._write_group(rows.cast(self._schema))
        return self._ended()

    def _put(self, file: _Encoded | None) -> None:
        if file is None:
            return
        path = f"{self._prefix}-{self._number:05}.parquet"
        self._store.write(path, file.data.to_pybytes())
        self.written.append(Written(path, file.data.size, file.footer))
        self._number += 1
