"""Keys of tables: records, indexes, and the meta keys with schemas.

A *handle* identifies a row of its table: an int, or the bytes of a common handle (the encoded primary key
columns).
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import Invalid, show_key
from penstock.proto.codec import decode_prefix, encode_bytes
from penstock.tables.codec.ordered import INT_BYTES, decode_int, decode_uint, encode_int, encode_uint

Handle = int | bytes

TABLE_PREFIX = b"t"
RECORD_SEPARATOR = b"_r"
INDEX_SEPARATOR = b"_i"
META_PREFIX = b"m"
PREFIX_BYTES = len(TABLE_PREFIX) + INT_BYTES + len(RECORD_SEPARATOR)
INT_RECORD_KEY_BYTES = PREFIX_BYTES + INT_BYTES
COMMON_HANDLE_BYTES_MIN = 1 + INT_BYTES
TEMP_INDEX = 0x7FFF000000000000

META_STRING = ord("s")
META_HASH = ord("h")
META_LIST = ord("L")
META_LIST_ITEM = ord("l")


def table_prefix(table_id: int) -> bytes:
    """Return the prefix of every key of a table."""
    return TABLE_PREFIX + encode_int(table_id)


def record_prefix(table_id: int) -> bytes:
    """Return the prefix of every record key of a table."""
    return table_prefix(table_id) + RECORD_SEPARATOR


def record_range(table_id: int) -> tuple[bytes, bytes]:
    """Return the range of a table's records: start inclusive, end exclusive."""
    prefix = record_prefix(table_id)
    return prefix, prefix_end(prefix)


def common_handle(parts: Iterable[bytes]) -> bytes:
    """Return the handle of encoded primary key columns.

    Zeros fill it up to nine bytes, as TiDB does, so that it is longer than an integer handle.
    """
    return b"".join(parts).ljust(COMMON_HANDLE_BYTES_MIN, b"\0")


def encode_handle(handle: Handle) -> bytes:
    """Return the bytes of a handle in a record key."""
    return encode_int(handle) if isinstance(handle, int) else handle


def record_key(table_id: int, handle: Handle) -> bytes:
    """Return the key of a row."""
    return record_prefix(table_id) + encode_handle(handle)


def is_record_key(key: bytes) -> bool:
    """Return whether a key is a row's, of any table."""
    return len(key) > PREFIX_BYTES and key[:1] == TABLE_PREFIX and key[9:PREFIX_BYTES] == RECORD_SEPARATOR


def decode_record_key(key: bytes) -> tuple[int, Handle]:
    """Return the table id and the handle of a row's key; raise Invalid for another key."""
    if not is_record_key(key):
        raise Invalid(f"{show_key(key)} is not a record key; pass the key of a row")
    rest = key[PREFIX_BYTES:]
    return decode_int(key, 1), decode_int(rest) if len(rest) == INT_BYTES else rest


def index_prefix(table_id: int, index_id: int) -> bytes:
    """Return the prefix of every key of an index."""
    return table_prefix(table_id) + INDEX_SEPARATOR + encode_int(index_id)


def decode_index_prefix(key: bytes) -> tuple[int, int]:
    """Return the table id and the index id of an index key; raise Invalid for another key."""
    if (
        len(key) < PREFIX_BYTES + INT_BYTES
        or key[:1] != TABLE_PREFIX
        or key[9:PREFIX_BYTES] != INDEX_SEPARATOR
    ):
        raise Invalid(f"{show_key(key)} is not an index key; pass the key of an index entry")
    return decode_int(key, 1), decode_int(key, PREFIX_BYTES)


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with `prefix`; b"" when there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else b""


def meta_string_key(name: bytes) -> bytes:
    """Return the key of a single meta value."""
    return _meta(name, META_STRING)


def meta_hash_prefix(name: bytes) -> bytes:
    """Return the prefix of every field of a meta hash."""
    return _meta(name, META_HASH)


def meta_hash_key(name: bytes, field: bytes) -> bytes:
    """Return the key of one field of a meta hash."""
    return _meta(name, META_HASH) + encode_bytes(field)


class MetaKey(NamedTuple):
    """A decoded meta key: its name, its type and, for a hash, the field; for a list item, its position."""

    name: bytes
    type: int
    field: bytes | None = None
    position: int | None = None


def decode_meta_key(key: bytes) -> MetaKey:
    """Decode a meta key of any type; raise Invalid for another key."""
    if key[:1] != META_PREFIX:
        raise Invalid(f"{show_key(key)} is not a meta key; pass one")
    name, at = decode_prefix(key, 1)
    type_ = decode_uint(key, at)
    at += INT_BYTES
    if type_ == META_HASH:
        return MetaKey(name, type_, field=decode_prefix(key, at)[0])
    if type_ == META_LIST_ITEM:
        return MetaKey(name, type_, position=decode_int(key, at))
    return MetaKey(name, type_)


def _meta(name: bytes, type_: int) -> bytes:
    return META_PREFIX + encode_bytes(name) + encode_uint(type_)
