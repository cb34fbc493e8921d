"""Python values of a column and their storage form, one value at a time.

| column | Python value |
|---|---|
| integers, BIT, YEAR | int |
| FLOAT, DOUBLE | float |
| DECIMAL | decimal.Decimal |
| CHAR, VARCHAR, TEXT | str |
| BINARY, VARBINARY, BLOB | bytes |
| DATE / DATETIME / TIMESTAMP | date / naive datetime / datetime in UTC; an impossible date is its text |
| TIME | timedelta |
| ENUM, SET | str; a set may also be given as a list of its elements |
| JSON | its text; dicts, lists, numbers, booleans may be given as they are |
| VECTOR | list of floats |
"""

import math
import struct
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.errors import Corrupt, Invalid
from penstock.tables import impossible_dates
from penstock.tables.codec import decimals, json_binary, times
from penstock.tables.codec.datums import NULL, Datum, DatumKind, decimal_datum, find_vector_end
from penstock.tables.codec.ordered import decode_float
from penstock.tables.codec.rows import cell_int, cell_of, cell_uint
from penstock.tables.columns import BLOBS, INTEGER_BITS, PACKED_TIMES, STRINGS, FieldType, Tp

YEAR_MIN, YEAR_MAX = 1901, 2155
VECTOR_DIMENSION_MAX = 16383


def to_datum(kind: FieldType, value: Any) -> Datum:
    """Return the storage form of a Python value; raise Invalid when the column cannot hold it."""
    if value is None:
        return NULL
    return _TO_DATUM[kind.tp](kind, value)


def to_cell(kind: FieldType, value: Any) -> bytes | None:
    """Return the cell of a Python value in a row; raise Invalid when the column cannot hold it."""
    return cell_of(to_datum(kind, value))


def from_cell(kind: FieldType, cell: bytes | None) -> Any:
    """Return the Python value of a cell; raise Corrupt when it is damaged."""
    return None if cell is None else _FROM_CELL[kind.tp](kind, cell)


def from_datum(kind: FieldType, datum: Datum) -> Any:
    """Return the Python value of a datum, such as a primary key column read from a key."""
    return from_cell(kind, cell_of(datum))


def storage_kind(kind: FieldType) -> DatumKind:
    """Return the kind of a column's values in storage."""
    if kind.tp in INTEGER_BITS:
        return DatumKind.UINT if kind.unsigned else DatumKind.INT
    return _STORAGE[kind.tp]


def datum_of_cell(kind: FieldType, cell: bytes | None) -> Datum:
    """Return the storage form of a cell; raise Corrupt when it is damaged."""
    if cell is None:
        return NULL
    storage = storage_kind(kind)
    if storage is DatumKind.UINT:
        return Datum(storage, cell_uint(cell))
    if storage in {DatumKind.INT, DatumKind.DURATION}:
        return Datum(storage, cell_int(cell))
    return Datum(storage, decode_float(cell)) if storage is DatumKind.FLOAT else Datum(storage, cell)


def zero_value(kind: FieldType) -> Any:
    """Return MySQL's value for a NOT NULL column without a default."""
    if kind.tp is Tp.ENUM:
        return kind.elems[0]
    if kind.is_string:
        return b"" if kind.is_binary else ""
    return _ZEROS.get(kind.tp, 0)


def _int(kind: FieldType, value: Any) -> Datum:
    number = _whole(kind, value)
    bits = INTEGER_BITS[kind.tp]
    low, high = (0, (1 << bits) - 1) if kind.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    _check_range(kind, number, low, high)
    return Datum(DatumKind.UINT if kind.unsigned else DatumKind.INT, number)


def _year(kind: FieldType, value: Any) -> Datum:
    number = _whole(kind, value)
    if number:
        _check_range(kind, number, YEAR_MIN, YEAR_MAX)
    return Datum(DatumKind.INT, number)


def _bit(kind: FieldType, value: Any) -> Datum:
    number = int.from_bytes(value, "big") if isinstance(value, bytes) else _whole(kind, value)
    _check_range(kind, number, 0, (1 << max(kind.flen, 1)) - 1)
    return Datum(DatumKind.UINT, number)


def _float(kind: FieldType, value: Any) -> Datum:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _mismatch(kind, value, "a number") from None
    if not math.isfinite(number):
        raise Invalid(f"a {kind.tp.name} column takes finite numbers only; pass a number or None")
    if kind.tp is Tp.FLOAT:
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            raise Invalid("a number is too large for a FLOAT column; use DOUBLE") from None
    return Datum(DatumKind.FLOAT, number)


def _decimal(kind: FieldType, value: Any) -> Datum:
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except (InvalidOperation, TypeError, ValueError):
        raise _mismatch(kind, value, "a Decimal") from None
    return decimal_datum(number, kind.precision, kind.scale)


def _string(kind: FieldType, value: Any) -> Datum:
    if isinstance(value, str):
        raw = value.encode()
    elif isinstance(value, bytes | bytearray | memoryview) and kind.is_binary:
        raw = bytes(value)
    else:
        raise _mismatch(kind, value, "bytes" if kind.is_binary else "a str")
    if kind.tp is Tp.STRING and not kind.is_binary:
        raw = raw.rstrip(b" ")  # CHAR loses its padding when stored
    size = len(raw) if kind.is_binary or kind.tp in BLOBS else len(raw.decode())
    if 0 <= kind.flen < size:
        unit = "bytes" if kind.is_binary or kind.tp in BLOBS else "characters"
        raise Invalid(f"a value of {size} {unit} does not fit a column of {kind.flen}; shorten it")
    if kind.tp is Tp.STRING and kind.is_binary:
        raw = raw.ljust(max(kind.flen, 0), b"\x00")  # BINARY(n) is always n bytes
    return Datum(DatumKind.BYTES, raw)


def _packed_time(kind: FieldType, value: Any) -> Datum:
    if isinstance(value, str):
        return Datum(DatumKind.UINT, parse_time(kind, value))
    if kind.tp is Tp.DATE and isinstance(value, date):
        return Datum(DatumKind.UINT, times.pack_date(value))
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise _mismatch(kind, value, "a date" if kind.tp is Tp.DATE else "a datetime")
    pack = times.pack_timestamp if kind.tp is Tp.TIMESTAMP else times.pack_datetime
    return Datum(DatumKind.UINT, pack(value, kind.fsp))


def parse_time(kind: FieldType, text: str) -> int:
    """Pack a date or time from MySQL's text form; dates that no calendar has are allowed."""
    impossible = impossible_dates.parse_one(text)
    if impossible is not None:
        return impossible_dates.cut(kind, impossible)
    day, _, clock = text.strip().replace("T", " ").partition(" ")
    try:
        year, month, of_month = map(int, day.split("-"))
        moment = datetime.fromisoformat(f"{year:04}-{month:02}-{of_month:02} {clock or '00:00:00'}")
    except ValueError:
        raise _mismatch(kind, text, "a date as YYYY-MM-DD [HH:MM:SS[.ffffff]]") from None
    if kind.tp is Tp.DATE:
        return times.pack_date(moment)
    return (times.pack_timestamp if kind.tp is Tp.TIMESTAMP else times.pack_datetime)(moment, kind.fsp)


def _duration(kind: FieldType, value: Any) -> Datum:
    span = _parse_span(kind, value) if isinstance(value, str) else value
    if not isinstance(span, timedelta):
        raise _mismatch(kind, value, "a timedelta")
    return Datum(DatumKind.DURATION, times.duration_nanos(span, kind.fsp))


def _parse_span(kind: FieldType, text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    try:
        hours, minutes, seconds = text.lstrip("-").split(":")
        return sign * timedelta(
            hours=int(hours), minutes=int(minutes), microseconds=int(Decimal(seconds) * 10**6)
        )
    except (ValueError, InvalidOperation):
        raise _mismatch(kind, text, "a time as HH:MM:SS[.ffffff]") from None


def _enum(kind: FieldType, value: Any) -> Datum:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= len(kind.elems):
        return Datum(DatumKind.UINT, value)
    if isinstance(value, str) and value in kind.elems:
        return Datum(DatumKind.UINT, kind.elems.index(value) + 1)
    if value == "":
        return Datum(DatumKind.UINT, 0)  # MySQL's value for what was no element, unless the mode is strict
    raise Invalid(f"a value is not an element of the ENUM column; use one of {', '.join(kind.elems)}")


def _set(kind: FieldType, value: Any) -> Datum:
    chosen = value.split(",") if isinstance(value, str) else value
    if isinstance(chosen, int):
        _check_range(kind, chosen, 0, (1 << len(kind.elems)) - 1)
        return Datum(DatumKind.UINT, chosen)
    if not isinstance(chosen, Iterable):
        raise _mismatch(kind, value, "a str of elements with commas, or a list of them")
    bits = 0
    for element in chosen:
        if element and element not in kind.elems:
            raise Invalid(f"a value is not an element of the SET column; use any of {', '.join(kind.elems)}")
        bits |= 1 << kind.elems.index(element) if element else 0
    return Datum(DatumKind.UINT, bits)


def _json(_: FieldType, value: Any) -> Datum:
    encoded = json_binary.encode_text(value) if isinstance(value, str) else json_binary.encode(value)
    return Datum(DatumKind.JSON, encoded)


def _vector(kind: FieldType, value: Any) -> Datum:
    try:
        floats = [float(number) for number in value]
        packed = struct.pack(f"<I{len(floats)}f", len(floats), *floats)
    except (TypeError, ValueError, OverflowError):
        raise _mismatch(kind, value, "a list of floats") from None
    if not all(map(math.isfinite, floats)):
        raise Invalid("a VECTOR column takes finite numbers only")
    if len(floats) > VECTOR_DIMENSION_MAX or 0 < kind.flen != len(floats):
        expected = kind.flen if kind.flen > 0 else f"at most {VECTOR_DIMENSION_MAX}"
        raise Invalid(f"a vector has {len(floats)} dimensions; its column takes {expected}")
    return Datum(DatumKind.VECTOR, packed)


def _refuse(kind: FieldType, _: Any) -> Datum:
    raise Invalid(f"columns of type {kind.tp.name} cannot be written; leave the column out")


def _whole(kind: FieldType, value: Any) -> int:
    if type(value) is int:
        return value
    try:
        exact = Decimal(value)
        number = int(exact)
    except (InvalidOperation, TypeError, ValueError, OverflowError):
        raise _mismatch(kind, value, "an int") from None
    if number != exact:
        raise _mismatch(kind, value, "a whole number")
    return number


def _check_range(kind: FieldType, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise Invalid(f"a value is outside of the {kind.tp.name} column's range; pass {low} to {high}")


def _mismatch(kind: FieldType, value: Any, expected: str) -> Invalid:
    return Invalid(f"a {kind.tp.name} column takes {expected}, not a {type(value).__name__} of that form")


def _from_int(kind: FieldType, cell: bytes) -> int:
    return cell_uint(cell) if kind.unsigned else cell_int(cell)


def _from_float(kind: FieldType, cell: bytes) -> float:
    number = decode_float(cell)
    return struct.unpack("<f", struct.pack("<f", number))[0] if kind.tp is Tp.FLOAT else number


def _from_decimal(kind: FieldType, cell: bytes) -> Decimal:
    number, _ = decimals.decode(cell)
    return number.quantize(Decimal(1).scaleb(-kind.scale), context=decimals.WIDE)


def _from_string(kind: FieldType, cell: bytes) -> str | bytes:
    return cell if kind.is_binary else cell.decode(errors="replace")


def _from_packed_time(kind: FieldType, cell: bytes) -> date | str:
    packed = cell_uint(cell)
    unpack = {Tp.DATE: times.unpack_date, Tp.DATETIME: times.unpack_datetime}
    moment = unpack.get(kind.tp, times.unpack_timestamp)(packed)
    return impossible_dates.spell(kind, packed) if moment is None else moment


def _from_enum(kind: FieldType, cell: bytes) -> str:
    number = cell_uint(cell)
    return kind.elems[number - 1] if 0 < number <= len(kind.elems) else ""


def _from_set(kind: FieldType, cell: bytes) -> str:
    bits = cell_uint(cell)
    return ",".join(element for i, element in enumerate(kind.elems) if bits >> i & 1)


def _from_vector(_: FieldType, cell: bytes) -> list[float]:
    end = find_vector_end(cell, 0)
    return list(struct.unpack(f"<{(end - 4) // 4}f", cell[4:end]))


def _no_value(kind: FieldType, _: bytes) -> Any:
    raise Corrupt(f"a column of type {kind.tp.name} cannot have a value; keep the row for inspection")


_TO_DATUM: dict[Tp, Callable[[FieldType, Any], Datum]] = {
    **dict.fromkeys(INTEGER_BITS, _int),
    **dict.fromkeys(STRINGS, _string),
    **dict.fromkeys(PACKED_TIMES, _packed_time),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), _float),
    **dict.fromkeys((Tp.UNSPECIFIED, Tp.NULL, Tp.GEOMETRY), _refuse),
    Tp.YEAR: _year,
    Tp.BIT: _bit,
    Tp.NEW_DECIMAL: _decimal,
    Tp.DURATION: _duration,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.JSON: _json,
    Tp.VECTOR_FLOAT32: _vector,
}

_FROM_CELL: dict[Tp, Callable[[FieldType, bytes], Any]] = {
    **dict.fromkeys(INTEGER_BITS, _from_int),
    **dict.fromkeys(STRINGS, _from_string),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), _from_float),
    **dict.fromkeys((Tp.UNSPECIFIED, Tp.NULL, Tp.GEOMETRY), _no_value),
    Tp.YEAR: lambda _, cell: cell_int(cell),
    Tp.BIT: lambda _, cell: cell_uint(cell),
    Tp.NEW_DECIMAL: _from_decimal,
    **dict.fromkeys(PACKED_TIMES, _from_packed_time),
    Tp.DURATION: lambda _, cell: times.duration_span(cell_int(cell)),
    Tp.ENUM: _from_enum,
    Tp.SET: _from_set,
    Tp.JSON: lambda _, cell: json_binary.decode_text(cell),
    Tp.VECTOR_FLOAT32: _from_vector,
}

_ZEROS: dict[Tp, Any] = {
    Tp.DATE: "0000-00-00",
    Tp.DATETIME: "0000-00-00",
    Tp.TIMESTAMP: "0000-00-00",
    Tp.DURATION: timedelta(0),
    Tp.SET: "",
    Tp.JSON: "null",
    Tp.VECTOR_FLOAT32: (),
}

_STORAGE: dict[Tp, DatumKind] = {
    **dict.fromkeys(STRINGS, DatumKind.BYTES),
    **dict.fromkeys((*PACKED_TIMES, Tp.BIT, Tp.ENUM, Tp.SET), DatumKind.UINT),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), DatumKind.FLOAT),
    **dict.fromkeys((Tp.UNSPECIFIED, Tp.NULL, Tp.GEOMETRY), DatumKind.NULL),
    Tp.YEAR: DatumKind.INT,
    Tp.DURATION: DatumKind.DURATION,
    Tp.NEW_DECIMAL: DatumKind.DECIMAL,
    Tp.JSON: DatumKind.JSON,
    Tp.VECTOR_FLOAT32: DatumKind.VECTOR,
}
