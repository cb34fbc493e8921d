"""Converts the storage values of a whole batch into the Arrow array of their column's type.

A storage value is what the codec stores for a value of any column: an integer, a float or bytes. Cells of
rows and parts of keys have the same storage values in different bytes. Packed decimals and packed times
become Arrow's numbers without a Python object for each.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.buffers import Bytes, Floats, Ints, Mask, Uints, validity, words
from penstock.errors import Corrupt
from penstock.tables import impossible_dates, values
from penstock.tables.arrow import UNSIGNED_LONG, arrow_type
from penstock.tables.codec.decimals import BYTES_OF_DIGITS, WORD_DIGITS, packed_bytes, parts_of
from penstock.tables.codec.times import MONTHS
from penstock.tables.columns import INTEGER_BITS, STRINGS, FieldType, Tp
from penstock.tables.decoding.cells import Cells, fixed_array

_LIMB_BITS = np.uint64(32)
_LIMB = np.uint64(0xFFFFFFFF)
_LIMBS = 4
_LONG_DIGITS = 18
_DAYS_OF_MONTH = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
_DAY_US = 86_400_000_000
_YEARS = 10_000


def decimals(cells: Cells, kind: pa.Decimal128Type) -> pa.Array | None:
    """Return decimals as decimal128; None when some must be rounded, which needs exact arithmetic.

    The rows of a column may have several precisions, because widening a decimal rewrites nothing.
    """
    heads = np.where(cells.valid, words(cells.data, cells.start, "<u2").astype(np.int64), 0)
    out = np.zeros((len(cells), 2), dtype=np.uint64)
    for head in np.unique(heads[cells.valid]):
        precision, scale = int(head) & 0xFF, int(head) >> 8
        if scale > kind.scale or precision - scale > kind.precision - kind.scale:
            return None
        rows = np.flatnonzero(cells.valid & (heads == head))
        if scale > precision or (cells.size[rows] < 2 + packed_bytes(precision, scale)).any():
            raise Corrupt("a decimal of a row is cut short or impossible; keep the row for inspection")
        out[rows] = _decimal128(cells.data, cells.start[rows] + 2, precision, scale, kind.scale)
    return fixed_array(kind, out, cells.valid)


def _decimal128(
    data: Bytes, at: Ints, precision: int, scale: int, target_scale: int
) -> npt.NDArray[np.uint64]:
    positive = data[at] >= 0x80
    flip = np.where(positive, np.uint32(0), np.uint32(0xFFFFFFFF))
    parts = []
    for nth, digits in enumerate(parts_of(precision, scale)):
        size = BYTES_OF_DIGITS[digits]
        word = words(data, at, ">u4").astype(np.uint32)
        if nth == 0:
            word ^= np.uint32(0x80000000)
        part = (word ^ flip) >> np.uint32(32 - 8 * size)
        if (part >= 10**digits).any():
            raise Corrupt("a decimal of a row has impossible digits; keep the row for inspection")
        parts.append((digits, part.astype(np.uint64)))
        at = at + size
    zeros = np.zeros(len(at), dtype=np.uint64)
    parts += [(min(WORD_DIGITS, missing), zeros) for missing in range(target_scale - scale, 0, -WORD_DIGITS)]
    if precision + target_scale - scale <= _LONG_DIGITS:
        return _narrow(parts, ~positive)
    return _wide(parts, ~positive)


def _narrow(parts: list[tuple[int, Uints]], negative: Mask) -> npt.NDArray[np.uint64]:
    units = np.zeros(len(negative), dtype=np.int64)
    for digits, part in parts:
        units = units * 10**digits + part.view(np.int64)
    units = np.where(negative, -units, units)
    return np.stack([units, units >> 63], axis=1).view(np.uint64)


def _wide(parts: list[tuple[int, Uints]], negative: Mask) -> npt.NDArray[np.uint64]:
    """Multiply and add in 32-bit limbs, lowest first; no product exceeds 64 bits."""
    limbs = [np.zeros(len(negative), dtype=np.uint64) for _ in range(_LIMBS)]
    for digits, part in parts:
        carry, factor = part, np.uint64(10**digits)
        for n in range(_LIMBS):
            product = limbs[n] * factor + carry
            limbs[n], carry = product & _LIMB, product >> _LIMB_BITS
    low = limbs[0] | limbs[1] << _LIMB_BITS
    high = limbs[2] | limbs[3] << _LIMB_BITS
    minus_high = ~high + (low == 0)
    return np.stack(
        [np.where(negative, ~low + np.uint64(1), low), np.where(negative, minus_high, high)], axis=1
    )


def unsigned_longs(values: Uints, kind: pa.Decimal128Type, valid: Mask) -> pa.Array:
    """Return unsigned 64-bit integers as decimals."""
    return fixed_array(kind, np.stack([values, np.zeros_like(values)], axis=1), valid)


def dates(packed: Uints, valid: Mask) -> pa.Array:
    """Return packed times as days; dates that no calendar has as `impossible_dates` has them."""
    fields = packed.view(np.int64)
    days, real = _days(fields >> 41)  # the lower 41 bits are the time of day
    if not real.all():
        days = np.where(real, days, impossible_dates.to_days(fields))
    return fixed_array(pa.date32(), days.astype(np.int32), valid)


def timestamps(packed: Uints, kind: pa.TimestampType, valid: Mask) -> pa.Array:
    """Return packed times as microseconds; dates that no calendar has as `impossible_dates` has them."""
    fields = packed.view(np.int64)
    days, real = _days(fields >> 41)
    # From the lowest bit: 24 bits of microseconds, 6 of seconds, 6 of minutes, 5 of hours, then the date.
    seconds = ((fields >> 36 & 0x1F) * 60 + (fields >> 30 & 0x3F)) * 60 + (fields >> 24 & 0x3F)
    micros = days * _DAY_US + seconds * 1_000_000 + (fields & 0xFFFFFF)
    if not real.all():
        micros = np.where(real, micros, impossible_dates.to_micros(fields))
    return fixed_array(kind, micros, valid)


def _days(ymd: Ints) -> tuple[Ints, Mask]:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar, and which dates are real."""
    before, lengths = _calendar()
    year_month, day = np.minimum(ymd >> 5, len(before) - 1), ymd & 0x1F
    return before[year_month] + day, (day > 0) & (day <= lengths[year_month])


@cache
def _calendar() -> tuple[Ints, Ints]:
    """Return for each packed year and month the days from 1970 to its day 0, and its length (0: not real)."""
    year, month = np.divmod(np.arange(_YEARS * MONTHS + 1), MONTHS)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    lengths = _DAYS_OF_MONTH[month] - ((month == 2) & ~leap)
    lengths[(year == 0) | (year >= _YEARS)] = 0
    march_year = year - (month <= 2)  # years begin in March, so that the leap day is their last
    march_month = month + np.where(month > 2, -3, 9)
    days = march_year * 365 + march_year // 4 - march_year // 100 + march_year // 400
    return days + (153 * march_month + 2) // 5 - 719_469, lengths


def durations(nanos: Ints, valid: Mask) -> pa.Array:
    """Return nanoseconds as spans in microseconds, cut towards zero."""
    micros = np.abs(nanos) // 1000
    return fixed_array(pa.duration("us"), np.where(nanos < 0, -micros, micros), valid)


class StoredValues(Protocol):
    """A column's storage values in a batch. `valid` marks rows that have one."""

    @property
    def valid(self) -> Mask: ...

    def ints(self) -> Ints:
        """Return signed integers."""

    def uints(self) -> Uints:
        """Return unsigned integers."""

    def floats(self) -> Floats:
        """Return doubles."""

    def binary(self) -> pa.Array:
        """Return bytes: strings, JSON documents, vectors, decimals with their precision and scale."""

    def decimal_cells(self) -> Cells:
        """Return the cells of decimals."""


def to_arrow(kind: FieldType, storage: StoredValues) -> pa.Array:
    """Return the Arrow array of a column; raise Corrupt when a value is damaged."""
    return _CONVERSIONS[kind.tp](kind, storage)


def _integers(kind: FieldType, storage: StoredValues) -> pa.Array:
    target = arrow_type(kind)
    if target == UNSIGNED_LONG:
        return unsigned_longs(storage.uints(), target, storage.valid)
    wide = storage.uints().view(np.int64) if kind.unsigned or kind.tp is Tp.BIT else storage.ints()
    return _narrow_ints(target, wide, storage.valid)


def _narrow_ints(target: pa.DataType, wide: Ints, valid: Mask) -> pa.Array:
    narrow = wide.astype(target.to_pandas_dtype())
    if not ((narrow == wide) | ~valid).all():
        raise Corrupt("an integer of a row is wider than its column; keep the row for inspection")
    return fixed_array(target, narrow, valid)


def _year(kind: FieldType, storage: StoredValues) -> pa.Array:
    return _narrow_ints(arrow_type(kind), storage.ints(), storage.valid)


def _floating(kind: FieldType, storage: StoredValues) -> pa.Array:
    target = arrow_type(kind)
    doubles = np.where(storage.valid, storage.floats(), 0.0)  # the bytes at NULLs are not numbers
    return fixed_array(target, doubles.astype(target.to_pandas_dtype()), storage.valid)


def _decimals(kind: FieldType, storage: StoredValues) -> pa.Array:
    target = arrow_type(kind)
    if pa.types.is_decimal128(target):
        converted = decimals(storage.decimal_cells(), target)
        if converted is not None:
            return converted
        return _one_by_one(kind, storage.decimal_cells(), lambda value: value)
    return _one_by_one(kind, storage.decimal_cells(), lambda value: f"{value:f}")


def _one_by_one(kind: FieldType, storage: StoredValues, finish: Callable[[Any], Any]) -> pa.Array:
    cells = storage.binary().to_pylist()
    converted = (None if cell is None else finish(values.from_cell(kind, cell)) for cell in cells)
    try:
        return pa.array(converted, arrow_type(kind), size=len(cells))
    except pa.ArrowInvalid as error:
        raise Corrupt(f"a {kind.tp.name} of a row is wider than its column; keep the row") from error


def _strings(kind: FieldType, storage: StoredValues) -> pa.Array:
    raw = storage.binary()
    if kind.is_binary:
        return raw
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are not UTF-8, written by a version that did not check
        texts = (None if cell is None else cell.decode(errors="replace") for cell in raw.to_pylist())
        return pa.array(texts, pa.string(), size=len(raw))


def _times(kind: FieldType, storage: StoredValues) -> pa.Array:
    if kind.tp is Tp.DATE:
        return dates(storage.uints(), storage.valid)
    return timestamps(storage.uints(), arrow_type(kind), storage.valid)


def _enum(kind: FieldType, storage: StoredValues) -> pa.Array:
    names = pa.array(["", *kind.elems], pa.string())
    chosen = storage.uints()
    number = np.where(chosen < len(names), chosen, 0).astype(np.int64)
    return names.take(pa.array(number, mask=~storage.valid))


def _set(kind: FieldType, storage: StoredValues) -> pa.Array:
    distinct, which = np.unique(storage.uints(), return_inverse=True)
    names = [",".join(e for i, e in enumerate(kind.elems) if int(bits) >> i & 1) for bits in distinct]
    return pa.array(names, pa.string()).take(pa.array(which, mask=~storage.valid))


def _vectors(kind: FieldType, storage: StoredValues) -> pa.Array:
    cells = storage.binary()
    offsets = np.frombuffer(cells.buffers()[1], dtype=np.int32, count=len(cells) + 1).astype(np.int64)
    sizes = np.diff(offsets)
    raw = np.frombuffer(cells.buffers()[2] or b"", dtype=np.uint8)
    if ((sizes % 4 != 0) | (storage.valid & (sizes < 4))).any():
        raise Corrupt("a vector of a row is cut short; keep the row for inspection")
    lanes = raw[: offsets[-1]].view("<u4")
    heads = offsets[:-1][storage.valid] // 4
    if (lanes[heads] != sizes[storage.valid] // 4 - 1).any():
        raise Corrupt("a vector of a row has a wrong dimension; keep the row for inspection")
    floats = np.delete(lanes, heads).view("<f4")
    counts = np.where(storage.valid, sizes // 4 - 1, 0)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    buffers = [validity(storage.valid), pa.py_buffer(ends)]
    child = pa.array(floats, pa.float32())
    return pa.Array.from_buffers(arrow_type(kind), len(cells), buffers, children=[child])


def _nothing(kind: FieldType, storage: StoredValues) -> pa.Array:
    if storage.valid.any():
        raise Corrupt(f"a column of type {kind.tp.name} cannot have a value; keep the row for inspection")
    return pa.nulls(len(storage.valid), arrow_type(kind))


_CONVERSIONS: dict[Tp, Callable[[FieldType, StoredValues], pa.Array]] = {
    **dict.fromkeys((*INTEGER_BITS, Tp.BIT), _integers),
    **dict.fromkeys(STRINGS, _strings),
    **dict.fromkeys((Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP), _times),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), _floating),
    **dict.fromkeys((Tp.UNSPECIFIED, Tp.NULL, Tp.GEOMETRY), _nothing),
    Tp.YEAR: _year,
    Tp.NEW_DECIMAL: _decimals,
    Tp.DURATION: lambda _, storage: durations(storage.ints(), storage.valid),
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.JSON: lambda kind, storage: _one_by_one(kind, storage, lambda text: text),
    Tp.VECTOR_FLOAT32: _vectors,
}
