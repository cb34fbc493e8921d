"""The two sides of a change as Arrow: the row that it wrote (data) and the row that it ended (tombstone).

An update has both, with the same timestamps and `_update` set. `_handle` identifies a row of its table,
whatever its primary key: it is the part of the record key after the table's prefix. `_object` and `_offset`
of a tombstone are the row id of the row that it ended. They are known once the tombstone is in an object, and
null when that row was never captured.

Objects keep every value that rows have, also of columns that nobody sees yet (`stored_side_schema`): when
MODIFY COLUMN rewrites a column, TiDB writes the new values under a new column id first, and shows that column
in place of the old one later. Readers see the columns of their table (`side_schema`).
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Mask, equal_cells
from penstock.errors import Invalid
from penstock.eventstore.paths import Side
from penstock.tables.arrow import RESERVED_NAMES, arrow_field, arrow_name, scan_schema
from penstock.tables.decoding.decoder import RowDecoder, record_handles
from penstock.tables.schema import TableInfo

HANDLE, COMMIT_TS, START_TS, UPDATE = "_handle", "_commit_ts", "_start_ts", "_update"
OBJECT, OFFSET, OLD = "_object", "_offset", "_old"
PARTITION = "\0partition"
"""The physical table of a row, where changes of several are together. No column of a table has this name."""
RESERVED = frozenset({HANDLE, COMMIT_TS, START_TS, UPDATE, OBJECT, OFFSET, OLD})
assert RESERVED == RESERVED_NAMES, "a column of a table may have one of these names"

_SYSTEM = [
    pa.field(HANDLE, pa.binary(), nullable=False),
    pa.field(COMMIT_TS, pa.int64(), nullable=False),
    pa.field(START_TS, pa.int64(), nullable=False),
    pa.field(UPDATE, pa.bool_(), nullable=False),
]
_ROW_ID = [pa.field(OBJECT, pa.string()), pa.field(OFFSET, pa.int64())]

MERGED_TOMBSTONES = pa.schema([*_SYSTEM, *_ROW_ID])
"""The columns of merged tombstone objects, which delete rows and are never read as changes."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of some changes, each in the order of the changes."""

    data: pa.RecordBatch
    tombstone: pa.RecordBatch

    def of(self, side: Side) -> pa.RecordBatch:
        """Return one side by its name."""
        return self.data if side == "data" else self.tombstone


def side_schema(table: TableInfo, side: Side) -> pa.Schema:
    """Return the columns of one side that readers see; raise Invalid when a type has no Arrow form."""
    return _side_schema(table, side, scan_schema(table))


def stored_side_schema(table: TableInfo, side: Side) -> pa.Schema:
    """Return the columns of one side in objects: those that readers see, and the values of all others.

    Raises Invalid when a type has no Arrow form.
    """
    return _side_schema(table, side, pa.schema([arrow_field(column) for column in table.kept_columns]))


def _side_schema(table: TableInfo, side: Side, columns: pa.Schema) -> pa.Schema:
    if side == "data":
        return pa.schema([*columns, *_SYSTEM])
    keys = [arrow_field(column) for column in table.primary_key if arrow_name(column) in columns.names]
    return pa.schema([*keys, *_SYSTEM, *_ROW_ID, pa.field(OLD, pa.struct(list(columns)))])


def refusal(table: TableInfo) -> str:
    """Return why rows of a table cannot be kept, for people; empty when they can."""
    if table.unreadable:
        return table.unreadable
    try:
        side_schema(table, "data")
    except Invalid as error:
        return str(error)
    return ""


def decode_sides(raw: pa.RecordBatch, table: TableInfo, decoder: RowDecoder) -> Sides:
    """Decode both sides of ordered changes of one schema version, with the columns that objects have."""
    decoded = decoder.decode(raw, table)
    system = _system(raw)
    return Sides(
        _data(raw, decoded.data, decoded.data_rows, system),
        _tombstones(raw, table, decoded.old, decoded.old_rows, system),
    )


def decode_side(
    raw: pa.RecordBatch, table: TableInfo, decoder: RowDecoder, side: Side, names: Collection[str]
) -> pa.RecordBatch:
    """Decode some columns of one side of ordered changes of one schema version.

    Columns that nobody asked for are not decoded, which saves most of the work for wide rows. `_old` has the
    columns that readers see, and others that are named.
    """
    whole = OLD in names
    columns = [
        column for column in table.kept_columns if arrow_name(column) in names or (whole and column.is_seen)
    ]
    if side == "data":
        rows, places = decoder.decode_new(raw, table, columns)
        decoded = _data(raw, rows, places, _system(raw))
    else:
        rows, places = decoder.decode_old(raw, table, columns)
        decoded = _tombstones(raw, table, rows, places, _system(raw))
    return decoded.select([name for name in decoded.schema.names if name in names])


def find_backfills(raw: pa.RecordBatch, table: TableInfo, decoder: RowDecoder) -> Mask:
    """Return which changes of one schema version write nothing but values that readers do not see.

    While a column is rewritten, TiDB updates every row to add the new value. For readers such an update is no
    change: no column that they see gets another value. In other versions every update is a change, unless the
    capture made it of a row that it read itself: no transaction of a cluster starts when it commits.
    """
    found: Mask = np.equal(raw.column("start_ts").to_numpy(), raw.column("commit_ts").to_numpy())
    if not table.is_rewriting:
        return found
    both = pc.and_(raw.column("value").is_valid(), raw.column("old_value").is_valid()).to_numpy(
        zero_copy_only=False
    )
    updates = raw.filter(pa.array(both))
    new, places = decoder.decode_new(updates, table, table.stored_columns)
    old, _ = decoder.decode_old(updates, table, table.stored_columns)
    same = np.ones(new.num_rows, np.bool_)
    for before, after in zip(old.columns, new.columns, strict=True):
        same &= equal_cells(before, after)
    found[np.flatnonzero(both)[places.to_numpy()[same]]] = True
    return found


def drop_backfills(raw: pa.RecordBatch, table: TableInfo, decoder: RowDecoder) -> pa.RecordBatch:
    """Return the changes of one schema version without those that are none for readers."""
    backfills = find_backfills(raw, table, decoder)
    return raw.filter(pa.array(~backfills)) if backfills.any() else raw


def _system(raw: pa.RecordBatch) -> list[pa.Array]:
    return [
        record_handles(raw.column("key")),
        raw.column("commit_ts").cast(pa.int64()),
        raw.column("start_ts").cast(pa.int64()),
    ]


def _data(
    raw: pa.RecordBatch, rows: pa.RecordBatch, places: pa.Array, system: list[pa.Array]
) -> pa.RecordBatch:
    replaced = _at(raw.column("old_value").is_valid(), places)
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *(_at(column, places) for column in system), replaced],
        schema=pa.schema([*rows.schema, *_SYSTEM]),
    )


def _at(column: pa.Array, rows: pa.Array) -> pa.Array:
    """Return a column at some rows, which are in order; nothing is copied when those are all."""
    return column if len(rows) == len(column) else column.take(rows)


def _tombstones(
    raw: pa.RecordBatch, table: TableInfo, old: pa.RecordBatch, places: pa.Array, system: list[pa.Array]
) -> pa.RecordBatch:
    """Make tombstones of the primary key, and of all of `old` as `_old` unless `old` has no columns."""
    keys = [name for name in map(arrow_name, table.primary_key) if name in old.schema.names]
    columns = [
        *(old.column(name) for name in keys),
        *(_at(column, places) for column in system),
        _at(raw.column("value").is_valid(), places),
        *(pa.nulls(len(places), field.type) for field in _ROW_ID),
    ]
    fields = [*(old.schema.field(name) for name in keys), *_SYSTEM, *_ROW_ID]
    if old.num_columns:
        unknown = _at(raw.column("old_value").is_null(), places)
        columns.append(pa.StructArray.from_arrays(old.columns, fields=list(old.schema), mask=unknown))
        fields.append(pa.field(OLD, columns[-1].type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
