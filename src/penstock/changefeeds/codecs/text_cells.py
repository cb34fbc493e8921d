"""Text files for decoders: blocks of whole lines, and columns of text as the Arrow types of their columns.

Dates that no calendar has (`0000-00-00`, `2024-02-31`) are kept, in the form of `tables.impossible_dates`.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import Corrupt
from penstock.tables import impossible_dates
from penstock.tables.arrow import arrow_type
from penstock.tables.columns import PACKED_TIMES, ColumnInfo, FieldType, Tp

BLOCK_BYTES = 8 * 1024 * 1024
_DURATION = r"^(?P<sign>-?)(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,6}))?$"


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a format writes values that can be text in several ways."""

    to_bytes: Callable[[str], bytes]
    numbered_elements: bool  # enums and sets by number, not by name
    time_zone: str = "UTC"  # a name that the time zone database has


def latin1_bytes(text: str) -> bytes:
    """Return bytes that are written as the characters of the same numbers."""
    return text.encode("latin-1")


def base64_bytes(text: str) -> bytes:
    """Return bytes that are written in base64."""
    return base64.b64decode(text, validate=True)


def from_text(column: ColumnInfo, text: pa.Array, form: TextForm) -> pa.Array:
    """Return texts as the column's type; raise Corrupt when one is no value of it."""
    kind = column.type
    try:
        if kind.tp in _PARSERS:
            return _PARSERS[kind.tp](kind, text, form)
        if kind.is_binary:
            return _parse_distinct(text, form.to_bytes, pa.binary())
        return pc.cast(text, arrow_type(kind))
    except (pa.ArrowInvalid, ValueError, IndexError, binascii.Error) as error:
        raise Corrupt(
            f"column {column.name} has a value that is no {kind.tp.name} (or the schema file is another's);"
            " keep the file"
        ) from error


def _parse_time(kind: FieldType, text: pa.Array, form: TextForm) -> pa.Array:
    return impossible_dates.parse(kind, text, partial(_parse_calendar_time, kind, form))


def _parse_calendar_time(kind: FieldType, form: TextForm, text: pa.Array) -> pa.Array:
    if kind.tp is not Tp.TIMESTAMP:
        return pc.cast(text, arrow_type(kind))
    local = pc.cast(text, pa.timestamp("us"))
    zoned = pc.assume_timezone(local, form.time_zone, ambiguous="earliest", nonexistent="latest")
    return zoned.cast(arrow_type(kind))


def _parse_duration(kind: FieldType, text: pa.Array, _: TextForm) -> pa.Array:
    parts = pc.extract_regex(text, _DURATION)
    if parts.null_count != text.null_count:
        raise ValueError("not a time")
    number = {name: _parse_number(parts.field(name)) for name in ("hours", "minutes", "seconds")}
    seconds = pc.add(
        pc.multiply(number["hours"], 3600), pc.add(pc.multiply(number["minutes"], 60), number["seconds"])
    )
    fraction = _parse_number(pc.utf8_rpad(parts.field("fraction"), 6, "0"))
    micros = pc.add(pc.multiply(seconds, 1_000_000), fraction)
    signed = pc.if_else(pc.equal(parts.field("sign"), "-"), pc.negate(micros), micros)
    return pc.if_else(pc.is_valid(text), signed, pa.scalar(None, pa.int64())).cast(arrow_type(kind))


def _parse_number(text: pa.Array) -> pa.Array:
    filled = pc.if_else(pc.equal(text, ""), "0", text)
    return pc.cast(pc.fill_null(filled, "0"), pa.int64())


def _parse_enum(kind: FieldType, text: pa.Array, form: TextForm) -> pa.Array:
    if not form.numbered_elements:
        return text
    return _parse_distinct(
        text, lambda number: kind.elems[int(number) - 1] if int(number) else "", pa.string()
    )


def _parse_set(kind: FieldType, text: pa.Array, form: TextForm) -> pa.Array:
    if not form.numbered_elements:
        return text
    return _parse_distinct(text, lambda bits: _set_members(kind.elems, int(bits)), pa.string())


def _set_members(elems: tuple[str, ...], bits: int) -> str:
    if bits >> len(elems):
        raise ValueError("not an element of the set")
    return ",".join(element for place, element in enumerate(elems) if bits >> place & 1)


def _parse_vector(kind: FieldType, text: pa.Array, _: TextForm) -> pa.Array:
    # 1e38 is written with all its digits, and -0 has a sign: neither is an integer of Arrow.
    return _parse_distinct(text, partial(json.loads, parse_int=float), arrow_type(kind))


def _parse_distinct(text: pa.Array, read: Callable[[str], Any], to: pa.DataType) -> pa.Array:
    """Parse each distinct text once."""
    encoded = text.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    values = pa.array([None if value is None else read(value) for value in distinct], to)
    return values.take(encoded.indices)


_PARSERS: dict[Tp, Callable[[FieldType, pa.Array, TextForm], pa.Array]] = {
    **dict.fromkeys(PACKED_TIMES, _parse_time),
    Tp.DURATION: _parse_duration,
    Tp.ENUM: _parse_enum,
    Tp.SET: _parse_set,
    Tp.VECTOR_FLOAT32: _parse_vector,
}


class Readable(Protocol):
    """What a decoder needs of a file."""

    def read(self, nbytes: int, /) -> bytes:
        """Return the next bytes, at most so many; none at the end."""


def read_blocks(
    stream: Readable, line_end: bytes, block_bytes: int = BLOCK_BYTES, *, quote: bytes = b""
) -> Iterator[bytes]:
    """Yield whole lines, about `block_bytes` at a time; a longer line comes alone.

    A line end between quotes ends no line; a quote within quotes is doubled.
    """
    held: list[bytes] = []
    inside = False  # whether the held bytes end between quotes
    while data := stream.read(block_bytes):
        cut = _last_end(data, line_end, quote, inside=inside)
        if not cut:
            held.append(data)
            inside ^= _is_odd(data, quote)
            continue
        yield b"".join((*held, data[:cut]))
        held = [data[cut:]]
        inside = _is_odd(held[0], quote)
    if rest := b"".join(held):
        yield rest


def _last_end(data: bytes, line_end: bytes, quote: bytes, *, inside: bool) -> int:
    """Return the place after the last line end that is not between quotes; 0 when there is none."""
    at = data.rfind(line_end)
    odd = inside ^ _is_odd(data[:at], quote) if at >= 0 else False
    while at >= 0 and odd:
        before = data.rfind(line_end, 0, at)
        if before >= 0:
            odd ^= _is_odd(data[before:at], quote)
        at = before
    return at + len(line_end) if at >= 0 else 0


def _is_odd(data: bytes, quote: bytes) -> bool:
    return bool(quote) and data.count(quote) % 2 == 1


def parse_json_lines(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return lines of JSON as a batch of this schema; raise Corrupt when a line is no JSON.

    Members that the schema does not have are left out; members that a line does not have are null.
    """
    reading = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        found = pj.read_json(pa.BufferReader(block), read_options=reading, parse_options=parsing)
    except pa.ArrowInvalid as error:
        raise Corrupt("a line is no JSON, or not of the schema file's columns; keep the file") from error
    batches = found.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
