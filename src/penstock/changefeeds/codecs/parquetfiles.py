"""Parquet files: a table's columns, then what happened to each row and when, in Delta's vocabulary."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, OP_INSERT, DecodedChanges, no_old
from penstock.changefeeds.codecs.pairs import Halves, paired
from penstock.changefeeds.codecs.parquet import CHANGE_TYPE, COMMIT_VERSION
from penstock.errors import Corrupt, Invalid
from penstock.tables.arrow import arrow_schema
from penstock.tables.schema import TableInfo

BATCH_ROWS = 64 * 1024
_KINDS = pa.array(["insert", "delete", "update_preimage", "update_postimage"])
_OPS = pa.array([OP_INSERT, OP_DELETE, OP_DELETE, OP_INSERT])
_HALVES = pa.array([False, False, True, True])


def decode(
    stream: pa.NativeFile, table: TableInfo, *, batch_rows: int = BATCH_ROWS
) -> Iterator[DecodedChanges]:
    """The changes of a file, a batch at a time.

    Raises Corrupt when it is no such file, Invalid when its columns are not those of the schema file.
    """
    schema = arrow_schema(table)
    file = pq.ParquetFile(stream)
    if not file.metadata.num_rows:
        return iter(())
    wanted = [*schema.names, CHANGE_TYPE, COMMIT_VERSION]
    missing = [name for name in wanted if name not in file.schema_arrow.names]
    if missing:
        raise Invalid(
            f"it has no column {missing[0]}; give the URI of the directory that it was written into"
        )
    batches = file.iter_batches(batch_rows, columns=wanted)
    return paired(_halves(batch, schema) for batch in batches)


def _halves(batch: pa.RecordBatch, schema: pa.Schema) -> Halves:
    kinds = pc.index_in(batch.column(CHANGE_TYPE), _KINDS)
    if kinds.null_count:
        raise Corrupt("a row has a change type that is none; keep the file")
    rows = batch.select(schema.names).cast(schema)
    commit_ts = batch.column(COMMIT_VERSION).cast(pa.uint64())
    return DecodedChanges(_OPS.take(kinds), commit_ts, rows, no_old(rows)), _HALVES.take(kinds)
