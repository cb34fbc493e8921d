"""Dates that no calendar has (0000-00-00, 2024-00-00, 2024-02-31) in columns of Arrow's dates and times.

MySQL keeps them, Arrow and Spark have no value for them. The event store keeps such a date as a number beyond
the year 9999: a constant, and the fields of the date behind it. So every step in between compares, sorts and
hashes it like any other value, and the formats that write text write it as TiDB prints it. Where rows leave
for readers that know calendar dates only, `hide` makes it null.
"""

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Ints, Mask, validity
from penstock.tables.codec.times import pack, unpack, unpack_datetime
from penstock.tables.columns import FieldType, Tp

_log = logging.getLogger(__name__)
_NAMED_MAX = 10_000
_named: set[tuple[str, str]] = set()
"""Columns that the log has named as having dates that no calendar has."""
_DAY_US = 86_400_000_000
# The last day of 9999 is number 2,932,896; a packed year, month and day is below 4,160,000.
_BEYOND_DAYS = 10_000_000
_BEYOND_US = 1_000_000_000_000_000_000
_YMD_SHIFT = 41  # below the date there are 41 bits of time of day
_TEXT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")
# Texts that may be such dates: those without a year, a month or a day, and days 29 to 31 of short months.
_CANDIDATES = r"^(0000|\d{4}-00|\d{4}-\d\d-00|\d{4}-02-(29|30|31)|\d{4}-(04|06|09|11)-31)"


def to_days(packed: Ints) -> Ints:
    """Return what a date column has for packed dates that no calendar has."""
    return np.asarray(_BEYOND_DAYS + (packed >> _YMD_SHIFT))


def to_micros(packed: Ints) -> Ints:
    """Return what a column of times has for packed times whose date no calendar has."""
    # From the lowest bit: 24 bits of microseconds, 6 of seconds, 6 of minutes, 5 of hours, then the date.
    seconds = ((packed >> 36 & 0x1F) * 60 + (packed >> 30 & 0x3F)) * 60 + (packed >> 24 & 0x3F)
    days_us = (packed >> _YMD_SHIFT) * _DAY_US
    return np.asarray(_BEYOND_US + days_us + seconds * 1_000_000 + (packed & 0xFFFFFF))


def find(values: pa.Array) -> Mask | None:
    """Return which values of a column of dates or times no calendar has; None when there are none."""
    numbers, beyond = _numbers(values)
    found = numbers >= beyond
    if values.null_count:
        found &= np.asarray(values.is_valid())
    return found if found.any() else None


def _numbers(values: pa.Array) -> tuple[npt.NDArray[Any], int]:
    is_date = pa.types.is_date32(values.type)
    content = values.buffers()[1]
    if not len(values) or content is None:
        return np.zeros(len(values), np.int64), _BEYOND_US
    whole = np.frombuffer(content, np.int32 if is_date else np.int64)
    return whole[values.offset : values.offset + len(values)], _BEYOND_DAYS if is_date else _BEYOND_US


def replace_texts(kind: FieldType, values: pa.Array, write: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return dates or times as text: `write` writes real ones, the others are as TiDB prints them."""
    found = find(values)
    if found is None:
        return write(values)
    real = pc.if_else(pa.array(~found), values, pa.scalar(None, values.type))
    spelled = [spell(kind, packed) for packed in _packed(values, found).tolist()]
    return pc.replace_with_mask(write(real), pa.array(found), pa.array(spelled, pa.string()))


def _packed(values: pa.Array, found: Mask) -> Ints:
    numbers, beyond = _numbers(values)
    fields = numbers[found].astype(np.int64) - beyond
    if pa.types.is_date32(values.type):
        return np.asarray(fields << _YMD_SHIFT)
    ymd, clock = np.divmod(fields, _DAY_US)
    seconds, micros = np.divmod(clock, 1_000_000)
    hms = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
    return np.asarray((ymd << 17 | hms) << 24 | micros)


def spell(kind: FieldType, packed: int) -> str:
    """Return a packed date or time as TiDB prints it, with the digits of its column."""
    year, month, day, hour, minute, second, micros = unpack(packed)
    date = f"{year:04}-{month:02}-{day:02}"
    if kind.tp is Tp.DATE:
        return date
    fraction = f".{micros:06}"[: kind.fsp + 1] if kind.fsp else ""
    return f"{date} {hour:02}:{minute:02}:{second:02}{fraction}"


def parse_one(text: str) -> int | None:
    """Pack a date or time that no calendar has from its text; None when the text is not of one."""
    parts = _TEXT.fullmatch(text.strip())
    if parts is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in parts.groups()[:6])
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((parts[7] or "").ljust(6, "0"))
    packed = pack(year, month, day, (hour, minute, second, micros))
    return packed if unpack_datetime(packed) is None else None


def cut(kind: FieldType, packed: int) -> int:
    """Return what a column keeps of a packed time: maybe only the date, or fewer digits of a second."""
    if kind.tp is Tp.DATE:
        return packed >> _YMD_SHIFT << _YMD_SHIFT
    micros = packed & 0xFFFFFF
    return packed - micros % int(10 ** (6 - kind.fsp))


def parse(kind: FieldType, texts: pa.Array, read: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return dates or times from texts: `read` reads those of real ones."""
    candidates = pc.match_substring_regex(texts, _CANDIDATES).fill_null(fill_value=False)
    if not pc.any(candidates, min_count=0).as_py():
        return read(texts)
    places = np.flatnonzero(np.asarray(candidates))
    spelled = [parse_one(text) for text in texts.take(pa.array(places)).to_pylist()]
    kept = [(place, packed) for place, packed in zip(places, spelled, strict=True) if packed is not None]
    found = np.zeros(len(texts), np.bool_)
    found[[place for place, _ in kept]] = True
    values = read(pc.if_else(pa.array(found), pa.scalar(None, pa.string()), texts))
    packed_ints = np.array([packed for _, packed in kept], np.int64)
    if kind.tp is Tp.DATE:
        beyond = pa.array(to_days(packed_ints).astype(np.int32)).cast(values.type)
    else:
        beyond = pa.array(to_micros(packed_ints)).cast(values.type)
    return pc.replace_with_mask(values, pa.array(found), beyond)


def to_pylist(values: pa.Array) -> list[Any]:
    """Return the Python values of a column of any type; dates that no calendar has are texts."""
    is_date = pa.types.is_date32(values.type)
    found = find(values) if is_date or pa.types.is_timestamp(values.type) else None
    if found is None:
        return list(values.to_pylist())
    shown: list[Any] = hide_column(values).to_pylist()
    for place, packed in zip(np.flatnonzero(found), _packed(values, found).tolist(), strict=True):
        digits = 6 if packed & 0xFFFFFF else 0
        shown[place] = spell(FieldType(Tp.DATE if is_date else Tp.DATETIME, decimal=digits), packed)
    return shown


def hide(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str]]:
    """Return rows with null for dates that no calendar has, and the names of the columns that had some."""
    hidden: list[str] = []
    columns = [
        _hide(field.name, column, hidden) for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    if not hidden:
        return rows, hidden
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), list(dict.fromkeys(hidden))


def hide_and_log(table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with null for dates that no calendar has; the log names their columns."""
    shown, columns = hide(rows)
    log_columns(table, columns)
    return shown


def log_columns(table: str, columns: Iterable[str], *, reads_as: str = "NULL") -> None:
    """Write a line for each column with such dates, once for each column and process."""
    for column in sorted(set(columns)):
        if (table, column) not in _named and len(_named) < _NAMED_MAX:
            _named.add((table, column))
            _log.warning(
                "column %s of %s has dates that no calendar has, such as 0000-00-00; they are read as %s",
                column,
                table,
                reads_as,
            )


def hide_scalar(value: pa.Scalar) -> pa.Scalar:
    """Return a value, or null for a date that no calendar has."""
    return hide_column(pa.repeat(value, 1))[0]


def hide_column(values: pa.Array) -> pa.Array:
    """Return a column with null for dates that no calendar has."""
    return _hide("", values, [])


def _hide(name: str, values: pa.Array, hidden: list[str]) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind):
        before = len(hidden)
        children = [
            _hide(field.name, child, hidden) for field, child in zip(kind, _children(values), strict=True)
        ]
        if len(hidden) == before:
            return values
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return values
    found = find(values)
    if found is None:
        return values
    hidden.append(name)
    valid = np.asarray(values.is_valid()) & ~found
    content = values.buffers()[1]
    width = kind.bit_width // 8
    shown = content.slice(values.offset * width, len(values) * width)
    return pa.Array.from_buffers(kind, len(values), [validity(valid), shown])


def _children(values: pa.StructArray) -> list[pa.Array]:
    return [values.field(place) for place in range(values.type.num_fields)]
