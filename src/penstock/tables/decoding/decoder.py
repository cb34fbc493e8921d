"""Decodes a raw batch with its schema into Arrow. Only code behind this seam knows the row encoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Bytes, Ints, Mask, gather, pad
from penstock.errors import Corrupt
from penstock.tables.arrow import arrow_field, arrow_type
from penstock.tables.codec import rows
from penstock.tables.columns import ColumnInfo
from penstock.tables.decoding.cells import Cells, ColumnCells, locate
from penstock.tables.decoding.convert import StoredValues, to_arrow
from penstock.tables.decoding.handles import IntHandles, common_handles, record_rows
from penstock.tables.keys import PREFIX_BYTES
from penstock.tables.raw import Op
from penstock.tables.records import origin_cell, readable_handle_columns
from penstock.tables.schema import HandleKind, TableInfo

_EMPTY_ROW = rows.encode({})


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of a raw batch.

    `data` has the rows that puts wrote, `old` the previous rows of updates and deletes. A delete whose old
    value is unknown has only its primary key. `data_rows` and `old_rows` give the place of each row in the
    raw batch.
    """

    data: pa.RecordBatch
    data_rows: pa.Array
    old: pa.RecordBatch
    old_rows: pa.Array


class DecodedRows(NamedTuple):
    """Rows of one side, and the place of each in the raw batch."""

    rows: pa.RecordBatch
    places: pa.Array


class RowDecoder(Protocol):
    """Decodes the raw rows of a source into Arrow."""

    def decode(self, raw: pa.RecordBatch, table: TableInfo) -> Decoded:
        """Decode a raw batch of one table. The schema of all its rows is `table`.

        Both results have the table's `kept_columns` and keep the order of the raw batch. Keys that are not
        rows (index entries) are skipped. Raise Corrupt for damaged rows, Invalid for keys of another table.
        """

    def decode_new(self, raw: pa.RecordBatch, table: TableInfo, columns: Sequence[ColumnInfo]) -> DecodedRows:
        """Decode only `data`, and only these columns of it."""

    def decode_old(self, raw: pa.RecordBatch, table: TableInfo, columns: Sequence[ColumnInfo]) -> DecodedRows:
        """Decode only `old`, and only these columns of it."""


class TidbRowDecoder:
    """Decodes rows in TiDB's encoding, version 1 or 2, a column at a time."""

    def decode(self, raw: pa.RecordBatch, table: TableInfo) -> Decoded:
        """Decode the new and the old rows of a raw batch, with all columns whose values rows may have."""
        data = self.decode_new(raw, table, table.kept_columns)
        old = self.decode_old(raw, table, table.kept_columns)
        return Decoded(data.rows, data.places, old.rows, old.places)

    def decode_new(self, raw: pa.RecordBatch, table: TableInfo, columns: Sequence[ColumnInfo]) -> DecodedRows:
        """Decode the rows that puts wrote, with only these columns."""
        put = raw.column("op").to_numpy() == Op.PUT
        return _decode_where(table, raw, "value", put, columns)

    def decode_old(self, raw: pa.RecordBatch, table: TableInfo, columns: Sequence[ColumnInfo]) -> DecodedRows:
        """Decode the previous rows of updates and deletes, with only these columns."""
        ended = np.asarray(raw.column("old_value").is_valid()) | (raw.column("op").to_numpy() == Op.DELETE)
        return _decode_where(table, raw, "old_value", ended, columns)


def _decode_where(
    table: TableInfo, raw: pa.RecordBatch, side: str, selected: Mask, columns: Sequence[ColumnInfo]
) -> DecodedRows:
    keys = _Pieces.of(raw.column("key"))
    chosen = np.flatnonzero(record_rows(keys.data, keys.begin, keys.end, table) & selected)
    rows = _decode(table, keys.at(chosen), raw.column(side), chosen, columns)
    return DecodedRows(rows, pa.array(chosen, pa.int64()))


def decode_rows(
    table: TableInfo, keys: pa.Array, values: pa.Array, columns: Sequence[ColumnInfo] | None = None
) -> pa.RecordBatch:
    """Decode records that a scan returned: keys and values of the table's rows, in order.

    With `columns` only these are decoded, in that order.
    """
    pieces = _Pieces.of(keys)
    every = np.arange(len(keys), dtype=np.int64)
    record_rows(pieces.data, pieces.begin, pieces.end, table)
    return _decode(table, pieces, values, every, columns)


def decode_keys(table: TableInfo, keys: pa.Array, columns: Sequence[ColumnInfo]) -> pa.RecordBatch:
    """Decode columns from keys alone. Each column must be `records.in_key_only`."""
    pieces = _Pieces.of(keys)
    record_rows(pieces.data, pieces.begin, pieces.end, table)
    handles = _handle_storage(table, pieces)
    arrays = [to_arrow(column.type, handles[column.id]) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([arrow_field(column) for column in columns]))


def int_handles(keys: pa.Array) -> pa.Array:
    """Return the integer handles of record keys; raise Corrupt when a key has another kind of handle."""
    pieces = _Pieces.of(keys)
    return pa.array(IntHandles.read(pieces.data, pieces.begin, pieces.end).handles, pa.int64())


def record_handles(keys: pa.Array) -> pa.Array:
    """Return record keys without their prefix, as binary. No key may be shorter than the prefix."""
    if not len(keys):
        return pa.array([], pa.binary())
    _, offsets, content = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8)
    return gather(data, bounds[:-1] + PREFIX_BYTES, bounds[1:], np.ones(len(keys), np.bool_))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A binary array as numpy sees it."""

    data: Bytes
    begin: Ints
    end: Ints

    @classmethod
    def of(cls, array: pa.Array) -> "_Pieces":
        _, bounds, content = array.buffers()
        if not len(array):
            return cls(pad(np.zeros(0, np.uint8)), np.zeros(0, np.int64), np.zeros(0, np.int64))
        stored = np.frombuffer(bounds, dtype=np.int32, count=array.offset + len(array) + 1)
        offsets = stored[array.offset :].astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        data = np.frombuffer(content, dtype=np.uint8)[first:last] if content else np.zeros(0, np.uint8)
        return cls(pad(data), offsets[:-1] - first, offsets[1:] - first)

    def at(self, chosen: Ints) -> "_Pieces":
        return _Pieces(self.data, self.begin[chosen], self.end[chosen])


def _decode(
    table: TableInfo,
    keys: _Pieces,
    values: pa.Array,
    chosen: Ints,
    columns: Sequence[ColumnInfo] | None = None,
) -> pa.RecordBatch:
    selected = table.stored_columns if columns is None else columns
    schema = pa.schema([arrow_field(column) for column in selected])
    if not len(chosen):
        return pa.RecordBatch.from_pylist([], schema=schema)
    blank = np.asarray(values.is_null())[chosen]
    rows = _version_2(values, chosen, blank)
    places = locate(rows.data, rows.begin, rows.end, [column.id for column in selected])
    handles = _handle_storage(table, keys)
    arrays = [
        _array(column, located, handles.get(column.id), blank)
        for column, located in zip(selected, places, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _version_2(values: pa.Array, chosen: Ints, blank: Mask) -> _Pieces:
    """Return the chosen rows in version 2: version 1 rewritten, unknown rows empty."""
    if not blank.any():
        pieces = _Pieces.of(values).at(chosen)
        if (pieces.data[pieces.begin] == rows.VERSION_2).all() and (pieces.end > pieces.begin).all():
            return pieces
    upgraded = [_upgrade(value) for value in values.take(pa.array(chosen)).to_pylist()]
    return _Pieces.of(pa.array(upgraded, pa.binary()))


def _upgrade(value: bytes | None) -> bytes:
    if value is None:
        return _EMPTY_ROW
    return value if value[:1] == bytes((rows.VERSION_2,)) else rows.upgrade(value)


def _handle_storage(table: TableInfo, keys: _Pieces) -> dict[int, StoredValues]:
    """Return the primary key columns that the keys contain, by column id."""
    if table.handle_kind is HandleKind.INT:
        return {table.primary_key[0].id: IntHandles.read(keys.data, keys.begin, keys.end)}
    if table.handle_kind is HandleKind.ROWID:
        return {}
    parts = common_handles(keys.data, keys.begin, keys.end, len(table.primary_key))
    readable = readable_handle_columns(table)
    return {
        column.id: part for column, part in zip(table.primary_key, parts, strict=True) if column in readable
    }


def _array(column: ColumnInfo, located: ColumnCells, handle: StoredValues | None, blank: Mask) -> pa.Array:
    absent = located.absent
    if handle is not None and absent.all():
        return _to_arrow(column, handle)
    array = _to_arrow(column, located.cells)
    if not absent.any():
        return array
    if handle is not None:
        return pc.if_else(pa.array(absent), _to_arrow(column, handle), array)
    origin = origin_scalar(column)
    filled = absent & ~blank
    return pc.if_else(pa.array(filled), origin, array) if origin.is_valid and filled.any() else array


def _to_arrow(column: ColumnInfo, storage: StoredValues) -> pa.Array:
    try:
        return to_arrow(column.type, storage)
    except Corrupt as error:
        raise Corrupt(f"column {column.name}: {error}") from error


def origin_scalar(column: ColumnInfo) -> pa.Scalar:
    """Return the value of a column in rows that were written before it existed."""
    cell = origin_cell(column)
    if cell is None:
        return pa.scalar(None, arrow_type(column.type))
    data = pad(np.frombuffer(cell, dtype=np.uint8))
    one = Cells(data, np.zeros(1, np.int64), np.full(1, len(cell), np.int64), np.ones(1, np.bool_))
    return to_arrow(column.type, one)[0]
