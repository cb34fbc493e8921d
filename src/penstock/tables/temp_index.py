"""The temporary index, in which TiDB's writers note changes of an index that is being filled in.

With `tidb_ddl_enable_fast_reorg` TiDB fills a new index from a snapshot, beside the writers. Meanwhile they
write to a second index, whose number has the bits `TEMP_INDEX`; then TiDB merges that into the first.

| backfill state | a writer changes | letter |
|---|---|---|
| running, delete-only | the temporary index | d |
| running | the temporary index | b |
| ready to merge, merging | both | m |

A temporary entry has the key of the real one, and the changes of it: one, or for a unique key all of them in
their order. Each is a flag, then what it puts or the handle of the row that went, and the letter. The merge
applies those with a b. Bytes and rules are those of the sources of TiDB 8.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.errors import Corrupt
from penstock.kv import Transaction
from penstock.tables import indexes
from penstock.tables.codec.ordered import INT_BYTES, decode_uint, encode_uint
from penstock.tables.columns import SchemaState
from penstock.tables.indexes import IndexEntry
from penstock.tables.keys import (
    PREFIX_BYTES,
    TEMP_INDEX,
    Handle,
    decode_index_prefix,
    encode_handle,
    index_prefix,
    record_key,
)
from penstock.tables.records import to_signed
from penstock.tables.schema import IndexInfo

_PUT, _PUT_SHARED, _DELETED, _DELETED_SHARED = range(4)
_RUNNING, _READY_TO_MERGE, _MERGING = 1, 2, 3
_DELETE_ONLY, _BACKFILL, _MERGE = b"d", b"b", b"m"
_SIZE_BYTES = 2
_DAMAGED = "an entry of a temporary index is damaged; keep it for inspection"


def find_letter(index: IndexInfo) -> bytes:
    """Return the letter of entries in the temporary index; empty if changes go into the index itself."""
    state = index.extra.get("backfill_state")
    if index.state is SchemaState.PUBLIC or not state:
        return b""
    if state == _RUNNING:
        return _DELETE_ONLY if index.state is SchemaState.DELETE_ONLY else _BACKFILL
    return _MERGE


def is_known(index: IndexInfo) -> bool:
    """Return whether rows can be written in an index's state; not while a global one is filled in."""
    if not find_letter(index):
        return True
    return not index.is_global and index.extra["backfill_state"] in {_RUNNING, _READY_TO_MERGE, _MERGING}


def index_id_of(number: int) -> int:
    """Return the id of an index from the number in keys of it or of its temporary index."""
    return number & ~TEMP_INDEX


def key_of(key: bytes) -> bytes:
    """Return the key of the temporary entry for that of a real one."""
    table_id, index_id = decode_index_prefix(key)
    return index_prefix(table_id, TEMP_INDEX | index_id) + key[PREFIX_BYTES + INT_BYTES :]


def encode_put(entry: IndexEntry, letter: bytes) -> bytes:
    """Return the change that makes an entry."""
    if not entry.distinct:
        return bytes((_PUT_SHARED,)) + entry.value + letter
    return bytes((_PUT,)) + len(entry.value).to_bytes(_SIZE_BYTES, "big") + entry.value + letter


def encode_deletion(entry: IndexEntry, handle: Handle, letter: bytes) -> bytes:
    """Return the change that removes a row's entry."""
    if not entry.distinct:
        return bytes((_DELETED_SHARED,)) + letter
    raw = encode_uint(handle % (1 << 64)) if isinstance(handle, int) else encode_handle(handle)
    return bytes((_DELETED,)) + len(raw).to_bytes(_SIZE_BYTES, "big") + raw + letter


class EntryChange(NamedTuple):
    """A change of a unique entry: the value that it puts, or the handle of the row that went."""

    value: bytes | None
    handle: Handle | None
    letter: bytes


def decode_changes(changes: bytes) -> list[EntryChange]:
    """Return the changes of a unique entry, the last one last; raise Corrupt when they are damaged."""
    found, at = [], 0
    while at < len(changes):
        flag, start = changes[at], at + 1 + _SIZE_BYTES
        end = start + int.from_bytes(changes[at + 1 : start], "big")
        if flag not in {_PUT, _DELETED} or end >= len(changes):
            raise Corrupt(_DAMAGED)
        body, letter = changes[start:end], changes[end : end + 1]
        if flag == _PUT:
            found.append(EntryChange(body, None, letter))
        else:
            handle = to_signed(decode_uint(body)) if len(body) == INT_BYTES else body
            found.append(EntryChange(None, handle, letter))
        at = end + 1
    return found


class TempIndex:
    """Notes changes of one index in a transaction, and makes those that belong into the index itself."""

    def __init__(self, txn: Transaction, index: IndexInfo) -> None:
        self._txn = txn
        self._index = index
        self._letter = find_letter(index)
        self._both = self._letter == _MERGE

    def add(self, entries: Iterable[IndexEntry]) -> None:
        """Add entries. The commit raises KeyExists if another row has one of the unique ones."""
        made = list(entries)
        stored = self._read([entry for entry in made if entry.distinct])
        writes: dict[bytes, bytes] = {}
        taken: dict[bytes, bytes] = {}
        for entry in made:
            key, change = key_of(entry.key), encode_put(entry, self._letter)
            if entry.distinct:
                owner = self._owner(entry.key, stored)
                if owner is not None and owner != indexes.handle_in(self._index, entry.key, entry.value):
                    taken[key if key in stored else entry.key] = change
                    continue
                change = change if self._both else stored.get(key, b"") + change
                stored[key] = change
            writes[key] = change
            if self._both:
                writes[entry.key] = entry.value
                stored[entry.key] = entry.value
        self._txn.put_many(list(writes), list(writes.values()))
        self._txn.insert_many(list(taken), list(taken.values()))  # they are there: this fails the commit

    def remove(self, entries: Sequence[tuple[IndexEntry, Handle]]) -> None:
        """Remove entries of rows."""
        stored = self._read([entry for entry, _ in entries if entry.distinct])
        writes: dict[bytes, bytes] = {}
        gone: list[bytes] = []
        for entry, handle in entries:
            key, change = key_of(entry.key), encode_deletion(entry, handle, self._letter)
            before = writes.get(key, stored.get(key, b"")) if entry.distinct else b""
            writes[key] = before + change
            value = stored.get(entry.key)
            mine = value is None or indexes.handle_in(self._index, entry.key, value) == handle
            if self._both and (mine or not entry.distinct):
                gone.append(entry.key)
        self._txn.delete_many(gone)
        self._txn.put_many(list(writes), list(writes.values()))

    def _read(self, distinct: Sequence[IndexEntry]) -> dict[bytes, bytes]:
        keys = sorted({key for entry in distinct for key in (entry.key, key_of(entry.key))})
        if keys and self._txn.pessimistic:
            self._txn.lock_keys(keys)  # then they read at their latest values
        return self._txn.batch_get(keys) if keys else {}

    def _owner(self, key: bytes, stored: dict[bytes, bytes]) -> Handle | None:
        """Return the row that has a unique entry now; None when none has it."""
        changes, value = decode_changes(stored.get(key_of(key), b"")), stored.get(key)
        if changes and changes[-1].value is not None:
            return indexes.handle_in(self._index, key, changes[-1].value)
        if value is None:
            return None
        owner = indexes.handle_in(self._index, key, value)
        if not changes:
            return owner
        # The entry may be of the snapshot that the index was filled from, and its row may have gone since.
        table_id, _ = decode_index_prefix(key)
        left = any(change.handle == owner for change in changes)
        return None if left or self._txn.get(record_key(table_id, owner)) is None else owner
