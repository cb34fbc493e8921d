"""Encodes values into rows, a column at a time.

A column of Arrow or Python values becomes cells: one binary array, null where the value is null. Cells of
several columns become the values of rows.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Ints, Mask, gather, validity
from penstock.errors import Invalid
from penstock.tables.arrow import UNSIGNED_LONG, arrow_type
from penstock.tables.codec.decimals import BYTES_OF_DIGITS, parts_of
from penstock.tables.codec.rows import FLAG_LARGE, VERSION_2, cell_of
from penstock.tables.codec.times import MONTHS
from penstock.tables.columns import BLOBS, INTEGER_BITS, STRINGS, ColumnInfo, FieldType, Tp
from penstock.tables.decoding.cells import SIGN
from penstock.tables.keys import record_prefix
from penstock.tables.records import check_datum, default_value, reads_null_when_absent
from penstock.tables.schema import HandleKind, TableInfo
from penstock.tables.values import to_cell

_LONG_DIGITS = 18
_DAY_US = 86_400_000_000


def column_cells(kind: FieldType, column: pa.Array) -> pa.Array:
    """Return the cells of a column of any Arrow type that casts; raise Invalid if a value does not fit."""
    try:
        typed = column.cast(arrow_type(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"values of Arrow type {column.type} do not fit a {kind.tp.name} column") from error
    return _CELLS.get(kind.tp, _one_by_one)(kind, typed)


def _one_by_one(kind: FieldType, column: pa.Array) -> pa.Array:
    return pa.array([to_cell(kind, value) for value in column.to_pylist()], pa.binary())


def _integers(kind: FieldType, column: pa.Array) -> pa.Array:
    if column.type == UNSIGNED_LONG:
        return _unsigned_longs(column)
    valid = _valid(column)
    wide = np.asarray(column.fill_null(0)).astype(np.int64)
    bits = INTEGER_BITS[kind.tp]
    low, high = (0, (1 << bits) - 1) if kind.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if (wide < low).any() or (wide > high).any():
        raise Invalid(f"a value is outside of the {kind.tp.name} column's range; pass {low} to {high}")
    return _minimal(wide, valid, signed=not kind.unsigned)


def _unsigned_longs(column: pa.Array) -> pa.Array:
    low, high = _decimal_words(column)
    if high.any():
        raise Invalid(
            "a value is outside of the unsigned LONGLONG column's range; pass 0 to 18446744073709551615"
        )
    return _minimal(low, _valid(column), signed=False)


def _decimal_words(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the low and high halves of decimals, in units of their last digit; 0 for nulls."""
    filled = column.fill_null(0)
    halves = np.frombuffer(filled.buffers()[1], dtype=np.int64)[filled.offset * 2 :][: len(filled) * 2]
    return halves[0::2], halves[1::2]


def _minimal(numbers: Ints, valid: Mask, *, signed: bool) -> pa.Array:
    """Return integers in the fewest of 1, 2, 4 or 8 bytes."""
    folded = np.where(numbers < 0, ~numbers, numbers) if signed else numbers.view(np.uint64)
    limits = [1 << 8 * size - signed for size in (1, 2, 4)]
    sizes = np.select([folded < limit for limit in limits], [1, 2, 4], 8)
    start = np.arange(len(numbers), dtype=np.int64) * 8
    data = np.ascontiguousarray(numbers, dtype="<i8").view(np.uint8)
    return gather(data, start, start + np.where(valid, sizes, 0), valid)


def _floats(_: FieldType, column: pa.Array) -> pa.Array:
    doubles = np.asarray(column.fill_null(0)).astype(np.float64)
    if not np.isfinite(doubles).all():
        raise Invalid("a float column takes finite numbers only; pass numbers or nulls")
    bits = (doubles + 0.0).view(np.uint64)  # adding 0.0 makes -0.0 the zero that TiDB stores
    ordered = np.where(bits & SIGN, ~bits, bits | SIGN)
    return _fixed_array(ordered.astype(">u8").view(np.uint8).reshape(-1, 8), _valid(column))


def _decimals(kind: FieldType, column: pa.Array) -> pa.Array:
    if kind.precision > _LONG_DIGITS:
        return _one_by_one(kind, column)
    units, _ = _decimal_words(column)  # so few digits fit into the low half
    negative, left = units < 0, np.abs(units)
    pieces: list[npt.NDArray[np.uint8]] = []
    for digits in reversed(parts_of(kind.precision, kind.scale)):
        left, part = np.divmod(left, 10**digits)
        pieces.insert(0, part.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - BYTES_OF_DIGITS[digits] :])
    packed = np.concatenate(pieces, axis=1)
    packed[negative] ^= 0xFF
    packed[:, 0] ^= 0x80
    head = np.full((len(units), 2), (kind.precision, kind.scale), dtype=np.uint8)
    return _fixed_array(np.concatenate([head, packed], axis=1), _valid(column))


def _strings(kind: FieldType, column: pa.Array) -> pa.Array:
    if kind.tp is Tp.STRING:
        return _one_by_one(kind, column)
    by_bytes = kind.is_binary or kind.tp in BLOBS
    longest = pc.max(pc.binary_length(column) if by_bytes else pc.utf8_length(column)).as_py() or 0
    if 0 <= kind.flen < longest:
        raise Invalid(f"a value of length {longest} does not fit a column of {kind.flen}; shorten it")
    return column.cast(pa.binary())


def _times(kind: FieldType, column: pa.Array) -> pa.Array:
    valid = _valid(column)
    if kind.tp is Tp.DATE:
        micros = np.asarray(column.cast(pa.int32()).fill_null(0)).astype(np.int64) * _DAY_US
    else:
        unit = 10 ** (6 - kind.fsp)
        micros = (np.asarray(column.cast(pa.int64()).fill_null(0)) + unit // 2) // unit * unit
    moments = micros.view("datetime64[us]")
    months, days = moments.astype("datetime64[M]"), moments.astype("datetime64[D]")
    year_month = months.astype(np.int64) + 1970 * 12
    year, month = year_month // 12, year_month % 12 + 1
    if ((year < 1) | (year > 9999)).any():
        raise Invalid("a time is outside of the years 1 to 9999; pass one inside")
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    clock = micros - days.astype(np.int64) * _DAY_US
    seconds, fraction = np.divmod(clock, 1_000_000)
    hms = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
    ymd = (year * MONTHS + month) << 5 | day
    return _minimal((ymd << 17 | hms) << 24 | fraction, valid, signed=False)


def _fixed_array(cells: npt.NDArray[np.uint8], valid: Mask) -> pa.Array:
    offsets = np.arange(len(cells) + 1, dtype=np.int32) * cells.shape[1]
    buffers = [validity(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(cells))]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


def _valid(column: pa.Array) -> Mask:
    return np.asarray(column.is_valid())


_CELLS: dict[Tp, Callable[[FieldType, Any], pa.Array]] = {
    **dict.fromkeys(INTEGER_BITS, _integers),
    **dict.fromkeys(STRINGS, _strings),
    **dict.fromkeys((Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP), _times),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), _floats),
    Tp.NEW_DECIMAL: _decimals,
}


def value_cells(column: ColumnInfo, values: Sequence[Any]) -> pa.Array:
    """Return the cells of Python values; raise Invalid, naming the column, if a value does not fit.

    Values of one common type are encoded together, all others one by one. Both give the same bytes.
    """
    typed = _typed_array(column.type, values)
    if typed is not None:
        try:
            return _check_cells(column, typed)
        except Invalid:
            pass  # one by one, the value that does not fit is refused with its own reason
    return pa.array([cell_of(check_datum(column, value)) for value in values], pa.binary())


def array_cells(column: ColumnInfo, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the cells of Arrow values; those of a type that does not cast are taken as Python values."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        return _check_cells(column, array)
    except Invalid:
        return value_cells(column, array.to_pylist())


def _typed_array(kind: FieldType, values: Sequence[Any]) -> pa.Array | None:
    """Return values as Arrow values when all are of the type that the column takes; None otherwise."""
    found = set(map(type, values)) - {type(None)}
    if len(found) != 1:
        return None
    (only,) = found
    chosen = _typed_as(kind, only)
    if chosen is None or (only is datetime and not _are_utc(kind, values)):
        return None
    try:
        return pa.array(values, chosen)
    except (pa.ArrowException, OverflowError, UnicodeError, ValueError):
        return None


def _typed_as(kind: FieldType, only: type) -> pa.DataType | None:
    tp = kind.tp
    if only is int and tp in INTEGER_BITS and arrow_type(kind) != UNSIGNED_LONG:
        return pa.int64()
    if only is str and tp in STRINGS and not kind.is_binary:
        return pa.string()
    if only is bytes and tp in STRINGS and kind.is_binary:
        return pa.binary()
    if only is float and tp in {Tp.FLOAT, Tp.DOUBLE}:
        return pa.float64()
    exact = {Decimal: {Tp.NEW_DECIMAL}, date: {Tp.DATE}, datetime: {Tp.DATETIME, Tp.TIMESTAMP}}
    return arrow_type(kind) if tp in exact.get(only, ()) else None


def _are_utc(kind: FieldType, moments: Sequence[Any]) -> bool:
    zones = {moment.tzinfo for moment in moments if moment is not None}
    return zones <= ({None, UTC} if kind.tp is Tp.TIMESTAMP else {None})


_SMALL_ID_MAX = 0xFF
_SMALL_DATA_MAX = 0xFFFF


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Keys and values of rows as the store has them, and their handles."""

    keys: list[bytes]
    values: list[bytes]
    handles: list[int]


def encode_batch(table: TableInfo, batch: pa.RecordBatch, *, start_ts: int) -> EncodedBatch:
    """Encode rows; missing columns get their defaults. Raise Invalid if a value does not fit its column."""
    assert table.handle_kind is HandleKind.INT
    columns = {table.column(name).id: batch.column(place) for place, name in enumerate(batch.schema.names)}
    primary = table.primary_key[0]
    if primary.id not in columns:
        raise Invalid(f"column {primary.name} is the primary key and has no values; pass them")
    handles = _handles(primary, columns[primary.id])
    stored = sorted((column for column in table.stored_columns if column != primary), key=lambda one: one.id)
    cells = [
        array_cells(column, columns[column.id])
        if column.id in columns
        else _default_cells(column, len(batch), start_ts)
        for column in stored
    ]
    values = row_values(stored, cells, len(batch)).to_pylist()
    keys = join_fixed(record_prefix(table.id), ordered_ints(handles))
    return EncodedBatch(keys, values, _primary_keys(primary, handles))


def _default_cells(column: ColumnInfo, rows: int, start_ts: int) -> pa.Array:
    cell = cell_of(check_datum(column, default_value(column, start_ts)))
    return pa.array([cell] * rows, pa.binary())


def _check_cells(column: ColumnInfo, values: pa.Array) -> pa.Array:
    if column.type.not_null and values.null_count:
        raise Invalid(f"column {column.name} is NOT NULL and has no value; pass one")
    try:
        return column_cells(column.type, values)
    except Invalid as error:
        raise Invalid(f"column {column.name}: {error}") from error


def _handles(primary: ColumnInfo, values: pa.Array) -> Ints:
    _check_cells(primary, values)
    if primary.type.unsigned:
        numbers = [int(number) for number in values.to_pylist()]
        return np.array(numbers, dtype=np.uint64).view(np.int64)
    return np.asarray(values).astype(np.int64)


def _primary_keys(primary: ColumnInfo, handles: Ints) -> list[int]:
    numbers: list[int] = (handles.view(np.uint64) if primary.type.unsigned else handles).tolist()
    return numbers


def ordered_ints(numbers: Ints) -> npt.NDArray[np.uint8]:
    """Return signed integers as keys have them: eight bytes each, in the order of the numbers."""
    ordered = numbers.view(np.uint64) ^ np.uint64(1 << 63)
    return ordered.astype(">u8").view(np.uint8).reshape(-1, 8)


def join_fixed(prefix: bytes, tails: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return a prefix joined with tails of one length, given as the rows of a matrix."""
    whole = np.empty((len(tails), len(prefix) + tails.shape[1]), dtype=np.uint8)
    whole[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    whole[:, len(prefix) :] = tails
    raw, size = whole.tobytes(), whole.shape[1]
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def row_values(
    columns: Sequence[ColumnInfo], cells: Sequence[pa.Array], rows: int, *, keep_nulls: bool = False
) -> pa.Array:
    """Return the values of rows, given columns in the order of their ids.

    NULLs that a reader sees without them are left out, unless `keep_nulls`. A value is the head of its row
    joined with the cells; rows of one shape have similar heads.
    """
    valid = np.array([np.asarray(column.is_valid()) for column in cells], dtype=np.bool_).reshape(
        len(cells), rows
    )
    sizes = np.array([_sizes(column) for column in cells], dtype=np.int64).reshape(len(cells), rows)
    ends = np.cumsum(sizes, axis=0)
    large = (ends[-1] > _SMALL_DATA_MAX) if len(cells) else np.zeros(rows, dtype=np.bool_)
    heads = _heads(columns, valid, ends, large, keep_nulls=keep_nulls)
    if not cells:
        return heads
    return pc.binary_join_element_wise(heads, *cells, b"", null_handling="replace", null_replacement=b"")


def _sizes(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _heads(
    columns: Sequence[ColumnInfo],
    valid: Mask,
    ends: npt.NDArray[np.int64],
    large: Mask,
    *,
    keep_nulls: bool,
) -> pa.Array:
    which = _shapes([*valid, large])
    heads, order = [], []
    for shape in range(int(which.max(initial=-1)) + 1):
        rows = np.flatnonzero(which == shape)
        one = rows[0]
        heads.append(
            _shape_heads(columns, valid[:, one], ends[:, rows], large=bool(large[one]), keep_nulls=keep_nulls)
        )
        order.append(rows)
    if not heads:
        return pa.array([], pa.binary())
    places = np.empty(len(which), dtype=np.int64)
    places[np.concatenate(order)] = np.arange(len(which))
    return pa.concat_arrays(heads).take(pa.array(places))


def _shapes(marks: list[Mask]) -> Ints:
    """Return a number for each row, from 0 on: rows with the same marks have the same number."""
    which = np.zeros(len(marks[0]), dtype=np.int64)
    for mark in marks:
        if which.max(initial=0) >= 1 << 61:
            which = np.unique(which, return_inverse=True)[1].reshape(-1)
        which = which * 2 + mark
    return np.unique(which, return_inverse=True)[1].reshape(-1)


def _shape_heads(
    columns: Sequence[ColumnInfo],
    filled: Mask,
    ends: npt.NDArray[np.int64],
    *,
    large: bool,
    keep_nulls: bool,
) -> pa.Array:
    """Return the heads of rows that have the same columns filled."""
    ids = [column.id for column, has in zip(columns, filled, strict=True) if has]
    nulls = [
        column.id
        for column, has in zip(columns, filled, strict=True)
        if not has and (keep_nulls or not reads_null_when_absent(column))
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
