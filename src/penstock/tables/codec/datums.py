"""Self-describing values: a flag byte and a body, in keys (ordered) and in values (compact).

A datum keeps the storage kind of a value only: a date is an unsigned integer here, an enum its
number. The column's type gives it back its meaning.
"""

from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

from penstock.errors import Corrupt
from penstock.proto.codec import decode_prefix, encode_bytes
from penstock.tables.codec import decimals, json_binary
from penstock.tables.codec.ordered import (
    INT_BYTES,
    decode_float,
    decode_int,
    decode_uint,
    decode_uvarint,
    decode_varint,
    encode_float,
    encode_int,
    encode_uint,
    encode_uvarint,
    encode_varint,
)


class Flag(IntEnum):
    """The first byte of an encoded datum."""

    NIL = 0
    BYTES = 1
    COMPACT_BYTES = 2
    INT = 3
    UINT = 4
    FLOAT = 5
    DECIMAL = 6
    DURATION = 7
    VARINT = 8
    UVARINT = 9
    JSON = 10
    VECTOR = 20
    MAX = 250


_FLAGS = tuple(bytes((n,)) for n in range(256))


class Kind(IntEnum):
    """What a datum holds, whatever its encoding."""

    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    BYTES = 4
    DECIMAL = 5
    DURATION = 6
    JSON = 7
    VECTOR = 8
    MAX = 9


class Datum(NamedTuple):
    """One value in storage form.

    `value` is None, an int, a float or bytes; a decimal, JSON document or vector is its encoded
    bytes (of a decimal: precision, fraction, digits).
    """

    kind: Kind
    value: int | float | bytes | None = None


NULL = Datum(Kind.NULL)


def encode_key(datum: Datum) -> bytes:
    """Encode for a key: bytes of equal kinds compare as their values do."""
    kind, value = datum
    if isinstance(value, bytes) and kind is Kind.BYTES:
        return _FLAGS[Flag.BYTES] + encode_bytes(value)
    if isinstance(value, int) and kind is Kind.INT:
        return _FLAGS[Flag.INT] + encode_int(value)
    if isinstance(value, int) and kind is Kind.UINT:
        return _FLAGS[Flag.UINT] + encode_uint(value)
    return _encode_rest(datum)


def encode_value(datum: Datum) -> bytes:
    """Encode for a value, as the old row format does."""
    kind, value = datum
    if isinstance(value, bytes) and kind is Kind.BYTES:
        return _FLAGS[Flag.COMPACT_BYTES] + encode_varint(len(value)) + value
    if isinstance(value, int) and kind is Kind.INT:
        return _FLAGS[Flag.VARINT] + encode_varint(value)
    if isinstance(value, int) and kind is Kind.UINT:
        return _FLAGS[Flag.UVARINT] + encode_uvarint(value)
    return _encode_rest(datum)


def _encode_rest(datum: Datum) -> bytes:
    kind, value = datum
    if value is None:
        return _FLAGS[Flag.MAX if kind is Kind.MAX else Flag.NIL]
    if isinstance(value, bytes):
        return _FLAGS[_BYTES_FLAGS[kind]] + value
    if kind is Kind.DURATION and isinstance(value, int):
        return _FLAGS[Flag.DURATION] + encode_int(value)
    return _FLAGS[Flag.FLOAT] + encode_float(value)


_BYTES_FLAGS = {Kind.DECIMAL: Flag.DECIMAL, Kind.JSON: Flag.JSON, Kind.VECTOR: Flag.VECTOR}


def decode(encoded: bytes, at: int = 0) -> tuple[Datum, int]:
    """Decode one datum of a key or a value; return it and where it ends. Raise Corrupt when damaged."""
    if at >= len(encoded):
        raise Corrupt(f"a value is missing at offset {at}; keep the row for inspection")
    flag, body = encoded[at], at + 1
    if flag == Flag.NIL:
        return NULL, body
    if flag == Flag.INT:
        return Datum(Kind.INT, decode_int(encoded, body)), body + INT_BYTES
    if flag == Flag.UINT:
        return Datum(Kind.UINT, decode_uint(encoded, body)), body + INT_BYTES
    if flag == Flag.BYTES:
        raw, end = decode_prefix(encoded, body)
        return Datum(Kind.BYTES, raw), end
    if flag == Flag.VARINT:
        signed, end = decode_varint(encoded, body)
        return Datum(Kind.INT, signed), end
    if flag == Flag.UVARINT:
        unsigned, end = decode_uvarint(encoded, body)
        return Datum(Kind.UINT, unsigned), end
    if flag == Flag.FLOAT:
        return Datum(Kind.FLOAT, decode_float(encoded, body)), body + INT_BYTES
    if flag == Flag.DURATION:
        return Datum(Kind.DURATION, decode_int(encoded, body)), body + INT_BYTES
    return _decode_sized(flag, encoded, body)


def _decode_sized(flag: int, encoded: bytes, body: int) -> tuple[Datum, int]:
    if flag == Flag.COMPACT_BYTES:
        length, start = decode_varint(encoded, body)
        end = start + length
        if length < 0 or end > len(encoded):
            raise Corrupt(f"bytes are cut short at offset {body}; keep the row for inspection")
        return Datum(Kind.BYTES, encoded[start:end]), end
    if flag == Flag.DECIMAL:
        end = decimals.encoded_end(encoded, body)
        return Datum(Kind.DECIMAL, encoded[body:end]), end
    if flag == Flag.JSON:
        end = json_binary.encoded_end(encoded, body)
        return Datum(Kind.JSON, encoded[body:end]), end
    if flag == Flag.VECTOR:
        end = vector_end(encoded, body)
        return Datum(Kind.VECTOR, encoded[body:end]), end
    if flag == Flag.MAX:
        return Datum(Kind.MAX), body
    raise Corrupt(f"unknown flag {flag} at offset {body - 1}; keep the row for inspection")


def vector_end(encoded: bytes, at: int) -> int:
    """Where the vector at `at` ends (a count and as many 4-byte floats); Corrupt when cut short."""
    end = at + 4 + 4 * int.from_bytes(encoded[at : at + 4], "little")
    if end > len(encoded):
        raise Corrupt(f"a vector is cut short at offset {at}; keep the row for inspection")
    return end


def decode_all(encoded: bytes) -> list[Datum]:
    """Decode datums that fill the whole of `encoded`."""
    datums, at = [], 0
    while at < len(encoded):
        datum, at = decode(encoded, at)
        datums.append(datum)
    return datums


def cut(encoded: bytes, count: int, at: int = 0) -> int:
    """Where `count` datums from `at` on end."""
    for _ in range(count):
        _, at = decode(encoded, at)
    return at


def decimal_datum(value: Decimal, precision: int, scale: int) -> Datum:
    """The datum of a decimal with its column's precision and scale."""
    return Datum(Kind.DECIMAL, decimals.encode(value, precision, scale))
