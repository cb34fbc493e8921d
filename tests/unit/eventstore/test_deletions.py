"""Deletion vectors out of tombstone objects of every shape."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import Corrupt, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import ObjectInfo, Targets
from penstock.eventstore.objects.deletion_vectors import Deletions, live_mask
from penstock.object_storage import ObjectStorage, open_storage

TABLE_ID = 7
Row = tuple[str | None, int | None, int]  # object, offset, commit_ts


def tombstones(
    storage: ObjectStorage, name: str, rows: list[Row], *, targets: Targets | None = None, group_rows: int = 2
) -> ObjectInfo:
    """Write a tombstone object with the columns that matter here."""
    ordered = sorted(rows, key=lambda row: (row[0] is None, row))
    table = pa.table(
        {
            "_object": pa.array([row[0] for row in ordered], pa.string()),
            "_offset": pa.array([row[1] for row in ordered], pa.int64()),
            "_commit_ts": pa.array([row[2] for row in ordered], pa.int64()),
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=group_rows)
    path = paths.object_path(paths.table_root(TABLE_ID), "tombstone", name)
    storage.write(path, file.getvalue())
    times = [row[2] for row in rows]
    return ObjectInfo(
        id=name,
        side="tombstone",
        kind="appendable",
        schema_version=1,
        create_ts=min(times),
        min_ts=min(times),
        max_ts=max(times),
        rows=len(rows),
        size_bytes=1,
        key_min=b"",
        key_max=b"\xff",
        targets=targets,
    )


@pytest.fixture
def storage() -> ObjectStorage:
    return open_storage("memory://")


def test_offsets_come_sorted_and_once_from_all_tombstone_objects(storage: ObjectStorage) -> None:
    first = tombstones(
        storage, "t1", [("a", 4, 10), ("a", 1, 10), ("b", 0, 11), ("c", 9, 11), (None, None, 9)]
    )
    second = tombstones(storage, "t2", [("a", 4, 12), ("a", 3, 13)])
    found = Deletions(storage, TABLE_ID, [first, second], 20)
    assert [found.of(each).tolist() for each in "abcd"] == [[1, 3, 4], [0], [9], []]


def test_a_row_deleted_twice_within_an_object_counts_once(storage: ObjectStorage) -> None:
    twice = tombstones(storage, "t1", [("a", 4, 10), ("a", 4, 12), ("a", 6, 12)], group_rows=10)
    assert Deletions(storage, TABLE_ID, [twice], 20).of("a").tolist() == [4, 6]


@pytest.mark.parametrize(("ts", "expected"), [(9, []), (10, [1]), (11, [1, 2]), (12, [0, 1, 2])])
def test_tombstones_above_the_timestamp_delete_nothing(
    storage: ObjectStorage, ts: int, expected: list[int]
) -> None:
    info = tombstones(storage, "t1", [("a", 1, 10), ("a", 2, 11), ("a", 0, 12)])
    assert Deletions(storage, TABLE_ID, [info], ts).of("a").tolist() == expected


def test_any_order_of_asking_gives_the_same(storage: ObjectStorage) -> None:
    rows: list[Row] = [(name, offset, 5) for name in "abcdef" for offset in range(0, 9, 2)]
    found = Deletions(storage, TABLE_ID, [tombstones(storage, "t", rows, group_rows=3)], 5)
    for name in "fadcbeaff":
        assert found.of(name).tolist() == [0, 2, 4, 6, 8]


def test_an_object_whose_targets_leave_the_data_object_out_is_not_opened(storage: ObjectStorage) -> None:
    info = tombstones(storage, "t1", [("a", 1, 10)], targets=(("a", 1),))
    storage.delete(paths.object_path(paths.table_root(TABLE_ID), "tombstone", "t1"))
    assert Deletions(storage, TABLE_ID, [info], 20).of("b").tolist() == []
    with pytest.raises(Unavailable, match="does not exist at memory://"):
        Deletions(storage, TABLE_ID, [info], 20).of("a")


def test_a_damaged_object_is_corrupt(storage: ObjectStorage) -> None:
    info = tombstones(storage, "t1", [("a", 1, 10)])
    storage.write(paths.object_path(paths.table_root(TABLE_ID), "tombstone", "t1"), b"PAR1 and no more")
    with pytest.raises(Corrupt, match="tombstone/t1"):
        Deletions(storage, TABLE_ID, [info], 20).of("a")


def test_a_mask_leaves_out_what_is_deleted() -> None:
    assert live_mask(4, np.array([0, 2])).tolist() == [False, True, False, True]
    assert live_mask(2, np.empty(0, np.int64)).tolist() == [True, True]
