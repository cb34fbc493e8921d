"""Data files without rows. Pure."""

import gzip

import pyarrow as pa

from penstock.eventstore.schemaversion import SchemaVersion
from penstock.sink.formats.parquetrows import ParquetRows, parquet_file
from penstock.sink.schemafile import SchemaFile


def blank_file(extension: str, schema: SchemaFile | None) -> bytes:
    """A file with this extension that whoever reads the table finds nothing in; always the same bytes.

    Only Parquet needs the schema; without one the file has no columns of the table.
    """
    if extension == ".parquet":
        return _blank_parquet(schema or SchemaFile(schema="", version=0))
    if extension.endswith(".gz"):
        return gzip.compress(b"", mtime=0)
    if extension.endswith(".zst"):
        return bytes(pa.Codec("zstd").compress(b"", asbytes=True))
    return b""


def _blank_parquet(schema: SchemaFile) -> bytes:
    table = schema.table_info()
    rows = ParquetRows(SchemaVersion(schema.version, 0, table, schema.schema), table.columns)
    nothing = pa.RecordBatch.from_pylist([], schema=rows.schema)
    return parquet_file([rows.payload([nothing])], {})
