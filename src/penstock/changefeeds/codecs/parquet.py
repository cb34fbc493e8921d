"""Parquet: a table's columns, then what happened to each row and when, in Delta's vocabulary.

The encoder makes Arrow streams, which `parquet_file` joins to one file. The decoder reads such files.
"""

import io
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.changefeeds.codecs.decoded_changes import (
    OP_DELETE,
    OP_INSERT,
    DecodedChanges,
    Halves,
    no_old,
    pair_halves,
)
from penstock.changefeeds.codecs.row_changes import RowChanges, take_rows
from penstock.clock import LOGICAL_BITS
from penstock.columnar.text_lines import Ints
from penstock.errors import Corrupt, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_field, arrow_schema
from penstock.tables.columns import ColumnInfo
from penstock.tables.impossible_dates import hide_and_log
from penstock.tables.schema import TableInfo

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"

_CHANGE_FIELDS = [
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
]
_KINDS = pa.array(
    ["insert", "update_postimage", "delete", "update_preimage"]
)  # the first three as in RowChanges
_PREIMAGE = 3
_OPS = pa.array([OP_INSERT, OP_INSERT, OP_DELETE, OP_DELETE])  # of the kinds, an update as two halves
_HALVES = pa.array([False, True, False, True])
BATCH_ROWS = 64 * 1024
_MICROSECONDS = 1000  # per millisecond, which the physical part of a timestamp counts
_ROW_GROUP_BYTES = 128 * 1024 * 1024
_ROW_GROUP_ROWS = 1024 * 1024
_STREAM = pa.ipc.IpcWriteOptions(compression="lz4")


class ParquetRows:
    """Encodes a table's changes as rows: its columns, then what happened to the row and when.

    Raises Invalid when the table has a column of the name of such a field.
    """

    def __init__(self, schema: SchemaVersion, columns: Sequence[ColumnInfo]) -> None:
        taken = {field.name for field in _CHANGE_FIELDS} & {column.name.lower() for column in columns}
        if taken:
            raise Invalid(
                f"table {schema.name} has a column {min(taken)}, which Parquet files use; leave the column"
                " out"
            )
        fields = (arrow_field(column).with_name(column.name) for column in columns)
        self._name = schema.name
        self.schema = pa.schema([*fields, *_CHANGE_FIELDS])

    def rows(self, changes: RowChanges) -> tuple[pa.RecordBatch, Ints]:
        """Return the rows, and how many each change has: an update has two, first the row before it."""
        updates = changes.updates
        counts = np.where(updates, 2, 1)
        place = np.repeat(np.arange(len(changes)), counts)  # the change of each row
        before = np.zeros(len(place), np.bool_)
        before[(np.cumsum(counts) - counts)[updates]] = True
        # The rows before updates follow the others: the n-th of them is at len(changes) + n.
        source = np.where(before, len(changes) + np.cumsum(before) - 1, place)
        held = pa.concat_batches([changes.rows, changes.old]) if updates.any() else changes.rows
        rows = hide_and_log(self._name, take_rows(held, source))
        kinds = np.where(before, _PREIMAGE, changes.kinds[place])
        commits = changes.commit_ts[place]
        fields = [_KINDS.take(pa.array(kinds)), pa.array(commits), _timestamps(commits)]
        return pa.RecordBatch.from_arrays([*rows.columns, *fields], schema=self.schema), counts

    def payload(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """Return rows as an Arrow stream of one batch, whatever batches they came in, or of none."""
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, self.schema, options=_STREAM) as writer:
            if batches:
                writer.write_batch(pa.concat_batches(batches))
        return sink.getvalue()


def row_bytes(rows: pa.RecordBatch) -> Ints:
    """Return how many bytes the values of each row take."""
    found = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        found += _value_bytes(column)
    return found


def parquet_file(payloads: Iterable[bytes], options: dict[str, str]) -> bytes:
    """Return one Parquet file of Arrow streams; raise Corrupt when one is damaged."""
    sink = io.BytesIO()
    writer: pq.ParquetWriter | None = None
    for table in _row_groups(payloads):
        if writer is None:
            writer = pq.ParquetWriter(sink, table.schema, compression=options.get("compression", "zstd"))
        writer.write_table(table.combine_chunks(), row_group_size=_ROW_GROUP_ROWS)
    if writer is not None:
        writer.close()
    return sink.getvalue()


def _row_groups(payloads: Iterable[bytes]) -> Iterator[pa.Table]:
    """Yield tables of consecutive streams, each about as large as a row group should be."""
    waiting: list[pa.Table] = []
    for payload in payloads:
        try:
            waiting.append(pa.ipc.open_stream(payload).read_all())
        except (pa.ArrowInvalid, OSError) as error:
            raise Corrupt("a payload of the spool is no Arrow stream; encode it again") from error
        nbytes, rows = sum(table.nbytes for table in waiting), sum(table.num_rows for table in waiting)
        if nbytes >= _ROW_GROUP_BYTES or rows >= _ROW_GROUP_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _value_bytes(column: pa.Array) -> Ints | int:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind):
        offsets = np.frombuffer(column.buffers()[1], np.int32) if len(column) else np.zeros(1, np.int32)
        sizes = np.diff(offsets[column.offset : column.offset + len(column) + 1]).astype(np.int64)
        held: Ints = np.where(np.asarray(column.is_valid()), sizes, 0)
        return held * (kind.value_type.bit_width // 8) if pa.types.is_list(kind) else held
    return max(1, int(kind.bit_width) // 8)


def _timestamps(commits: Ints) -> pa.Array:
    return pa.array((commits >> LOGICAL_BITS) * _MICROSECONDS).cast(pa.timestamp("us", tz="UTC"))


def decode(
    stream: pa.NativeFile, table: TableInfo, *, batch_rows: int = BATCH_ROWS
) -> Iterator[DecodedChanges]:
    """Yield the changes of a file, a batch at a time.

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
    return pair_halves(_halves(batch, schema) for batch in batches)


def _halves(batch: pa.RecordBatch, schema: pa.Schema) -> Halves:
    kinds = pc.index_in(batch.column(CHANGE_TYPE), _KINDS)
    if kinds.null_count:
        raise Corrupt("a row has an unknown change type; keep the file")
    rows = batch.select(schema.names).cast(schema)
    commit_ts = batch.column(COMMIT_VERSION).cast(pa.uint64())
    return DecodedChanges(_OPS.take(kinds), commit_ts, rows, no_old(rows)), _HALVES.take(kinds)
