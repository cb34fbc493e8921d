"""Parquet objects: written row group by row group in bounded memory, then uploaded whole, and opened.

The manifest has the hash of each object's footer, which is checked before pyarrow parses it. `column_bounds`
returns what the footer says of each row group.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.clock import SYSTEM, Clock
from penstock.durable_files import create_private
from penstock.errors import Corrupt, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import ObjectInfo, ObjectKind
from penstock.eventstore.paths import Side
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OBJECT
from penstock.object_storage import ObjectStorage

ROW_GROUP_ROWS = 128 * 1024
TOMBSTONE_GROUP_ROWS = 32 * 1024  # few, so that the deletions of one data object are read with few others
ROW_GROUP_BYTES = 32 * 1024 * 1024  # of Arrow; rows or bytes end a row group, whichever is reached first
OBJECT_FORMAT = "3"
_FOOTER_END_BYTES = 8  # the footer's length, and Parquet's magic
_HASH_BYTES = 20
TARGETS_MAX = 256


class ObjectWriter:
    """Writes one object: a scratch file, uploaded by `finish`. Rows come in the object's order.

    An object without rows is never written. Without `create_ts` it exists from its first commit on. A
    context: leaving it removes the scratch file.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        root: str,
        side: Side,
        *,
        kind: ObjectKind,
        schema_version: int,
        schema: pa.Schema,
        scratch: Path,
        create_ts: int | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._storage = storage
        self._root = root
        self._side: Side = side
        self._kind: ObjectKind = kind
        self._schema_version = schema_version
        self._schema = schema.with_metadata(
            {"penstock.format": OBJECT_FORMAT, "penstock.schema_version": str(schema_version)}
        )
        self._create_ts = create_ts
        self._group_rows = ROW_GROUP_ROWS if side == "data" else TOMBSTONE_GROUP_ROWS
        self.id = clock.unique_id()
        self.rows = 0
        self._file = scratch / f"{self.id}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._times: tuple[int, int] | None = None
        self._keys: tuple[bytes, bytes] | None = None
        self._targets: Counter[str] | None = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.unlink(missing_ok=True)

    @property
    def size_bytes(self) -> int:
        """The size of the object so far, without the current row group."""
        return self._file.stat().st_size if self._writer is not None else 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if not batch.num_rows:
            return
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        self.rows += batch.num_rows
        self._times = _widen(self._times, batch.column(COMMIT_TS))
        self._keys = _widen(self._keys, batch.column(HANDLE))
        if self._side == "tombstone" and self._targets is not None:
            self._count_targets(self._targets, batch.column(OBJECT))
        if self._pending_rows >= self._group_rows or self._pending_bytes >= ROW_GROUP_BYTES:
            self.end_group()

    def _count_targets(self, counted: "Counter[str]", objects: pa.Array) -> None:
        """Count the deleted rows of each data object, unless there are too many objects."""
        for found in objects.drop_null().value_counts().to_pylist():
            counted[found["values"]] += found["counts"]
        if len(counted) > TARGETS_MAX:
            self._targets = None

    def end_group(self) -> None:
        """End the current row group, so that its rows leave memory."""
        if not self._pending:
            return
        if self._writer is None:
            create_private(self._file)
            self._writer = pq.ParquetWriter(
                self._file, self._schema, compression="zstd", write_page_checksum=True
            )
        rows = pa.Table.from_batches(self._pending).cast(self._schema)
        self._writer.write_table(rows, self._group_rows)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def finish(self) -> ObjectInfo | None:
        """Upload the object and describe it; return None when it has no rows."""
        if self._times is None or self._keys is None:
            return None
        self.end_group()
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        footer = read_footer(self._file)
        self._storage.write(paths.object_path(self._root, self._side, self.id), self._file)
        return ObjectInfo(
            id=self.id,
            side=self._side,
            kind=self._kind,
            schema_version=self._schema_version,
            create_ts=self._times[0] if self._create_ts is None else self._create_ts,
            min_ts=self._times[0],
            max_ts=self._times[1],
            rows=self.rows,
            size_bytes=self._file.stat().st_size,
            key_min=self._keys[0],
            key_max=self._keys[1],
            targets=None if self._targets is None else tuple(sorted(self._targets.items())),
            footer_bytes=len(footer),
            footer_hash=hash_footer(footer),
        )


def _widen(ends: tuple[Any, Any] | None, values: pa.Array) -> tuple[Any, Any]:
    """Return the lowest and the highest of the values seen so far and of some more."""
    found = pc.min_max(values).as_py()
    low, high = ends or (found["min"], found["max"])
    return min(low, found["min"]), max(high, found["max"])


def read_footer(file: Path) -> bytes:
    """Return the footer of a Parquet file that we wrote, with its length and magic."""
    with file.open("rb") as opened:
        opened.seek(-_FOOTER_END_BYTES, SEEK_END)
        nbytes = int.from_bytes(opened.read(4), "little") + _FOOTER_END_BYTES
        opened.seek(-nbytes, SEEK_END)
        return opened.read()


def hash_footer(footer: bytes) -> str:
    """Return what a manifest says of a footer. Nobody can find another footer with the same hash."""
    return hashlib.blake2b(footer, digest_size=_HASH_BYTES).hexdigest()


def _check_footer(source: pa.NativeFile, path: str, info: ObjectInfo) -> pq.FileMetaData:
    """Return the footer of an object that is as it was written; raise Corrupt for any other.

    pyarrow does not survive every footer, so none is parsed that our writer did not make.
    """
    size = source.size()
    footer = b""
    if size == info.size_bytes >= info.footer_bytes:
        source.seek(size - info.footer_bytes)
        footer = source.read(info.footer_bytes)
    if hash_footer(footer) != info.footer_hash:
        raise Corrupt(
            f"object {path} is damaged; keep it for inspection: its manifest has another footer or size"
        )
    return pq.read_metadata(pa.BufferReader(footer))


@contextmanager
def open_object(
    storage: ObjectStorage,
    table_id: int,
    info: ObjectInfo,
    *,
    footer: pq.FileMetaData | None = None,
    dictionaries: Sequence[str] = (),
) -> Iterator[pq.ParquetFile]:
    """Open an object's file; pass its `footer` when it has been read before.

    Columns named in `dictionaries` are read as numbers into their distinct values, which is quick for few
    values. Raises Unavailable when the object does not exist or storage does not answer, Corrupt when it is
    damaged.
    """
    path = paths.object_path(paths.table_root(table_id), info.side, info.id)
    try:
        with (
            storage.open(path) as source,
            pq.ParquetFile(
                source,
                metadata=footer or (_check_footer(source, path, info) if info.footer_bytes else None),
                read_dictionary=list(dictionaries),
                pre_buffer=True,
                page_checksum_verification=True,
            ) as file,
        ):
            if file.metadata.num_rows != info.rows:
                raise Corrupt(
                    f"object {path} has {file.metadata.num_rows} rows, and its manifest says {info.rows};"
                    " keep it for inspection"
                )
            yield file
    except pa.ArrowMemoryError as error:
        raise Unavailable(f"object {path} needs more memory than there is; give the process more") from error
    except (pa.ArrowException, KeyError, OSError, UnicodeError) as error:  # columns are missing or misnamed
        raise Corrupt(f"object {path} is damaged; keep it for inspection") from error


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The lowest and the highest value of a column in a row group that has any."""

    low: Any
    high: Any


def column_bounds(
    footer: pq.FileMetaData, column: str, *, missing: ColumnBounds | None = None
) -> list[ColumnBounds | None]:
    """Return the bounds of a column in each row group; None where it has only nulls.

    Parquet keeps no bounds of very long values. `missing` is used for those; without it they raise
    pa.ArrowInvalid, as a footer without the column does.
    """
    leaves = [footer.schema.column(number).path for number in range(footer.num_columns)]
    if column not in leaves:
        raise pa.ArrowInvalid(f"no column {column}")
    at = leaves.index(column)
    chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
    kind = footer.schema.column(at).physical_type
    if any(chunk.physical_type != kind for chunk in chunks):  # asked for statistics, pyarrow would abort
        raise pa.ArrowInvalid(f"chunks of {column} have another type than the column")
    return [_bounds(chunk, missing) for chunk in chunks]


def _bounds(chunk: pq.ColumnChunkMetaData, missing: ColumnBounds | None) -> ColumnBounds | None:
    found = chunk.statistics
    if found is not None and found.has_min_max:
        return ColumnBounds(found.min, found.max)
    if found is not None and found.has_null_count and found.null_count == chunk.num_values:
        return None
    if missing is None:
        raise pa.ArrowInvalid(f"no statistics of {chunk.path_in_schema}")
    return missing
