"""Fixed-width numbers whose bytes compare like the numbers, and variable-width integers."""

import struct

from penstock.errors import Corrupt

INT_BYTES = 8
_SIGN = 1 << 63
_U64 = (1 << 64) - 1
_VARINT_BYTES_MAX = 10


def encode_int(value: int) -> bytes:
    """Encode a signed 64-bit integer so that its bytes keep its order."""
    return (value + _SIGN).to_bytes(INT_BYTES, "big")


def decode_int(encoded: bytes, at: int = 0) -> int:
    """Decode what `encode_int` wrote at `at`; raise Corrupt when it is cut short."""
    return decode_uint(encoded, at) - _SIGN


def encode_uint(value: int) -> bytes:
    """Encode an unsigned 64-bit integer so that its bytes keep its order."""
    return value.to_bytes(INT_BYTES, "big")


def decode_uint(encoded: bytes, at: int = 0) -> int:
    """Decode what `encode_uint` wrote at `at`; raise Corrupt when it is cut short."""
    part = encoded[at : at + INT_BYTES]
    if len(part) < INT_BYTES:
        raise Corrupt(f"an 8-byte number is cut short at offset {at}; keep the key for inspection")
    return int.from_bytes(part, "big")


def encode_float(value: float) -> bytes:
    """Encode a double so that its bytes keep its order. Both zeros have the bytes of 0.0, as in TiDB."""
    bits = int.from_bytes(struct.pack(">d", value or 0.0), "big")
    bits = bits ^ _U64 if bits & _SIGN else bits | _SIGN
    return bits.to_bytes(INT_BYTES, "big")


def decode_float(encoded: bytes, at: int = 0) -> float:
    """Decode what `encode_float` wrote at `at`; raise Corrupt when it is cut short."""
    bits = decode_uint(encoded, at)
    bits = bits ^ _SIGN if bits & _SIGN else bits ^ _U64
    return float(struct.unpack(">d", bits.to_bytes(INT_BYTES, "big"))[0])


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned integer with seven bits per byte, lowest bits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(encoded: bytes, at: int = 0) -> tuple[int, int]:
    """Decode one unsigned variable-width integer; return it and where it ends."""
    value = 0
    for i in range(_VARINT_BYTES_MAX):
        if at + i >= len(encoded):
            break
        byte = encoded[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & _U64, at + i + 1
    raise Corrupt(f"a variable-width number is cut short or too long at offset {at}; keep it for inspection")


def encode_varint(value: int) -> bytes:
    """Encode a signed integer with its sign in the lowest bit (zigzag)."""
    return encode_uvarint((value << 1 ^ value >> 63) & _U64)


def decode_varint(encoded: bytes, at: int = 0) -> tuple[int, int]:
    """Decode one signed variable-width integer; return it and where it ends."""
    folded, end = decode_uvarint(encoded, at)
    return (folded >> 1) ^ -(folded & 1), end
