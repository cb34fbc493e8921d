"""The vectorised decoder gives what reading row by row gives, whatever the table and the rows."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.tables.arrow import arrow_schema
from penstock.tables.codec import datums, rows
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.decoding.decoder import TidbRowDecoder, decode_rows
from penstock.tables.define import define_table
from penstock.tables.keys import Handle, index_prefix, record_key
from penstock.tables.raw import RAW_SCHEMA, Op
from penstock.tables.records import Record, handle_of, read_record, row_of, to_record, value_of
from penstock.tables.schema import HandleKind, TableInfo
from support.campaign import examples
from support.checksummed_rows import encode_with_checksum
from support.oldrows import encode_value

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 30))
_WIDE = Context(prec=80)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | _FLOATS | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


def ints(bits: int, *, unsigned: bool = False) -> st.SearchStrategy[int]:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    edges = [
        n for n in (low, high, 0, 127, 128, 255, 256, 32768, 65536, 1 << 31, 1 << 32) if low <= n <= high
    ]
    return st.sampled_from(edges) | st.integers(low, high)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    limit = 10**precision - 1
    units = st.sampled_from([0, limit, -limit, 1, -1]) | st.integers(-limit, limit)
    return units.map(lambda n: Decimal(n).scaleb(-scale, context=_WIDE))


COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": ints(8),
    "tinyint unsigned": ints(8, unsigned=True),
    "smallint": ints(16),
    "smallint unsigned": ints(16, unsigned=True),
    "mediumint": ints(24),
    "mediumint unsigned": ints(24, unsigned=True),
    "int": ints(32),
    "int unsigned": ints(32, unsigned=True),
    "bigint": ints(64),
    "bigint unsigned": ints(64, unsigned=True),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal(5,2)": decimals(5, 2),
    "decimal(18,0)": decimals(18, 0),
    "decimal(18,9)": decimals(18, 9),
    "decimal(20,10)": decimals(20, 10),
    "decimal(30,30)": decimals(30, 30),
    "decimal(38,7)": decimals(38, 7),
    "char(12)": _TEXT.map(lambda text: text.rstrip(" ")),
    "varchar(12)": _TEXT,
    "text": _TEXT,
    "varbinary(40)": st.binary(max_size=40),
    "blob": st.binary(max_size=40),
    "bit(1)": ints(1, unsigned=True),
    "bit(33)": ints(33, unsigned=True),
    "bit(64)": ints(64, unsigned=True),
    "date": st.dates(date(1, 1, 1)),
    "datetime(6)": _MOMENTS,
    "datetime": _MOMENTS.map(lambda moment: moment.replace(microsecond=0)),
    "timestamp(6)": _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    "time(6)": st.timedeltas(timedelta(hours=-838), timedelta(hours=838)),
    "year": st.just(0) | st.integers(1901, 2155),
    "enum('a','b','it''s')": st.sampled_from(["a", "b", "it's"]),
    "set('x','y','z')": st.sets(st.sampled_from("xyz")).map(lambda chosen: ",".join(sorted(chosen))),
    "json": _JSON.map(json.dumps),
    "vector": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=5),
    "vector(3)": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
}

KEYS = [text for text in COLUMNS if not text.startswith(("json", "vector", "text", "blob"))]


def _columns(draw: st.DrawFn) -> dict[str, str]:
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=8))
    return {f"c{n}": text for n, text in enumerate(kinds)}


@st.composite
def filled_tables(draw: st.DrawFn) -> tuple[TableInfo, list[dict[str, Any]]]:
    """A table of any handle kind over columns of any type, and rows for it."""
    kinds = _columns(draw)
    candidates = [name for name, text in kinds.items() if text in KEYS]
    chosen = draw(st.lists(st.sampled_from(candidates), unique=True, max_size=3)) if candidates else []
    defined = [(name, text) for name, text in kinds.items()]
    table = define_table("t", defined, primary_key=chosen, clustered=draw(st.booleans()))

    def value(name: str) -> st.SearchStrategy[Any]:
        values = COLUMNS[kinds[name]]
        return values if table.column(name).type.not_null else st.none() | values

    row = st.fixed_dictionaries({name: value(name) for name in kinds})
    return table, draw(st.lists(row, min_size=1, max_size=12))


def handle(table: TableInfo, record: Record, nth: int) -> Handle:
    return nth if table.handle_kind is HandleKind.ROWID else handle_of(table, record)


def stored(table: TableInfo, given_rows: list[dict[str, Any]]) -> list[tuple[bytes, bytes]]:
    records = [to_record(table, row, start_ts=0) for row in given_rows]
    return [
        (record_key(table.id, handle(table, record, nth)), value_of(table, record))
        for nth, record in enumerate(records)
    ]


def by_row(table: TableInfo, pairs: list[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    return [row_of(table, read_record(table, key, value)) for key, value in pairs]


def decoded(table: TableInfo, pairs: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    return decode_rows(table, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def canonical(table: TableInfo, row: dict[str, Any]) -> dict[str, Any]:
    """A row as it reads after one trip through storage."""
    record = to_record(table, row, start_ts=0)
    return row_of(table, record)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(filled_tables())
def test_a_batch_reads_as_its_rows_do(filled: tuple[TableInfo, list[dict[str, Any]]]) -> None:
    table, given_rows = filled
    pairs = stored(table, given_rows)
    batch = decoded(table, pairs)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(table)
    assert batch.to_pylist() == by_row(table, pairs) == [canonical(table, row) for row in given_rows]


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(filled_tables(), st.data())
def test_old_large_and_checksummed_rows_read_alike(
    filled: tuple[TableInfo, list[dict[str, Any]]], data: st.DataObject
) -> None:
    table, given_rows = filled
    pairs = stored(table, given_rows)
    mixed = [(key, data.draw(st.sampled_from(FORMS))(value)) for key, value in pairs]
    assert decoded(table, mixed).to_pylist() == by_row(table, pairs)


def large(value: bytes) -> bytes:
    """The same row with an unknown column of a high id, which readers skip."""
    return rows.encode({**rows.decode(value).cells, 70_000: b"unknown"})


def nulls_spelled_out(value: bytes) -> bytes:
    return rows.encode({**rows.decode(value).cells, 200: None})


def checksummed(value: bytes) -> bytes:
    return encode_with_checksum(rows.decode(value).cells, b"handle")


FORMS = [lambda value: value, large, nulls_spelled_out, checksummed]


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=6),
    st.binary(max_size=20),
)
def test_old_rows_read_as_new_ones(numbers: list[int | None], text: bytes) -> None:
    columns = [("id", "bigint primary key"), ("b", "varbinary(40)"), ("n", "bigint")]
    table = define_table("t", columns)
    pairs = []
    for nth, number in enumerate(numbers):
        parts = [Datum(DatumKind.INT, 2), Datum(DatumKind.BYTES, text)]
        parts += [Datum(DatumKind.INT, 3), datums.NULL if number is None else Datum(DatumKind.INT, number)]
        new = rows.encode({2: text, 3: None if number is None else rows.int_cell(number)})
        old = b"".join(map(encode_value, parts))
        pairs.append((record_key(table.id, nth), old if nth % 2 else new))
    expected = [{"id": nth, "b": text, "n": number} for nth, number in enumerate(numbers)]
    assert decoded(table, pairs).to_pylist() == expected


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(filled_tables(), st.data())
def test_a_raw_batch_gives_new_and_old_rows_and_where_they_were(
    filled: tuple[TableInfo, list[dict[str, Any]]], data: st.DataObject
) -> None:
    table, given_rows = filled
    pairs = stored(table, given_rows)
    raw, new_rows, old_rows = [], [], []
    for nth, (key, value) in enumerate(pairs):
        kind = data.draw(st.sampled_from(["insert", "update", "delete", "index entry"]))
        if kind == "index entry":
            raw.append(
                {"op": Op.PUT, "key": index_prefix(table.id, 1) + b"...", "value": b"0", "old_value": None}
            )
        elif kind == "insert":
            raw.append({"op": Op.PUT, "key": key, "value": value, "old_value": None})
        elif kind == "update":
            raw.append({"op": Op.PUT, "key": key, "value": value, "old_value": value})
        else:
            raw.append({"op": Op.DELETE, "key": key, "value": None, "old_value": value})
        new_rows += [nth] if kind in {"insert", "update"} else []
        old_rows += [nth] if kind in {"update", "delete"} else []
    ts = {"start_ts": 1, "commit_ts": 2}
    padding = {"op": Op.PUT, "key": b"not of this table", "value": b"", "old_value": None, **ts}
    whole = pa.RecordBatch.from_pylist([padding, *({**row, **ts} for row in raw)], schema=RAW_SCHEMA)
    found = TidbRowDecoder().decode(whole.slice(1), table)
    expected = by_row(table, pairs)
    assert found.data_rows.to_pylist() == new_rows
    assert found.old_rows.to_pylist() == old_rows
    assert found.data.to_pylist() == [expected[nth] for nth in new_rows]
    assert found.old.to_pylist() == [expected[nth] for nth in old_rows]
