"""A value that a column cannot have exactly is refused in the option `where`, and never bounds handles."""

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DateType,
    DayTimeIntervalType,
    DecimalType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import Invalid
from penstock.spark.filters import ReadFilter
from penstock.tables.define import define_table
from penstock.tables.keys import encode_handle

DECLARED = StructType(
    [
        StructField("id", LongType()),
        StructField("big", DecimalType(20, 0)),
        StructField("day", DateType()),
        StructField("span", DayTimeIntervalType()),
        StructField("at", TimestampType()),
    ]
)
UNSIGNED = replace(define_table("items", [("big", "bigint unsigned")], primary_key=["big"]), id=1)
HUGE = 99999999999999999999


@pytest.mark.parametrize(
    "condition",
    [
        "id = 7.5",
        "id < 7.5",
        "id in (1.5, 2)",
        "id between 2.5 and 4.5",
        "big = 7.5",
        "day = 5",
        "span > 5",
        "span = 1.5",
        "at = 5",
    ],
)
def test_a_number_that_the_column_cannot_have_is_refused(condition: str):
    with pytest.raises(Invalid, match=r"^option where: column \w+ is .*, which cannot be compared so"):
        ReadFilter.where(condition, DECLARED)


def test_a_whole_number_with_a_point_is_a_number_of_the_column():
    rows = pa.record_batch({"id": pa.array([6, 7, 8])})
    found = ReadFilter.where("id <= 7.0", DECLARED)
    assert [batch.to_pydict() for batch in found.apply([rows])] == [{"id": [6, 7]}]


@pytest.mark.parametrize(
    "condition",
    [f"big = {HUGE}", f"big in (5, {HUGE})", f"big = -{HUGE}", f"big >= {HUGE} and big <= {HUGE}"],
)
def test_a_number_that_no_key_has_does_not_bound_handles(condition: str):
    found = ReadFilter.where(condition, DECLARED)
    assert found.handles(UNSIGNED) == (b"", b"")
    rows = pa.record_batch({"big": pa.array([Decimal(5), Decimal(6)], pa.decimal128(20, 0))})
    kept = [value for batch in found.apply([rows]) for value in batch.to_pydict()["big"]]
    assert kept == ([5] if "in" in condition else [])


def test_the_largest_key_bounds_handles():
    last = ReadFilter.where(f"big = {(1 << 64) - 1}", DECLARED)
    assert last.handles(UNSIGNED) == (encode_handle(-1), encode_handle(-1) + b"\0")
