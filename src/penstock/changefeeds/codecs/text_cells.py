"""Columns that a file holds as text, as the Arrow type of the column. Pure, a column at a time.

Zero dates (`0000-00-00`, and dates without a month or a day) have no Arrow value and become null, as
everywhere in Penstock.
"""

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Corrupt
from penstock.tables.arrow import arrow_type
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import PACKED_TIMES, FieldType, Tp

_SPAN = r"^(?P<sign>-?)(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,6}))?$"
_ZERO_DATE = r"^\d+-(00-|\d+-00)"


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a format writes what has several forms as text."""

    to_bytes: Callable[[str], bytes]
    numbered_elements: bool  # enums and sets by number, not by name
    time_zone: str = "UTC"  # one that there is


def latin1(text: str) -> bytes:
    """Bytes that were written as the characters of the same numbers."""
    return text.encode("latin-1")


def base64_bytes(text: str) -> bytes:
    """Bytes in base64."""
    return base64.b64decode(text, validate=True)


def from_text(column: ColumnInfo, text: pa.Array, form: TextForm) -> pa.Array:
    """Texts as the column's type; raise Corrupt when one is no value of it."""
    kind = column.type
    try:
        if kind.tp in _READERS:
            return _READERS[kind.tp](kind, text, form)
        if kind.is_binary:
            return _each(text, form.to_bytes, pa.binary())
        return pc.cast(text, arrow_type(kind))
    except (pa.ArrowInvalid, ValueError, IndexError, binascii.Error) as error:
        raise Corrupt(
            f"column {column.name} has a value that is no {kind.tp.name} (or the schema file is another's);"
            " keep the file"
        ) from error


def _packed_time(kind: FieldType, text: pa.Array, form: TextForm) -> pa.Array:
    zero = pc.match_substring_regex(text, _ZERO_DATE).fill_null(fill_value=False)
    real = pc.if_else(zero, pa.scalar(None, pa.string()), text)
    if kind.tp is not Tp.TIMESTAMP:
        return pc.cast(real, arrow_type(kind))
    local = pc.cast(real, pa.timestamp("us"))
    zoned = pc.assume_timezone(local, form.time_zone, ambiguous="earliest", nonexistent="latest")
    return zoned.cast(arrow_type(kind))


def _span(kind: FieldType, text: pa.Array, _: TextForm) -> pa.Array:
    parts = pc.extract_regex(text, _SPAN)
    if parts.null_count != text.null_count:
        raise ValueError("a time that is none")
    number = {name: _number(parts.field(name)) for name in ("hours", "minutes", "seconds")}
    seconds = pc.add(
        pc.multiply(number["hours"], 3600), pc.add(pc.multiply(number["minutes"], 60), number["seconds"])
    )
    fraction = _number(pc.utf8_rpad(parts.field("fraction"), 6, "0"))
    micros = pc.add(pc.multiply(seconds, 1_000_000), fraction)
    signed = pc.if_else(pc.equal(parts.field("sign"), "-"), pc.negate(micros), micros)
    return pc.if_else(pc.is_valid(text), signed, pa.scalar(None, pa.int64())).cast(arrow_type(kind))


def _number(text: pa.Array) -> pa.Array:
    filled = pc.if_else(pc.equal(text, ""), "0", text)
    return pc.cast(pc.fill_null(filled, "0"), pa.int64())


def _enum(kind: FieldType, text: pa.Array, form: TextForm) -> pa.Array:
    if not form.numbered_elements:
        return text
    return _each(text, lambda number: kind.elems[int(number) - 1] if int(number) else "", pa.string())


def _set(kind: FieldType, text: pa.Array, form: TextForm) -> pa.Array:
    if not form.numbered_elements:
        return text
    return _each(text, lambda bits: _chosen(kind.elems, int(bits)), pa.string())


def _chosen(elems: tuple[str, ...], bits: int) -> str:
    if bits >> len(elems):
        raise ValueError("an element that the set does not have")
    return ",".join(element for place, element in enumerate(elems) if bits >> place & 1)


def _vector(kind: FieldType, text: pa.Array, _: TextForm) -> pa.Array:
    return _each(text, json.loads, arrow_type(kind))


def _each(text: pa.Array, read: Callable[[str], Any], to: pa.DataType) -> pa.Array:
    """Read each distinct text once."""
    known = text.dictionary_encode()
    values = pa.array([None if each is None else read(each) for each in known.dictionary.to_pylist()], to)
    return values.take(known.indices)


_READERS: dict[Tp, Callable[[FieldType, pa.Array, TextForm], pa.Array]] = {
    **dict.fromkeys(PACKED_TIMES, _packed_time),
    Tp.DURATION: _span,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.VECTOR_FLOAT32: _vector,
}
