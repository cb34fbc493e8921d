"""A real capture and real changefeeds beside views and tables that cannot be read, until one can be again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.changefeeds.commands import create_changefeed, resume_changefeed
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.model import ChangefeedRecord, ChangefeedState
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.changefeeds.store import ChangefeedStore
from penstock.clock import SYSTEM
from penstock.control.changefeeds import changefeed_details
from penstock.control.deployment import Deployment, open_deployment
from penstock.control.overview.gather import FactsCache
from penstock.control.overview.overview import read_overview
from penstock.control.verify import VerifyOptions, verify_targets
from penstock.settings import parse_changefeed
from support.jobworld import JobWorld, job_world
from support.oddtables import add_description, put_description, tidb_like, with_type

GOOD, ODD, NEVER = "shop.good", "shop.odd", "shop.never"
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(40)")]
SINK = {"protocol": "canal-json", "enable-tidb-extension": "true", "flush-interval": "1s"}
WAIT_S = 60.0


@asynccontextmanager
async def running(world: JobWorld, feeds: ChangefeedStore) -> AsyncIterator[None]:
    runner = ChangefeedRunner(
        world.settings, feeds, lambda order: LocalEngine(order.options.target), owner="here"
    )
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def reached(world: JobWorld) -> AsyncIterator[Deployment]:
    held = open_deployment(world.settings)
    deployment = await world.do(held.__enter__)
    try:
        yield deployment
    finally:
        await world.do(held.__exit__, None, None, None)


async def until(
    feeds: ChangefeedStore, name: str, holds: Callable[[ChangefeedRecord], bool]
) -> ChangefeedRecord:
    deadline = SYSTEM.monotonic() + WAIT_S
    while not holds(found := await feeds.get(name)):
        assert SYSTEM.monotonic() < deadline, found.status
        await SYSTEM.sleep(0.05)
    return found


async def create(world: JobWorld, feeds: ChangefeedStore, folder: Path, name: str, **more: Any) -> None:
    tree = {
        "sink_uri": f"file://{folder}/{name}",
        "start": "snapshot",
        "sink": SINK,
        "lease_ttl_s": 2,
        **more,
    }
    await create_changefeed(feeds, name, parse_changefeed(tree, origin=name), now_ts=await world.now_ts())


def files_of(folder: Path, feed: str, table: str) -> str:
    found = (folder / feed / table.replace(".", "/")).rglob("*.json")
    return "".join(path.read_text() for path in found if "meta" not in path.parts)


async def test_a_feed_goes_on_without_them_or_fails_as_it_was_asked_and_leaves_no_silent_gap(
    tmp_path: Path,
) -> None:
    async with job_world(tmp_path / "world", capture={"tables": ["shop.*"]}) as world:
        feeds = ChangefeedStore(world.async_client)
        await world.create(GOOD, COLUMNS)
        await world.create(ODD, COLUMNS)
        described = (await world.do(world.db.table_info, ODD)).to_json()
        await world.do(add_description, world.client, "shop.seen", tidb_like("view"))
        await world.insert(ODD, {"id": 1, "name": "before"})
        await create(world, feeds, tmp_path, "all", tables=["shop.*"])
        await create(world, feeds, tmp_path, "strict", tables=[GOOD, ODD], ignore_ineligible_table=False)
        async with reached(world) as deployment, running(world, feeds):
            before = await world.insert(ODD, {"id": 2, "name": "just before"})
            for name in ("all", "strict"):
                status = (await until(feeds, name, lambda feed: feed.status.checkpoint_ts >= before)).status
                assert (status.state, status.warning, status.left_out) == (ChangefeedState.NORMAL, "", ())

            await world.do(put_description, world.client, ODD, lambda tree: with_type(tree, "name"))
            await world.do(
                add_description,
                world.client,
                NEVER,
                lambda table_id, name: with_type({**described, "id": table_id, "name": name}, "name"),
            )
            meanwhile = await world.insert(GOOD, {"id": 1, "name": "goes on"})
            found = await until(feeds, "all", lambda feed: feed.status.checkpoint_ts >= meanwhile)
            found = await until(feeds, "all", lambda feed: len(feed.status.left_out) == 2)
            found = await until(feeds, "all", lambda feed: feed.state is ChangefeedState.WARNING)
            assert "goes on without table shop.odd and 1 more" in found.status.warning
            assert "column name: type 200 is unknown; upgrade Penstock" in found.status.warning
            assert "goes on" in files_of(tmp_path, "all", GOOD)
            shown = {each["table"]: each for each in changefeed_details(found)["left_out"]}
            assert shown.keys() == {ODD, NEVER}
            assert shown[ODD]["since_ts"] > before

            failed = await until(feeds, "strict", lambda feed: feed.state is ChangefeedState.FAILED)
            assert "table shop.odd cannot be captured: column name: type 200" in failed.status.error
            assert failed.status.left_out == ()

            overview = await world.do(read_overview, deployment, FactsCache())
            assert sorted((problem.what.value, problem.part) for problem in overview.problems) == [
                ("changefeed_failed", "strict"),
                ("changefeed_warning", "all"),
                ("table_uncapturable", NEVER),
                ("table_uncapturable", ODD),
            ]

            await world.do(put_description, world.client, ODD, lambda _: described)
            await world.readable(ODD)  # before that it would fail for the same reason again
            await resume_changefeed(feeds, "strict")
            after = await world.insert(ODD, {"id": 3, "name": "afterwards"})
            await until(feeds, "strict", lambda feed: feed.status.checkpoint_ts >= after)
            strict = await until(feeds, "strict", lambda feed: feed.state is ChangefeedState.NORMAL)
            assert strict.status.left_out == ()
            await until(feeds, "all", lambda feed: feed.status.checkpoint_ts >= after)
            assert "afterwards" in files_of(tmp_path, "strict", ODD)
            rows = files_of(tmp_path, "all", ODD)
            assert ("just before" in rows, "afterwards" in rows) == (True, False)
            still = await feeds.get("all")
            assert (still.state, len(still.status.left_out)) == (ChangefeedState.WARNING, 2)

            await world.do(world.db.drop_table, NEVER)
            await until(feeds, "all", lambda feed: [out.name for out in feed.status.left_out] == [ODD])
            options = VerifyOptions(at="now", timeout="60s")
            targets = ["changefeed:all", "changefeed:strict"]
            reports = await world.do(verify_targets, deployment, targets, options)
        notes = {
            (report.target, table["table"]): (table["same"], table["note"] or "")
            for report in reports
            for table in report.details()["tables"]
        }
        assert notes["changefeed:strict", ODD] == (True, "")
        assert notes["changefeed:all", GOOD] == (True, "")
        same, note = notes["changefeed:all", ODD]
        assert same is None
        assert "goes on without it" in note
