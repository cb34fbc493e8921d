"""Reads of a table's rows in one view of the store: by key, by index, in order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from typing import Any, NamedTuple

from penstock.errors import Invalid
from penstock.kv import Snapshot, Transaction
from penstock.tables import indexes
from penstock.tables.codec import collations
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.columns import ColumnInfo, SchemaState
from penstock.tables.indexes import written_indexes
from penstock.tables.keys import (
    PREFIX_BYTES,
    Handle,
    decode_index_prefix,
    encode_handle,
    index_prefix,
    prefix_end,
    record_key,
    record_range,
)
from penstock.tables.online import partitions_of
from penstock.tables.partitions import Partitions
from penstock.tables.records import (
    Record,
    check_datum,
    handle_of,
    key_part,
    read_record,
)
from penstock.tables.schema import ROWID_COLUMN, HandleKind, IndexInfo
from penstock.tables.schema_snapshot import TablePlace


class RowRef(NamedTuple):
    """Where a row is: its physical table (the table itself, or a partition), and its handle there."""

    physical_id: int
    handle: Handle


class RowReader:
    """Reads rows as a snapshot or a transaction sees them."""

    def __init__(self, place: TablePlace, view: Snapshot | Transaction) -> None:
        self.table = place.table
        self.name = f"{place.database.name}.{place.table.name}"
        self._view = view
        if not place.table.is_base_table:
            raise Invalid(f"{self.name} is a {place.table.kind} and has no rows; read a table")

    def refs(self, keys: Sequence[Any]) -> list[RowRef | None]:
        """Return where rows are by their primary keys; None for a key that the table does not have."""
        if self.table.handle_kind is not HandleKind.ROWID:
            records = [self._key_record(key) for key in keys]
            return [RowRef(self.home(record), handle_of(self.table, record)) for record in records]
        return self._row_ids_of(keys)

    def home(self, record: Record) -> int:
        """Return the id of the physical table of a row; raise Invalid when no partition takes it."""
        return self.table.id if self._partitions is None else self._partitions.locate(record)

    @cached_property
    def _partitions(self) -> Partitions | None:
        if self.table.physical_ids == (self.table.id,):
            return None
        return partitions_of(self.name, self.table)

    def _by_row_id(self, handles: Sequence[Handle]) -> list[RowRef | None]:
        """Return where rows are by their implicit numbers, which are unique over all partitions."""
        if self._partitions is None:
            return [RowRef(self.table.id, handle) for handle in handles]
        refs = {RowRef(number, handle) for number in self.table.physical_ids for handle in handles}
        keys = {record_key(*ref): ref for ref in refs}
        found = {keys[key].handle: keys[key] for key in self._view.batch_get(sorted(keys))}
        return [found.get(handle) for handle in handles]

    def _row_ids_of(self, keys: Sequence[Any]) -> list[RowRef | None]:
        primary = self.table.primary_index
        by_id = [key.get(ROWID_COLUMN) if isinstance(key, Mapping) else None for key in keys]
        if primary is None:
            handles = [key if handle is None else handle for key, handle in zip(keys, by_id, strict=True)]
            if not all(isinstance(key, int) for key in handles):
                raise Invalid(f"{self.name} has no primary key; name its rows by {ROWID_COLUMN}, an int")
            return self._by_row_id(handles)
        given = iter(self._by_row_id([handle for handle in by_id if handle is not None]))
        entries = [
            None if handle is not None else self._primary_entry(primary, key)
            for key, handle in zip(keys, by_id, strict=True)
        ]
        values = self._view.batch_get([entry for entry in entries if entry is not None])
        return [
            next(given) if key is None else _ref_of(primary, key, values[key]) if key in values else None
            for key in entries
        ]

    def _primary_entry(self, primary: IndexInfo, key: Any) -> bytes:
        record = self._key_record(key)
        local = self._partitions is not None and not primary.is_global
        return indexes.entry(self.table, primary, record, 0, self.home(record) if local else None).key

    def _key_record(self, key: Any) -> Record:
        columns = self.table.primary_key
        values = self._key_values(key)
        if len(values) != len(columns):
            names = ", ".join(column.name for column in columns)
            raise Invalid(
                f"the primary key of {self.name} is ({names}); pass as many values, not {len(values)}"
            )
        return {column.id: check_datum(column, value) for column, value in zip(columns, values, strict=True)}

    def _key_values(self, key: Any) -> Sequence[Any]:
        if isinstance(key, Mapping):
            folded = {name.lower(): value for name, value in key.items()}
            missing = [column.name for column in self.table.primary_key if column.name.lower() not in folded]
            if missing:
                raise Invalid(f"a row of {self.name} has no {missing[0]}, part of its primary key; add it")
            return [folded[column.name.lower()] for column in self.table.primary_key]
        return key if isinstance(key, tuple | list) else (key,)

    def read(
        self, refs: Sequence[RowRef | None], columns: Sequence[ColumnInfo] | None = None
    ) -> dict[int, Record]:
        """Return the rows that exist, by their place in the list; by default the columns that readers see."""
        keys = {place: record_key(*ref) for place, ref in enumerate(refs) if ref is not None}
        values = self._view.batch_get(sorted(set(keys.values())))
        return {
            place: read_record(self.table, key, values[key], columns)
            for place, key in keys.items()
            if key in values
        }

    def find(self, index: IndexInfo, values: Sequence[Any]) -> Iterator[Record]:
        """Yield the rows whose first indexed columns have these values, in the order of the index."""
        if index.state is not SchemaState.PUBLIC:
            raise Invalid(f"index {index.name} of {self.name} is being added or dropped; use another")
        if not values or len(values) > len(index.columns):
            raise Invalid(
                f"index {index.name} has {len(index.columns)} columns; give values for the first ones"
            )
        if index.condition:
            raise Invalid(
                f"index {index.name} has a condition, so rows are missing in it; find rows by another index"
            )
        columns = [self.table.columns[part.offset] for part in index.columns[: len(values)]]
        sought = {
            column.id: _sought_datum(column, value) for column, value in zip(columns, values, strict=True)
        }
        parts = b"".join(key_part(self.table, part, sought) for part in index.columns[: len(values)])
        if index not in written_indexes(self.table):
            pages = [self._scan(record_range(number)[0] + parts) for number in self.table.physical_ids]
            pairs = merge(*pages, key=lambda pair: pair[0][PREFIX_BYTES:])
            records = [read_record(self.table, key, value) for key, value in pairs]
        else:
            owners = (self.table.id,) if index.is_global else self.table.physical_ids
            pages = [self._scan(index_prefix(number, index.id) + parts) for number in owners]
            pairs = merge(*pages, key=lambda pair: pair[0][PREFIX_BYTES:])
            refs = [_ref_of(index, key, value) for key, value in pairs]
            by_place = self.read(refs)
            records = [by_place[place] for place in sorted(by_place)]
        return (record for record in records if _matches(columns, sought, record))

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._range(prefix, prefix_end(prefix), None)

    def _range(self, lower: bytes, upper: bytes, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        if isinstance(self._view, Snapshot):
            return self._view.iter(lower, upper, limit=limit)
        return self._view.scan(lower, upper, limit=limit)

    def records(self, start: Any, end: Any, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of the rows between two primary keys (or row ids), in order, by partition."""
        left = limit
        for table_id in self.table.physical_ids:
            lower, upper = record_range(table_id)
            lower = lower if start is None else lower + self._bound_key(start)
            upper = upper if end is None else record_range(table_id)[0] + self._bound_key(end)
            for pair in self._range(lower, upper, left) if lower < upper else ():
                yield pair
                left = None if left is None else left - 1
            if left == 0:
                return

    def _bound_key(self, key: Any) -> bytes:
        if self.table.handle_kind is HandleKind.COMMON and self.table.primary_index is not None:
            values = self._key_values(key)
            pairs = list(zip(self.table.primary_index.columns, self.table.primary_key, values, strict=False))
            record = {column.id: check_datum(column, value) for _, column, value in pairs}
            return b"".join(key_part(self.table, part, record) for part, _, _ in pairs)
        if self.table.handle_kind is HandleKind.INT:
            return encode_handle(handle_of(self.table, self._key_record(key)))
        if not isinstance(key, int):
            raise Invalid(f"rows of {self.name} are in the order of their row ids; bound the scan by an int")
        return encode_handle(key)


def _ref_of(index: IndexInfo, key: bytes, value: bytes) -> RowRef:
    partition_id = indexes.split_value(value).partition_id if index.is_global else None
    physical_id = decode_index_prefix(key)[0] if partition_id is None else partition_id
    return RowRef(physical_id, indexes.handle_in(index, key, value))


def _sought_datum(column: ColumnInfo, value: Any) -> Datum:
    return Datum(DatumKind.NULL) if value is None else check_datum(column, value)


def _matches(columns: Iterable[ColumnInfo], sought: Record, record: Record) -> bool:
    return all(_fold(column, sought[column.id]) == _fold(column, record[column.id]) for column in columns)


def _fold(column: ColumnInfo, datum: Datum) -> Datum:
    if datum.kind is DatumKind.BYTES and isinstance(datum.value, bytes):
        return Datum(DatumKind.BYTES, collations.sort_key(column.type, datum.value))
    return datum
