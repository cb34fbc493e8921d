"""TiDB's tables on the key-value store: encoding, schemas, catalog, rows."""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.tables.arrow import arrow_schema
from penstock.tables.columns import ColumnInfo
from penstock.tables.ddl_jobs import RunningJob
from penstock.tables.decoding.decoder import Decoded, RowDecoder, TidbRowDecoder
from penstock.tables.define import Index, define_table
from penstock.tables.partitions import PartitionBy
from penstock.tables.raw import RAW_SCHEMA, Op
from penstock.tables.schema import DatabaseInfo, IndexInfo, TableInfo

if TYPE_CHECKING:
    from penstock.tables.accounts import Account
    from penstock.tables.catalog import Catalog
    from penstock.tables.online_ddl import DdlProgress
    from penstock.tables.schema_snapshot import SchemaSnapshot
    from penstock.tables.table import DuplicateRow, Table

__all__ = [
    "RAW_SCHEMA",
    "Account",
    "Catalog",
    "ColumnInfo",
    "DatabaseInfo",
    "DdlProgress",
    "Decoded",
    "DuplicateRow",
    "Index",
    "IndexInfo",
    "Op",
    "PartitionBy",
    "RowDecoder",
    "RunningJob",
    "SchemaSnapshot",
    "Table",
    "TableInfo",
    "TidbRowDecoder",
    "arrow_schema",
    "define_table",
]

# Loaded on first use, because these import a client of the cluster. Most Spark processes only read objects,
# and start often.
_WITH_CLIENT = {
    "Account": "accounts",
    "Catalog": "catalog",
    "DdlProgress": "online_ddl",
    "DuplicateRow": "table",
    "SchemaSnapshot": "schema_snapshot",
    "Table": "table",
}


def __getattr__(name: str) -> object:
    if name not in _WITH_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_CLIENT[name]}"), name)
