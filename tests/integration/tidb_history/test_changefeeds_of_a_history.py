"""Changefeeds over a recorded history of TiDB: a consumer of a directory has TiDB's tables at every point."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import eventloop
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.directory.reader import Ddl
from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.engines.spark import SparkEngine
from penstock.changefeeds.runner import ChangefeedRunner, EngineOrder, create_configured_changefeeds
from penstock.changefeeds.sinks.storage.layout import METADATA_PATH, decode_checkpoint
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.changefeeds.store import ChangefeedStore
from penstock.follow.ddl_events import OtherAction
from penstock.object_storage import open_storage
from penstock.tables.ddl_jobs import DdlAction
from penstock.testing.directory import Replica, Row
from support.historyworld import HistoryWorld, compares_every_point, until
from support.tidb_history import Point, PointTable, load_record
from support.tidb_text import compare_text, to_text

pytestmark = pytest.mark.timeout(1800)

CSV = "protocol=csv&include-commit-ts=true&output-old-value=true"
FEEDS = {
    "canal": ("protocol=canal-json&enable-tidb-extension=true", FileOptions(protocol="canal-json")),
    "csv": (CSV, FileOptions(protocol="csv", csv=CsvOptions(include_commit_ts=True, output_old_value=True))),
}
ACROSS_TABLES = {OtherAction.EXCHANGE_PARTITION, OtherAction.RENAME_TABLES}
MULTI_SCHEMA_CHANGE = 61
REWRITING = {
    DdlAction.MODIFY_COLUMN,
    OtherAction.DROP_PARTITION,
    OtherAction.TRUNCATE_PARTITION,
    MULTI_SCHEMA_CHANGE,
    *ACROSS_TABLES,
}
"""Actions after which a database has other rows that no change says: it runs the statement itself."""

_OF_THE_MOMENT = re.compile(r"\b(CURRENT_\w+|NOW|LOCALTIME\w*|UUID|RAND|NEXTVAL)\b", re.IGNORECASE)
"""What makes the default of a column another value each time."""


class Consumer:
    """Follows the directory of a changefeed; where a DDL changes rows, it asks the cluster for the result.

    Just before such a DDL it must have the rows of the cluster, so that the answer heals nothing. A
    changefeed that began with a snapshot has no file of a table without rows that did not change since.
    """

    def __init__(self, world: HistoryWorld, feed: str, *, snapshot: bool = False) -> None:
        self._world = world
        self._storage = open_storage(f"file://{world.folder}/{feed}")
        self.name = feed
        self._snapshot = snapshot
        self.replica = Replica(self._storage, files=FEEDS[feed][1], redo=self._run_statement)

    def _run_statement(self, ddl: Ddl, rows: list[Row]) -> list[Row]:
        if not self._rewrites(ddl):
            return rows
        if ddl.type != OtherAction.RENAME_TABLES and (ddl.query or not self._swaps(ddl.version)):
            before = self._rows_of_cluster(ddl, ddl.version - 1)
            assert sorted(map(repr, rows)) == sorted(map(repr, before)), f"{self.name} before {ddl.query}"
        return self._rows_of_cluster(ddl, ddl.version)

    def _rows_of_cluster(self, ddl: Ddl, ts: int) -> list[Row]:
        return self._world.read_rows(ddl.name, ts)

    def _rewrites(self, ddl: Ddl) -> bool:
        if not ddl.query:
            return self._is_across(ddl.version)
        if ddl.type == DdlAction.ADD_COLUMN:
            return _OF_THE_MOMENT.search(ddl.query) is not None
        return ddl.type in REWRITING

    def _is_across(self, version: int) -> bool:
        """Return whether the statement of another table's file changes the rows of several tables."""
        return any(file.type in ACROSS_TABLES for file in self._files_of(version))

    def _swaps(self, version: int) -> bool:
        """Return whether tables swap names then: each had another name before."""
        return any(file.type == OtherAction.RENAME_TABLES for file in self._files_of(version))

    def _files_of(self, version: int) -> list[SchemaFile]:
        paths = [path for path in self._storage.names("") if f"/schema_{version}_" in path]
        return [SchemaFile.from_json(self._storage.read(path) or b"") for path in paths]

    @property
    def checkpoint_ts(self) -> int:
        data = self._storage.read(METADATA_PATH)
        return 0 if data is None else decode_checkpoint(data)

    def compare(self, point: Point, ts: int) -> list[str]:
        """Read what is new up to a point; return what differs there."""
        until(lambda: self.checkpoint_ts >= ts, f"changefeed {self.name} does not reach {point.name}")
        self.replica.catch_up()
        wanted = self._world.comparable(point)
        differences = [said for table in wanted for said in self._compare_table(table)]
        return [f"{self.name} at {point.name}: {said}" for said in differences]

    def _compare_table(self, table: PointTable) -> list[str]:
        rows = self.replica.tables.get(table.name)
        if rows is None:
            return [] if self._snapshot and not table.rows else [f"{table.name} is not there"]
        columns = table.stored_columns
        kinds = [table.types[table.columns.index(name)] for name in columns]
        texts = [
            tuple(to_text(kind, row[name]) for name, kind in zip(columns, kinds, strict=True))
            for row in rows.values()
        ]
        return compare_text(table, columns, texts, all_dates=True)


@contextmanager
def running(world: HistoryWorld, spark: SparkSession | None = None) -> Iterator[None]:
    """Run the changefeeds in this process; csv on Spark where there is a session."""

    def open_engine(order: EngineOrder) -> SinkEngine:
        if order.changefeed_id == "canal" or spark is None:
            return LocalEngine(order.options.target)
        return SparkEngine(spark, order.options.target, changefeed=order.changefeed_id, threads=2)

    async def start() -> "asyncio.Task[None]":
        client = world.replay_state.client
        feeds = ChangefeedStore(client)
        await create_configured_changefeeds(feeds, world.settings, now_ts=await client.timestamp())
        return asyncio.create_task(ChangefeedRunner(world.settings, feeds, open_engine, owner="test").run())

    async def stop(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task = eventloop.run(start())
    try:
        yield
    finally:
        eventloop.run(stop(task))


def changefeeds(folder: Path, start: object = 1) -> dict[str, object]:
    tables = load_record().patterns
    return {
        feed: {
            "sink_uri": f"file://{folder}/{feed}?{parameters}&flush-interval=1s",
            "tables": tables,
            "start": start,
        }
        for feed, (parameters, _) in FEEDS.items()
    }


def test_a_consumer_of_each_directory_has_tidbs_tables_at_every_point(
    tmp_path: Path, spark: SparkSession
) -> None:
    with HistoryWorld(tmp_path, changefeeds=changefeeds(tmp_path)) as world:
        # The points behind the second cost most of a minute: `make soak` goes on to the end of the record.
        points = world.record.points if compares_every_point() else world.record.points[:2]
        world.start_capture()
        consumers = [Consumer(world, feed) for feed in FEEDS]
        with running(world, spark):
            for point in points:
                ts = world.replay(point)
                for consumer in consumers:
                    assert consumer.compare(point, ts) == []
        for consumer in consumers:
            consumer.replica.check()


@pytest.mark.parametrize(("golden", "share", "feed"), [((2, 5), 1 / 3, "canal"), ((5, 9), 2 / 3, "csv")])
def test_a_consumer_that_begins_with_a_snapshot_has_tidbs_tables_at_the_points_behind_it(
    tmp_path: Path, golden: tuple[int, int], share: float, feed: str
) -> None:
    feeds = {feed: changefeeds(tmp_path, "snapshot")[feed]}
    with HistoryWorld(tmp_path, changefeeds=feeds) as world:
        points = world.record.points
        part = world.choose_part(golden, share)
        world.replay(points[part.start - 1])
        world.start_capture()
        world.catch_up()
        consumer = Consumer(world, feed, snapshot=True)
        with running(world):
            for point in points[part.first : part.last]:
                ts = max(world.replay(point), world.client.timestamp())
                assert consumer.compare(point, ts) == []
        consumer.replica.check()
