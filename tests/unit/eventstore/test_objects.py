"""Objects as they are written: any order, what is said of them, and how tombstones are cut and ordered."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.eventstore import paths
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.build import divide_tombstones, sort_by_row_id
from penstock.eventstore.objects.object_file import ObjectWriter
from penstock.eventstore.objects.row_ids import RowIds
from penstock.eventstore.sides import side_schema
from penstock.object_storage import ObjectStorage, open_storage
from support.events import a_table, read_object

TABLE = a_table()
NOW = 1 << 60


def tombstones(*rows: tuple[int, int, str | None, int | None]) -> pa.RecordBatch:
    """Rows of (id, time, object, offset)."""
    made: list[dict[str, Any]] = [
        {
            "id": number,
            "_handle": number.to_bytes(8, "big"),
            "_commit_ts": NOW + ts,
            "_start_ts": NOW + ts - 1,
            "_update": False,
            "_object": name,
            "_offset": offset,
            "_old": None,
        }
        for number, ts, name, offset in rows
    ]
    return pa.RecordBatch.from_pylist(made, schema=side_schema(TABLE, "tombstone"))


def data(*rows: tuple[int, int]) -> pa.RecordBatch:
    """Rows of (id, time)."""
    made = [
        {
            "id": number,
            "name": "x",
            "_handle": number.to_bytes(8, "big"),
            "_commit_ts": NOW + ts,
            "_start_ts": NOW + ts - 1,
            "_update": False,
        }
        for number, ts in rows
    ]
    return pa.RecordBatch.from_pylist(made, schema=side_schema(TABLE, "data"))


def write(
    storage: ObjectStorage, folder: Path, side: paths.Side, *batches: pa.RecordBatch, **rest: Any
) -> ObjectInfo:
    given: dict[str, Any] = {"kind": "appendable", "schema_version": 3} | rest
    schema = side_schema(TABLE, side)
    with ObjectWriter(storage, "tables/1", side, schema=schema, scratch=folder, **given) as writer:
        for batch in batches:
            writer.write(batch)
        info = writer.finish()
    assert info is not None
    return info


@pytest.fixture
def storage() -> ObjectStorage:
    return open_storage("memory:///")


def test_an_object_may_have_any_order(storage: ObjectStorage, tmp_path: Path) -> None:
    info = write(
        storage, tmp_path, "data", data((2, 9), (3, 1)), data((5, 4)), kind="merged", create_ts=NOW + 20
    )
    assert (info.kind, info.create_ts, info.min_ts, info.max_ts) == ("merged", NOW + 20, NOW + 1, NOW + 9)
    assert (info.key_min, info.key_max) == ((2).to_bytes(8, "big"), (5).to_bytes(8, "big"))
    assert (info.rows, info.schema_version, info.targets) == (3, 3, ())
    assert read_object(storage, 1, info)["id"].to_pylist() == [2, 3, 5]
    assert list(tmp_path.iterdir()) == []


def test_an_object_exists_from_its_first_commit_on_unless_told_otherwise(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    assert write(storage, tmp_path, "data", data((1, 5), (2, 3))).create_ts == NOW + 3


def test_an_object_without_rows_is_not_written(storage: ObjectStorage, tmp_path: Path) -> None:
    schema = side_schema(TABLE, "data")
    with ObjectWriter(
        storage, "tables/1", "data", kind="direct", schema_version=1, schema=schema, scratch=tmp_path
    ) as writer:
        writer.write(data())
        assert writer.finish() is None
        assert writer.size_bytes == 0
    assert storage.names("tables/1/data/") == []


def test_targets_count_what_tombstones_delete(storage: ObjectStorage, tmp_path: Path) -> None:
    batches = tombstones((1, 1, "b", 0), (2, 1, "a", 1)), tombstones((3, 1, "b", 2), (4, 1, None, None))
    assert write(storage, tmp_path, "tombstone", *batches).targets == (("a", 1), ("b", 2))


def test_too_many_targets_are_not_listed(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.object_file.TARGETS_MAX", 2)
    rows = [(number, 1, f"object {number}", 0) for number in range(3)]
    assert write(storage, tmp_path, "tombstone", tombstones(*rows[:2])).targets == (
        ("object 0", 1),
        ("object 1", 1),
    )
    assert write(storage, tmp_path, "tombstone", tombstones(*rows), tombstones(rows[0])).targets is None


def test_row_groups_of_tombstones_are_small(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.object_file.TOMBSTONE_GROUP_ROWS", 2)
    rows = tombstones((1, 1, "a", 0), (2, 1, "a", 1), (3, 1, "b", 0), (4, 1, "c", 0), (5, 1, None, None))
    info = write(storage, tmp_path, "tombstone", rows)
    with storage.open(paths.object_path("tables/1", "tombstone", info.id)) as file:
        meta = pq.ParquetFile(file).metadata
    column = meta.schema.names.index("_object")
    ends = [meta.row_group(group).column(column).statistics for group in range(meta.num_row_groups)]
    assert [(each.min, each.max) for each in ends[:2]] == [("a", "a"), ("b", "c")]
    assert not ends[2].has_min_max


def times(groups: list[list[pa.RecordBatch]]) -> list[list[int]]:
    return [[ts - NOW for batch in group for ts in batch["_commit_ts"].to_pylist()] for group in groups]


def batches_of(*commits: list[int]) -> list[pa.RecordBatch]:
    return [tombstones(*((0, ts, None, None) for ts in commit)) for commit in commits]


def test_tombstone_objects_never_share_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.build.OBJECT_ROWS", 3)
    cut = divide_tombstones(
        batches_of([1, 1, 2], [2, 2, 3], [], [3, 4], [5], [5], [5, 6]), within_commit=False
    )
    assert times(list(cut)) == [[1, 1, 2, 2, 2], [3, 3, 4], [5, 5, 5, 6]]


def test_tombstones_of_one_transaction_are_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.build.OBJECT_ROWS", 2)
    assert times(list(divide_tombstones(batches_of([1, 1], [1], [1], [1]), within_commit=True))) == [
        [1, 1],
        [1, 1],
        [1],
    ]


def test_tombstones_are_cut_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.build.OBJECT_BYTES", 1)
    assert times(list(divide_tombstones(batches_of([1], [2], [3]), within_commit=False))) == [[1], [2], [3]]


def test_tombstones_are_ordered_by_row_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.objects.build.TOMBSTONE_GROUP_ROWS", 2)
    group = [
        tombstones((1, 1, None, None), (2, 2, None, None)),
        tombstones((3, 3, None, None), (4, 4, None, None)),
    ]
    ids = RowIds(["bb", "aa"], np.array([0, -1, 1, 0], np.int32), np.array([5, -1, 9, 2], np.int64))
    found = [batch.select(["id", "_object", "_offset"]).to_pylist() for batch in sort_by_row_id(group, ids)]
    assert [[tuple(row.values()) for row in batch] for batch in found] == [
        [(3, "aa", 9), (4, "bb", 2)],
        [(1, "bb", 5), (2, None, None)],
    ]
