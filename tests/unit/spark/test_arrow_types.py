"""The type of a column is the same on every version of Spark, and its values pass unchanged."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.errors import Invalid
from penstock.spark.arrow_types import as_declared, require_columns, spark_schema
from penstock.tables.arrow import UNSIGNED_LONG

COLUMNS = [
    (pa.bool_(), "boolean", True),
    (pa.int8(), "tinyint", -1),
    (pa.int16(), "smallint", 2),
    (pa.int32(), "int", 3),
    (pa.int64(), "bigint", 4),
    (UNSIGNED_LONG, "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.decimal128(10, 2), "decimal(10,2)", Decimal("1.25")),
    (pa.float32(), "float", 0.5),
    (pa.float64(), "double", 0.25),
    (pa.string(), "string", "text"),
    (pa.large_string(), "string", "text"),
    (pa.binary(), "binary", b"\x00\xff"),
    (pa.date32(), "date", dt.date(2026, 11, 17)),
    (pa.timestamp("us"), "timestamp_ntz", dt.datetime(2026, 11, 17, 1, 2, 3)),
    (pa.timestamp("us", tz="UTC"), "timestamp", dt.datetime(2026, 11, 17, 1, 2, 3, tzinfo=dt.UTC)),
    (pa.duration("us"), "interval day to second", dt.timedelta(hours=-3)),
    (pa.list_(pa.float32()), "array<float>", [0.5, None]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), "struct<a:bigint,b:string>", {"a": 1, "b": "x"}),
]


@pytest.mark.parametrize(("arrow", "spark", "value"), COLUMNS, ids=[str(each[0]) for each in COLUMNS])
def test_a_column_has_its_type_of_spark_and_its_values(arrow: pa.DataType, spark: str, value: object) -> None:
    batch = pa.record_batch({"c": pa.array([value, None], arrow)})
    declared = spark_schema(batch.schema)
    assert declared.simpleString() == f"struct<c:{spark}>"
    require_columns(declared, batch.schema, table="shop.items")
    (shown,) = as_declared([batch, batch.slice(0, 0)], declared)
    assert shown.to_pylist() == [{"c": value}, {"c": None}]


def test_columns_of_a_batch_come_in_the_declared_order_and_by_their_own_names() -> None:
    declared = spark_schema(pa.schema([("b", pa.string()), ("_op ", pa.int64())]))
    (shown,) = as_declared([pa.record_batch({"_op ": [1], "left out": [True], "b": ["x"]})], declared)
    assert shown.to_pylist() == [{"b": "x", "_op": 1}]


def test_another_type_than_the_tables_is_refused() -> None:
    declared = spark_schema(pa.schema([("c", pa.timestamp("us", tz="UTC"))]))
    with pytest.raises(
        Invalid, match=r"column c of shop\.items is timestamp_ntz, not timestamp; leave the schema"
    ):
        require_columns(declared, pa.schema([("c", pa.timestamp("us"))]), table="shop.items")
