"""Packed decimals and packed times of a whole batch into Arrow's numbers."""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.buffers import Bytes, Ints, Mask, Uints, words
from penstock.errors import Corrupt
from penstock.tables.codec.decimals import BYTES_OF_DIGITS, WORD_DIGITS, packed_bytes, parts_of
from penstock.tables.codec.times import MONTHS
from penstock.tables.decoding.cells import Cells, fixed

_LIMB_BITS = np.uint64(32)
_LIMB = np.uint64(0xFFFFFFFF)
_LIMBS = 4
_LONG_DIGITS = 18
_DAYS_OF_MONTH = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
_DAY_US = 86_400_000_000
_YEARS = 10_000


def decimals(cells: Cells, kind: pa.Decimal128Type) -> pa.Array | None:
    """Decimals as decimal128; None when some must be rounded, which is left to exact arithmetic.

    A column's rows may carry several precisions: widening a decimal rewrites nothing.
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
    return fixed(kind, out, cells.valid)


def _decimal128(data: Bytes, at: Ints, precision: int, scale: int, wanted: int) -> npt.NDArray[np.uint64]:
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
    parts += [(min(WORD_DIGITS, missing), zeros) for missing in range(wanted - scale, 0, -WORD_DIGITS)]
    if precision + wanted - scale <= _LONG_DIGITS:
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
    """Unsigned 64-bit integers as decimals."""
    return fixed(kind, np.stack([values, np.zeros_like(values)], axis=1), valid)


def dates(packed: Uints, valid: Mask) -> pa.Array:
    """Packed times as days; dates that no calendar has become null."""
    days, real = _days(packed.view(np.int64) >> 41)
    return fixed(pa.date32(), days.astype(np.int32), valid & real)


def timestamps(packed: Uints, kind: pa.TimestampType, valid: Mask) -> pa.Array:
    """Packed times as microseconds; dates that no calendar has become null."""
    fields = packed.view(np.int64)
    days, real = _days(fields >> 41)
    seconds = ((fields >> 36 & 0x1F) * 60 + (fields >> 30 & 0x3F)) * 60 + (fields >> 24 & 0x3F)
    micros = days * _DAY_US + seconds * 1_000_000 + (fields & 0xFFFFFF)
    return fixed(kind, micros, valid & real)


def _days(ymd: Ints) -> tuple[Ints, Mask]:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, and which dates are real."""
    before, lengths = _calendar()
    year_month, day = np.minimum(ymd >> 5, len(before) - 1), ymd & 0x1F
    return before[year_month] + day, (day > 0) & (day <= lengths[year_month])


@cache
def _calendar() -> tuple[Ints, Ints]:
    """For each packed year and month: days from 1970 to before its first day, and its length (0: unreal)."""
    year, month = np.divmod(np.arange(_YEARS * MONTHS + 1), MONTHS)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    lengths = _DAYS_OF_MONTH[month] - ((month == 2) & ~leap)
    lengths[(year == 0) | (year >= _YEARS)] = 0
    march_year = year - (month <= 2)  # years begin in March, so that the leap day is their last
    march_month = month + np.where(month > 2, -3, 9)
    days = march_year * 365 + march_year // 4 - march_year // 100 + march_year // 400
    return days + (153 * march_month + 2) // 5 - 719_469, lengths


def durations(nanos: Ints, valid: Mask) -> pa.Array:
    """Nanoseconds as spans in microseconds, cut towards zero."""
    micros = np.abs(nanos) // 1000
    return fixed(pa.duration("us"), np.where(nanos < 0, -micros, micros), valid)
