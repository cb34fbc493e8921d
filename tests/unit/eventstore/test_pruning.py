"""Which row groups statistics rule out, and which they must not."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.eventstore.read.pruning import ColumnRange, WantedRows, groups_with
from penstock.tables.alter import drop_column, rename_column, widen_column
from penstock.tables.define import define_table


def footer_of(folder: Path, values: pa.Array, *, path: str = "x") -> pq.FileMetaData:
    """The footer of a file with a column and two rows in a row group."""
    columns = {path: values} if "." not in path else {"_old": pa.StructArray.from_arrays([values], ["x"])}
    pq.write_table(pa.table(columns), folder / "file.parquet", row_group_size=2)
    return pq.read_metadata(folder / "file.parquet")


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        ({"low": 4}, {1, 2}),
        ({"high": 3}, {0, 1}),
        ({"low": 4, "high": 4}, {1}),
        ({"points": (0, 3, 9)}, {1}),
        ({"points": (2, 6)}, {0, 2}),
        ({"points": ()}, set()),
        ({}, {0, 1, 2}),
    ],
)
def test_row_groups_outside_a_range_are_left_out(tmp_path: Path, wanted: dict[str, Any], groups: set[int]):
    numbers = pa.array([1, 2, 3, 4, 5, 6, None, None], pa.int32())
    for path in ("x", "_old.x"):
        footer = footer_of(tmp_path, numbers, path=path)
        assert groups_with(footer, {path: ColumnRange(pa.int32(), **wanted)}) == groups
        assert groups_with(footer, {path: ColumnRange(pa.int64(), **wanted)}) == {0, 1, 2, 3}
        assert groups_with(footer, {"y": ColumnRange(pa.int32(), **wanted)}) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("values", "low"),
    [
        (pa.array([Decimal("-5.25"), Decimal("1.50"), Decimal("9.00"), None]), Decimal("8.99")),
        (pa.array(["a", "b", "é", "z"]), "c"),
        (pa.array([b"", b"\x01", b"\xff", None]), b"\x02"),
        (pa.array([5, 6, 10**18, 10**18 + 1], pa.timestamp("us")), 10**18),
        (pa.array([1, 2, 10_000_001, 10_000_002], pa.int32()).cast(pa.date32()), 10_000_000),
    ],
    ids=["decimal", "text", "bytes", "times beyond 9999", "dates beyond 9999"],
)
def test_values_of_any_type_are_compared_as_they_are_stored(tmp_path: Path, values: pa.Array, low: Any):
    footer = footer_of(tmp_path, values)
    assert groups_with(footer, {"x": ColumnRange(values.type, low=low)}) == {1}


def test_ranges_of_one_column_are_combined():
    numbers = ColumnRange(pa.int32(), points=(1, 3, 5, 7)).both(ColumnRange(pa.int32(), low=2, high=6))
    assert (numbers.points, numbers.ends, numbers.is_empty) == ((3, 5), (3, 5), False)
    assert numbers.both(ColumnRange(pa.int32(), points=(5, 7))).points == (5,)
    assert ColumnRange(pa.int32(), low=2).both(ColumnRange(pa.int32(), high=1)).is_empty
    assert numbers.both(ColumnRange(pa.int32(), high=0)).is_empty


def test_a_range_is_used_for_versions_that_keep_its_column_in_the_same_form():
    first = replace(define_table("items", [("id", "bigint primary key"), ("n", "int"), ("m", "int")]), id=1)
    widened = widen_column(first, "m", "bigint")
    assert widened is not None
    now = rename_column(widened, "n", "k")
    some = ColumnRange(pa.int32(), low=1)
    wanted = WantedRows(now, {"k": some, "m": some, "id": some, "_commit_ts": some})
    assert wanted.in_version(first, "data") == {"n": some, "id": some, "_commit_ts": some}
    assert wanted.in_version(now, "data") == {"k": some, "m": some, "id": some, "_commit_ts": some}
    assert wanted.in_version(first, "tombstone") == {"_old.n": some, "_commit_ts": some}
    assert wanted.in_version(drop_column(first, "n"), "data") == {"id": some, "_commit_ts": some}
