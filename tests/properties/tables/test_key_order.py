"""Keys sort as their values do, and read back."""

import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tables import indexes
from penstock.tables.codec import datums, decimals, json_binary, ordered, rows
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.columns import FieldType, Tp
from penstock.tables.define import Index, define_table
from penstock.tables.records import handle_of, to_record
from penstock.tables.values import from_datum, to_datum
from support.checksummed_rows import encode_with_checksum
from support.indexentries import decode_indexed_record

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U64 = st.integers(0, (1 << 64) - 1)
PARTS = st.tuples(I64, st.binary(max_size=20), U64, st.floats(allow_nan=False), st.none() | I64)


def encoded(parts: tuple[Any, ...]) -> bytes:
    kinds = (DatumKind.INT, DatumKind.BYTES, DatumKind.UINT, DatumKind.FLOAT, DatumKind.INT)
    made = [
        Datum(kind, part) if part is not None else datums.NULL
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return b"".join(map(datums.encode_key, made))


def ordering(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    number, text, unsigned, double, last = parts
    return number, text, unsigned, (double, math.copysign(1, double)), (last is not None, last or 0)


@given(PARTS, PARTS)
def test_keys_of_several_columns_sort_column_by_column(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (encoded(one) < encoded(other)) == (ordering(one) < ordering(other))
    assert [datum.value for datum in datums.decode_all(encoded(one))] == list(one)


@given(st.integers(1, 30), st.integers(0, 30), st.data())
def test_decimals_sort_as_numbers_and_come_back(whole: int, scale: int, data: st.DataObject) -> None:
    precision = whole + scale
    limit = 10**precision - 1
    one, other = (data.draw(st.integers(-limit, limit)) for _ in range(2))
    first, second = (decimals.encode_unscaled(units, precision, scale) for units in (one, other))
    assert (first < second) == (one < other)
    value, end = decimals.decode(first)
    assert (value, end) == (Decimal(one).scaleb(-scale, context=decimals.WIDE), len(first))


@given(I64, I64)
def test_signed_integers(one: int, other: int) -> None:
    assert (ordered.encode_int(one) < ordered.encode_int(other)) == (one < other)
    assert ordered.decode_int(ordered.encode_int(one)) == one
    assert ordered.decode_varint(ordered.encode_varint(one)) == (one, len(ordered.encode_varint(one)))
    assert rows.cell_int(rows.int_cell(one)) == one


@given(U64)
def test_unsigned_integers(number: int) -> None:
    assert ordered.decode_uvarint(ordered.encode_uvarint(number))[0] == number
    assert rows.cell_uint(rows.uint_cell(number)) == number


@given(st.datetimes(), st.datetimes())
def test_packed_times_sort_as_times_and_come_back(one: datetime, other: datetime) -> None:
    kind = FieldType(Tp.DATETIME, decimal=6)
    if max(one, other).year < 9999 or max(one, other).microsecond == 0:
        first, second = to_datum(kind, one), to_datum(kind, other)
        assert (datums.encode_key(first) < datums.encode_key(second)) == (one < other)
        assert from_datum(kind, first) == one


@given(st.timedeltas(timedelta(hours=-838), timedelta(hours=838)))
def test_durations_come_back(span: timedelta) -> None:
    kind = FieldType(Tp.DURATION, decimal=6)
    assert from_datum(kind, to_datum(kind, span)) == span


@given(st.dictionaries(st.integers(1, 400), st.none() | st.binary(max_size=50), max_size=20))
def test_rows_come_back(cells: dict[int, bytes | None]) -> None:
    assert rows.decode(rows.encode(cells)).cells == cells
    checked = encode_with_checksum(cells, b"h")
    assert rows.decode(checked).cells == cells
    assert rows.verify(checked, b"", b"h")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | I64
    | U64
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_text_is_canonical(document: Any) -> None:
    binary = json_binary.encode(document)
    text = json_binary.decode_text(binary)
    assert json_binary.encode_text(text) == binary
    assert json_binary.find_end(binary + b"more", 0) == len(binary)


TABLES = [
    define_table(
        "t",
        [("id", key), ("a", "varchar(20)"), ("b", "int"), ("c", "varbinary(20)")],
        primary_key=["id", "b"] if composite else ["id"],
        clustered=clustered,
        indexes=[Index("u", ["a", "b"], unique=True), Index("n", ["c", "a(2)"])],
    )
    for key in ("bigint", "bigint unsigned", "varchar(20)", "varbinary(20)")
    for composite in (True, False)
    for clustered in (True, False)
]


@settings(deadline=None)
@given(st.sampled_from(TABLES), st.data())
def test_an_index_entry_gives_back_its_columns_and_its_row(table: Any, data: st.DataObject) -> None:
    key = {8: st.integers(0, 1 << 62)}.get(table.columns[0].type.tp, st.text("ab ", max_size=12))
    row = {
        "id": data.draw(key),
        "a": data.draw(st.none() | st.text("xy ", max_size=12)),
        "b": data.draw(
            st.integers(-5, 5) if table.column("b").type.not_null else st.none() | st.integers(-5, 5)
        ),
        "c": data.draw(st.none() | st.binary(max_size=12)),
    }
    record = to_record(table, row, start_ts=0)
    handle = 77 if table.handle_kind == 2 else handle_of(table, record)
    for index in indexes.written_indexes(table):
        entry = indexes.entry(table, index, record, handle)
        assert indexes.handle_in(index, entry.key, entry.value) == handle
        assert entry.distinct == (index.unique and None not in (row["a"], row["b"])) or index.primary
        found = decode_indexed_record(table, index, entry.key, entry.value)
        for part in index.columns:
            column = table.columns[part.offset]
            whole = row[column.name]
            cut = whole[: part.length] if part.length >= 0 and whole is not None else whole
            assert from_datum(column.type, found[column.id]) == cut or column in table.primary_key
