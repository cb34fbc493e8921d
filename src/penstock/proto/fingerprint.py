"""The 64-bit fingerprint of keys in deadlock reports: FarmHash's portable Hash64.

A client compares it with the fingerprints of its own keys. Only called when a lock is waited for.
"""

import struct

_MASK = (1 << 64) - 1
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F
_SEED = 81


def fingerprint64(data: bytes) -> int:
    """Return the fingerprint of some bytes, an unsigned 64-bit number."""
    size = len(data)
    if size <= 16:
        return _up_to_16(data)
    if size <= 32:
        return _up_to_32(data)
    if size <= 64:
        return _up_to_64(data)
    return _long(data)


def _fetch64(data: bytes, at: int) -> int:
    value: int = struct.unpack_from("<Q", data, at)[0]
    return value


def _fetch32(data: bytes, at: int) -> int:
    value: int = struct.unpack_from("<I", data, at)[0]
    return value


def _rotate(value: int, shift: int) -> int:
    value &= _MASK
    return ((value >> shift) | (value << (64 - shift))) & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _mix(u: int, v: int, mul: int) -> int:
    """Mix 16 bytes into 8."""
    a = ((u ^ v) * mul) & _MASK
    a ^= a >> 47
    b = ((v ^ a) * mul) & _MASK
    b ^= b >> 47
    return (b * mul) & _MASK


def _up_to_16(data: bytes) -> int:
    size = len(data)
    if size >= 8:
        mul = _K2 + size * 2
        a = (_fetch64(data, 0) + _K2) & _MASK
        b = _fetch64(data, size - 8)
        c = (_rotate(b, 37) * mul + a) & _MASK
        d = ((_rotate(a, 25) + b) * mul) & _MASK
        return _mix(c, d, mul)
    if size >= 4:
        mul = _K2 + size * 2
        return _mix(size + (_fetch32(data, 0) << 3), _fetch32(data, size - 4), mul)
    if size > 0:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return (_shift_mix((y * _K2) ^ (z * _K0)) * _K2) & _MASK
    return _K2


def _up_to_32(data: bytes) -> int:
    size = len(data)
    mul = _K2 + size * 2
    a = (_fetch64(data, 0) * _K1) & _MASK
    b = _fetch64(data, 8)
    c = (_fetch64(data, size - 8) * mul) & _MASK
    d = (_fetch64(data, size - 16) * _K2) & _MASK
    first = (_rotate(a + b, 43) + _rotate(c, 30) + d) & _MASK
    second = (a + _rotate(b + _K2, 18) + c) & _MASK
    return _mix(first, second, mul)


def _up_to_64(data: bytes) -> int:
    size = len(data)
    mul = _K2 + size * 2
    a = (_fetch64(data, 0) * _K2) & _MASK
    b = _fetch64(data, 8)
    c = (_fetch64(data, size - 8) * mul) & _MASK
    d = (_fetch64(data, size - 16) * _K2) & _MASK
    y = (_rotate(a + b, 43) + _rotate(c, 30) + d) & _MASK
    z = _mix(y, (a + _rotate(b + _K2, 18) + c) & _MASK, mul)
    e = (_fetch64(data, 16) * mul) & _MASK
    f = _fetch64(data, 24)
    g = ((y + _fetch64(data, size - 32)) * mul) & _MASK
    h = ((z + _fetch64(data, size - 24)) * mul) & _MASK
    first = (_rotate(e + f, 43) + _rotate(g, 30) + h) & _MASK
    second = (e + _rotate(f + a, 18) + g) & _MASK
    return _mix(first, second, mul)


def _weak32(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = struct.unpack_from("<4Q", data, at)
    a = (a + w) & _MASK
    b = _rotate(b + a + z, 21)
    c = a
    a = (a + x + y) & _MASK
    b = (b + _rotate(a, 44)) & _MASK
    return (a + z) & _MASK, (b + c) & _MASK


def _long(data: bytes) -> int:
    size = len(data)
    x = _SEED
    y = (_SEED * _K1 + 113) & _MASK
    z = (_shift_mix(y * _K2 + 113) * _K2) & _MASK
    v = (0, 0)
    w = (0, 0)
    x = (x * _K2 + _fetch64(data, 0)) & _MASK
    last = ((size - 1) // 64) * 64
    for at in range(0, last, 64):
        x = (_rotate(x + y + v[0] + _fetch64(data, at + 8), 37) * _K1) & _MASK
        y = (_rotate(y + v[1] + _fetch64(data, at + 48), 42) * _K1) & _MASK
        x ^= w[1]
        y = (y + v[0] + _fetch64(data, at + 40)) & _MASK
        z = (_rotate(z + w[0], 33) * _K1) & _MASK
        v = _weak32(data, at, v[1] * _K1, x + w[0])
        w = _weak32(data, at + 32, z + w[1], y + _fetch64(data, at + 16))
        z, x = x, z
    mul = (_K1 + ((z & 0xFF) << 1)) & _MASK
    at = size - 64
    w = ((w[0] + ((size - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x = (_rotate(x + y + v[0] + _fetch64(data, at + 8), 37) * mul) & _MASK
    y = (_rotate(y + v[1] + _fetch64(data, at + 48), 42) * mul) & _MASK
    x ^= w[1] * 9 & _MASK
    y = (y + v[0] * 9 + _fetch64(data, at + 40)) & _MASK
    z = (_rotate(z + w[0], 33) * mul) & _MASK
    v = _weak32(data, at, v[1] * mul, x + w[0])
    w = _weak32(data, at + 32, z + w[1], y + _fetch64(data, at + 16))
    z, x = x, z
    return _mix(
        (_mix(v[0], w[0], mul) + _shift_mix(y) * _K0 + z) & _MASK,
        (_mix(v[1], w[1], mul) + x) & _MASK,
        mul,
    )
