"""Entries of secondary indexes: the key and value of a row in an index, and the handle of an entry.

The key of a unique entry without NULLs has only the indexed values; its value has the handle. Every other
entry ends its key with the handle. If the key does not have a string as it was written, the value has what is
missing ("restored" data).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import Corrupt
from penstock.tables.codec import collations, datums, rows
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.codec.ordered import INT_BYTES, decode_uint, encode_int, encode_uint
from penstock.tables.columns import ColumnFlag
from penstock.tables.keys import PREFIX_BYTES, Handle, index_prefix
from penstock.tables.records import Record, key_datum, to_signed
from penstock.tables.schema import HandleKind, IndexInfo, TableInfo

_LEGACY_BYTES_MAX = 9
_NON_UNIQUE = b"0"
_COMMON_HANDLE = 127
_PARTITION = 126
_VERSION = 125
_MIN_BYTES = 10
_V1_HEAD = bytes((0, _VERSION, 1))


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of an index. `distinct` is set when no other row may have the same key."""

    key: bytes
    value: bytes
    distinct: bool


def written_indexes(table: TableInfo) -> Iterable[IndexInfo]:
    """Return the indexes that have entries. A clustered primary key has none: it is the record itself."""
    clustered = table.handle_kind is HandleKind.COMMON
    return (index for index in table.indexes if index.written and not (clustered and index.primary))


def entry(table: TableInfo, index: IndexInfo, record: Record, handle: Handle) -> IndexEntry:
    """Return the entry of a row in an index; raise Invalid for a collation that cannot be written."""
    parts = [key_datum(table, part, record) for part in index.columns]
    distinct = index.unique and all(part.kind is not DatumKind.NULL for part in parts)
    key = index_prefix(table.id, index.id) + b"".join(map(datums.encode_key, parts))
    if not distinct:
        key += _handle_suffix(handle)
    return IndexEntry(key, _value(table, index, record, handle if distinct else None), distinct)


def _handle_suffix(handle: Handle) -> bytes:
    return bytes((datums.DatumFlag.INT,)) + encode_int(handle) if isinstance(handle, int) else handle


def _value(table: TableInfo, index: IndexInfo, record: Record, handle: Handle | None) -> bytes:
    if table.is_common_handle and table.common_handle_version == 1:
        return _V1_HEAD + _common(handle) + _restored_v1(table, index, record)
    return _value_v0(table, index, record, handle)


def _value_v0(table: TableInfo, index: IndexInfo, record: Record, handle: Handle | None) -> bytes:
    options = _common(handle) + _restored_v0(table, index, record)
    if not options:
        return encode_uint(handle % (1 << 64)) if isinstance(handle, int) else _NON_UNIQUE
    if isinstance(handle, int):
        tail = encode_uint(handle % (1 << 64))
    else:
        tail = bytes(max(_MIN_BYTES - 1 - len(options), 0))
    return bytes((len(tail),)) + options + tail


def _common(handle: Handle | None) -> bytes:
    if not isinstance(handle, bytes):
        return b""
    return bytes((_COMMON_HANDLE,)) + len(handle).to_bytes(2, "big") + handle


def _restored_v0(table: TableInfo, index: IndexInfo, record: Record) -> bytes:
    columns = [table.columns[part.offset] for part in index.columns]
    if not any(collations.needs_restored(column.type) for column in columns):
        return b""
    return rows.encode(
        {column.id: rows.cell_of(_cut(table, index, nth, record)) for nth, column in enumerate(columns)}
    )


def _cut(table: TableInfo, index: IndexInfo, nth: int, record: Record) -> Datum:
    part = index.columns[nth]
    column = table.columns[part.offset]
    datum = record[column.id]
    if datum.kind is not DatumKind.BYTES or not isinstance(datum.value, bytes):
        return datum
    return Datum(DatumKind.BYTES, collations.truncate(column.type, datum.value, part.length))


def _restored_v1(table: TableInfo, index: IndexInfo, record: Record) -> bytes:
    """Return the restored strings of index and handle; of a padded string, the number of its spaces."""
    cells: dict[int, bytes | None] = {}
    for nth, part in enumerate(index.columns):
        column = table.columns[part.offset]
        if not column.type.flag & ColumnFlag.PRI_KEY and collations.needs_restored(column.type):
            cells[column.id] = _restored_cell(table, index, nth, record)
    primary = table.primary_index
    assert primary is not None
    for nth, part in enumerate(primary.columns):
        column = table.columns[part.offset]
        if collations.needs_restored(column.type):
            cells[column.id] = _restored_cell(table, primary, nth, record)
    return rows.encode(cells) if cells else b""


def _restored_cell(table: TableInfo, index: IndexInfo, nth: int, record: Record) -> bytes | None:
    datum = _cut(table, index, nth, record)
    if not isinstance(datum.value, bytes):
        return None
    kind = table.columns[index.columns[nth].offset].type
    if collations.pads(kind):
        return rows.uint_cell(len(datum.value) - len(datum.value.rstrip(b" ")))
    return datum.value


def handle_in(index: IndexInfo, key: bytes, value: bytes) -> Handle:
    """Return the handle of the row that an entry points to; raise Corrupt when the entry is damaged."""
    end = datums.find_end(key, len(index.columns), PREFIX_BYTES + INT_BYTES)
    if end < len(key):
        return _handle_of_suffix(key[end:])
    segments = split_value(value)
    if segments.common_handle is not None:
        return segments.common_handle
    if segments.int_handle is None:
        raise Corrupt(f"an entry of index {index.name} has no handle; keep it for inspection")
    return segments.int_handle


def _handle_of_suffix(suffix: bytes) -> Handle:
    datum, end = datums.decode(suffix)
    if end == len(suffix) and datum.kind is DatumKind.INT and isinstance(datum.value, int):
        return datum.value
    return suffix


@dataclass(frozen=True, slots=True)
class Segments:
    """The parts of the value of an index entry."""

    version: int = 0
    int_handle: int | None = None
    common_handle: bytes | None = None
    partition_id: int | None = None
    restored: bytes | None = None


def split_value(value: bytes) -> Segments:
    """Split the value of an index entry into its parts; raise Corrupt when it is damaged."""
    if len(value) <= _LEGACY_BYTES_MAX:
        return Segments(int_handle=to_signed(decode_uint(value)) if len(value) >= INT_BYTES else None)
    tail_bytes = value[0]
    version = value[2] if tail_bytes <= 1 and value[1] == _VERSION else 0
    at, end = (3 if version else 1), len(value) - tail_bytes
    if at > end:
        raise Corrupt("the value of an index entry is cut short; keep it for inspection")
    int_handle = to_signed(decode_uint(value, end)) if tail_bytes >= INT_BYTES and not version else None
    common = partition = restored = None
    if at < end and value[at] == _COMMON_HANDLE:
        size = int.from_bytes(value[at + 1 : at + 3], "big")
        common, at = value[at + 3 : at + 3 + size], at + 3 + size
    if at < end and value[at] == _PARTITION:
        partition, at = decode_uint(value, at + 1) - (1 << 63), at + 1 + INT_BYTES
    if at < end and value[at] == rows.VERSION_2:
        restored = value[at:end]
    if at > end:
        raise Corrupt("the value of an index entry is cut short; keep it for inspection")
    return Segments(version, None if common is not None else int_handle, common, partition, restored)
