"""What manifests and logs say of files: Parquet copies' own, and Delta's."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.changes.columns import choose_columns, key_names
from penstock.consumers.lake.delta import stats_of
from penstock.consumers.lake.files import DataFile
from penstock.consumers.lake.parquet import CopyManifest, Retired
from penstock.consumers.lake.table import LakeWatermark
from penstock.consumers.schema_evolution import ArrowColumns, Dialect, parquet_type
from penstock.errors import Corrupt
from penstock.tables.define import define_table
from support.everytype import EVERY_TYPE

MARKS = LakeWatermark(owner="0/1/job/7", job="shop.items/job", watermark=1 << 60, column_id=17)


def manifest(key: str, lowest: Any, highest: Any) -> CopyManifest:
    table = define_table("items", [("v", "vector(3)"), ("k", f"{key} primary key")])
    columns = ArrowColumns(choose_columns(table, None), key_names(table), table, Dialect(parquet_type))
    files = (DataFile("data/0/a.parquet", 3, 99, lowest, highest, nulls=False), DataFile("b", 1, 2))
    return CopyManifest(
        marks=MARKS, schema=columns.schema, files=files, retired=(Retired("c", 5),), commit="1"
    )


@pytest.mark.parametrize(
    ("key", "lowest", "highest"),
    [
        ("bigint", -5, 1 << 62),
        ("bigint unsigned", Decimal(0), Decimal((1 << 64) - 1)),
        ("decimal(12,2)", Decimal("-1.50"), Decimal("2.25")),
        ("varchar(20)", "", "ü\"'\n"),
        ("varbinary(20)", b"", b"\x00\xff"),
        ("date", date(1, 1, 1), date(9999, 12, 31)),
        ("datetime(6)", datetime(1000, 1, 1), datetime(2026, 2, 3, 4, 5, 6, 7)),
        ("timestamp(6)", datetime(1970, 1, 2, tzinfo=UTC), datetime(2026, 2, 3, 4, 5, 6, 7, UTC)),
        ("double", -1e300, 0.1),
    ],
)
def test_a_manifest_reads_as_it_was_written(key: str, lowest: Any, highest: Any) -> None:
    written = manifest(key, lowest, highest)
    read = CopyManifest.decode(written.encode(), place="here")
    assert read == written
    assert read.schema.equals(written.schema, check_metadata=True)


def test_every_type_has_a_name_in_the_manifest() -> None:
    table = EVERY_TYPE
    columns = ArrowColumns(choose_columns(table, None), key_names(table), table, Dialect(parquet_type))
    written = CopyManifest(marks=MARKS, schema=columns.schema, files=())
    assert CopyManifest.decode(written.encode(), place="here").schema == columns.schema


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": 1}'])
def test_a_damaged_manifest_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="damaged"):
        CopyManifest.decode(data, place="here")


def test_a_manifest_of_the_future_is_refused() -> None:
    with pytest.raises(Corrupt, match="upgrade"):
        CopyManifest.decode(b'{"format": 2}', place="here")


def stats(*groups: pa.Table) -> dict[str, Any]:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    found: dict[str, Any] = json.loads(stats_of(pq.read_metadata(sink)))
    return found


def test_delta_is_told_bounds_over_all_row_groups() -> None:
    first = pa.table(
        {"k": [3, 1], "s": ["b", None], "at": [datetime(2026, 1, 1), datetime(2026, 1, 2, 3, 4, 5, 6)]}
    )
    second = pa.table({"k": [9, 2], "s": ["a", "z"], "at": [datetime(2025, 1, 1)] * 2})
    assert stats(first, second) == {
        "numRecords": 4,
        "minValues": {"k": 1, "s": "a", "at": "2025-01-01T00:00:00.000000"},
        "maxValues": {"k": 9, "s": "z", "at": "2026-01-02T03:04:05.000006"},
        "nullCount": {"k": 0, "s": 1, "at": 0},
    }


def test_delta_is_told_no_bound_that_would_be_wrong() -> None:
    found = stats(
        pa.table(
            {
                "long": ["x" * 100],
                "raw": [b"x"],
                "price": pa.array([Decimal("1.10")], pa.decimal128(12, 2)),
                "big": pa.array([Decimal((1 << 64) - 1)], pa.decimal128(20, 0)),
                "nothing": pa.nulls(1, pa.int64()),
                "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32())),
                "utc": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
            }
        )
    )
    assert found["minValues"] == {"big": (1 << 64) - 1, "utc": "2026-01-01T00:00:00.000000Z"}
    assert found["maxValues"] == found["minValues"]
    assert "vector" not in found["nullCount"]
    assert found["nullCount"]["nothing"] == 1
