"""Self-describing values: a flag byte and a body, in keys (ordered) and in values (compact).

A datum has only the storage kind of a value: a date is an unsigned integer, an enum is its number. The type
of the column says what it means.
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
)


class DatumFlag(IntEnum):
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


class DatumKind(IntEnum):
    """The kind of a datum's value, in either encoding."""

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

    kind: DatumKind
    value: int | float | bytes | None = None


NULL = Datum(DatumKind.NULL)


def encode_key(datum: Datum) -> bytes:
    """Encode for a key: the bytes of two datums of one kind compare like their values."""
    kind, value = datum
    if isinstance(value, bytes) and kind is DatumKind.BYTES:
        return _FLAGS[DatumFlag.BYTES] + encode_bytes(value)
    if isinstance(value, int) and kind is DatumKind.INT:
        return _FLAGS[DatumFlag.INT] + encode_int(value)
    if isinstance(value, int) and kind is DatumKind.UINT:
        return _FLAGS[DatumFlag.UINT] + encode_uint(value)
    return _encode_rest(datum)


def _encode_rest(datum: Datum) -> bytes:
    kind, value = datum
    if value is None:
        return _FLAGS[DatumFlag.MAX if kind is DatumKind.MAX else DatumFlag.NIL]
    if isinstance(value, bytes):
        return _FLAGS[_BYTES_FLAGS[kind]] + value
    if kind is DatumKind.DURATION and isinstance(value, int):
        return _FLAGS[DatumFlag.DURATION] + encode_int(value)
    return _FLAGS[DatumFlag.FLOAT] + encode_float(value)


_BYTES_FLAGS = {
    DatumKind.DECIMAL: DatumFlag.DECIMAL,
    DatumKind.JSON: DatumFlag.JSON,
    DatumKind.VECTOR: DatumFlag.VECTOR,
}


def decode(encoded: bytes, at: int = 0) -> tuple[Datum, int]:
    """Decode one datum of a key or a value; return it and where it ends. Raise Corrupt when damaged."""
    if at >= len(encoded):
        raise Corrupt(f"a value is missing at offset {at}; keep the row for inspection")
    flag, body = encoded[at], at + 1
    if flag == DatumFlag.NIL:
        return NULL, body
    if flag == DatumFlag.INT:
        return Datum(DatumKind.INT, decode_int(encoded, body)), body + INT_BYTES
    if flag == DatumFlag.UINT:
        return Datum(DatumKind.UINT, decode_uint(encoded, body)), body + INT_BYTES
    if flag == DatumFlag.BYTES:
        raw, end = decode_prefix(encoded, body)
        return Datum(DatumKind.BYTES, raw), end
    if flag == DatumFlag.VARINT:
        signed, end = decode_varint(encoded, body)
        return Datum(DatumKind.INT, signed), end
    if flag == DatumFlag.UVARINT:
        unsigned, end = decode_uvarint(encoded, body)
        return Datum(DatumKind.UINT, unsigned), end
    if flag == DatumFlag.FLOAT:
        return Datum(DatumKind.FLOAT, decode_float(encoded, body)), body + INT_BYTES
    if flag == DatumFlag.DURATION:
        return Datum(DatumKind.DURATION, decode_int(encoded, body)), body + INT_BYTES
    return _decode_sized(flag, encoded, body)


def _decode_sized(flag: int, encoded: bytes, body: int) -> tuple[Datum, int]:
    if flag == DatumFlag.COMPACT_BYTES:
        length, start = decode_varint(encoded, body)
        end = start + length
        if length < 0 or end > len(encoded):
            raise Corrupt(f"bytes are cut short at offset {body}; keep the row for inspection")
        return Datum(DatumKind.BYTES, encoded[start:end]), end
    if flag == DatumFlag.DECIMAL:
        end = decimals.find_end(encoded, body)
        return Datum(DatumKind.DECIMAL, encoded[body:end]), end
    if flag == DatumFlag.JSON:
        end = json_binary.find_end(encoded, body)
        return Datum(DatumKind.JSON, encoded[body:end]), end
    if flag == DatumFlag.VECTOR:
        end = find_vector_end(encoded, body)
        return Datum(DatumKind.VECTOR, encoded[body:end]), end
    if flag == DatumFlag.MAX:
        return Datum(DatumKind.MAX), body
    raise Corrupt(f"unknown flag {flag} at offset {body - 1}; keep the row for inspection")


def find_vector_end(encoded: bytes, at: int) -> int:
    """Return the end of the vector at `at`, a count and as many 4-byte floats; raise Corrupt if cut short."""
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


def decode_first(encoded: bytes, count: int) -> list[Datum]:
    """Decode the `count` datums that `encoded` begins with."""
    datums, at = [], 0
    for _ in range(count):
        datum, at = decode(encoded, at)
        datums.append(datum)
    return datums


def find_end(encoded: bytes, count: int, at: int = 0) -> int:
    """Return the end of the `count` datums that begin at `at`."""
    for _ in range(count):
        _, at = decode(encoded, at)
    return at


def decimal_datum(value: Decimal, precision: int, scale: int) -> Datum:
    """Return the datum of a decimal with its column's precision and scale."""
    return Datum(DatumKind.DECIMAL, decimals.encode(value, precision, scale))
