"""Data files without rows. Pure."""

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.changefeeds.codecs.parquet import ParquetRows, parquet_file
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion

_BLANK_TEXT_BYTES_MAX = 64  # any compressor says "nothing" in less


def blank_file(extension: str, schema: SchemaFile | None) -> bytes:
    """A file with this extension that whoever reads the table finds nothing in.

    Only Parquet needs the schema; without one the file has no columns of the table.
    """
    if extension == ".parquet":
        return _blank_parquet(schema or SchemaFile(schema="", version=0))
    if extension.endswith(".gz"):
        return gzip.compress(b"", mtime=0)
    if extension.endswith(".zst"):
        return bytes(pa.Codec("zstd").compress(b"", asbytes=True))
    return b""


def is_blank(extension: str, file: pa.NativeFile) -> bool:
    """Whether a file has no rows; not by its bytes, because another version of a library makes others.

    A file that is damaged is not blank.
    """
    if extension == ".parquet":
        try:
            return bool(pq.ParquetFile(file).metadata.num_rows == 0)
        except pa.ArrowInvalid:
            return False
    if file.size() > _BLANK_TEXT_BYTES_MAX:
        return False
    data = file.read()
    try:
        return not _text(extension, data)
    except (OSError, EOFError):  # what decompressors say
        return False


def _text(extension: str, data: bytes) -> bytes:
    if extension.endswith(".gz"):
        return gzip.decompress(data)
    if extension.endswith(".zst"):
        return bytes(pa.CompressedInputStream(io.BytesIO(data), "zstd").read())
    return data


def _blank_parquet(schema: SchemaFile) -> bytes:
    table = schema.table_info()
    rows = ParquetRows(SchemaVersion(schema.version, 0, table, schema.schema), table.columns)
    nothing = pa.RecordBatch.from_pylist([], schema=rows.schema)
    return parquet_file([rows.payload([nothing])], {})
