"""MySQL's packed decimal: nine digits in four bytes, the sign in the first bit, bytes in numeric order.

A stored decimal is its precision and fraction (one byte each) followed by the packed digits.
"""

from decimal import ROUND_HALF_UP, Context, Decimal

from penstock.errors import Corrupt, Invalid

PRECISION_MAX = 65
SCALE_MAX = 30
WORD_DIGITS = 9
BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_HEAD = 2
_PACKED_DIGITS_MAX = 81
WIDE = Context(prec=PRECISION_MAX + SCALE_MAX, rounding=ROUND_HALF_UP)


def parts_of(precision: int, scale: int) -> list[int]:
    """Return the digits of each packed part, most significant first. Only the outer parts can be short."""
    whole = precision - scale
    parts = [whole % WORD_DIGITS] if whole % WORD_DIGITS else []
    parts += [WORD_DIGITS] * (whole // WORD_DIGITS + scale // WORD_DIGITS)
    return parts + ([scale % WORD_DIGITS] if scale % WORD_DIGITS else [])


def packed_bytes(precision: int, scale: int) -> int:
    """Return how many bytes the packed digits of a decimal take."""
    return sum(BYTES_OF_DIGITS[digits] for digits in parts_of(precision, scale))


def to_units(value: Decimal, precision: int, scale: int) -> int:
    """Return `value` in units of its last digit, rounded half up; raise Invalid if it has too many digits."""
    if not value.is_finite():
        raise Invalid("a decimal column takes finite numbers only; pass a number or None")
    units = int(value.quantize(Decimal(1).scaleb(-scale), context=WIDE).scaleb(scale, context=WIDE))
    if abs(units) >= 10**precision:
        raise Invalid(f"a value does not fit DECIMAL({precision},{scale}); pass one with fewer digits")
    return units


def encode(value: Decimal, precision: int, scale: int) -> bytes:
    """Encode with the column's precision and scale; raise Invalid when the value does not fit."""
    return encode_unscaled(to_units(value, precision, scale), precision, scale)


def encode_unscaled(units: int, precision: int, scale: int) -> bytes:
    """Encode a decimal that is given in units of its last digit."""
    magnitude = abs(units)
    packed = b""
    for digits in reversed(parts_of(precision, scale)):
        magnitude, part = divmod(magnitude, 10**digits)
        packed = part.to_bytes(BYTES_OF_DIGITS[digits], "big") + packed
    if units < 0:
        packed = bytes(byte ^ 0xFF for byte in packed)
    return bytes((precision, scale, packed[0] ^ 0x80)) + packed[1:]


def find_end(encoded: bytes, at: int = 0) -> int:
    """Return the end of the decimal at `at`; raise Corrupt when it is cut short or impossible."""
    if at + _HEAD > len(encoded):
        raise Corrupt(f"a decimal is cut short at offset {at}; keep the row for inspection")
    precision, scale = encoded[at], encoded[at + 1]
    if not (0 < precision <= _PACKED_DIGITS_MAX and scale <= min(precision, SCALE_MAX)):
        raise Corrupt(
            f"a decimal of {precision} digits, {scale} after the point, at offset {at} is impossible"
        )
    end = at + _HEAD + packed_bytes(precision, scale)
    if end > len(encoded):
        raise Corrupt(f"a decimal is cut short at offset {at}; keep the row for inspection")
    return end


def decode(encoded: bytes, at: int = 0) -> tuple[Decimal, int]:
    """Decode one stored decimal, with the scale that it was stored with; return it and its end."""
    end = find_end(encoded, at)
    precision, scale = encoded[at], encoded[at + 1]
    packed = bytearray(encoded[at + _HEAD : end])
    packed[0] ^= 0x80
    negative = bool(packed[0] & 0x80)
    if negative:
        packed = bytearray(byte ^ 0xFF for byte in packed)
    units, offset = 0, 0
    for digits in parts_of(precision, scale):
        size = BYTES_OF_DIGITS[digits]
        part = int.from_bytes(packed[offset : offset + size], "big")
        if part >= 10**digits:
            raise Corrupt(f"a decimal at offset {at} has impossible digits; keep the row for inspection")
        units = units * 10**digits + part
        offset += size
    return Decimal((int(negative and units > 0), tuple(map(int, str(units))), -scale)), end
