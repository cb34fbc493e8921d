"""Schema changes of our own through a capture, the event store and a changefeed: rows stay the tables'."""

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.commands import create_changefeed
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.changefeeds.store import ChangefeedStore
from penstock.control.deployment import open_deployment
from penstock.control.verify import VerifyOptions, verify_targets
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.snapshot import read_snapshot, snapshot_schema
from penstock.object_storage import StorageRef
from penstock.settings import parse_changefeed
from penstock.tables import Index, PartitionBy
from support.jobworld import JobWorld, job_world

pytestmark = pytest.mark.timeout(300)

ITEMS, PARTS = "shop.items", "shop.parts"
COLUMNS = [("id", "bigint"), ("name", "varchar(20)"), ("price", "int")]
SINK = {"flush-interval": "1s", "date-separator": "none", "protocol": "canal-json"}


def item(number: int, **changed: Any) -> dict[str, Any]:
    return {"id": number, "name": str(number), "price": number % 7, **changed}


async def change_schemas(world: JobWorld) -> list[tuple[int, str]]:
    """Change two tables in every way that touches rows, with rows between; return moments to compare at."""
    db, moments = world.db, []

    async def moment() -> None:
        moments.extend([(await world.now_ts(), ITEMS), (await world.now_ts(), PARTS)])

    await moment()
    await world.do(db.add_index, ITEMS, "by_name", ["name"], unique=True)
    await world.upsert(ITEMS, item(3, name="33"), item(50))
    await moment()
    await world.do(db.modify_column, ITEMS, "name", "bigint")
    await moment()
    await world.upsert(ITEMS, item(4, name=44), item(51, name=51))
    await world.do(db.rename_column, ITEMS, "name", "number")
    await world.delete(ITEMS, 5)
    await moment()
    await world.do(db.modify_column, PARTS, "price", "varchar(9)")
    await world.do(db.add_index, PARTS, "by_price", ["price"])
    await world.upsert(PARTS, item(60, price="x"), item(2, price="y"))
    await moment()
    await world.do(db.drop_index, ITEMS, "by_name")
    await world.do(db.drop_index, PARTS, "by_price")
    await world.delete(PARTS, 7)
    await moment()
    return moments


def read_event_store(world: JobWorld, name: str, ts: int) -> list[dict[str, Any]]:
    assert world.capture is not None
    with closing(FlightReader(world.capture.flight_addr)) as reader:
        view = find_table(StorageRef(world.settings.capture.storage), name, at_ts=ts, rows=reader)
        batches = list(read_snapshot(view, ts))
        found = pa.Table.from_batches(batches, None if batches else snapshot_schema(view, ts))
    rows = found.select(range(found.num_columns - 1)).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


async def test_the_event_store_and_a_changefeed_follow_our_own_schema_changes(tmp_path: Path) -> None:
    async with job_world(tmp_path / "world", capture={"tables": ["shop.*"]}) as world:
        await world.do(world.db.create_database, "shop")
        await world.do(
            lambda: world.db.create_table(ITEMS, COLUMNS, primary_key=["id"], indexes=[Index("p", ["price"])])
        )
        by = PartitionBy.hash("id", 3)
        await world.do(lambda: world.db.create_table(PARTS, COLUMNS, primary_key=["id"], partition_by=by))
        for name in (ITEMS, PARTS):
            await world.insert(name, *(item(number) for number in range(20)))
        tree = {
            "sink_uri": f"file://{tmp_path}/feed",
            "start": "snapshot",
            "tables": ["shop.*"],
            "sink": SINK,
        }
        await create_changefeed(
            ChangefeedStore(world.async_client),
            "feed",
            parse_changefeed(tree, origin="a test"),
            now_ts=await world.now_ts(),
        )
        runner = ChangefeedRunner(
            world.settings,
            ChangefeedStore(world.async_client),
            lambda order: LocalEngine(order.options.target),
            owner="here",
        )
        running = asyncio.create_task(runner.run())
        held = open_deployment(world.settings)
        deployment = await world.do(held.__enter__)
        try:
            moments = await change_schemas(world)
            options = VerifyOptions(at="now", timeout="120s")
            (report,) = await world.do(verify_targets, deployment, ["changefeed:feed"], options)
        finally:
            await world.do(held.__exit__, None, None, None)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert (report.error, report.same) == ("", True), report.details()
        for ts, name in moments:
            await world.readable(name, ts)
            stored = (await world.rows(name, ts)).to_pylist()
            found = await world.do(read_event_store, world, name, ts)
            assert found == sorted(stored, key=lambda row: row["id"]), (ts, name)
        queries = [query for query in _queries(tmp_path / "feed" / "shop") if query]
    for statement in (
        "ALTER TABLE `items` ADD UNIQUE KEY `by_name` (`name`)",
        "ALTER TABLE `items` MODIFY COLUMN `name` bigint",
        "ALTER TABLE `items` RENAME COLUMN `name` TO `number`",
        "ALTER TABLE `items` DROP INDEX `by_name`",
        "ALTER TABLE `parts` MODIFY COLUMN `price` varchar(9)",
    ):
        assert sum(query.startswith(statement) for query in queries) == 1, (statement, queries)


def _queries(folder: Path) -> list[str]:
    files = sorted(folder.glob("*/meta/schema_*.json"))
    return [str(json.loads(file.read_text()).get("Query") or "") for file in files]
