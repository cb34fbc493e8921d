"""The bytes of a string in keys, and whether the row must keep what the key loses.

Penstock writes keys for collations whose order is the order of bytes. It can read other collations (`*_ci`),
because a row always has the string itself; writing their keys would need their weight tables.
"""

from penstock.errors import Invalid
from penstock.tables.columns import FieldType, Tp

# Collations that ignore trailing spaces.
_PADDED = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin"})
_EXACT = frozenset({"", "binary", "utf8mb4_0900_bin"})


def sort_key(kind: FieldType, raw: bytes) -> bytes:
    """Return the bytes of a string in a key; raise Invalid for a collation that cannot be written."""
    if kind.collate in _PADDED:
        return raw.rstrip(b" ")
    if kind.collate in _EXACT:
        return raw
    raise Invalid(
        f"collation {kind.collate} cannot be written in keys; use utf8mb4_bin or binary for indexed columns"
    )


def pads(kind: FieldType) -> bool:
    """Return whether a key loses only the number of trailing spaces."""
    return kind.collate in _PADDED


def needs_restored(kind: FieldType) -> bool:
    """Return whether the string cannot be read back from a key."""
    if not kind.is_string or kind.collate in _EXACT:
        return False
    return kind.collate not in _PADDED or kind.tp in {Tp.VARCHAR, Tp.VAR_STRING}


def truncate(kind: FieldType, raw: bytes, length: int) -> bytes:
    """Return the first `length` characters of a string, the part that a prefix index has; -1 means all."""
    if length < 0 or len(raw) <= length:
        return raw
    if kind.charset in {"binary", "ascii", ""}:
        return raw[:length]
    return raw.decode(errors="surrogateescape")[:length].encode(errors="surrogateescape")
