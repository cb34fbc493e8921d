"""The rows of one insert: their records and index entries, encoded a column at a time.

The bytes are those that `records` and `indexes` give row by row. What this module does not encode by columns
(entries of partial and global indexes and of clustered tables, partitions, converted columns) it takes from
them, row by row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.columnar.buffers import Ints
from penstock.errors import Invalid
from penstock.tables import indexes
from penstock.tables.codec import collations, datums
from penstock.tables.codec.datums import Datum, DatumFlag, DatumKind
from penstock.tables.codec.ordered import INT_BYTES
from penstock.tables.codec.rows import cell_of
from penstock.tables.columns import ColumnFlag, ColumnInfo
from penstock.tables.encoding import array_cells, join_fixed, ordered_ints, row_values, value_cells
from penstock.tables.keys import Handle, common_handle, encode_handle, index_prefix, record_prefix
from penstock.tables.online import WriteForm
from penstock.tables.records import Record, default_value, in_key_only, to_signed
from penstock.tables.schema import ROWID_COLUMN, HandleKind, IndexColumn, IndexInfo, TableInfo
from penstock.tables.values import datum_of_cell, from_datum

Row = Mapping[str, Any]
RowColumns = dict[int, "list[Any] | pa.Array | pa.ChunkedArray"]
"""The values of rows by column id, as Python or Arrow values; a column that no row has is not there."""

_ABSENT = object()
_NULL_PART = bytes((DatumFlag.NIL,))


def columns_of_rows(table: TableInfo, rows: Sequence[Row], *, start_ts: int) -> RowColumns:
    """Return rows that are mappings by column; rows without a column that others have get its default.

    Raise Invalid for a name that is no column, and for a default that only TiDB can compute.
    """
    first = rows[0].keys() if rows else ()
    if all(row.keys() == first for row in rows):
        return {table.column(name).id: [row[name] for row in rows] for name in first if name != ROWID_COLUMN}
    columns: RowColumns = {}
    for place, row in enumerate(rows):
        for name, value in row.items():
            if name != ROWID_COLUMN:
                found = columns.setdefault(table.column(name).id, [_ABSENT] * len(rows))
                assert isinstance(found, list)
                found[place] = value
    for column in table.stored_columns:
        values = columns.get(column.id)
        if isinstance(values, list) and any(value is _ABSENT for value in values):
            default = default_value(column, start_ts)
            columns[column.id] = [default if value is _ABSENT else value for value in values]
    return columns


def columns_of_arrow(table: TableInfo, rows: pa.Table | pa.RecordBatch) -> RowColumns:
    """Return an Arrow table by column; raise Invalid for a name that is no column."""
    names = rows.schema.names
    return {
        table.column(name).id: rows.column(place) for place, name in enumerate(names) if name != ROWID_COLUMN
    }


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Entries of one index: those that no other row may have, and the others."""

    distinct: tuple[list[bytes], list[bytes]]
    shared: tuple[list[bytes], list[bytes]]


class RowBatch:
    """Rows as they will be stored: a column of cells for each column that the schema writes now."""

    def __init__(
        self,
        form: WriteForm,
        cells: dict[int, pa.Array],
        count: int,
        locate: Callable[[Record], int] | None,
    ) -> None:
        self.table = form.table
        self._form = form
        self._cells = cells
        self._count = count
        self._locate = locate
        self._datums: dict[int, list[Datum]] = {}
        self._parts: dict[tuple[int, int], list[bytes]] = {}

    @classmethod
    def encode(
        cls,
        form: WriteForm,
        columns: RowColumns,
        count: int,
        *,
        start_ts: int,
        locate: Callable[[Record], int] | None = None,
    ) -> Self:
        """Encode rows; missing columns get their defaults, CURRENT_TIMESTAMP the time of `start_ts`.

        `locate` finds the physical table of a row of a partitioned table. Raise Invalid, naming the column,
        if a value does not fit.
        """
        cells = {
            column.id: _encode_column(column, columns.get(column.id), count, start_ts)
            for column in form.table.stored_columns
        }
        batch = cls(form, cells, count, locate)
        batch._complete()
        return batch

    def take(self, places: Sequence[int]) -> "RowBatch":
        """Return some of the rows."""
        chosen = pa.array(places, pa.int64())
        cells = {column_id: column.take(chosen) for column_id, column in self._cells.items()}
        return RowBatch(self._form, cells, len(places), self._locate)

    def __len__(self) -> int:
        return self._count

    def _complete(self) -> None:
        """Add the hidden columns of an online schema change, as `WriteForm.complete` does for one row."""
        for column in self.table.stored_columns:
            if column.type.flag & ColumnFlag.PREVENT_NULL_INSERT and self._cells[column.id].null_count:
                raise Invalid(f"column {column.name} is becoming NOT NULL and has no value; pass one")
        hidden = [column for column in self._form.columns if column.id not in self._cells]
        if not hidden:
            return
        whole = [self._form.complete(record) for record in self.records]
        for column in hidden:
            cells = [cell_of(record[column.id]) for record in whole]
            self._cells[column.id] = pa.array(cells, pa.binary())

    @cached_property
    def records(self) -> list[Record]:
        """The rows in storage form, one by one; without hidden columns."""
        ids = [column.id for column in self.table.stored_columns]
        return [dict(zip(ids, row, strict=True)) for row in zip(*map(self._datums_of, ids), strict=True)]

    @cached_property
    def _whole(self) -> list[Record]:
        ids = [column.id for column in self._form.columns]
        return [dict(zip(ids, row, strict=True)) for row in zip(*map(self._datums_of, ids), strict=True)]

    def _datums_of(self, column_id: int) -> list[Datum]:
        found = self._datums.get(column_id)
        if found is None:
            kind = next(column.type for column in self._form.columns if column.id == column_id)
            found = [datum_of_cell(kind, cell) for cell in self._cells[column_id].to_pylist()]
            self._datums[column_id] = found
        return found

    @cached_property
    def primary_keys(self) -> list[Any]:
        """The values of the primary key: one value for each row, or a tuple if it has several columns."""
        columns = [
            [from_datum(column.type, datum) for datum in self._datums_of(column.id)]
            for column in self.table.primary_key
        ]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    @cached_property
    def handles(self) -> list[Handle]:
        """The handles of rows with a clustered primary key."""
        if self.table.handle_kind is HandleKind.INT:
            datums_ = self._datums_of(self.table.primary_key[0].id)
            return [to_signed(int(datum.value or 0)) for datum in datums_]
        assert self.table.primary_index is not None
        parts = [self._key_parts(part) for part in self.table.primary_index.columns]
        return list(map(common_handle, zip(*parts, strict=True)))

    @cached_property
    def homes(self) -> list[int]:
        """The physical tables of the rows."""
        if self._locate is None:
            return [self.table.id] * self._count
        return [self._locate(record) for record in self.records]

    def record_pairs(self, handles: Sequence[Handle]) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values of the records."""
        handle_ids = {column.id for column in self.table.handle_columns}
        stored = sorted(
            (
                column
                for column in self._form.columns
                if column.id not in handle_ids or not in_key_only(self.table, column)
            ),
            key=lambda column: column.id,
        )
        values = row_values(stored, [self._cells[column.id] for column in stored], self._count)
        return self._record_keys(handles), values.to_pylist()

    def _record_keys(self, handles: Sequence[Handle]) -> list[bytes]:
        if self._locate is None and self.table.handle_kind is not HandleKind.COMMON:
            return join_fixed(record_prefix(self.table.id), ordered_ints(np.array(handles, dtype=np.int64)))
        prefixes = {home: record_prefix(home) for home in self.table.physical_ids}
        return [
            prefixes[home] + encode_handle(handle) for home, handle in zip(self.homes, handles, strict=True)
        ]

    def entries(self, handles: Sequence[Handle]) -> Iterable[EntryBatch]:
        """Yield the entries of the rows in each index that is written now."""
        for index in self._form.added:
            yield self._plain_entries(index, handles) if self._is_plain(index) else self._each(index, handles)

    def _is_plain(self, index: IndexInfo) -> bool:
        one_table = self._locate is None and not index.is_global
        has_columns = all(self.table.columns[part.offset].id in self._cells for part in index.columns)
        clustered = self.table.handle_kind is HandleKind.COMMON
        return one_table and has_columns and not index.condition and not clustered

    def _each(self, index: IndexInfo, handles: Sequence[Handle]) -> EntryBatch:
        distinct: tuple[list[bytes], list[bytes]] = ([], [])
        shared: tuple[list[bytes], list[bytes]] = ([], [])
        for record, home, handle in zip(self._whole, self.homes, handles, strict=True):
            if indexes.has_entry(self.table, index, record):
                partition_id = None if home == self.table.id else home
                entry = indexes.entry(self.table, index, record, handle, partition_id)
                keys, values = distinct if entry.distinct else shared
                keys.append(entry.key)
                values.append(entry.value)
        return EntryBatch(distinct, shared)

    def _plain_entries(self, index: IndexInfo, handles: Sequence[Handle]) -> EntryBatch:
        """Return the entries of rows whose handles are integers, in an index of the whole table."""
        numbers = np.array(handles, dtype=np.int64)
        parts = [self._key_parts(part) for part in index.columns]
        prefix = index_prefix(self.table.id, index.id)
        heads = [prefix + b"".join(row) for row in zip(*parts, strict=True)]
        is_distinct = [index.unique and _NULL_PART not in row for row in zip(*parts, strict=True)]
        tails = _eight_bytes(numbers)
        restored = self._encode_restored(index) or [b""] * self._count
        distinct, shared = _split_by_mark(is_distinct)
        suffixes = join_fixed(bytes((DatumFlag.INT,)), ordered_ints(numbers))
        return EntryBatch(
            (
                [heads[at] for at in distinct],
                [indexes.int_handle_value(tails[at], restored[at]) for at in distinct],
            ),
            (
                [heads[at] + suffixes[at] for at in shared],
                [indexes.int_handle_value(None, restored[at]) for at in shared],
            ),
        )

    def _encode_restored(self, index: IndexInfo) -> list[bytes]:
        columns = [self.table.columns[part.offset] for part in index.columns]
        if not any(collations.needs_restored(column.type) for column in columns):
            return []
        lengths = {column.id: part.length for column, part in zip(columns, index.columns, strict=True)}
        ordered = sorted({column.id: column for column in columns}.values(), key=lambda column: column.id)
        cells = [self._cut(column, lengths[column.id]) for column in ordered]
        values: list[bytes] = row_values(ordered, cells, self._count, keep_nulls=True).to_pylist()
        return values

    def _cut(self, column: ColumnInfo, length: int) -> pa.Array:
        cells = self._cells[column.id]
        if length < 0 or not column.type.is_string:
            return cells
        cut = [cell and collations.truncate(column.type, cell, length) for cell in cells.to_pylist()]
        return pa.array(cut, pa.binary())

    def _key_parts(self, part: IndexColumn) -> list[bytes]:
        column = self.table.columns[part.offset]
        found = self._parts.get((column.id, part.length))
        if found is None:
            found = _key_parts(column, self._cut(column, part.length), self._datums_of)
            self._parts[column.id, part.length] = found
        return found


def _encode_column(column: ColumnInfo, values: Any, count: int, start_ts: int) -> pa.Array:
    if values is None and not count:
        return pa.array([], pa.binary())
    if values is None:
        (cell,) = value_cells(column, [default_value(column, start_ts)]).to_pylist()
        return pa.array([cell] * count, pa.binary())
    return value_cells(column, values) if isinstance(values, list) else array_cells(column, values)


def _key_parts(column: ColumnInfo, cells: pa.Array, datums_of: Callable[[int], list[Datum]]) -> list[bytes]:
    """Return the values of a column as bytes of keys; equal values are encoded once."""
    if not column.type.is_string:
        known: dict[Datum, bytes] = {}
        return [known.get(d) or known.setdefault(d, datums.encode_key(d)) for d in datums_of(column.id)]
    encoded = {
        cell: _NULL_PART
        if cell is None
        else datums.encode_key(Datum(DatumKind.BYTES, collations.sort_key(column.type, cell)))
        for cell in set(cells.to_pylist())
    }
    return [encoded[cell] for cell in cells.to_pylist()]


def _eight_bytes(numbers: Ints) -> list[bytes]:
    raw = numbers.astype(">i8").tobytes()
    return [raw[at : at + INT_BYTES] for at in range(0, len(raw), INT_BYTES)]


def _split_by_mark(marks: Sequence[bool]) -> tuple[list[int], list[int]]:
    chosen = [place for place, mark in enumerate(marks) if mark]
    return chosen, [place for place, mark in enumerate(marks) if not mark]
