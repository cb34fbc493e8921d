"""Values of one column type as values of another, as MODIFY COLUMN converts them in MySQL's strict mode.

Numbers round half away from zero (floats half to even) and are refused out of range. Text must be a whole
number, date or element, and must fit. Fractions of a second round half up. A TIMESTAMP counts as UTC.
Conversions that depend on more than the value (from an ENUM to a time, from bits to a date) do not exist.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from penstock.errors import Invalid
from penstock.tables.codec import decimals, times
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.columns import INTEGER_BITS, PACKED_TIMES, FieldType, Tp
from penstock.tables.statements import type_text
from penstock.tables.values import from_datum, to_datum

_NUMBERS = frozenset({*INTEGER_BITS, Tp.NEW_DECIMAL, Tp.FLOAT, Tp.DOUBLE})
_FLOATS = frozenset({Tp.FLOAT, Tp.DOUBLE})


def can_convert(old: FieldType, new: FieldType) -> bool:
    """Return whether values of one type can be converted to the other at all."""
    return _converter(old, new) is not None


def convert(old: FieldType, new: FieldType, datum: Datum) -> Datum:
    """Return a value in the new type; NULL stays NULL.

    Raise Invalid, without the value, when it does not fit the new type or the types do not convert.
    """
    if datum.kind is DatumKind.NULL:
        return datum
    if old.tp in PACKED_TIMES and new.tp in PACKED_TIMES:
        return Datum(DatumKind.UINT, _retime(new, int(datum.value or 0)))
    converter, value = _converter(old, new), from_datum(old, datum)
    if converter is None:
        raise Invalid(f"values of {type_text(old)} cannot be converted to {type_text(new)}")
    if old.tp in PACKED_TIMES and isinstance(value, str) and not new.is_string:
        raise Invalid(f"a date that no calendar has cannot be converted to {type_text(new)}")
    converted = to_datum(new, converter(old, new, value))
    if new.tp in PACKED_TIMES and _is_refused_date(int(converted.value or 0)):
        raise Invalid(f"a text is no date of a calendar, so it cannot be converted to {type_text(new)}")
    if new.tp is Tp.ENUM and not converted.value:
        raise Invalid(f"a text is no element of the ENUM, so it cannot be converted to {type_text(new)}")
    return converted


def _is_refused_date(packed: int) -> bool:
    """Whether the date has all its parts and is in no calendar; dates without some parts are kept."""
    _, month, day, *_ = times.unpack(packed)
    return bool(month and day) and times.unpack_datetime(packed) is None


def _converter(old: FieldType, new: FieldType) -> Callable[[FieldType, FieldType, Any], Any] | None:
    if Tp.VECTOR_FLOAT32 in {old.tp, new.tp} and old.tp is not new.tp:
        return None
    if new.is_string:
        return _to_string if old.tp in _TEXTS or old.is_string else None
    if old.is_string and old.is_binary:
        return None
    if new.tp in _NUMBERS:
        return _to_number if old.tp in {*_NUMBERS, Tp.YEAR, Tp.BIT} or old.is_string else None
    if new.tp in PACKED_TIMES:
        return _same if old.tp in PACKED_TIMES or old.is_string else None
    if new.tp is Tp.DURATION:
        return _to_duration if old.tp in {Tp.DURATION, Tp.DATETIME} or old.is_string else None
    if new.tp is Tp.YEAR:
        return _to_year if old.tp in {Tp.YEAR, *INTEGER_BITS} or old.is_string else None
    if new.tp in {Tp.ENUM, Tp.SET}:
        return _same if old.tp is new.tp or old.is_string else None
    if new.tp is Tp.JSON:
        return _same if old.tp is Tp.JSON or old.is_string else None
    return _same if old.tp is new.tp else None


def _same(_: FieldType, __: FieldType, value: Any) -> Any:
    return value


def _to_number(old: FieldType, new: FieldType, value: Any) -> Any:
    if old.is_string:
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            raise Invalid(f"a text is no number, so it cannot be converted to {type_text(new)}") from None
        if not value.is_finite():
            raise Invalid(f"a text is no number, so it cannot be converted to {type_text(new)}")
    if new.tp in INTEGER_BITS:
        if isinstance(value, float):
            return round(value)
        return int(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP, decimals.WIDE))
    if new.tp is Tp.NEW_DECIMAL:
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return exact.quantize(Decimal(1).scaleb(-new.scale), ROUND_HALF_UP, decimals.WIDE)
    return float(value)


def _to_year(old: FieldType, _: FieldType, value: Any) -> Any:
    number = _to_number(old, FieldType(Tp.LONGLONG), value)
    if 0 < number < 100:
        return number + (2000 if number < 70 else 1900)  # two digits are 1970 to 2069
    return number


def _retime(new: FieldType, packed: int) -> int:
    year, month, day, *clock = times.unpack(packed)
    if new.tp is Tp.DATE:
        return times.pack(year, month, day)
    moment = times.unpack_datetime(packed)
    if moment is None:  # a zero date keeps its parts; it has nothing to carry a rounded second to
        hour, minute, second, micros = clock
        return times.pack(year, month, day, (hour, minute, second, micros))
    return times.pack_datetime(moment, new.fsp)


def _to_duration(old: FieldType, _: FieldType, value: Any) -> Any:
    if isinstance(value, datetime):
        return timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        )
    return value.strip() if old.is_string else value


def _to_string(old: FieldType, new: FieldType, value: Any) -> Any:
    if old.is_string:
        text = value if isinstance(value, str) or new.is_binary else _decode(new, value)
    elif old.tp in PACKED_TIMES and isinstance(value, str):
        text = value  # of a date that no calendar has
    else:
        text = _TEXTS[old.tp](old, value)
    if new.tp in {Tp.VARCHAR, Tp.VAR_STRING} and isinstance(text, str) and not new.is_binary:
        excess = len(text) - max(new.flen, 0)
        if excess > 0 and not text[new.flen :].strip(" "):
            return text[: new.flen]  # only trailing spaces are cut
    return text


def _decode(new: FieldType, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid(f"bytes are no text, so they cannot be converted to {type_text(new)}") from None


def _float_text(old: FieldType, value: float) -> str:
    if old.tp is Tp.FLOAT:
        short = next(
            text for digits in range(1, 18) if float(text := f"{value:.{digits}g}") == value or digits > 8
        )
        return f"{Decimal(short):f}"
    text = f"{Decimal(repr(value)):f}"
    return text.removesuffix(".0")


def _moment_text(old: FieldType, value: Any) -> str:
    moment = value.astimezone(UTC) if value.tzinfo else value
    text = f"{moment:%H:%M:%S}"
    fraction = f".{moment.microsecond:06}"[: old.fsp + 1] if old.fsp else ""
    return f"{moment.year:04}-{moment.month:02}-{moment.day:02} {text}{fraction}"


def _duration_text(old: FieldType, value: timedelta) -> str:
    text = times.duration_text(round(value / timedelta(microseconds=1)) * 1000)
    return text[: len(text) - 6 + old.fsp] if old.fsp else text[:-7]


_TEXTS: dict[Tp, Callable[[FieldType, Any], str]] = {
    **dict.fromkeys(INTEGER_BITS, lambda _, value: str(value)),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), _float_text),
    **dict.fromkeys((Tp.DATETIME, Tp.TIMESTAMP), _moment_text),
    Tp.NEW_DECIMAL: lambda _, value: f"{value:f}",
    Tp.DATE: lambda _, value: f"{value.year:04}-{value.month:02}-{value.day:02}",
    Tp.DURATION: _duration_text,
    Tp.YEAR: lambda _, value: f"{value:04}",
    Tp.ENUM: lambda _, value: value,
    Tp.SET: lambda _, value: value,
    Tp.JSON: lambda _, value: value,
}
