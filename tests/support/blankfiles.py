"""Data files without rows, as releases up to 0.1.0 left them in the place of files that did not arrive."""

import gzip

import pyarrow as pa

from penstock.changefeeds.codecs.parquet import ParquetRows, parquet_file
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion

__all__ = ["blank_file"]


def blank_file(extension: str, schema: SchemaFile) -> bytes:
    """Return a file of this extension; only Parquet needs the schema."""
    if extension == ".parquet":
        table = schema.table_info()
        rows = ParquetRows(SchemaVersion(schema.version, 0, table, schema.schema), table.columns)
        return parquet_file([rows.payload([pa.RecordBatch.from_pylist([], schema=rows.schema)])], {})
    if extension.endswith(".gz"):
        return gzip.compress(b"", mtime=0)
    if extension.endswith(".zst"):
        return bytes(pa.Codec("zstd").compress(b"", asbytes=True))
    return b""
