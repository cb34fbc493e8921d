"""Changefeeds of a real cluster, in every format: what was written is found the same, and every damage."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.control.deployment import deployed
from penstock.control.verifying import TargetReport, VerifyOptions, verify_targets
from penstock.settings import parse_changefeed
from penstock.sink.feeds.feedcommands import create_feed
from penstock.sink.feeds.kvfeedstore import Feeds
from penstock.sink.feeds.runner import FeedRunner
from penstock.sink.pipeline.localengine import LocalEngine
from penstock.testing.jobworld import JobWorld, job_world

ITEMS, NOTES = "shop.items", "shop.notes"
ROWS = 60
SPEED = {"flush-interval": "2s", "file-size": "65536", "date-separator": "none"}
NOW = VerifyOptions(at="now", timeout="60s")
FEEDS: dict[str, dict[str, Any]] = {
    "lines": {"sink": {"protocol": "canal-json"}},
    "commas": {"sink": {"protocol": "csv"}},
    "events": {"sink": {"protocol": "debezium", "compression": "gzip"}},
    "columns": {"sink": {"protocol": "parquet"}},
    "some": {
        "sink": {"protocol": "csv", "include-commit-ts": "true"},
        "column_selectors": [{"tables": ["shop.items"], "columns": ["name"]}],
        "row_filters": [{"tables": ["shop.items"], "where": "price > 30"}],
    },
    "later": {"sink": {"protocol": "canal-json", "enable-tidb-extension": "true"}, "start": "now"},
}


@asynccontextmanager
async def feeds_running(world: JobWorld) -> AsyncIterator[None]:
    runner = FeedRunner(
        world.settings,
        Feeds(world.async_client),
        lambda _feed, options: LocalEngine(options.target),
        owner="here",
    )
    running = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def create_feeds(world: JobWorld, folder: Path) -> None:
    for name, given in FEEDS.items():
        tree = {"sink_uri": f"file://{folder}/{name}", "start": "snapshot", "tables": ["shop.*"], **given}
        tree["sink"] = {**SPEED, **tree["sink"]}
        wanted = parse_changefeed(tree, origin=name)
        await create_feed(Feeds(world.async_client), name, wanted, now_ts=await world.now_ts())


async def verify(world: JobWorld, *names: str, options: VerifyOptions = NOW) -> dict[str, TargetReport]:
    def work() -> list[TargetReport]:
        with deployed(world.settings) as deployment:
            return verify_targets(deployment, [f"changefeed:{name}" for name in names], options)

    found = await world.do(work)
    return {each.target.removeprefix("changefeed:"): each for each in found}


def of_items(report: TargetReport) -> dict[str, Any]:
    tables = {each["table"]: each for each in report.shown()["tables"]}
    found: dict[str, Any] = tables[ITEMS]
    return found


async def test_what_changefeeds_wrote_is_compared_and_every_damage_found(tmp_path: Path) -> None:
    async with job_world(tmp_path / "world") as world:
        await world.create(ITEMS, [("id", "bigint primary key"), ("name", "varchar(40)"), ("price", "int")])
        await world.create(NOTES, [("text", "varchar(40)")])
        await world.insert(ITEMS, *({"id": n, "name": f'"{n}", naïve\n', "price": n} for n in range(ROWS)))
        await world.insert(NOTES, {"text": "one"}, {"text": "one"}, {"text": "two"})
        await create_feeds(world, tmp_path)
        async with feeds_running(world):
            await world.upsert(ITEMS, *({"id": n, "name": None, "price": n + 1} for n in range(10)))
            await world.delete(ITEMS, 20, 21)
            await world.do(world.db.add_column, ITEMS, "tag", "varchar(9) not null default 'none'")
            await world.insert(ITEMS, {"id": 100, "name": "new", "price": 7, "tag": "x"})
            await world.do(world.db.rename_table, NOTES, "shop.remarks")
            await world.insert("shop.remarks", {"text": "three"})
            reports = await verify(world)
        assert {name: (each.error, each.same) for name, each in reports.items()} == dict.fromkeys(
            FEEDS, ("", True)
        ), [each.shown() for each in reports.values()]
        for name in ("lines", "commas", "events", "columns"):
            found = of_items(reports[name])
            assert (found["compared"], found["source_rows"], found["target_rows"]) == ("all rows", 59, 59)
        assert of_items(reports["some"])["source_rows"] == 29
        later = of_items(reports["later"])
        assert (later["compared"], later["keys_seen"], later["source_rows"]) == ("changes only", 13, 11)
        assert later["note"] == "changes only: 13 keys seen are compared"
        remarks = [each for each in reports["events"].shown()["tables"] if each["table"] == "shop.remarks"]
        assert [(each["source_rows"], each["target_rows"]) for each in remarks] == [(4, 4)]
        await _damages_are_found(world, tmp_path)


async def _damages_are_found(world: JobWorld, folder: Path) -> None:
    first = sorted((folder / "events" / "shop" / "items").rglob("CDC*.json.gz"))[0]
    first.unlink()
    lines = sorted((folder / "lines" / "shop" / "items").rglob("CDC*.json"))[-1]
    lines.write_bytes(lines.read_bytes().replace(b'"tag":"x"', b'"tag":"y"'))
    commas = sorted((folder / "commas" / "shop" / "items").rglob("CDC*.csv"))[0]
    repeat(commas)
    columns = sorted((folder / "columns" / "shop" / "items").rglob("CDC*.parquet"))[0]
    repeat(columns)
    some = sorted((folder / "some" / "shop" / "items").rglob("CDC*.csv"))[0]
    some.write_bytes(some.read_bytes()[:-30])
    reports = await verify(world, "events", "lines", "commas", "columns", "some", options=VerifyOptions())
    assert all(each.same is False for each in reports.values()), reports
    gone = of_items(reports["events"])
    assert gone["missing"] > 0
    assert any("is missing" in each for each in gone["faults"])
    changed = of_items(reports["lines"])
    assert [changed[way] for way in ("missing", "different", "extra", "duplicates")] == [0, 1, 0, 0]
    assert len(changed["digests_of_keys"]["different"]) == 1
    assert of_items(reports["commas"])["duplicates"] > 0
    assert of_items(reports["columns"])["duplicates"] > 0
    assert of_items(reports["some"])["faults"]


def repeat(path: Path) -> None:
    """Write a data file again, as the next one of its folder."""
    last = sorted(path.parent.glob("CDC*"))[-1]
    stem, _, rest = last.name.partition(".")
    again = path.with_name(f"CDC{int(stem.removeprefix('CDC')) + 1:0{len(stem) - 3}d}.{rest}")
    shutil.copy(path, again)
    (path.parent / "meta" / "CDC.index").write_text(f"{again.name}\n")
