"""What a target does about a schema that changed."""

import pyarrow as pa
import pytest

from penstock.jobs.errorcodes import SchemaRefused
from penstock.jobs.schemachanges import SchemaChange, check_keys, compare
from penstock.tables.define import define_table

_TARGET = pa.schema([("id", pa.int32()), ("name", pa.string()), ("price", pa.decimal128(10, 2))])


def test_nothing_is_to_be_done_for_the_same_columns() -> None:
    change = compare(_TARGET, _TARGET, ["id"])
    assert change == SchemaChange()
    assert not change


def test_added_columns_flow_and_dropped_ones_are_named() -> None:
    wanted = pa.schema([("id", pa.int32()), ("note", pa.string())])
    change = compare(_TARGET, wanted, ["id"])
    assert [field.name for field in change.added] == ["note"]
    assert change.dropped == ("name", "price")


def test_names_are_the_same_whatever_their_case() -> None:
    assert not compare(_TARGET, pa.schema([("ID", pa.int32()), ("Name", pa.string())]), ["Id"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int8(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 2), pa.decimal128(12, 4)),
    ],
)
def test_a_type_may_become_a_wider_one(before: pa.DataType, after: pa.DataType) -> None:
    change = compare(pa.schema([("x", before)]), pa.schema([("x", after)]))
    assert change.widened == (pa.field("x", after),)
    assert not compare(pa.schema([("x", after)]), pa.schema([("x", before)]))  # a target that is wide enough


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int32(), pa.string()),
        (pa.string(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.decimal128(10, 2), pa.decimal128(11, 4)),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.int64(), pa.decimal128(20, 0)),
    ],
)
def test_any_other_change_of_a_type_stops_the_job_and_says_what_to_do(
    before: pa.DataType, after: pa.DataType
) -> None:
    with pytest.raises(SchemaRefused, match=r"column x .* repair --rebuild"):
        compare(pa.schema([("x", before)]), pa.schema([("x", after)]))


def test_a_key_that_the_target_lacks_stops_the_job() -> None:
    with pytest.raises(SchemaRefused, match="key"):
        compare(_TARGET, _TARGET, ["part", "id"])


def test_another_primary_key_is_told() -> None:
    keyed = define_table("items", [("id", "bigint primary key"), ("name", "varchar(9)")])
    check_keys(keyed, keyed)
    with pytest.raises(SchemaRefused, match="primary key"):
        check_keys(define_table("items", [("id", "bigint"), ("name", "varchar(9)")]), keyed)
