"""TiDB's tables on the key-value store: encoding, schemas, catalog, rows."""

from penstock.tables.accounts import Account
from penstock.tables.arrow import arrow_schema
from penstock.tables.catalog import Catalog
from penstock.tables.decoding.decoder import Decoded, RowDecoder, TidbRowDecoder
from penstock.tables.define import Index, define_table
from penstock.tables.duplicates import DuplicateRow
from penstock.tables.raw import RAW_SCHEMA, Op
from penstock.tables.schema import ColumnInfo, DatabaseInfo, IndexInfo, TableInfo
from penstock.tables.snapshot import SchemaSnapshot
from penstock.tables.table import Table

__all__ = [
    "RAW_SCHEMA",
    "Account",
    "Catalog",
    "ColumnInfo",
    "DatabaseInfo",
    "Decoded",
    "DuplicateRow",
    "Index",
    "IndexInfo",
    "Op",
    "RowDecoder",
    "SchemaSnapshot",
    "Table",
    "TableInfo",
    "TidbRowDecoder",
    "arrow_schema",
    "define_table",
]
