"""Bulk encoding writes the very bytes that encoding row by row writes."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Invalid
from penstock.tables.arrow import arrow_schema
from penstock.tables.define import define_table
from penstock.tables.encoding import encode_batch
from penstock.tables.keys import record_key
from penstock.tables.records import handle_of, to_record, value_of
from support.campaign import examples

TABLE = define_table(
    "t",
    [
        ("u8", "tinyint unsigned"),
        ("id", "bigint primary key"),
        ("i16", "smallint default '5'"),
        ("i64", "bigint"),
        ("u64", "bigint unsigned"),
        ("f", "float"),
        ("d", "double"),
        ("n", "decimal(9,4)"),
        ("m", "decimal(18,18)"),
        ("w", "decimal(30,5)"),
        ("c", "char(6)"),
        ("v", "varchar(6)"),
        ("b", "mediumblob"),
        ("day", "date"),
        ("dt", "datetime(3)"),
        ("ts", "timestamp(6)"),
        ("e", "enum('a','b')"),
        ("j", "json"),
    ],
)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 30))
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "u8": st.none() | st.integers(0, 255),
        "i16": st.none() | st.integers(-(1 << 15), (1 << 15) - 1),
        "i64": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "u64": st.none() | st.integers(0, (1 << 64) - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "d": st.none() | _FLOATS,
        "n": st.none() | st.decimals(-99999, 99999, places=4),
        "m": st.none() | st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-18)),
        "w": st.none() | st.decimals(-(10**20), 10**20, places=5),
        "c": st.none() | st.text("ab ", max_size=6),
        "v": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        "b": st.none() | st.binary(max_size=300),
        "day": st.none() | st.dates(date(1, 1, 1)),
        "dt": st.none() | _MOMENTS,
        "ts": st.none() | _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
        "e": st.none() | st.sampled_from("ab"),
        "j": st.none() | st.just('{"a": 1}'),
    }
)


def check(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([arrow_schema(TABLE).field(name) for name in rows[0]])
    encoded = encode_batch(TABLE, pa.RecordBatch.from_pylist(rows, schema=schema), start_ts=0)
    records = [to_record(TABLE, row, start_ts=0) for row in rows]
    assert encoded.handles == [row["id"] for row in rows]
    assert encoded.keys == [record_key(TABLE.id, handle_of(TABLE, record)) for record in records]
    assert encoded.values == [value_of(TABLE, record) for record in records]


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ROWS, min_size=1, max_size=8))
def test_a_batch_has_the_bytes_of_its_rows(rows: list[dict[str, Any]]) -> None:
    check(rows)


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(ROWS, min_size=1, max_size=4), st.sets(st.sampled_from(["u8", "i16", "d", "v"])))
def test_missing_columns_take_their_defaults(rows: list[dict[str, Any]], missing: set[str]) -> None:
    check([{name: value for name, value in row.items() if name not in missing} for row in rows])


def test_a_large_row_among_small_ones() -> None:
    blank = dict.fromkeys(column.name for column in TABLE.columns)
    check([{**blank, "id": 1, "b": b"x" * 70_000}, {**blank, "id": 2, "b": b"y"}, {**blank, "id": 3}])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("u8", pa.array([256])),
        ("i16", pa.array([1 << 20])),
        ("v", pa.array(["seven!!"])),
        ("d", pa.array([float("inf")])),
        ("n", pa.array(["x"])),
        ("id", pa.array([None], pa.int64())),
        ("nope", pa.array([1])),
    ],
)
def test_values_that_do_not_fit_name_their_column(column: str, values: pa.Array) -> None:
    arrays = {"id": pa.array([1]), column: values}
    with pytest.raises(Invalid, match=column):
        encode_batch(TABLE, pa.record_batch(arrays), start_ts=0)
