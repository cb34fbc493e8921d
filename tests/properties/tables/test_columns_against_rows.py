"""Rows and index entries encoded a column at a time have the bytes of rows encoded one by one."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Invalid
from penstock.tables import indexes
from penstock.tables.batches import RowBatch, columns_of_arrow, columns_of_rows
from penstock.tables.columns import SchemaState
from penstock.tables.define import Index, define_column, define_table
from penstock.tables.keys import Handle, record_key
from penstock.tables.online import WriteForm
from penstock.tables.partitions import PartitionBy, Partitions
from penstock.tables.records import handle_of, to_record, value_of
from penstock.tables.schema import HandleKind, TableInfo
from support.campaign import examples

COLUMNS = [
    ("i8", "tinyint"),
    ("u64", "bigint unsigned"),
    ("n16", "smallint not null default 7"),
    ("f", "float"),
    ("d", "double default 1.5"),
    ("d5", "decimal(5,2) not null default 3.25"),
    ("n", "decimal(9,4)"),
    ("w", "decimal(30,5)"),
    ("c", "char(6)"),
    ("v", "varchar(12)"),
    ("ci", "varchar(12) collate utf8mb4_general_ci"),
    ("x", "text"),
    ("vb", "varbinary(12)"),
    ("fb", "binary(4)"),
    ("day", "date"),
    ("dt", "datetime(3)"),
    ("ts", "timestamp(6)"),
    ("span", "time(3)"),
    ("y", "year"),
    ("bits", "bit(9)"),
    ("e", "enum('a','b')"),
    ("s", "set('p','q')"),
    ("j", "json"),
    ("vec", "vector(2)"),
    ("now", "datetime default current_timestamp"),
]
INDEXES = [
    Index("ints", ["i8", "u64"]),
    Index("unique_text", ["v"], unique=True),
    Index("folded", ["ci", "n16"], unique=True),
    Index("prefixes", ["x(2)", "vb(3)", "ci(2)"]),
    Index("numbers", ["n", "f", "d", "w"]),
    Index("times", ["day", "dt", "ts", "span", "y"]),
    Index("codes", ["bits", "e", "s", "fb", "c"], unique=True),
]


def _with_condition(table: TableInfo) -> TableInfo:
    partial = replace(table.indexes[-1], extra={"condition_expr_string": "`i8` > 3"})
    return replace(table, indexes=(*table.indexes[:-1], partial))


def _in_change(table: TableInfo, state: SchemaState) -> TableInfo:
    """Return a table to which a column and an index are being added, and of which a column changes type."""
    added, _, _ = define_column("added", "int not null default 4", column_id=100)
    wider, _, _ = define_column("wider", "varchar(30)", column_id=101)
    source = table.column("i8").offset
    at = len(table.columns)
    columns = (
        *table.columns,
        replace(added, offset=at, state=state, origin_default="4"),
        replace(
            wider, offset=at + 1, state=state, extra={"change_state_info": {"relative_col_offset": source}}
        ),
    )
    coming = tuple(replace(index, state=state) for index in table.indexes[:2])
    return replace(table, columns=columns, indexes=(*coming, *table.indexes[2:]))


def _table(primary: str, **options: Any) -> TableInfo:
    clustered = options.pop("clustered", True)
    columns = [("id", "bigint"), ("k", "varchar(12) collate utf8mb4_general_ci not null"), *COLUMNS]
    keys = {"int": ["id"], "common": ["k", "id"], "short": ["d5"], "rowid": []}[primary]
    return define_table("t", columns, primary_key=keys, indexes=INDEXES, clustered=clustered, **options)


def _divided(primary: str, by: PartitionBy) -> TableInfo:
    columns = [("id", "bigint not null"), ("k", "varchar(12) not null"), *COLUMNS]
    table = define_table("t", columns, primary_key=["id"], indexes=INDEXES[:1], partition_by=by)
    tree = table.extra["partition"]
    numbered = [{**part, "id": 200 + place} for place, part in enumerate(tree["definitions"])]
    return replace(table, extra={**table.extra, "partition": {**tree, "definitions": numbered}})


TABLES = {
    "int handle": _table("int"),
    "common handle": _table("common"),
    "short handle": _table("short"),
    "row id": _table("rowid"),
    "primary key beside a row id": _table("common", clustered=False),
    "partial index": _with_condition(_table("int")),
    "hash partitions": _divided("int", PartitionBy.hash("id", 3)),
    "range partitions": _divided("int", PartitionBy.range("id", {"low": 0, "high": None})),
    **{f"index {state.name}": _in_change(_table("int"), state) for state in
       (SchemaState.DELETE_ONLY, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG)},
}  # fmt: skip

_MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 30))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(1 << 63), (1 << 63) - 1),
    "k": _TEXTS,
    "i8": st.integers(-128, 127) | st.sampled_from(["12", 3.0, Decimal(4), True]),
    "u64": st.integers(0, (1 << 64) - 1),
    "n16": st.integers(-(1 << 15), (1 << 15) - 1),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "d": st.floats(allow_nan=False, allow_infinity=False) | st.just("1.25"),
    "d5": st.decimals(-999, 999, places=2),
    "n": st.decimals(-99999, 99999, places=4) | st.decimals(-99, 99, places=7) | st.integers(-9, 9),
    "w": st.decimals(-(10**20), 10**20, places=5),
    "c": st.text("ab ", max_size=6),
    "v": _TEXTS | st.text("ab ", max_size=9),
    "ci": _TEXTS | st.text("aBé ", max_size=9),
    "x": _TEXTS,
    "vb": st.binary(max_size=12) | st.just("text"),
    "fb": st.binary(max_size=4),
    "day": st.dates(date(1, 1, 1)) | st.sampled_from(["2024-02-30", "2024-03-01", datetime(2020, 1, 2, 3)]),
    "dt": _MOMENTS | st.sampled_from(["0000-00-00", "2024-01-02 03:04:05.6"]),
    "ts": _MOMENTS | _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    "span": st.timedeltas(timedelta(hours=-800), timedelta(hours=800)) | st.just("-01:02:03.4"),
    "y": st.sampled_from([0, 1901, 2024, 2155]),
    "bits": st.integers(0, 511) | st.binary(max_size=1),
    "e": st.sampled_from(["a", "b", 1, ""]),
    "s": st.sampled_from(["", "p", "p,q", ["q"], 3]),
    "j": st.sampled_from(['{"a": 1}', "null", 4, {"b": [None]}]),
    "vec": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2),
    "now": _MOMENTS,
}
_REQUIRED = {"id", "k"}
ROWS = st.fixed_dictionaries(
    {name: VALUES[name] for name in _REQUIRED},
    optional={
        name: values if name in {"n16", "d5"} else st.none() | values
        for name, values in VALUES.items()
        if name not in _REQUIRED
    },
)
START_TS = 451_000_000_000_000_000


def by_rows(table: TableInfo, rows: list[dict[str, Any]], handles: list[Handle]) -> dict[str, Any]:
    """Encode row by row, as the writer does for one row."""
    form = WriteForm(table)
    locate = Partitions(table).locate if table.physical_ids != (table.id,) else lambda _: table.id
    pairs: list[tuple[bytes, bytes]] = []
    distinct: list[tuple[bytes, bytes]] = []
    shared: list[tuple[bytes, bytes]] = []
    for row, handle in zip(rows, handles, strict=True):
        record = to_record(table, row, start_ts=START_TS)
        whole, home = form.complete(record), locate(record)
        pairs.append((record_key(home, handle), value_of(table, whole, form.columns)))
        for index in form.added:
            if indexes.has_entry(table, index, whole):
                partition_id = None if home == table.id else home
                entry = indexes.entry(table, index, whole, handle, partition_id)
                (distinct if entry.distinct else shared).append((entry.key, entry.value))
    return {"records": pairs, "distinct": sorted(distinct), "shared": sorted(shared)}


def by_columns(table: TableInfo, columns: Any, count: int, handles: list[Handle]) -> dict[str, Any]:
    locate = Partitions(table).locate if table.physical_ids != (table.id,) else None
    batch = RowBatch.encode(WriteForm(table), columns, count, start_ts=START_TS, locate=locate)
    if table.handle_kind is not HandleKind.ROWID:
        assert batch.handles == handles
    entries = list(batch.entries(handles))
    return {
        "records": list(zip(*batch.record_pairs(handles), strict=True)),
        "distinct": sorted(pair for entry in entries for pair in zip(*entry.distinct, strict=True)),
        "shared": sorted(pair for entry in entries for pair in zip(*entry.shared, strict=True)),
    }


def handles_of(table: TableInfo, rows: list[dict[str, Any]]) -> list[Handle]:
    if table.handle_kind is HandleKind.ROWID:
        return list(range(1, len(rows) + 1))
    return [handle_of(table, to_record(table, row, start_ts=START_TS)) for row in rows]


@pytest.mark.parametrize("name", TABLES)
@settings(deadline=None, max_examples=examples(15))
@given(rows=st.lists(ROWS, min_size=1, max_size=6))
def test_columns_give_the_bytes_of_rows(name: str, rows: list[dict[str, Any]]) -> None:
    table = TABLES[name]
    handles = handles_of(table, rows)
    columns = columns_of_rows(table, rows, start_ts=START_TS)
    assert by_columns(table, columns, len(rows), handles) == by_rows(table, rows, handles)


@settings(deadline=None, max_examples=examples(25))
@given(rows=st.lists(ROWS, min_size=1, max_size=6), names=st.sets(st.sampled_from(sorted(VALUES))))
def test_arrow_columns_give_the_bytes_of_rows(rows: list[dict[str, Any]], names: set[str]) -> None:
    table = TABLES["int handle"]
    plain = {"i8", "u64", "n16", "d", "v", "ci", "x", "day", "ts", "y", "j"}
    chosen = (names & plain) | _REQUIRED
    typed: dict[str, list[Any]] = {name: [] for name in chosen}
    for row in rows:
        for name in chosen:
            value = row.get(name, 7 if name == "n16" else None)
            typed[name].append(
                None if isinstance(value, str) != (name in {"k", "v", "ci", "x", "j"}) else value
            )
    try:
        arrow = pa.table({name: pa.array(values) for name, values in typed.items()})
    except (pa.ArrowException, OverflowError, TypeError):
        return  # values of several types that Arrow has no column for
    listed = arrow.to_pylist()
    handles = handles_of(table, listed)
    columns = columns_of_arrow(table, arrow)
    assert by_columns(table, columns, len(listed), handles) == by_rows(table, listed, handles)


@settings(deadline=None, max_examples=examples(15))
@given(rows=st.lists(ROWS, min_size=1, max_size=4), bad=st.sampled_from(["i8", "v", "day", "e", "n16"]))
def test_a_value_that_does_not_fit_names_its_column(rows: list[dict[str, Any]], bad: str) -> None:
    wrong = {"i8": 128, "v": "x" * 13, "day": "soon", "e": "c", "n16": None}[bad]
    table = TABLES["int handle"]
    columns = columns_of_rows(table, [*rows, {**rows[0], bad: wrong}], start_ts=START_TS)
    with pytest.raises(Invalid, match=f"column {bad}"):
        RowBatch.encode(WriteForm(table), columns, len(rows) + 1, start_ts=START_TS)
