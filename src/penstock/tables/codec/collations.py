"""Which bytes of a string go into keys, and when the row must keep what the key loses.

Penstock writes keys for collations whose order is the order of bytes. Others (`*_ci`) can be read:
a row always holds the string itself; but writing their keys would need their weight tables.
"""

from penstock.errors import Invalid
from penstock.tables.columns import FieldType, Tp

_PADDED = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin"})  # trailing spaces do not count
_EXACT = frozenset({"", "binary", "utf8mb4_0900_bin"})


def sort_key(kind: FieldType, raw: bytes) -> bytes:
    """The bytes that stand for a string in a key; Invalid for a collation that cannot be written."""
    if kind.collate in _PADDED:
        return raw.rstrip(b" ")
    if kind.collate in _EXACT:
        return raw
    raise Invalid(
        f"collation {kind.collate} cannot be written in keys; use utf8mb4_bin or binary for indexed columns"
    )


def pads(kind: FieldType) -> bool:
    """Whether a key loses only the number of trailing spaces."""
    return kind.collate in _PADDED


def needs_restored(kind: FieldType) -> bool:
    """Whether a key does not hold enough to give the string back."""
    if not kind.is_string or kind.collate in _EXACT:
        return False
    return kind.collate not in _PADDED or kind.tp in {Tp.VARCHAR, Tp.VAR_STRING}


def truncate(kind: FieldType, raw: bytes, length: int) -> bytes:
    """The part of a string that an index on its first `length` characters holds; -1 is all of it."""
    if length < 0 or len(raw) <= length:
        return raw
    if kind.charset in {"binary", "ascii", ""}:
        return raw[:length]
    return raw.decode(errors="surrogateescape")[:length].encode(errors="surrogateescape")
