"""Parquet files of a copy: what is known of them, where they are, and how rows are divided into them."""

import re
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.columnar.key_order import CHUNK_BYTES, chunk_rows
from penstock.consumers.schema_evolution import shape_rows
from penstock.errors import Corrupt, Invalid, PenstockError
from penstock.object_storage import STAGING, STAGING_LOCK, ObjectStorage

__all__ = [
    "FILE_BYTES",
    "STRAY_MS",
    "DataFile",
    "FileStore",
    "FileWriter",
    "WrittenFile",
    "check_only_attempts",
    "damage_errors",
    "read_rows",
    "remove_half_written",
    "with_bounds",
]


STRAY_MS = 86_400_000
"""The least age of files that belong to nothing when they are removed: no writer is that slow."""
_FOOTERS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a copy. All values of the key's first column are from `lowest` to `highest`, or NULL."""

    path: str
    rows: int
    nbytes: int
    lowest: Any = field(default=None, repr=False)
    """None when it is unknown, or there is no value."""
    highest: Any = field(default=None, repr=False)
    nulls: bool = True
    """Whether the key's first column may be NULL: a zero date is."""
    origin: Any = field(default=None, repr=False, compare=False)
    """The format's own object."""

    @property
    def bounded(self) -> bool:
        """Whether its bounds are known."""
        return self.lowest is not None and self.highest is not None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was just written, and belongs to no commit yet."""

    path: str
    nbytes: int
    footer: pq.FileMetaData = field(repr=False)

    def file(self, key: str) -> DataFile:
        """Return it with the bounds of the key's first column."""
        return DataFile(self.path, self.footer.num_rows, self.nbytes, *_bounds(self.footer, key))


class FileStore(Protocol):
    """Where files are, by paths relative to the copy; `penstock.object_storage.ObjectStorage` is one.

    A written file is durable and visible on return. Raises Unavailable for errors that may pass.
    """

    def write(self, path: str, data: bytes) -> None:
        """Write a file."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading by range."""

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder."""

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""


GROUP_BYTES_MAX = 2 << 30
"""Bytes of the rows of one row group; ours have about 16 MiB, and those of others that compact files more."""
_FOOTER_BYTES_MAX = 64 << 20
_SHARED_ROWS = 64
_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}


def read_rows(store: FileStore, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, about 8 MiB at a time; columns that were added later are NULL.

    The file may be anybody's. A few bytes of it can stand for many rows with large values, so texts are read
    as the dictionaries that they are in the file, and become values a part at a time. Texts that share their
    beginnings with those before them have no dictionaries: few of them are read at once. Raises Corrupt for a
    row group whose rows have more than GROUP_BYTES_MAX, and for a file that cannot be read.
    """
    with store.open(path) as opened, damage_errors(path):
        footer = _open_file(opened, path).metadata
        texts, shared = _divide_texts(footer, schema)
        opened.seek(0)
        file = pq.ParquetFile(opened, metadata=footer, read_dictionary=texts)
        present = set(file.schema_arrow.names)
        wanted = [name for name in schema.names if name in present]
        for number in range(footer.num_row_groups):
            group, nbytes = footer.row_group(number), 0
            rows = chunk_rows(group.num_rows, _estimate_bytes(group))
            rows = min(rows, _SHARED_ROWS) if shared else rows
            for batch in file.iter_batches(rows, row_groups=[number], columns=wanted):
                for part in _decode_texts(batch):
                    nbytes += part.nbytes
                    if nbytes > GROUP_BYTES_MAX:
                        raise Corrupt(
                            f"a row group of {path} has rows of more than {GROUP_BYTES_MAX >> 20} MiB; keep"
                            " the file for inspection, and fill the copy anew with `penstock job repair"
                            " --rebuild`"
                        )
                    yield shape_rows(part, schema)


def _divide_texts(footer: pq.FileMetaData, schema: pa.Schema) -> tuple[list[str], bool]:
    """Return the columns of texts that can be read as dictionaries, and whether there are others.

    A footer that lies about encodings makes the read fail.
    """
    flat = {footer.schema.column(place).path for place in range(footer.num_columns)}
    kinds = {column.name for column in schema if pa.types.is_string(column.type) or _is_bytes(column)} & flat
    shared = {
        column.path_in_schema
        for group in map(footer.row_group, range(footer.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if any(encoding.startswith("DELTA_") for encoding in column.encodings)
    }
    return sorted(kinds - shared), bool(kinds & shared)


def _is_bytes(column: pa.Field) -> bool:
    return bool(pa.types.is_binary(column.type))


def _open_file(opened: pa.NativeFile, path: str, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file; raise Corrupt when its footer is larger than any that is of use."""
    size = opened.size()
    opened.seek(max(0, size - 8))
    footer = int.from_bytes(opened.read(4), "little")
    opened.seek(0)
    if footer > min(size, _FOOTER_BYTES_MAX):
        raise Corrupt(f"{path} has no footer of Parquet; keep it for inspection, and fill the copy anew")
    return pq.ParquetFile(opened, **options)


_DAMAGE = (
    pa.ArrowException,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    RecursionError,
    SystemError,
    TypeError,
    ValueError,
    struct.error,
)
"""What libraries raise for a file that is not what they expect."""


_OF_STORAGE = re.compile(r"\bGeneric (S3|GCS|MicrosoftAzure|LocalFileSystem|HTTP client) error")
"""How delta-rs says that object storage failed; its OSError has no number."""


@contextmanager
def damage_errors(what: str) -> Iterator[None]:
    """Raise Corrupt for what libraries raise when they read a damaged file; their texts may show values.

    Errors of storage and of memory stay as they are.
    """
    try:
        yield
    except (MemoryError, PenstockError):  # Arrow's MemoryError is an ArrowException too
        raise
    except OSError as error:
        if error.errno is not None or type(error) is not OSError or _OF_STORAGE.search(str(error)):
            raise  # of the storage; those of Parquet's decoders have neither number nor such a text
        raise _damage_error(what, error) from None
    except _DAMAGE as error:
        raise _damage_error(what, error) from None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # a panic of a library in Rust is no Exception
            raise
        raise _damage_error(what, error) from None


def _damage_error(what: str, error: BaseException) -> Corrupt:
    return Corrupt(
        f"{what} is damaged ({type(error).__name__}); keep it for inspection, and fill the copy anew with"
        " `penstock job repair --rebuild`"
    )


def _estimate_bytes(group: pq.RowGroupMetaData) -> int:
    """Return about how many bytes the rows of a row group have, texts as in the file."""
    total = 0
    for place in range(group.num_columns):
        column = group.column(place)
        width = _VALUE_BYTES.get(column.physical_type)
        total += column.total_uncompressed_size if width is None else column.num_values * width
    return max(0, total)


def _decode_texts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the same rows with values in place of dictionaries, in parts of about CHUNK_BYTES."""
    places = [place for place, kind in enumerate(batch.schema.types) if pa.types.is_dictionary(kind)]
    if not places:
        yield batch
        return
    sizes = np.zeros(batch.num_rows, np.int64)
    for place in places:
        column = batch.column(place)
        lengths = pc.binary_length(column.dictionary)
        sizes += lengths.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + CHUNK_BYTES, side="right")))
        part = batch.slice(start, end - start)
        yield pa.RecordBatch.from_arrays(
            [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for column in part.columns
            ],
            part.schema.names,
        )
        start = end


def check_only_attempts(store: FileStore, folder: str, place: str) -> None:
    """Raise Invalid when a place that should be empty has more than files of failed attempts."""
    ours = re.compile(rf"{STAGING}.*|{folder}/\d+/[0-9a-f]{{12}}-[0-9-]+\.parquet")
    if any(not ours.fullmatch(path) for path in store.names("")):
        raise Invalid(f"{place} has files that are not Penstock's; give an empty place, or remove them")


def remove_half_written(storage: ObjectStorage, now_ms: int) -> None:
    """Remove what killed writers have left of files in a local directory."""
    for left in storage.list_objects(STAGING):
        if left.path != STAGING_LOCK and left.modified_ms < now_ms - STRAY_MS:
            storage.delete(left.path)


def with_bounds(store: FileStore, files: Sequence[DataFile], key: str) -> list[DataFile]:
    """Return files with the bounds of a column, read from their footers if they are unknown."""

    def read_bounds(file: DataFile) -> DataFile:
        if file.bounded:
            return file
        with store.open(file.path) as opened, damage_errors(file.path):
            lowest, highest, nulls = _bounds(_open_file(opened, file.path).metadata, key)
        return replace(file, lowest=lowest, highest=highest, nulls=nulls)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(read_bounds, files))


def _bounds(footer: pq.FileMetaData, key: str) -> tuple[Any, Any, bool]:
    """Return the least and the greatest value of a column, and whether it may be NULL.

    (None, None, True) if the footer does not have them.
    """
    paths = [footer.schema.column(place).path for place in range(footer.num_columns)]
    place = paths.index(key) if key in paths else -1
    least: list[Any] = []
    most: list[Any] = []
    nulls = False
    kind = footer.schema.column(place).physical_type if place >= 0 else None
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(place) if place >= 0 else None
        if chunk is not None and chunk.physical_type != kind:  # asked for statistics, pyarrow would abort
            raise pa.ArrowInvalid(f"chunks of {key} have another type than the column")
        statistics = chunk.statistics if chunk is not None else None
        if statistics is None or not statistics.has_min_max:
            return None, None, True
        least.append(statistics.min)
        most.append(statistics.max)
        nulls |= statistics.null_count != 0
    return min(least, default=None), max(most, default=None), nulls


FILE_BYTES = 64 << 20
"""Bytes of rows in memory that make a file; on storage it is several times smaller."""
GROUP_BYTES = 16 << 20
"""Bytes of rows in memory that make a row group."""


class FileWriter:
    """Divides rows into files. `schema` has, beside the columns, what a format needs in its files.

    A full file ends when there are rows for half of another one: otherwise each rewrite with a few more rows
    would add one small file. Names are `folder/name-00000.parquet` and so on: two writers of one folder need
    two names.
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
        """End the current file: the next rows belong to another range of keys."""
        self._write_held()
        self._end()

    def _write_held(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        rows = pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema) for batch in self._held]
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
