"""Changes of a table's rows and index entries in a transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.kv import Transaction
from penstock.tables import indexes
from penstock.tables.auto_ids import AutoIds
from penstock.tables.batches import RowBatch, RowColumns, columns_of_arrow, columns_of_rows
from penstock.tables.columns import SchemaState
from penstock.tables.indexes import IndexEntry
from penstock.tables.keys import record_key
from penstock.tables.online import WriteForm, check_writable
from penstock.tables.records import Record, check_datum, default_value, handle_of, value_of
from penstock.tables.row_reader import RowReader, RowRef
from penstock.tables.schema import ROWID_COLUMN, HandleKind, IndexInfo
from penstock.tables.schema_snapshot import TablePlace
from penstock.tables.temp_index import TempIndex, find_letter
from penstock.tables.values import from_datum

Row = Mapping[str, Any]
_FEW_ROWS = 32  # up to so many rows, encoding each costs less than setting up the columns
RowsIn: TypeAlias = "Sequence[Row] | pa.Table | pa.RecordBatch"


class _RowChange(NamedTuple):
    """A row that exists and what it becomes; None when it goes."""

    ref: RowRef
    old: Record
    new: Record | None


class _RowRemoval(NamedTuple):
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

    def insert(self, rows: RowsIn) -> list[Any]:
        """Add rows and return their primary keys. The commit checks that the keys are new."""
        if isinstance(rows, pa.Table | pa.RecordBatch) or len(rows) > _FEW_ROWS:
            return self._insert_batch(self._encode(rows))
        columns = columns_of_rows(self.table, rows, start_ts=self._txn.start_ts)
        self._fill_numbers(columns, len(rows))
        return self._insert_records([self._record(columns, place) for place in range(len(rows))])

    def _record(self, columns: RowColumns, place: int) -> Record:
        start_ts = self._txn.start_ts
        return {
            column.id: check_datum(
                column,
                columns[column.id][place] if column.id in columns else default_value(column, start_ts),
            )
            for column in self.table.stored_columns
        }

    def _insert_records(self, records: Sequence[Record]) -> list[Any]:
        """Add rows one by one. The bytes are those of a batch."""
        is_numbered = self.table.handle_kind is HandleKind.ROWID
        numbers = iter(self._row_ids.take(*self._counter, len(records) if is_numbered else 0))
        pairs: list[tuple[bytes, bytes]] = []
        entries: list[tuple[IndexInfo, IndexEntry | None]] = []
        primary_keys: list[Any] = []
        for record in records:
            whole = self._form.complete(record)
            handle = next(numbers) if is_numbered else handle_of(self.table, record)
            ref = RowRef(self.home(record), handle)
            pairs.append((record_key(*ref), value_of(self.table, whole, self._form.columns)))
            entries += [(index, self._entry(index, whole, ref)) for index in self._form.added]
            key = tuple(from_datum(column.type, record[column.id]) for column in self.table.primary_key)
            primary_keys.append(key[0] if len(key) == 1 else key or handle)
        self._txn.insert_many([key for key, _ in pairs], [value for _, value in pairs])
        self._add_entries(entries)
        return primary_keys

    def _encode(self, rows: RowsIn) -> RowBatch:
        if isinstance(rows, pa.Table | pa.RecordBatch):
            columns = columns_of_arrow(self.table, rows)
        else:
            columns = columns_of_rows(self.table, rows, start_ts=self._txn.start_ts)
        self._fill_numbers(columns, len(rows))
        locate = None if self._partitions is None else self._partitions.locate
        return RowBatch.encode(self._form, columns, len(rows), start_ts=self._txn.start_ts, locate=locate)

    def _insert_batch(self, batch: RowBatch) -> list[Any]:
        is_numbered = self.table.handle_kind is HandleKind.ROWID
        handles = list(self._row_ids.take(*self._counter, len(batch))) if is_numbered else batch.handles
        self._txn.insert_many(*batch.record_pairs(handles))
        for index, entries in zip(self._form.added, batch.entries(handles), strict=True):
            if find_letter(index):
                self._aside(index).add(
                    IndexEntry(key, value, distinct)
                    for distinct, pairs in ((True, entries.distinct), (False, entries.shared))
                    for key, value in zip(*pairs, strict=True)
                )
                continue
            self._txn.insert_many(*entries.distinct)
            self._txn.put_many(*entries.shared)
        return batch.primary_keys if self.table.primary_key else list(handles)

    def upsert(self, rows: RowsIn) -> list[Any]:
        """Add rows or replace those with the same primary key; return the primary keys."""
        batch = self._encode(rows)
        if self.table.handle_kind is HandleKind.ROWID and self.table.primary_index is None:
            return self._insert_batch(batch)
        if self._form.is_plain and self.table.handle_kind is not HandleKind.ROWID:
            self._upsert_records(batch)
            return batch.primary_keys
        keys = batch.primary_keys
        newest = {tuple(self._key_values(key)): place for place, key in enumerate(keys)}
        kept = sorted(newest.values())
        refs = self.refs([keys[place] for place in kept])
        existing = self.read(refs, self._form.read)
        changes = [
            _RowChange(ref, existing[nth], batch.records[kept[nth]])
            for nth, ref in enumerate(refs)
            if nth in existing and ref is not None
        ]
        self._replace(changes)
        fresh = [place for nth, place in enumerate(kept) if nth not in existing]
        self._insert_batch(batch.take(fresh) if len(fresh) < len(batch) else batch)
        return keys

    def _upsert_records(self, batch: RowBatch) -> None:
        """Write rows that are their records alone: of those with one key, the last."""
        newest = dict(zip(*batch.record_pairs(batch.handles), strict=True))
        stored = self._txn.batch_get(list(newest))
        fresh = {key: value for key, value in newest.items() if key not in stored}
        self._txn.insert_many(list(fresh), list(fresh.values()))
        self._txn.put_many(list(stored), [newest[key] for key in stored])

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
        gone_keys: list[bytes] = []
        puts: dict[bytes, bytes] = {}
        removals: list[_RowRemoval] = []
        added: list[tuple[IndexInfo, IndexEntry | None]] = []
        for ref, old, new in changes:
            known = self._form.recall(old)
            whole = None if new is None else self._form.complete(new, old)
            target = ref if whole is None else RowRef(self.home(whole), ref.handle)
            if whole is None or target != ref:
                gone_keys.append(record_key(*ref))
            if whole is not None:
                puts[record_key(*target)] = value_of(self.table, whole, self._form.columns)
            for index in self._form.removed:
                is_added = whole is not None and index in self._form.added
                gone = self._entry(index, known, ref) if self._form.covers(index, known) else None
                made = self._entry(index, whole, target) if whole is not None and is_added else None
                if gone is None or made is None or gone.key != made.key:
                    added.append((index, made))
                    if gone is not None and (is_added or not self._keeps(index, whole, ref, gone)):
                        removals.append(_RowRemoval(index, ref, gone, None))
                elif gone.value != made.value:
                    removals.append(_RowRemoval(index, ref, gone, made))
        self._txn.delete_many(gone_keys)
        self._txn.put_many(list(puts), list(puts.values()))
        self._remove_entries(removals)
        self._add_entries(added)

    def _keeps(self, index: IndexInfo, whole: Record | None, ref: RowRef, gone: IndexEntry) -> bool:
        """Return whether a changed row still has the values of an entry that is only deleted now."""
        latest = None if whole is None else self._form.recall(whole)
        if latest is None or not self._form.covers(index, latest):
            return False
        entry = self._entry(index, latest, ref)
        return entry is not None and entry.key == gone.key

    def _aside(self, index: IndexInfo) -> TempIndex:
        return TempIndex(self._txn, index)

    def _remove_entries(self, removals: Sequence[_RowRemoval]) -> None:
        """Delete or change entries. One of a unique index that is not complete yet may be another row's."""
        for index in {one.of.id: one.of for one in removals if find_letter(one.of)}.values():
            noted = [one for one in removals if one.of.id == index.id]
            self._aside(index).remove([(one.entry, one.ref.handle) for one in noted])
            self._aside(index).add(one.replacement for one in noted if one.replacement is not None)
        removals = [one for one in removals if not find_letter(one.of)]
        unsure = [
            removal.entry.key
            for removal in removals
            if removal.entry.distinct and removal.of.state is not SchemaState.PUBLIC
        ]
        stored = self._txn.batch_get(unsure) if unsure else {}
        doubted = set(unsure)
        gone: list[bytes] = []
        changed: dict[bytes, bytes] = {}
        for index, ref, entry, replacement in removals:
            if entry.key in doubted:
                value = stored.get(entry.key)
                if value is None or indexes.handle_in(index, entry.key, value) != ref.handle:
                    continue
            if replacement is None:
                gone.append(entry.key)
            else:
                changed[entry.key] = replacement.value
        self._txn.delete_many(gone)
        self._txn.put_many(list(changed), list(changed.values()))

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

    def _add_entries(self, entries: Sequence[tuple[IndexInfo, IndexEntry | None]]) -> None:
        for index in {index.id: index for index, _ in entries if find_letter(index)}.values():
            noted = (entry for of, entry in entries if of.id == index.id)
            self._aside(index).add(entry for entry in noted if entry is not None)
        made = [entry for index, entry in entries if entry is not None and not find_letter(index)]
        for distinct, write in ((True, self._txn.insert_many), (False, self._txn.put_many)):
            chosen = [entry for entry in made if entry.distinct is distinct]
            write([entry.key for entry in chosen], [entry.value for entry in chosen])

    def _fill_numbers(self, columns: RowColumns, count: int) -> None:
        """Fill in the auto-increment column of rows that have no number or 0."""
        column = self.table.auto_increment
        if column is None:
            return
        given = columns.get(column.id)
        chosen = [None] * count if given is None else given if isinstance(given, list) else given.to_pylist()
        highest, apart = max((int(number) for number in chosen if number), default=0), self.table.counts_apart
        self._row_ids.pass_over(*self._counter, highest, apart=apart)
        numbers = iter(self._row_ids.take(*self._counter, sum(not number for number in chosen), apart=apart))
        columns[column.id] = [number or next(numbers) for number in chosen]
