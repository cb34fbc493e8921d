"""What may become of the columns and the key of a source."""

import pyarrow as pa
import pytest

from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.schema_changes import check_keys, fits
from penstock.tables.define import define_table


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int8(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 2), pa.decimal128(12, 4)),
    ],
)
def test_a_type_may_become_a_wider_one_and_not_go_back(narrow: pa.DataType, wide: pa.DataType) -> None:
    assert fits(narrow, wide)
    assert fits(narrow, narrow)
    assert not fits(wide, narrow)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int32(), pa.string()),
        (pa.string(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.int32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(11, 4)),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.int64(), pa.decimal128(20, 0)),
    ],
)
def test_a_type_does_not_become_one_of_another_kind(before: pa.DataType, after: pa.DataType) -> None:
    assert not fits(before, after)


def test_another_primary_key_is_told_with_what_to_do() -> None:
    keyed = define_table("items", [("id", "bigint primary key"), ("name", "varchar(9)")])
    check_keys(keyed, keyed)
    with pytest.raises(SchemaRefused, match=r"primary key .* repair --rebuild"):
        check_keys(define_table("items", [("id", "bigint"), ("name", "varchar(9)")]), keyed)
