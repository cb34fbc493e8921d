"""Ranges of raw keys, and the translation of a region's boundaries into them.

A boundary of a region is opaque bytes in the encoded key space. A split of raw data may leave a boundary that
encodes no key; then transactional commands begin at the first key whose encoding is not below it.
"""

from dataclasses import dataclass

__all__ = ["EVERYTHING", "KeyBounds", "first_key_from", "raw_bounds"]


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Keys from `start` up to, not including, `end`; an empty `end` is the end of the key space."""

    start: bytes = b""
    end: bytes = b""

    def contains(self, key: bytes) -> bool:
        """Return whether `key` lies inside."""
        return self.start <= key and (not self.end or key < self.end)

    def clamp(self, start: bytes, end: bytes) -> "KeyBounds | None":
        """Return the part of [start, end) that lies inside, or None when there is none."""
        lower = max(start, self.start)
        upper = min(end, self.end) if end and self.end else end or self.end
        return None if upper and lower >= upper else KeyBounds(lower, upper)


EVERYTHING = KeyBounds()


_GROUP = 8
_FULL = 0xFF
_NOTHING = KeyBounds(b"\x00", b"\x00")


def first_key_from(boundary: bytes) -> bytes:
    """Return the smallest raw key whose memcomparable encoding is at or after `boundary`."""
    raw = bytearray()
    at = 0
    while at + _GROUP < len(boundary):
        data, marker = boundary[at : at + _GROUP], boundary[at + _GROUP]
        at += _GROUP + 1
        raw += data
        if marker != _FULL:
            return bytes(raw[: len(raw) - _padding(data, marker, ends=at == len(boundary))])
    # The rest is shorter than a group: the first key is the one that zeros pad to it.
    return bytes(raw + boundary[at:].rstrip(b"\x00"))


def _padding(data: bytes, marker: int, *, ends: bool) -> int:
    """Return the largest padding of `data` whose marker is not below the one given."""
    zeros = _GROUP - len(data.rstrip(b"\x00"))
    below = _FULL - marker if ends else _FULL - marker - 1
    return min(zeros, below)


def raw_bounds(start: bytes, end: bytes) -> KeyBounds:
    """Return the raw keys whose encodings lie in [start, end); an empty `end` is the end of the space."""
    if not end:
        return KeyBounds(first_key_from(start), b"")
    last = first_key_from(end)
    # No key is encoded below such a boundary; an empty end would mean "no end".
    return KeyBounds(first_key_from(start), last) if last else _NOTHING
