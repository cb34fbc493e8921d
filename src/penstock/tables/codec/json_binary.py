"""TiDB's binary JSON and its canonical text.

A document is a type code and a body. The body of an object or array begins with a table of entries, whose
offsets count from the start of that body; an entry contains a literal itself. Object keys are in byte order.
The text has the form that TiDB prints: `{"a": 1, "b": [true, null]}`.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import IntEnum
from typing import Any

from penstock.errors import Corrupt, Invalid
from penstock.tables.codec.ordered import decode_uvarint, encode_uvarint
from penstock.tables.codec.times import duration_text

DEPTH_MAX = 100


class JsonType(IntEnum):
    """Type codes of binary JSON."""

    OBJECT = 0x01
    ARRAY = 0x03
    LITERAL = 0x04
    INT64 = 0x09
    UINT64 = 0x0A
    FLOAT64 = 0x0B
    STRING = 0x0C
    OPAQUE = 0x0D
    DATE = 0x0E
    DATETIME = 0x0F
    TIMESTAMP = 0x10
    DURATION = 0x11


_LITERALS = {None: b"\x00", True: b"\x01", False: b"\x02"}
_LITERAL_TEXTS = ("null", "true", "false")
_HEADER = struct.Struct("<II")  # elements, bytes
_KEY_ENTRY = struct.Struct("<IH")  # offset, length
_VALUE_ENTRY = struct.Struct("<BI")  # type, offset or the literal itself
_FIXED_BYTES = {
    JsonType.INT64: 8,
    JsonType.UINT64: 8,
    JsonType.FLOAT64: 8,
    JsonType.DATE: 8,
    JsonType.DATETIME: 8,
    JsonType.TIMESTAMP: 8,
    JsonType.DURATION: 12,
    JsonType.LITERAL: 1,
}
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_SCIENTIFIC_BELOW, _SCIENTIFIC_FROM = Decimal("1e-15"), Decimal("1e15")


def encode_text(text: str) -> bytes:
    """Encode a JSON text; raise Invalid when it is not JSON."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Invalid("the text for a JSON column is not JSON; pass valid JSON or a dict") from error
    return encode(document)


def encode(document: Any) -> bytes:
    """Encode a document of dicts, lists, strings, numbers, booleans and None; raise Invalid for others."""
    code, body = _encode(document, 0)
    return bytes((code,)) + body


def decode_text(encoded: bytes) -> str:
    """Return the canonical text of the document in `encoded`; raise Corrupt when it is damaged."""
    try:
        return _text(encoded[0], encoded, 1)
    except (IndexError, struct.error, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt("a JSON value is cut short or damaged; keep the row for inspection") from error


def find_end(encoded: bytes, at: int) -> int:
    """Return the end of the document at `at`; raise Corrupt when it is cut short."""
    try:
        code, body = JsonType(encoded[at]), at + 1
        if code in _FIXED_BYTES:
            end = body + _FIXED_BYTES[code]
        elif code in {JsonType.STRING, JsonType.OPAQUE}:
            length, start = decode_uvarint(encoded, body + (code is JsonType.OPAQUE))
            end = start + length
        else:
            end = body + int(_HEADER.unpack_from(encoded, body)[1])
    except (IndexError, struct.error, ValueError) as error:
        raise Corrupt(f"a JSON value is damaged at offset {at}; keep the row for inspection") from error
    if end > len(encoded):
        raise Corrupt(f"a JSON value is cut short at offset {at}; keep the row for inspection")
    return end


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _encode(value: Any, depth: int) -> tuple[JsonType, bytes]:
    if depth > DEPTH_MAX:
        raise Invalid(f"a JSON document is nested deeper than {DEPTH_MAX}; flatten it")
    if value is None or isinstance(value, bool):
        return JsonType.LITERAL, _LITERALS[value]
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid("JSON has no infinity and no NaN; pass a finite number or None")
        return JsonType.FLOAT64, struct.pack("<d", value)
    if isinstance(value, str):
        raw = _utf8(value)
        return JsonType.STRING, encode_uvarint(len(raw)) + raw
    if isinstance(value, dict):
        return JsonType.OBJECT, _encode_object(value, depth)
    if isinstance(value, list | tuple):
        return JsonType.ARRAY, _container(b"", [_encode(item, depth + 1) for item in value], _HEADER.size)
    raise Invalid(
        f"JSON has no {type(value).__name__}; pass dicts, lists, strings, numbers, booleans or None"
    )


def _utf8(text: str) -> bytes:
    return _LONE_SURROGATES.sub("\ufffd", text).encode()


def _encode_int(value: int) -> tuple[JsonType, bytes]:
    if -(1 << 63) <= value < 1 << 63:
        return JsonType.INT64, struct.pack("<q", value)
    if 0 <= value < 1 << 64:
        return JsonType.UINT64, struct.pack("<Q", value)
    try:
        return JsonType.FLOAT64, struct.pack("<d", float(value))
    except OverflowError as error:
        raise Invalid("a JSON number is too large for a double; pass it as a string") from error


def _encode_object(value: dict[Any, Any], depth: int) -> bytes:
    if not all(isinstance(key, str) for key in value):
        raise Invalid("keys of a JSON object are strings; convert them first")
    members = sorted(((_utf8(key), member) for key, member in value.items()), key=lambda pair: pair[0])
    keys = b"".join(key for key, _ in members)
    entries, offset = [], _HEADER.size + len(members) * (_KEY_ENTRY.size + _VALUE_ENTRY.size)
    for key, _ in members:
        if len(key) > 0xFFFF:
            raise Invalid("a key of a JSON object is longer than 65535 bytes; shorten it")
        entries.append(_KEY_ENTRY.pack(offset, len(key)))
        offset += len(key)
    items = [_encode(member, depth + 1) for _, member in members]
    return _container(b"".join(entries), items, _HEADER.size, keys)


def _container(
    key_entries: bytes, items: Sequence[tuple[JsonType, bytes]], head: int, keys: bytes = b""
) -> bytes:
    offset = head + len(key_entries) + len(items) * _VALUE_ENTRY.size + len(keys)
    entries, bodies = [], []
    for code, body in items:
        if code is JsonType.LITERAL:
            entries.append(_VALUE_ENTRY.pack(code, body[0]))
            continue
        entries.append(_VALUE_ENTRY.pack(code, offset))
        bodies.append(body)
        offset += len(body)
    return b"".join([_HEADER.pack(len(items), offset), key_entries, *entries, keys, *bodies])


def _text(code: int, encoded: bytes, at: int) -> str:
    return _TEXTS[code](encoded, at)


def _object_text(encoded: bytes, at: int) -> str:
    count, _ = _HEADER.unpack_from(encoded, at)
    values = at + _HEADER.size + count * _KEY_ENTRY.size
    members = []
    for i in range(count):
        offset, length = _KEY_ENTRY.unpack_from(encoded, at + _HEADER.size + i * _KEY_ENTRY.size)
        key = _slice(encoded, at + offset, length).decode()
        members.append(f"{_quote(key)}: {_entry_text(encoded, at, values + i * _VALUE_ENTRY.size)}")
    return "{" + ", ".join(members) + "}"


def _array_text(encoded: bytes, at: int) -> str:
    count, _ = _HEADER.unpack_from(encoded, at)
    entries = range(at + _HEADER.size, at + _HEADER.size + count * _VALUE_ENTRY.size, _VALUE_ENTRY.size)
    return "[" + ", ".join(_entry_text(encoded, at, entry) for entry in entries) + "]"


def _entry_text(encoded: bytes, body: int, entry: int) -> str:
    code, offset = _VALUE_ENTRY.unpack_from(encoded, entry)
    if code == JsonType.LITERAL:
        return _LITERAL_TEXTS[offset & 0xFF]
    return _text(code, encoded, body + offset)


def _string_text(encoded: bytes, at: int) -> str:
    length, start = decode_uvarint(encoded, at)
    return _quote(_slice(encoded, start, length).decode(errors="replace"))


def _opaque_text(encoded: bytes, at: int) -> str:
    length, start = decode_uvarint(encoded, at + 1)
    data = base64.b64encode(_slice(encoded, start, length)).decode()
    return f'"base64:type{encoded[at]}:{data}"'


def _float_text(encoded: bytes, at: int) -> str:
    # repr gives the fewest digits that read back as the same number.
    value = Decimal(repr(struct.unpack_from("<d", encoded, at)[0]))
    if value and not _SCIENTIFIC_BELOW <= abs(value) < _SCIENTIFIC_FROM:
        mantissa, exponent = f"{value.normalize():e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    text = f"{value:f}"
    return text if "." in text else text + ".0"


def _date_text(encoded: bytes, at: int) -> str:
    year, month, day, *_ = _core_time(encoded, at)
    return f'"{year:04}-{month:02}-{day:02}"'


def _datetime_text(encoded: bytes, at: int) -> str:
    year, month, day, hour, minute, second, micros = _core_time(encoded, at)
    return f'"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}"'


def _core_time(encoded: bytes, at: int) -> tuple[int, int, int, int, int, int, int]:
    """Decode TiDB's in-memory time, which only binary JSON stores: bit fields from the year down."""
    bits = struct.unpack_from("<Q", encoded, at)[0]
    return (
        bits >> 50,
        bits >> 46 & 0xF,
        bits >> 41 & 0x1F,
        bits >> 36 & 0x1F,
        bits >> 30 & 0x3F,
        bits >> 24 & 0x3F,
        bits >> 4 & 0xFFFFF,
    )


def _slice(encoded: bytes, start: int, length: int) -> bytes:
    part = encoded[start : start + length]
    if len(part) < length:
        raise IndexError(start)
    return part


def _quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


_TEXTS: dict[int, Callable[[bytes, int], str]] = {
    JsonType.OBJECT: _object_text,
    JsonType.ARRAY: _array_text,
    JsonType.LITERAL: lambda encoded, at: _LITERAL_TEXTS[encoded[at]],
    JsonType.INT64: lambda encoded, at: str(struct.unpack_from("<q", encoded, at)[0]),
    JsonType.UINT64: lambda encoded, at: str(struct.unpack_from("<Q", encoded, at)[0]),
    JsonType.FLOAT64: _float_text,
    JsonType.STRING: _string_text,
    JsonType.OPAQUE: _opaque_text,
    JsonType.DATE: _date_text,
    JsonType.DATETIME: _datetime_text,
    JsonType.TIMESTAMP: _datetime_text,
    JsonType.DURATION: lambda encoded, at: f'"{duration_text(struct.unpack_from("<q", encoded, at)[0])}"',
}
