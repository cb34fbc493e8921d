"""Parquet objects: written row group by row group in bounded memory, then put on storage as a whole."""

from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.clock import SYSTEM, Clock
from penstock.eventstore import paths
from penstock.eventstore.manifest import Kind, ObjectInfo
from penstock.eventstore.paths import Side
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.eventstore.storage import Storage

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 32 * 1024 * 1024  # of Arrow; whichever comes first ends a row group
OBJECT_FORMAT = "1"


class ObjectWriter:
    """One object in the making: a scratch file, uploaded by `finish`. Rows must come in order.

    An object without rows is never written. A context: leaving it removes the scratch file.
    """

    def __init__(
        self,
        storage: Storage,
        root: str,
        side: Side,
        *,
        kind: Kind,
        schema_version: int,
        schema: pa.Schema,
        scratch: Path,
        clock: Clock = SYSTEM,
    ) -> None:
        self._storage = storage
        self._root = root
        self._side: Side = side
        self._kind: Kind = kind
        self._schema_version = schema_version
        self._schema = schema.with_metadata(
            {"penstock.format": OBJECT_FORMAT, "penstock.schema_version": str(schema_version)}
        )
        self._id = clock.unique_id()
        self._file = scratch / f"{self._id}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._rows = 0
        self._times: tuple[int, int] | None = None
        self._keys: tuple[bytes, bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if not batch.num_rows:
            return
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        self._rows += batch.num_rows
        commit = batch.column(COMMIT_TS)
        self._times = ((self._times or (commit[0].as_py(),))[0], commit[-1].as_py())
        ends = pc.min_max(batch.column(HANDLE)).as_py()
        low, high = self._keys or (ends["min"], ends["max"])
        self._keys = (min(low, ends["min"]), max(high, ends["max"]))
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        if self._writer is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._writer.write_table(pa.Table.from_batches(self._pending).cast(self._schema), ROW_GROUP_ROWS)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def finish(self) -> ObjectInfo | None:
        """Upload the object and describe it; None when it has no rows."""
        if self._times is None or self._keys is None:
            return None
        if self._pending:
            self._write_pending()
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self._storage.write(paths.object_path(self._root, self._side, self._id), self._file)
        return ObjectInfo(
            id=self._id,
            side=self._side,
            kind=self._kind,
            schema_version=self._schema_version,
            create_ts=self._times[0],
            min_ts=self._times[0],
            max_ts=self._times[1],
            rows=self._rows,
            size_bytes=self._file.stat().st_size,
            key_min=self._keys[0],
            key_max=self._keys[1],
        )
