"""Every row and index entry of tests/golden/tidb-rows.jsonl.gz, in both directions."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.tables import indexes
from penstock.tables.arrow import arrow_schema, arrow_type
from penstock.tables.codec import rows as row_layout
from penstock.tables.columns import PACKED_TIMES, ColumnInfo, Tp
from penstock.tables.decoding.decoder import decode_rows
from penstock.tables.encoding import column_cells, encode_batch
from penstock.tables.impossible_dates import hide_column
from penstock.tables.keys import Handle, encode_handle, record_key
from penstock.tables.records import Record, handle_of, read_record, to_record, value_of
from penstock.tables.schema import HandleKind, TableInfo
from penstock.tables.text_values import texts
from penstock.tables.values import from_datum
from support.checksummed_rows import encode_with_checksum

RECORD = Path(__file__).parents[2] / "golden/tidb-rows.jsonl.gz"
FORMS = ("value", "value_checksum", "value_v1")
CASES = 207
ROWS = 2993


@dataclass(frozen=True)
class Golden:
    """One row as TiDB was given it, and what TiDB made of it."""

    case: str
    table: TableInfo
    tree: dict[str, Any]

    @cached_property
    def record(self) -> Record:
        values = {name: _given(**value) for name, value in self.tree["row"].items()}
        return to_record(self.table, values, start_ts=0)

    @property
    def handle(self) -> Handle:
        if self.table.handle_kind is HandleKind.ROWID:
            return int(self.tree["handle"])
        return handle_of(self.table, self.record)

    @property
    def partition_id(self) -> int | None:
        return None if self.tree["physical"] == self.table.id else self.tree["physical"]

    def text(self, column: str) -> bytes | None:
        """Return a column as TiDB prints it."""
        return None if self.tree["row"][column]["k"] == "null" else bytes.fromhex(self.tree["text"][column])

    def bytes(self, member: str) -> bytes:
        return bytes.fromhex(self.tree[member])


def _given(k: str, v: str) -> Any:
    if k == "null":
        return None
    if k in {"int", "uint"}:
        return int(v)
    if k == "bytes":
        return bytes.fromhex(v)
    return {"float": float, "vector": json.loads}.get(k, str)(v)


@pytest.fixture(scope="module")
def golden() -> list[Golden]:
    rows, tables = [], {}
    with gzip.open(RECORD, "rt", encoding="utf-8") as lines:
        for tree in map(json.loads, lines):
            case = tree["case"]
            if case not in tables:
                tables[case] = TableInfo.from_json(tree["table"])
            rows.append(Golden(case, tables[case], tree))
    assert (len(rows), len(tables)) == (ROWS, CASES)
    return rows


def by_case(golden: list[Golden]) -> Iterator[tuple[TableInfo, list[Golden]]]:
    for _, rows in groupby(golden, key=lambda row: row.case):
        same = list(rows)
        yield same[0].table, same


def binary(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def differences(pairs: Iterator[tuple[Golden, Any, Any]]) -> list[tuple[str, Any, Any]]:
    return [(row.case, ours, theirs) for row, ours, theirs in pairs if ours != theirs][:5]


def test_a_row_has_the_key_that_tidb_gives_it(golden: list[Golden]):
    keys = ((row, record_key(row.tree["physical"], row.handle), row.bytes("key")) for row in golden)
    assert not differences(keys)


def test_a_row_has_the_value_that_tidb_gives_it(golden: list[Golden]):
    assert not differences((row, value_of(row.table, row.record), row.bytes("value")) for row in golden)


def test_a_row_with_a_checksum_has_the_bytes_that_tidb_gives_it(golden: list[Golden]):
    encoded = (
        (
            row,
            encode_with_checksum(row_layout.decode(row.bytes("value")).cells, encode_handle(row.handle)),
            row.bytes("value_checksum"),
        )
        for row in golden
    )
    assert not differences(encoded)
    assert all(
        row_layout.verify(row.bytes("value_checksum"), row.bytes("key"), encode_handle(row.handle))
        for row in golden
    )


def test_index_entries_have_the_bytes_that_tidb_gives_them(golden: list[Golden]):
    def entries() -> Iterator[tuple[Golden, Any, Any]]:
        for row in golden:
            for theirs in row.tree["indexes"] or ():
                index = row.table.index(theirs["name"])
                ours = indexes.entry(row.table, index, row.record, row.handle, row.partition_id)
                yield (
                    row,
                    (ours.key.hex(), ours.value.hex(), ours.distinct),
                    tuple(theirs[member] for member in ("key", "value", "distinct")),
                )
                yield row, indexes.handle_in(index, ours.key, ours.value), row.handle

    assert not differences(entries())


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_read_back_one_at_a_time(golden: list[Golden], form: str):
    read = ((row, read_record(row.table, row.bytes("key"), row.bytes(form)), row.record) for row in golden)
    assert not differences(read)


@pytest.mark.parametrize("form", FORMS)
def test_a_column_has_the_values_that_single_rows_have(golden: list[Golden], form: str):
    def cells() -> Iterator[tuple[Golden, Any, Any]]:
        for table, rows in by_case(golden):
            batch = decode_rows(
                table, binary([row.bytes("key") for row in rows]), binary([row.bytes(form) for row in rows])
            )
            for column in table.stored_columns:
                single = arrow_values(column, rows).to_pylist()
                ours = hide_column(batch.column(column.name)).to_pylist()
                yield from zip(rows, ours, single, strict=True)

    assert not differences(cells())


@pytest.mark.parametrize("form", FORMS)
def test_a_column_is_printed_as_tidb_prints_it(golden: list[Golden], form: str):
    def cells() -> Iterator[tuple[Golden, Any, Any]]:
        for table, rows in by_case(golden):
            batch = decode_rows(
                table, binary([row.bytes("key") for row in rows]), binary([row.bytes(form) for row in rows])
            )
            for column in table.stored_columns:
                ours = texts(column.type, batch.column(column.name)).to_pylist()
                for row, text in zip(rows, ours, strict=True):
                    yield row, text.encode() if isinstance(text, str) else text, printed(row, column)

    assert not differences(cells())


def is_impossible(row: Golden, column: ColumnInfo) -> bool:
    """Whether the column has a date that no calendar has; users cannot pass it in Arrow."""
    return column.type.tp in PACKED_TIMES and isinstance(from_datum(column.type, row.record[column.id]), str)


def printed(row: Golden, column: ColumnInfo) -> bytes | None:
    text = row.text(column.name)
    if text is None:
        return None
    if column.type.tp is Tp.BIT:
        return str(int.from_bytes(text, "big")).encode()  # TiDB prints the bytes of the number
    if column.type.tp in {Tp.FLOAT, Tp.DOUBLE} and text == b"-0":
        return (
            b"0"  # the text of the value that TiDB was given; TiDB stores 0.0 and prints 0 when it reads it
        )
    return text


def test_bulk_encoding_writes_the_bytes_of_tidb(golden: list[Golden]):
    def encoded() -> Iterator[tuple[Golden, Any, Any]]:
        for table, every in by_case(golden):
            rows = [row for row in every if not any(is_impossible(row, column) for column in table.columns)]
            columns = {column.name: arrow_values(column, rows) for column in table.stored_columns}
            for column in table.stored_columns:
                ours = column_cells(column.type, columns[column.name]).to_pylist()
                theirs = [row_layout.cell_of(row.record[column.id]) for row in rows]
                yield from zip(rows, ours, theirs, strict=True)
            if table.handle_kind is HandleKind.INT:
                batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(table))
                made = encode_batch(table, batch, start_ts=0)
                yield from zip(rows, made.keys, [row.bytes("key") for row in rows], strict=True)
                yield from zip(rows, made.values, [row.bytes("value") for row in rows], strict=True)

    assert not differences(encoded())


def arrow_values(column: ColumnInfo, rows: list[Golden]) -> pa.Array:
    kind = arrow_type(column.type)
    values = [
        None if is_impossible(row, column) else from_datum(column.type, row.record[column.id]) for row in rows
    ]
    if column.type.tp is Tp.NEW_DECIMAL and pa.types.is_string(kind):
        values = [None if value is None else f"{value:f}" for value in values]
    return pa.array(values, kind)
