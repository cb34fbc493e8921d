"""Spark's reads of a recorded history of TiDB: snapshots, and changes from point to point.

Snapshots are read at every point in `make soak` and of any other record, and at every third in `make test`,
where the event store is read at every point without Spark.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from support.historyworld import HistoryWorld, compares_every_point
from support.tidb_history import (
    Point,
    PointTable,
    is_golden,
    load_record,
    without_sources,
)
from support.tidb_text import TextRow, expected_rows, text_rows

pytestmark = pytest.mark.timeout(3600)

FEED = ("_change_type", "_commit_version", "_commit_timestamp")
GONE = {"delete", "update_preimage"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryWorld]:
    """A history whose capture begins in its middle, of a TiKV that sends what MODIFY COLUMN backfills."""
    record = without_sources(load_record())
    with HistoryWorld(tmp_path_factory.mktemp("history"), record) as made:
        points = made.record.points
        made.replay(points[len(points) // 2])
        made.start_capture()
        made.replay()
        made.catch_up()
        yield made


def load(spark: SparkSession, world: HistoryWorld, table: PointTable, **options: object) -> DataFrame:
    assert world.capture is not None
    given = {"storage": world.settings.capture.storage, "flightAddr": world.capture.flight_addr, **options}
    reader = spark.read.format("penstock").options(**{name: str(value) for name, value in given.items()})
    return reader.load(table.name)


def test_snapshots_are_tidbs_tables(spark: SparkSession, world: HistoryWorld) -> None:
    def read(table: PointTable, ts: int) -> pa.Table:
        return load(spark, world, table, versionAsOf=ts).toArrow()

    assert world.compare(read, world.checked_again[:: 1 if compares_every_point() else 3]) == []


def test_changes_lead_from_each_point_to_the_next(spark: SparkSession, world: HistoryWorld) -> None:
    followed = 0
    for (before, from_ts), (after, to_ts) in pairwise(world.points):
        for name in continued_tables(world, before, from_ts, after, to_ts):
            table = after.tables[name]
            frame = load(
                spark, world, table, readChangeFeed=True, startingVersion=from_ts + 1, endingVersion=to_ts
            )
            rows = Counter(expected_rows(before.tables[name], table.stored_columns))
            for gone, row in changes(table, frame.toArrow()):
                rows[row] += -1 if gone else 1
            wanted = Counter(expected_rows(table, table.stored_columns))
            assert {row: count for row, count in rows.items() if count} == wanted, f"{name} at {after.name}"
            followed += 1
    assert followed > 0 or not is_golden()


def continued_tables(
    world: HistoryWorld, before: Point, from_ts: int, after: Point, to_ts: int
) -> Iterator[str]:
    """Yield tables whose rows changed by transactions alone: columns and physical tables stayed the same."""
    for name, table in after.tables.items():
        known = before.tables.get(name)
        if table.is_temporary or known is None or known.rows == table.rows:
            continue
        old, new = (world.db.table_info(name, at_ts=ts) for ts in (from_ts, to_ts))
        same = (known.columns, known.types) == (table.columns, table.types)
        columns = ([column.id for column in info.stored_columns] for info in (old, new))
        if same and old.physical_ids == new.physical_ids and len(set(map(tuple, columns))) == 1:
            yield name


def changes(table: PointTable, feed: pa.Table) -> Iterator[tuple[bool, TextRow]]:
    kinds = feed.column("_change_type").to_pylist()
    yield from zip((kind in GONE for kind in kinds), text_rows(table, feed.drop_columns(FEED)), strict=True)
