"""A batch of rows in Arrow into keys and values, for tables whose primary key is an integer."""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Ints, Mask
from penstock.errors import Invalid
from penstock.tables.cells import column_cells
from penstock.tables.codec.rows import FLAG_LARGE, VERSION_2, cell_of
from penstock.tables.columns import ColumnInfo
from penstock.tables.keys import record_prefix
from penstock.tables.records import checked_datum, default_value, reads_null_when_absent
from penstock.tables.schema import HandleKind, TableInfo

_SMALL_ID_MAX = 0xFF
_SMALL_DATA_MAX = 0xFFFF


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Rows as the store keeps them, and their handles."""

    keys: list[bytes]
    values: list[bytes]
    handles: list[int]


def encode_batch(table: TableInfo, batch: pa.RecordBatch, *, start_ts: int) -> EncodedBatch:
    """Encode rows; missing columns take their defaults. Invalid names the column that does not fit."""
    assert table.handle_kind is HandleKind.INT
    given = {table.column(name).id: batch.column(place) for place, name in enumerate(batch.schema.names)}
    primary = table.primary_key[0]
    if primary.id not in given:
        raise Invalid(f"column {primary.name} is the primary key and got no values; give it some")
    handles = _handles(primary, given[primary.id])
    stored = sorted((column for column in table.stored_columns if column != primary), key=lambda one: one.id)
    cells = [
        _checked_cells(column, given[column.id])
        if column.id in given
        else _default_cells(column, len(batch), start_ts)
        for column in stored
    ]
    values = _values(stored, cells, len(batch)).to_pylist()
    return EncodedBatch(_keys(table, handles), values, _primary_keys(primary, handles))


def _default_cells(column: ColumnInfo, rows: int, start_ts: int) -> pa.Array:
    cell = cell_of(checked_datum(column, default_value(column, start_ts)))
    return pa.array([cell] * rows, pa.binary())


def _checked_cells(column: ColumnInfo, values: pa.Array) -> pa.Array:
    if column.type.not_null and values.null_count:
        raise Invalid(f"column {column.name} is NOT NULL and got no value; give it one")
    try:
        return column_cells(column.type, values)
    except Invalid as error:
        raise Invalid(f"column {column.name}: {error}") from error


def _handles(primary: ColumnInfo, values: pa.Array) -> Ints:
    _checked_cells(primary, values)
    if primary.type.unsigned:
        numbers = [int(number) for number in values.to_pylist()]
        return np.array(numbers, dtype=np.uint64).view(np.int64)
    return np.asarray(values).astype(np.int64)


def _primary_keys(primary: ColumnInfo, handles: Ints) -> list[int]:
    numbers: list[int] = (handles.view(np.uint64) if primary.type.unsigned else handles).tolist()
    return numbers


def _keys(table: TableInfo, handles: Ints) -> list[bytes]:
    prefix = np.frombuffer(record_prefix(table.id), dtype=np.uint8)
    keys = np.empty((len(handles), len(prefix) + 8), dtype=np.uint8)
    keys[:, : len(prefix)] = prefix
    ordered = handles.view(np.uint64) ^ np.uint64(1 << 63)
    keys[:, len(prefix) :] = ordered.astype(">u8").view(np.uint8).reshape(-1, 8)
    whole, size = keys.tobytes(), keys.shape[1]
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _values(columns: list[ColumnInfo], cells: list[pa.Array], rows: int) -> pa.Array:
    """Heads, which rows of one shape share but for their offsets, joined with the cells."""
    valid = np.array([np.asarray(column.is_valid()) for column in cells], dtype=np.bool_).reshape(
        len(cells), rows
    )
    sizes = np.array([_sizes(column) for column in cells], dtype=np.int64).reshape(len(cells), rows)
    ends = np.cumsum(sizes, axis=0)
    large = (ends[-1] > _SMALL_DATA_MAX) if len(cells) else np.zeros(rows, dtype=np.bool_)
    heads = _heads(columns, valid, ends, large)
    if not cells:
        return heads
    return pc.binary_join_element_wise(heads, *cells, b"", null_handling="replace", null_replacement=b"")


def _sizes(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _heads(columns: list[ColumnInfo], valid: Mask, ends: npt.NDArray[np.int64], large: Mask) -> pa.Array:
    which = _shapes([*valid, large])
    made, order = [], []
    for shape in range(int(which.max(initial=-1)) + 1):
        rows = np.flatnonzero(which == shape)
        one = rows[0]
        made.append(_shape_heads(columns, valid[:, one], ends[:, rows], large=bool(large[one])))
        order.append(rows)
    if not made:
        return pa.array([], pa.binary())
    places = np.empty(len(which), dtype=np.int64)
    places[np.concatenate(order)] = np.arange(len(which))
    return pa.concat_arrays(made).take(pa.array(places))


def _shapes(marks: list[Mask]) -> Ints:
    """Number the rows by which of these marks they have, equal ones alike, from 0 on."""
    which = np.zeros(len(marks[0]), dtype=np.int64)
    for mark in marks:
        if which.max(initial=0) >= 1 << 61:
            which = np.unique(which, return_inverse=True)[1].reshape(-1)
        which = which * 2 + mark
    return np.unique(which, return_inverse=True)[1].reshape(-1)


def _shape_heads(
    columns: list[ColumnInfo], filled: Mask, ends: npt.NDArray[np.int64], *, large: bool
) -> pa.Array:
    """The heads of rows that have the same columns filled."""
    ids = [column.id for column, has in zip(columns, filled, strict=True) if has]
    nulls = [
        column.id
        for column, has in zip(columns, filled, strict=True)
        if not has and not reads_null_when_absent(column)
    ]
    wide = large or any(number > _SMALL_ID_MAX for number in ids + nulls)
    head = struct.pack("<BBHH", VERSION_2, FLAG_LARGE if wide else 0, len(ids), len(nulls))
    head += struct.pack(f"<{len(ids) + len(nulls)}{'I' if wide else 'B'}", *ids, *nulls)
    offsets = np.ascontiguousarray(ends[filled].T, dtype="<u4" if wide else "<u2")
    rows = ends.shape[1]
    whole = np.empty((rows, len(head) + offsets.itemsize * len(ids)), dtype=np.uint8)
    whole[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    whole[:, len(head) :] = offsets.view(np.uint8).reshape(rows, -1)
    bounds = np.arange(rows + 1, dtype=np.int32) * whole.shape[1]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(whole)])
