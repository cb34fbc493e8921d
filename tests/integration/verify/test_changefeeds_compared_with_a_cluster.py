"""Changefeeds of a real cluster, in every format: what was written is found the same, and every damage."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from penstock.changefeeds.commands import (
    create_changefeed,
    pause_changefeed,
    resume_changefeed,
    update_changefeed,
)
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.changefeeds.store import ChangefeedStore
from penstock.cli.main import app
from penstock.clock import SYSTEM
from penstock.control.deployment import Deployment, open_deployment
from penstock.control.verify import DeploymentTables, TargetReport, VerifyOptions, verify_targets
from penstock.settings import parse_changefeed
from support.jobworld import JobWorld, job_world

ITEMS, NOTES, LABELS = "shop.items", "shop.notes", "shop.labels"
OURS = "shop.ours"  # its columns have names that changes use
ROWS = 60
SPEED = {"flush-interval": "1s", "file-size": "65536", "date-separator": "none"}
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
async def reached(world: JobWorld) -> AsyncIterator[Deployment]:
    """The deployment; one for all calls, since the process's changefeeds share its connection."""
    held = open_deployment(world.settings)
    deployment = await world.do(held.__enter__)
    try:
        yield deployment
    finally:
        await world.do(held.__exit__, None, None, None)


@asynccontextmanager
async def feeds_running(world: JobWorld) -> AsyncIterator[None]:
    runner = ChangefeedRunner(
        world.settings,
        ChangefeedStore(world.async_client),
        lambda order: LocalEngine(order.options.target),
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
        await create_changefeed(
            ChangefeedStore(world.async_client), name, wanted, now_ts=await world.now_ts()
        )


async def verify(
    deployment: Deployment, *names: str, options: VerifyOptions = NOW
) -> dict[str, TargetReport]:
    targets = [f"changefeed:{name}" for name in names]
    found = await asyncio.to_thread(verify_targets, deployment, targets, options)
    return {each.target.removeprefix("changefeed:"): each for each in found}


def of_items(report: TargetReport) -> dict[str, Any]:
    tables = {each["table"]: each for each in report.details()["tables"]}
    found: dict[str, Any] = tables[ITEMS]
    return found


async def verify_while_rows_change(world: JobWorld, deployment: Deployment) -> dict[str, TargetReport]:
    """Compare while a few rows change all the time."""
    ended = asyncio.Event()

    async def write() -> None:
        for number in count():
            if ended.is_set():
                return
            await SYSTEM.sleep(0.05)
            await world.upsert(ITEMS, {"id": 40 + number % 3, "name": f"{number}", "price": 40, "tag": "w"})

    writing = asyncio.create_task(write())
    try:
        return await verify(deployment, "lines", "commas")
    finally:
        ended.set()
        await writing


def command(config: Path, *targets: str) -> tuple[int, Any]:
    """What `penstock verify` says, and its exit code."""
    answer = CliRunner().invoke(app, ["verify", *targets, "--config", str(config), "--json"])
    return answer.exit_code, json.loads(answer.stdout)


async def test_what_changefeeds_wrote_is_compared_and_every_damage_found(tmp_path: Path) -> None:
    async with job_world(tmp_path / "world", capture={"tables": ["shop.*"]}) as world:
        await world.create(ITEMS, [("id", "bigint primary key"), ("name", "varchar(40)"), ("price", "int")])
        await world.create(NOTES, [("text", "varchar(40)")])
        await world.create(LABELS, [("label", "varchar(9) primary key"), ("n", "int")])
        await world.insert(ITEMS, *({"id": n, "name": f'"{n}", naïve\n', "price": n} for n in range(ROWS)))
        await world.insert(NOTES, {"text": "one"}, {"text": "one"}, {"text": "two"})
        await world.insert(LABELS, {"label": "a", "n": 1}, {"label": "b", "n": 2})
        await world.create(OURS, [("_handle", "bigint primary key"), ("_old", "int")])
        await world.insert(OURS, {"_handle": 1, "_old": 10}, {"_handle": 2, "_old": 20})
        await create_feeds(world, tmp_path)
        async with reached(world) as deployment, feeds_running(world):
            await world.upsert(LABELS, {"label": "a ", "n": 3})  # the key that readers have, the same handle
            await world.upsert(ITEMS, *({"id": n, "name": None, "price": n + 1} for n in range(10)))
            await world.delete(ITEMS, 20, 21)
            await world.upsert(OURS, {"_handle": 1, "_old": 11})
            await world.delete(OURS, 2)
            await world.do(world.db.add_column, ITEMS, "tag", "varchar(9) not null default 'none'")
            await world.insert(ITEMS, {"id": 100, "name": "new", "price": 7, "tag": "x"})
            await world.do(world.db.rename_table, NOTES, "shop.remarks")
            await world.insert("shop.remarks", {"text": "three"})
            moving = await verify_while_rows_change(world, deployment)
            assert {name: (each.error, each.same) for name, each in moving.items()} == dict.fromkeys(
                moving, ("", True)
            ), [each.details() for each in moving.values()]
            reports = await verify(deployment)
        assert {name: (each.error, each.same) for name, each in reports.items()} == dict.fromkeys(
            FEEDS, ("", True)
        ), [each.details() for each in reports.values()]
        for name in ("lines", "commas", "events", "columns"):
            found = of_items(reports[name])
            assert (found["compared"], found["source_rows"], found["target_rows"]) == ("all rows", 59, 59)
        assert of_items(reports["some"])["source_rows"] == 29
        later = of_items(reports["later"])
        assert (later["compared"], later["keys_seen"], later["source_rows"]) == ("changes only", 16, 14)
        assert later["note"] == "changes only: 16 keys seen are compared"
        ours = [each for each in reports["commas"].details()["tables"] if each["table"] == OURS]
        assert [(each["source_rows"], each["target_rows"]) for each in ours] == [(1, 1)]
        remarks = [each for each in reports["events"].details()["tables"] if each["table"] == "shop.remarks"]
        assert [(each["source_rows"], each["target_rows"]) for each in remarks] == [(4, 4)]
        config = tmp_path / "penstock.yaml"
        config.write_text(json.dumps(_tree(world)))
        code, answer = await world.do(command, config, "changefeed:lines")
        assert (code, [each["same"] for each in answer]) == (0, [True])
        await _damages_are_found(world, tmp_path)
        code, answer = await world.do(command, config, "changefeed:lines")
        assert (code, [each["same"] for each in answer]) == (1, [False])
        (tmp_path / "later" / "metadata").unlink()
        code, (answer,) = await world.do(command, config, "changefeed:later")
        assert (code, answer["same"]) == (2, None)
        assert "no metadata file" in answer["error"]
        await world.create("apart.items", [("id", "bigint primary key")])
        await world.insert("apart.items", {"id": 1}, {"id": 2})
        assert await world.do(_uncaptured, world, await world.now_ts()) == [1, 2]


async def test_one_that_was_moved_is_compared_by_what_its_new_place_has(tmp_path: Path) -> None:
    async with job_world(tmp_path / "world", capture={"tables": ["shop.*"]}) as world:
        await world.create(ITEMS, [("id", "bigint primary key"), ("name", "varchar(40)"), ("price", "int")])
        await world.insert(ITEMS, *({"id": n, "name": "a", "price": n} for n in range(ROWS)))
        feeds = ChangefeedStore(world.async_client)
        sink = {**SPEED, "protocol": "canal-json", "enable-tidb-extension": "true"}
        tree = {"sink_uri": f"file://{tmp_path}/old", "start": "snapshot", "tables": ["shop.*"], "sink": sink}
        wanted = parse_changefeed({**tree, "lease_ttl_s": 1}, origin="a test")
        await create_changefeed(feeds, "feed", wanted, now_ts=await world.now_ts())
        async with reached(world) as deployment, feeds_running(world):
            whole = of_items((await verify(deployment, "feed"))["feed"])
            assert (whole["compared"], whole["target_rows"]) == ("all rows", ROWS)
            await pause_changefeed(feeds, "feed")
            deadline = SYSTEM.monotonic() + 30
            while "feed" in await feeds.owners():  # who runs it writes what comes before it notices
                assert SYSTEM.monotonic() < deadline
                await SYSTEM.sleep(0.02)
            await update_changefeed(feeds, "feed", {"sink_uri": f"file://{tmp_path}/new"})
            await resume_changefeed(feeds, "feed")
            await world.upsert(ITEMS, *({"id": n, "name": "b", "price": n} for n in (1, 2)))
            moved = of_items((await verify(deployment, "feed"))["feed"])
        assert (moved["same"], moved["compared"], moved["target_rows"]) == (True, "changes only", 2)


def _tree(world: JobWorld) -> dict[str, Any]:
    return {"pd_addrs": list(world.settings.pd_addrs), "capture": {"storage": world.settings.capture.storage}}


def _uncaptured(world: JobWorld, at_ts: int) -> list[int]:
    """Rows that only the cluster has."""
    with open_deployment(world.settings) as deployment:
        source = DeploymentTables(deployment)
        (schema,) = (each for each in source.tables(at_ts) if each.name == "apart.items")
        return [row["id"] for batch in source.rows(schema, at_ts, ["id"]) for row in batch.to_pylist()]


async def _damages_are_found(world: JobWorld, folder: Path) -> None:
    first = sorted((folder / "events" / "shop" / "items").rglob("CDC*.json.gz"))[0]
    first.unlink()
    for lines in (folder / "lines" / "shop" / "items").rglob("CDC*.json"):
        lines.write_bytes(lines.read_bytes().replace(b'"tag":"x"', b'"tag":"y"'))
    commas = sorted((folder / "commas" / "shop" / "items").rglob("CDC*.csv"))[0]
    repeat(commas)
    columns = sorted((folder / "columns" / "shop" / "items").rglob("CDC*.parquet"))[0]
    repeat(columns)
    some = sorted((folder / "some" / "shop" / "items").rglob("CDC*.csv"))[0]
    some.write_bytes(some.read_bytes()[:-30])
    names = ("events", "lines", "commas", "columns", "some")
    async with reached(world) as deployment:
        reports = await verify(deployment, *names, options=VerifyOptions())
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
