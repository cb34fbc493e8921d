"""Changes of a table's rows and index entries in a transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.kv import Transaction
from penstock.tables import indexes
from penstock.tables.auto_ids import AutoIds
from penstock.tables.columns import SchemaState
from penstock.tables.encoding import encode_batch
from penstock.tables.indexes import IndexEntry
from penstock.tables.keys import record_key
from penstock.tables.online import WriteForm, check_writable
from penstock.tables.records import Record, check_datum, handle_of, to_record, value_of
from penstock.tables.row_reader import RowReader, RowRef
from penstock.tables.schema import ROWID_COLUMN, HandleKind, IndexInfo
from penstock.tables.schema_snapshot import TablePlace
from penstock.tables.values import from_datum

Row = Mapping[str, Any]


class _RowChange(NamedTuple):
    """A row that exists and what it becomes; None when it goes."""

    ref: RowRef
    old: Record
    new: Record | None


class _Removal(NamedTuple):
    """An index entry that a row may have had, to be deleted or changed."""

    of: IndexInfo
    ref: RowRef
    entry: IndexEntry
    replacement: IndexEntry | None


class RowWriter(RowReader):
    """Writes rows in a transaction. A method checks only what it says against the store."""

    def __init__(self, place: TablePlace, txn: Transaction, row_ids: AutoIds) -> None:
        super().__init__(place, txn)
        self._txn = txn
        self._row_ids = row_ids
        self._counter = (place.table.counter_database_id(place.database.id), place.table.id)
        self._form = WriteForm(place.table)
        check_writable(self.name, place.table)

    def insert(self, rows: Sequence[Row] | pa.Table | pa.RecordBatch) -> list[Any]:
        """Add rows and return their primary keys. The commit checks that the keys are new."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            return self._insert_bulk(rows)
        return self._insert_records([self._record(row) for row in self._fill_numbers(rows)])

    def _insert_bulk(self, rows: pa.Table | pa.RecordBatch) -> list[Any]:
        handle = self.table.handle_kind
        if not self._form.is_plain or self.table.auto_increment or handle is not HandleKind.INT:
            return self.insert(rows.to_pylist())
        inserted: list[Any] = []
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            encoded = encode_batch(self.table, batch, start_ts=self._txn.start_ts)
            for key, value in zip(encoded.keys, encoded.values, strict=True):
                self._txn.insert(key, value)
            inserted += encoded.handles
        return inserted

    def _insert_records(self, records: Sequence[Record]) -> list[Any]:
        refs = self._new_refs(records)
        for record, ref in zip(records, refs, strict=True):
            whole = self._form.complete(record)
            self._txn.insert(record_key(*ref), value_of(self.table, whole, self._form.columns))
            self._add_entries(self._entry(index, whole, ref) for index in self._form.added)
        return [self._primary_key(record, ref) for record, ref in zip(records, refs, strict=True)]

    def upsert(self, rows: Sequence[Row]) -> list[Any]:
        """Add rows or replace those with the same primary key; return the primary keys."""
        records = [self._record(row) for row in self._fill_numbers(rows)]
        if self.table.handle_kind is HandleKind.ROWID and self.table.primary_index is None:
            return self._insert_records(records)
        keys = [self._primary_key(record, None) for record in records]
        newest = {tuple(self._key_values(key)): place for place, key in enumerate(keys)}
        kept = sorted(newest.values())
        refs = self.refs([keys[place] for place in kept])
        existing = self.read(refs, self._form.read)
        fresh = [records[place] for nth, place in enumerate(kept) if nth not in existing]
        changes = [
            _RowChange(ref, existing[nth], records[kept[nth]])
            for nth, ref in enumerate(refs)
            if nth in existing and ref is not None
        ]
        self._replace(changes)
        self._insert_records(fresh)
        return keys

    def update(self, rows: Sequence[Row]) -> int:
        """Change columns of rows, which have their primary keys; return how many rows exist."""
        refs = self.refs(rows)
        existing = self.read(refs, self._form.read)
        latest: dict[RowRef, Record] = {}
        before: dict[RowRef, Record] = {}
        for place, row in enumerate(rows):
            ref = refs[place]
            if place not in existing or ref is None:
                continue
            before.setdefault(ref, existing[place])
            latest[ref] = latest.get(ref, existing[place]) | self._changes(row)
        self._replace([_RowChange(ref, before[ref], record) for ref, record in latest.items()])
        return len(existing)

    def _changes(self, row: Row) -> Record:
        columns = [self.table.column(name) for name in row if name != ROWID_COLUMN]
        values = [value for name, value in row.items() if name != ROWID_COLUMN]
        return {
            column.id: check_datum(column, value)
            for column, value in zip(columns, values, strict=True)
            if column not in self.table.handle_columns
        }

    def _replace(self, changes: Sequence[_RowChange]) -> None:
        """Write changed rows. Remove old index entries first, so that rows may swap unique values."""
        removals: list[_Removal] = []
        added: list[IndexEntry | None] = []
        for ref, old, new in changes:
            known = self._form.recall(old)
            whole = None if new is None else self._form.complete(new, old)
            target = ref if whole is None else RowRef(self.home(whole), ref.handle)
            if whole is None or target != ref:
                self._txn.delete(record_key(*ref))
            if whole is not None:
                self._txn.put(record_key(*target), value_of(self.table, whole, self._form.columns))
            for index in self._form.removed:
                is_added = whole is not None and index in self._form.added
                gone = self._entry(index, known, ref) if self._form.covers(index, known) else None
                made = self._entry(index, whole, target) if whole is not None and is_added else None
                if gone is None or made is None or gone.key != made.key:
                    added.append(made)
                    if gone is not None and (is_added or not self._keeps(index, whole, ref, gone)):
                        removals.append(_Removal(index, ref, gone, None))
                elif gone.value != made.value:
                    removals.append(_Removal(index, ref, gone, made))
        self._remove_entries(removals)
        self._add_entries(added)

    def _keeps(self, index: IndexInfo, whole: Record | None, ref: RowRef, gone: IndexEntry) -> bool:
        """Return whether a changed row still has the values of an entry that is only deleted now."""
        latest = None if whole is None else self._form.recall(whole)
        if latest is None or not self._form.covers(index, latest):
            return False
        entry = self._entry(index, latest, ref)
        return entry is not None and entry.key == gone.key

    def _remove_entries(self, removals: Sequence[_Removal]) -> None:
        """Delete or change entries. One of a unique index that is not complete yet may be another row's."""
        unsure = [
            removal.entry.key
            for removal in removals
            if removal.entry.distinct and removal.of.state is not SchemaState.PUBLIC
        ]
        stored = self._txn.batch_get(unsure) if unsure else {}
        doubted = set(unsure)
        for index, ref, entry, replacement in removals:
            if entry.key in doubted:
                value = stored.get(entry.key)
                if value is None or indexes.handle_in(index, entry.key, value) != ref.handle:
                    continue
            if replacement is None:
                self._txn.delete(entry.key)
            else:
                self._txn.put(entry.key, replacement.value)

    def delete(self, keys: Sequence[Any]) -> int:
        """Remove rows with their index entries; return how many rows existed."""
        refs = self.refs(keys)
        existing = self.read(refs, self._form.read)
        gone = {
            ref: existing[place] for place, ref in enumerate(refs) if ref is not None and place in existing
        }
        self._replace([_RowChange(ref, record, None) for ref, record in gone.items()])
        return len(gone)

    def _entry(self, index: IndexInfo, record: Record, ref: RowRef) -> IndexEntry | None:
        """Return the entry of a row; None when it does not fulfil the condition of a partial index."""
        if not indexes.has_entry(self.table, index, record):
            return None
        partition_id = None if ref.physical_id == self.table.id else ref.physical_id
        return indexes.entry(self.table, index, record, ref.handle, partition_id)

    def _add_entries(self, entries: Iterable[IndexEntry | None]) -> None:
        for entry in entries:
            if entry is not None:
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

    def _new_refs(self, records: Sequence[Record]) -> list[RowRef]:
        if self.table.handle_kind is HandleKind.ROWID:
            numbers = self._row_ids.take(*self._counter, len(records))
            return [
                RowRef(self.home(record), number) for record, number in zip(records, numbers, strict=True)
            ]
        return [RowRef(self.home(record), handle_of(self.table, record)) for record in records]

    def _primary_key(self, record: Record, ref: RowRef | None) -> Any:
        columns = self.table.primary_key
        if not columns:
            return None if ref is None else ref.handle
        values = tuple(from_datum(column.type, record[column.id]) for column in columns)
        return values[0] if len(values) == 1 else values
