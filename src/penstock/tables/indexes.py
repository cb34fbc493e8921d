"""Entries of secondary indexes: the key and value of a row in an index, and the handle of an entry.

The key of a unique entry without NULLs has only the indexed values; its value has the handle. Every other
entry ends its key with the handle. If the key does not have a string as it was written, the value has what is
missing ("restored" data). A partial index has entries only of the rows that fulfil its condition.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.errors import Corrupt, Invalid
from penstock.tables.codec import collations, datums, rows
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.codec.ordered import INT_BYTES, decode_uint, encode_int, encode_uint
from penstock.tables.columns import UNSPECIFIED, ColumnFlag, ColumnInfo
from penstock.tables.keys import PREFIX_BYTES, Handle, index_prefix
from penstock.tables.records import Record, key_datum, to_signed
from penstock.tables.schema import HandleKind, IndexColumn, IndexInfo, TableInfo

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


def entry(
    table: TableInfo, index: IndexInfo, record: Record, handle: Handle, partition_id: int | None = None
) -> IndexEntry:
    """Return the entry of a row in an index; raise Invalid for a collation that cannot be written.

    A row of a partitioned table has a `partition_id`. A global index has entries of all partitions and names
    the partition of each. The row must be one that `has_entry`.
    """
    assert has_entry(table, index, record)
    parts = [key_datum(table, part, record) for part in index.columns]
    distinct = index.unique and all(part.kind is not DatumKind.NULL for part in parts)
    owner = table.id if index.is_global or partition_id is None else partition_id
    partition = _partition(partition_id) if index.is_global and partition_id is not None else b""
    key = index_prefix(owner, index.id) + b"".join(map(datums.encode_key, parts))
    if not distinct:
        key += (partition if index.keeps_partition_in_key else b"") + _handle_suffix(handle)
    value = _value(table, index, record, handle if distinct else None, partition)
    return IndexEntry(key, value, distinct)


def _partition(partition_id: int) -> bytes:
    return bytes((_PARTITION,)) + encode_int(partition_id)


def _handle_suffix(handle: Handle) -> bytes:
    return bytes((datums.DatumFlag.INT,)) + encode_int(handle) if isinstance(handle, int) else handle


def _value(
    table: TableInfo, index: IndexInfo, record: Record, handle: Handle | None, partition: bytes
) -> bytes:
    options = _common(handle) + partition
    if table.is_common_handle and table.common_handle_version == 1:
        return _V1_HEAD + options + _restored_v1(table, index, record)
    return _value_v0(handle, options + _restored_v0(table, index, record))


def _value_v0(handle: Handle | None, options: bytes) -> bytes:
    return int_handle_value(encode_uint(handle % (1 << 64)) if isinstance(handle, int) else None, options)


def int_handle_value(handle: bytes | None, restored: bytes) -> bytes:
    """Return the value of an entry of a row with an integer handle, None where the key has the handle.

    For an index of a whole table; `restored` is the row of its strings, if their keys lose something.
    """
    if not restored:
        return _NON_UNIQUE if handle is None else handle
    tail = bytes(max(_MIN_BYTES - 1 - len(restored), 0)) if handle is None else handle
    return bytes((len(tail),)) + restored + tail


def _common(handle: Handle | None) -> bytes:
    if not isinstance(handle, bytes):
        return b""
    return bytes((_COMMON_HANDLE,)) + len(handle).to_bytes(2, "big") + handle


def _restored_v0(table: TableInfo, index: IndexInfo, record: Record) -> bytes:
    columns = [table.columns[part.offset] for part in index.columns]
    if not any(collations.needs_restored(column.type) for column in columns):
        return b""
    return rows.encode(
        {
            column.id: rows.cell_of(_cut(column, part.length, record))
            for column, part in zip(columns, index.columns, strict=True)
        }
    )


def _cut(column: ColumnInfo, length: int, record: Record) -> Datum:
    datum = record[column.id]
    if datum.kind is not DatumKind.BYTES or not isinstance(datum.value, bytes):
        return datum
    return Datum(DatumKind.BYTES, collations.truncate(column.type, datum.value, length))


def _restored_v1(table: TableInfo, index: IndexInfo, record: Record) -> bytes:
    """Return the restored strings of index and handle; of a padded string, the number of its spaces.

    TiDB writes the number as an unsigned integer for a column of the index, also where the value is NULL, and
    as a signed one for a column of the primary key: from 128 on their sizes differ.
    """
    cells: dict[int, bytes | None] = {}
    for part in index.columns:
        column = table.columns[part.offset]
        if not column.type.flag & ColumnFlag.PRI_KEY and collations.needs_restored(column.type):
            spaces, value = _restored_string(column, part.length, record)
            cells[column.id] = rows.uint_cell(spaces) if collations.pads(column.type) else value
    primary = table.primary_index
    assert primary is not None
    for part in primary.columns:
        column = table.columns[part.offset]
        if collations.needs_restored(column.type):
            spaces, value = _restored_string(column, _longer_part(part, index), record)
            cells[column.id] = rows.int_cell(spaces) if collations.pads(column.type) else value
    return rows.encode(cells) if cells else b""


def _longer_part(part: IndexColumn, index: IndexInfo) -> int:
    """Return how many characters of a primary key column an entry keeps: the longer of the two prefixes."""
    lengths = [part.length, *(other.length for other in index.columns if other.offset == part.offset)]
    return UNSPECIFIED if UNSPECIFIED in lengths else max(lengths)


def _restored_string(column: ColumnInfo, length: int, record: Record) -> tuple[int, bytes | None]:
    """Return the trailing spaces of an indexed string, and the string; 0 and None for NULL."""
    value = _cut(column, length, record).value
    return (len(value) - len(value.rstrip(b" ")), value) if isinstance(value, bytes) else (0, None)


def has_entry(table: TableInfo, index: IndexInfo, record: Record) -> bool:
    """Return whether a row has an entry: it fulfils the condition of a partial index.

    Raise Invalid for a condition that `check_condition` refuses.
    """
    return not index.condition or _condition(table, index)(record) is True


def check_condition(table: TableInfo, index: IndexInfo) -> None:
    """Raise Invalid for a partial index whose condition Penstock cannot evaluate as TiDB does."""
    if index.condition:
        _condition(table, index)


def _condition(table: TableInfo, index: IndexInfo) -> Callable[[Record], bool | None]:
    from penstock.tables.conditions import (
        compile_condition,
    )  # its parser is large, and most indexes need none

    try:
        return compile_condition(table, index.condition, f"the condition of index {index.name}")
    except Invalid as error:
        raise Invalid(
            f"index {index.name} has the condition {index.condition}, which Penstock does not evaluate;"
            " write the table through TiDB"
        ) from error


def handle_in(index: IndexInfo, key: bytes, value: bytes) -> Handle:
    """Return the handle of the row that an entry points to; raise Corrupt when the entry is damaged."""
    end = datums.find_end(key, len(index.columns), PREFIX_BYTES + INT_BYTES)
    if end < len(key):
        partition_bytes = 1 + INT_BYTES if key[end] == _PARTITION else 0
        return _handle_of_suffix(key[end + partition_bytes :])
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
