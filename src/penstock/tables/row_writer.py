"""Changes of a table's rows and index entries in a transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import Invalid, Unavailable
from penstock.kv import Transaction
from penstock.tables import indexes
from penstock.tables.auto_ids import AutoIds
from penstock.tables.columns import SchemaState
from penstock.tables.encoding import encode_batch
from penstock.tables.indexes import written_indexes
from penstock.tables.keys import Handle, record_key
from penstock.tables.records import Record, check_datum, handle_of, to_record, value_of
from penstock.tables.row_reader import RowReader
from penstock.tables.schema import ROWID_COLUMN, HandleKind, TableInfo
from penstock.tables.schema_snapshot import TablePlace
from penstock.tables.values import from_datum

Row = Mapping[str, Any]


def check_writable(name: str, table: TableInfo) -> None:
    """Refuse tables whose rows Penstock would write incompletely.

    Raise Invalid for a table that it never writes. Raise Unavailable while TiDB changes the schema online,
    because then rows need more than the public columns and indexes.
    """
    if table.physical_ids != (table.id,):
        raise Invalid(f"{name} is partitioned; Penstock does not write it")
    if any(column.generated_expr and (column.generated_stored or column.hidden) for column in table.columns):
        raise Invalid(
            f"{name} has generated columns that are stored or indexed; Penstock does not compute them"
        )
    states = {column.state for column in table.columns} | {index.state for index in table.indexes}
    if states - {SchemaState.PUBLIC}:
        raise Unavailable(f"the schema of {name} is being changed; wait until the change is finished")
    virtual = {column.offset for column in table.columns if column.is_virtual}
    if any(part.offset in virtual for index in table.indexes for part in index.columns):
        raise Invalid(f"{name} has an index on a generated column; Penstock does not compute it")
    for index in written_indexes(table):
        indexes.check_condition(table, index)


class RowWriter(RowReader):
    """Writes rows in a transaction. A method checks only what it says against the store."""

    def __init__(self, place: TablePlace, txn: Transaction, row_ids: AutoIds) -> None:
        super().__init__(place, txn)
        self._txn = txn
        self._row_ids = row_ids
        self._counter = (place.table.counter_database_id(place.database.id), place.table.id)
        self._indexes = list(written_indexes(place.table))
        check_writable(self.name, place.table)

    def insert(self, rows: Sequence[Row] | pa.Table | pa.RecordBatch) -> list[Any]:
        """Add rows and return their primary keys. The commit checks that the keys are new."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            return self._insert_bulk(rows)
        return self._insert_records([self._record(row) for row in self._fill_numbers(rows)])

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
            for entry in self._entries(record, handle):
                self._add_entry(entry)
        return [self._primary_key(record, handle) for record, handle in zip(records, handles, strict=True)]

    def upsert(self, rows: Sequence[Row]) -> list[Any]:
        """Add rows or replace those with the same primary key; return the primary keys."""
        records = [self._record(row) for row in self._fill_numbers(rows)]
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
        """Change columns of rows, which have their primary keys; return how many rows exist."""
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
        return {
            column.id: check_datum(column, value)
            for column, value in zip(columns, values, strict=True)
            if column not in self.table.handle_columns
        }

    def _replace(self, changes: Sequence[tuple[Handle, Record, Record]]) -> None:
        """Write changed rows. Remove old index entries first, so that rows may swap unique values."""
        before: list[dict[bytes, indexes.IndexEntry]] = []
        after: list[dict[bytes, indexes.IndexEntry]] = []
        for handle, old, new in changes:
            before.append({entry.key: entry for entry in self._entries(old, handle)})
            after.append({entry.key: entry for entry in self._entries(new, handle)})
        for old_entries, new_entries in zip(before, after, strict=True):
            for key in old_entries:
                if key not in new_entries:
                    self._txn.delete(key)
        for old_entries, new_entries in zip(before, after, strict=True):
            for key, entry in new_entries.items():
                if key not in old_entries:
                    self._add_entry(entry)
                elif old_entries[key].value != entry.value:
                    self._txn.put(key, entry.value)
        for handle, _, new in changes:
            self._txn.put(record_key(self.table.id, handle), value_of(self.table, new))

    def delete(self, keys: Sequence[Any]) -> int:
        """Remove rows with their index entries; return how many rows existed."""
        handles = self.handles(keys)
        existing = self.read(handles)
        gone: set[Handle] = set()
        for place, record in existing.items():
            handle = handles[place]
            if handle is None or handle in gone:
                continue
            gone.add(handle)
            self._txn.delete(record_key(self.table.id, handle))
            for entry in self._entries(record, handle):
                self._txn.delete(entry.key)
        return len(gone)

    def _entries(self, record: Record, handle: Handle) -> list[indexes.IndexEntry]:
        return [
            indexes.entry(self.table, index, record, handle)
            for index in self._indexes
            if indexes.has_entry(self.table, index, record)
        ]

    def _add_entry(self, entry: indexes.IndexEntry) -> None:
        (self._txn.insert if entry.distinct else self._txn.put)(entry.key, entry.value)

    def _record(self, row: Row) -> Record:
        return to_record(self.table, row, start_ts=self._txn.start_ts)

    def _fill_numbers(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows with their auto-increment column filled in."""
        column = self.table.auto_increment
        if column is None:
            return rows
        folded = [{name.lower(): value for name, value in row.items()} for row in rows]
        chosen = [row.get(column.name.lower()) for row in folded]
        self._row_ids.pass_over(*self._counter, max((int(number) for number in chosen if number), default=0))
        numbers = iter(self._row_ids.take(*self._counter, sum(not number for number in chosen)))
        return [
            row if number else {**row, column.name.lower(): next(numbers)}
            for row, number in zip(folded, chosen, strict=True)
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
