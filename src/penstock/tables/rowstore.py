"""Rows of a table in one view of the store: reading by key and index, writing with indexes kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import Invalid
from penstock.kv import Snapshot, Transaction
from penstock.tables import indexes
from penstock.tables.codec import collations
from penstock.tables.codec.datums import Datum, Kind
from penstock.tables.encoding.bulk import encode_batch
from penstock.tables.indexes import written_indexes
from penstock.tables.keys import Handle, encode_handle, index_prefix, prefix_end, record_key, record_range
from penstock.tables.records import (
    Record,
    checked_datum,
    handle_of,
    key_part,
    read_record,
    to_record,
    value_of,
)
from penstock.tables.rowids import RowIds
from penstock.tables.schema import ROWID_COLUMN, ColumnInfo, HandleKind, IndexInfo
from penstock.tables.snapshot import Place
from penstock.tables.values import from_datum

Row = Mapping[str, Any]


class RowReader:
    """Reads rows as a snapshot or a transaction sees them."""

    def __init__(self, place: Place, view: Snapshot | Transaction) -> None:
        self.table = place.table
        self.name = f"{place.database.name}.{place.table.name}"
        self._view = view
        if not place.table.is_base_table:
            raise Invalid(f"{self.name} is a view or a sequence and holds no rows")

    def handles(self, keys: Sequence[Any]) -> list[Handle | None]:
        """The handles of rows given by their primary keys; None where an index does not know the key."""
        if len(self.table.physical_ids) != 1 or self.table.physical_ids[0] != self.table.id:
            raise Invalid(f"{self.name} is partitioned; it can be scanned only")
        if self.table.handle_kind is not HandleKind.ROWID:
            return [handle_of(self.table, self._key_record(key)) for key in keys]
        return self._row_ids_of(keys)

    def _row_ids_of(self, keys: Sequence[Any]) -> list[Handle | None]:
        primary = self.table.primary_index
        by_id = [key.get(ROWID_COLUMN) if isinstance(key, Mapping) else None for key in keys]
        if primary is None:
            given = [key if known is None else known for key, known in zip(keys, by_id, strict=True)]
            if not all(isinstance(key, int) for key in given):
                raise Invalid(f"{self.name} has no primary key; name its rows by {ROWID_COLUMN}, an int")
            return given
        entries = [
            None if known is not None else indexes.entry(self.table, primary, self._key_record(key), 0).key
            for key, known in zip(keys, by_id, strict=True)
        ]
        found = self._view.batch_get([entry for entry in entries if entry is not None])
        return [
            known
            if entry is None
            else indexes.handle_in(primary, entry, found[entry])
            if entry in found
            else None
            for entry, known in zip(entries, by_id, strict=True)
        ]

    def _key_record(self, key: Any) -> Record:
        columns = self.table.primary_key
        values = self._key_values(key)
        if len(values) != len(columns):
            names = ", ".join(column.name for column in columns)
            raise Invalid(f"the primary key of {self.name} is ({names}); {len(values)} values were given")
        return {
            column.id: checked_datum(column, value) for column, value in zip(columns, values, strict=True)
        }

    def _key_values(self, key: Any) -> Sequence[Any]:
        if isinstance(key, Mapping):
            folded = {name.lower(): value for name, value in key.items()}
            missing = [column.name for column in self.table.primary_key if column.name.lower() not in folded]
            if missing:
                raise Invalid(f"a row of {self.name} is given without {missing[0]}, part of its primary key")
            return [folded[column.name.lower()] for column in self.table.primary_key]
        return key if isinstance(key, tuple | list) else (key,)

    def read(self, handles: Sequence[Handle | None]) -> dict[int, Record]:
        """The rows of these handles that exist, by their place in the list."""
        wanted = {
            place: record_key(self.table.id, handle)
            for place, handle in enumerate(handles)
            if handle is not None
        }
        found = self._view.batch_get(sorted(set(wanted.values())))
        return {
            place: read_record(self.table, key, found[key]) for place, key in wanted.items() if key in found
        }

    def find(self, index: IndexInfo, values: Sequence[Any]) -> Iterator[Record]:
        """The rows whose first indexed columns have these values, in the order of the index."""
        if not values or len(values) > len(index.columns):
            raise Invalid(
                f"index {index.name} has {len(index.columns)} columns; give values for the first ones"
            )
        columns = [self.table.columns[part.offset] for part in index.columns[: len(values)]]
        sought = {column.id: _sought(column, value) for column, value in zip(columns, values, strict=True)}
        parts = b"".join(key_part(self.table, part, sought) for part in index.columns[: len(values)])
        if index not in written_indexes(self.table):
            prefix = record_range(self.table.id)[0] + parts
            records = [read_record(self.table, key, value) for key, value in self._scan(prefix)]
        else:
            prefix = index_prefix(self.table.id, index.id) + parts
            handles = [indexes.handle_in(index, key, value) for key, value in self._scan(prefix)]
            found = self.read(handles)
            records = [found[place] for place in sorted(found)]
        return (record for record in records if _matches(columns, sought, record))

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._range(prefix, prefix_end(prefix), None)

    def _range(self, lower: bytes, upper: bytes, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        if isinstance(self._view, Snapshot):
            return self._view.iter(lower, upper, limit=limit)
        return self._view.scan(lower, upper, limit=limit)

    def records(self, start: Any, end: Any, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the rows between two primary keys (or row ids), in order."""
        left = limit
        for table_id in self.table.physical_ids:
            lower, upper = record_range(table_id)
            lower = lower if start is None else lower + self._bound(start)
            upper = upper if end is None else record_range(table_id)[0] + self._bound(end)
            for pair in self._range(lower, upper, left) if lower < upper else ():
                yield pair
                left = None if left is None else left - 1
            if left == 0:
                return

    def _bound(self, key: Any) -> bytes:
        if self.table.handle_kind is HandleKind.COMMON and self.table.primary_index is not None:
            values = self._key_values(key)
            pairs = list(zip(self.table.primary_index.columns, self.table.primary_key, values, strict=False))
            record = {column.id: checked_datum(column, value) for _, column, value in pairs}
            return b"".join(key_part(self.table, part, record) for part, _, _ in pairs)
        if self.table.handle_kind is HandleKind.INT:
            return encode_handle(handle_of(self.table, self._key_record(key)))
        if not isinstance(key, int):
            raise Invalid(f"rows of {self.name} are in the order of their row ids; bound the scan by an int")
        return encode_handle(key)


def _sought(column: ColumnInfo, value: Any) -> Datum:
    return Datum(Kind.NULL) if value is None else checked_datum(column, value)


def _matches(columns: Iterable[ColumnInfo], sought: Record, record: Record) -> bool:
    return all(_folded(column, sought[column.id]) == _folded(column, record[column.id]) for column in columns)


def _folded(column: ColumnInfo, datum: Datum) -> Datum:
    if datum.kind is Kind.BYTES and isinstance(datum.value, bytes):
        return Datum(Kind.BYTES, collations.sort_key(column.type, datum.value))
    return datum


class RowWriter(RowReader):
    """Writes rows in a transaction. Nothing is checked against the store here but what a method says."""

    def __init__(self, place: Place, txn: Transaction, row_ids: RowIds) -> None:
        super().__init__(place, txn)
        self._txn = txn
        self._row_ids = row_ids
        self._counter = (place.table.counter_database_id(place.database.id), place.table.id)
        self._indexes = list(written_indexes(place.table))
        if place.table.physical_ids != (place.table.id,):
            raise Invalid(f"{self.name} is partitioned; Penstock does not write it")

    def insert(self, rows: Sequence[Row] | pa.Table | pa.RecordBatch) -> list[Any]:
        """Add rows; their keys must be new, which the commit checks. Return their primary keys."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            return self._insert_bulk(rows)
        return self._insert_records([self._record(row) for row in self._numbered(rows)])

    def _insert_bulk(self, rows: pa.Table | pa.RecordBatch) -> list[Any]:
        if self._indexes or self.table.auto_increment or self.table.handle_kind is not HandleKind.INT:
            return self.insert(rows.to_pylist())
        inserted: list[Any] = []
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            encoded = encode_batch(self.table, batch, start_ts=self._txn.start_ts)
            for key, value in zip(encoded.keys, encoded.values, strict=True):
                self._txn.insert(key, value)
            inserted += encoded.handles
        return inserted

    def _insert_records(self, records: Sequence[Record]) -> list[Any]:
        handles = self._new_handles(records)
        for record, handle in zip(records, handles, strict=True):
            self._txn.insert(record_key(self.table.id, handle), value_of(self.table, record))
            for index in self._indexes:
                self._add_entry(indexes.entry(self.table, index, record, handle))
        return [self._primary_key(record, handle) for record, handle in zip(records, handles, strict=True)]

    def upsert(self, rows: Sequence[Row]) -> list[Any]:
        """Add rows, replacing those with the same primary key; return the primary keys."""
        records = [self._record(row) for row in self._numbered(rows)]
        if self.table.handle_kind is HandleKind.ROWID and self.table.primary_index is None:
            return self._insert_records(records)
        keys = [self._primary_key(record, 0) for record in records]
        newest = {tuple(self._key_values(key)): place for place, key in enumerate(keys)}
        kept = sorted(newest.values())
        handles = self.handles([keys[place] for place in kept])
        existing = self.read(handles)
        fresh = [records[place] for nth, place in enumerate(kept) if nth not in existing]
        changes = [
            (handle, existing[nth], records[kept[nth]])
            for nth, handle in enumerate(handles)
            if nth in existing and handle is not None
        ]
        self._replace(changes)
        self._insert_records(fresh)
        return keys

    def update(self, rows: Sequence[Row]) -> int:
        """Change columns of rows, each given by its primary key; return how many were found."""
        handles = self.handles(rows)
        existing = self.read(handles)
        latest: dict[Handle, Record] = {}
        before: dict[Handle, Record] = {}
        for place, row in enumerate(rows):
            handle = handles[place]
            if place not in existing or handle is None:
                continue
            before.setdefault(handle, existing[place])
            latest[handle] = latest.get(handle, existing[place]) | self._changes(row)
        self._replace([(handle, before[handle], record) for handle, record in latest.items()])
        return len(existing)

    def _changes(self, row: Row) -> Record:
        columns = [self.table.column(name) for name in row if name != ROWID_COLUMN]
        values = [value for name, value in row.items() if name != ROWID_COLUMN]
        generated = [column.name for column in columns if column.generated_expr]
        if generated:
            raise Invalid(f"column {generated[0]} of {self.name} is generated; leave it out")
        return {
            column.id: checked_datum(column, value)
            for column, value in zip(columns, values, strict=True)
            if column not in self.table.handle_columns
        }

    def _replace(self, changes: Sequence[tuple[Handle, Record, Record]]) -> None:
        """Write changed rows: first give up old index entries, so that rows may swap unique values."""
        entries = [
            (indexes.entry(self.table, index, old, handle), indexes.entry(self.table, index, new, handle))
            for handle, old, new in changes
            for index in self._indexes
        ]
        for old_entry, new_entry in entries:
            if old_entry.key != new_entry.key:
                self._txn.delete(old_entry.key)
        for old_entry, new_entry in entries:
            if old_entry.key != new_entry.key:
                self._add_entry(new_entry)
            elif old_entry.value != new_entry.value:
                self._txn.put(new_entry.key, new_entry.value)
        for handle, _, new in changes:
            self._txn.put(record_key(self.table.id, handle), value_of(self.table, new))

    def delete(self, keys: Sequence[Any]) -> int:
        """Remove rows with their index entries; return how many were found."""
        handles = self.handles(keys)
        existing = self.read(handles)
        gone: set[Handle] = set()
        for place, record in existing.items():
            handle = handles[place]
            if handle is None or handle in gone:
                continue
            gone.add(handle)
            self._txn.delete(record_key(self.table.id, handle))
            for index in self._indexes:
                self._txn.delete(indexes.entry(self.table, index, record, handle).key)
        return len(gone)

    def _add_entry(self, entry: indexes.Entry) -> None:
        (self._txn.insert if entry.distinct else self._txn.put)(entry.key, entry.value)

    def _record(self, row: Row) -> Record:
        return to_record(self.table, row, start_ts=self._txn.start_ts)

    def _numbered(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows with their auto-increment column filled in."""
        column = self.table.auto_increment
        if column is None:
            return rows
        folded = [{name.lower(): value for name, value in row.items()} for row in rows]
        given = [row.get(column.name.lower()) for row in folded]
        self._row_ids.pass_over(*self._counter, max((int(number) for number in given if number), default=0))
        numbers = iter(self._row_ids.take(*self._counter, sum(not number for number in given)))
        return [
            row if number else {**row, column.name.lower(): next(numbers)}
            for row, number in zip(folded, given, strict=True)
        ]

    def _new_handles(self, records: Sequence[Record]) -> list[Handle]:
        if self.table.handle_kind is HandleKind.ROWID:
            return list(self._row_ids.take(*self._counter, len(records)))
        return [handle_of(self.table, record) for record in records]

    def _primary_key(self, record: Record, handle: Handle) -> Any:
        columns = self.table.primary_key
        if not columns:
            return handle
        values = tuple(from_datum(column.type, record[column.id]) for column in columns)
        return values[0] if len(values) == 1 else values
