"""Rows that are kept until all are there: in memory while they are few, else in a file that is mapped."""

from pathlib import Path

import pyarrow as pa

SPOOL_BYTES = 64 << 20
"""Memory that one spool takes before its rows go to disk."""


class RowSpool:
    """Takes batches of one schema, then gives them as one table, in the same order. For one thread.

    The file has no name any more once the table is there: its space is given back with the table.
    """

    def __init__(self, schema: pa.Schema, path: Path, *, memory_bytes: int = SPOOL_BYTES) -> None:
        self._schema = schema
        self._path = path
        self._memory_bytes = memory_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._writer: pa.RecordBatchFileWriter | None = None

    @property
    def spilled(self) -> bool:
        """Whether rows are on disk."""
        return self._writer is not None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep rows; raises OSError when the disk does not take them."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pa.ipc.new_file(str(self._path), self._schema)
        for each in self._held:
            self._writer.write_batch(each)
        self._held, self._held_bytes = [], 0

    def finish(self) -> pa.Table:
        """All rows; nothing is added any more."""
        if self._writer is None:
            return pa.Table.from_batches(self._held, self._schema)
        self._spill()
        self._writer.close()
        rows = pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
        self._path.unlink()
        return rows

    def discard(self) -> None:
        """Let go of everything; what `finish` gave stays."""
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)
