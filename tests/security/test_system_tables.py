"""The job log holds the options of every tenant's jobs: what captures and sends everything has none of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock import eventloop
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner, create_configured_changefeeds
from penstock.changefeeds.store import ChangefeedStore
from penstock.control import tenancy
from penstock.control.tables import find_table, list_tables
from penstock.errors import Invalid, NotFound
from penstock.eventstore import paths
from penstock.eventstore.capture import tables as capture_tables
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.manifest_log import load
from penstock.jobs.job import JobId
from penstock.jobs.log.job_rows import LOG_NAME
from penstock.object_storage import open_storage
from penstock.settings import ChangefeedSettings
from support.apiworld import TOKENS, api_world
from support.jobworld import JobWorld, job_world
from support.webhookreceiver import WebhookReceiver

BEARER = "bearer-7f3a19c4d2"
"""What a webhook expects; in clear it would be nowhere but in the process that sends it."""


def files_with(word: str, *folders: Path) -> list[str]:
    """Return the files below some folders in which a text occurs."""
    found = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in found if word.encode() in path.read_bytes()]


@asynccontextmanager
async def feeding(world: JobWorld, folder: Path, **settings: object) -> AsyncIterator[ChangefeedStore]:
    """Run one changefeed, as `penstock changefeed run` does, in this process."""
    uri = f"file://{folder}?protocol=canal-json&flush-interval=2s"
    wanted = ChangefeedSettings.model_validate({"sink_uri": uri, "start": "snapshot", **settings})
    configured = world.settings.model_copy(update={"changefeeds": {"all": wanted}})
    feeds = ChangefeedStore(world.async_client)
    await create_configured_changefeeds(feeds, configured, now_ts=await world.now_ts())
    runner = ChangefeedRunner(
        configured, feeds, lambda order: LocalEngine(order.options.target), owner="test"
    )
    running = asyncio.create_task(runner.run())
    try:
        yield feeds
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def sent_up_to(world: JobWorld, feeds: ChangefeedStore, ts: int) -> None:
    for _ in range(600):
        if (await feeds.get("all")).status.checkpoint_ts >= ts:
            return
        await asyncio.sleep(0.1)  # noqa: TID251 - a deadline of a minute
    raise AssertionError(f"the changefeed does not reach {ts}")


async def register_webhook(world: JobWorld, url: str) -> None:
    await world.create("shop.items", [("id", "bigint primary key")])
    ts = await world.insert("shop.items", {"id": 1})
    await world.register(
        "shop.items/hook",
        consumer="webhook",
        options={"url": url, "headers.Authorization": f"Bearer {BEARER}"},
    )
    async with world.running():
        await world.caught_up("shop.items/hook", ts)


async def test_an_admin_may_name_the_log_exactly(tmp_path: Path) -> None:
    async with job_world(tmp_path, capture={"tables": ["shop.*", LOG_NAME]}) as world:
        with WebhookReceiver() as receiver:
            await register_webhook(world, receiver.url)
        await world.readable(LOG_NAME)
        async with feeding(world, tmp_path / "sink", tables=[LOG_NAME]) as feeds:
            await sent_up_to(world, feeds, await world.now_ts())
    assert list((tmp_path / "sink" / "penstock" / "iscp_log").rglob("CDC*.json"))
    assert not (tmp_path / "sink" / "shop").exists()


async def test_a_captured_log_is_removed_from_storage_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with job_world(tmp_path, capture={"tables": [LOG_NAME, "shop.*"]}) as world:  # as *.* was before
        with WebhookReceiver() as receiver:
            await register_webhook(world, receiver.url)
        log_id = await world.table_id(LOG_NAME)
        storage = open_storage(world.settings.capture.storage)
        ts = await world.now_ts()
        await world.until(lambda: load(storage, paths.table_root(log_id)).flushed_ts >= ts)
        assert world.capture is not None
        await world.capture.stop(flush=False)
        assert storage.names(paths.table_root(log_id) + "/")
        capture = world.settings.capture.model_copy(update={"tables": ("*.*",)})
        world.capture = await Capture.start(world.settings.model_copy(update={"capture": capture}))
        try:
            assert storage.names(f"{paths.table_root(log_id)}/") == []
            assert not [name for name in storage.names(paths.NAMES) if "iscp_log" in name]
            assert storage.names(paths.name_folder("shop", "items"))
            assert log_id not in world.capture.tables
            await world.readable("shop.items")
            assert files_with(BEARER, tmp_path / "events") == []
        finally:
            await world.capture.stop()
    # Segments of the local log go as soon as nothing else in them is needed.
    assert files_with(BEARER, tmp_path / "capture") == []


async def test_a_table_that_is_no_job_log_stays_on_storage(tmp_path: Path) -> None:
    async with job_world(tmp_path, capture={"tables": ["penstock.mine"]}) as world:
        mine = await world.create("penstock.mine", [("id", "bigint primary key")])
        await world.insert("penstock.mine", {"id": 1})
        ts = await world.readable("penstock.mine")
        storage = open_storage(world.settings.capture.storage)
        await world.until(lambda: load(storage, paths.table_root(mine)).flushed_ts >= ts)
        assert world.capture is not None
        await world.capture.stop()
        capture = world.settings.capture.model_copy(update={"tables": ("*.*",)})
        world.capture = await Capture.start(world.settings.model_copy(update={"capture": capture}))
        assert mine not in world.capture.tables
        assert storage.names(f"{paths.table_root(mine)}/data/")


def test_a_tenant_has_no_system_table_whatever_its_name(tmp_path: Path) -> None:
    accounts = {"sys": {"token": TOKENS["ann"], "targets": ["file:///lake/"]}}
    with api_world(tmp_path, {"accounts": accounts}) as world:
        eventloop.run(world.world.create("shop.items", [("id", "bigint primary key")]))
        eventloop.run(world.world.create("mysql.user", [("id", "bigint primary key")]))
        world.world.jobs.log.ensure()
        assert [row["table"] for row in list_tables(world.deployment, account="sys")] == ["shop.items"]
        with pytest.raises(NotFound):
            find_table(world.deployment, "mysql.user", account="sys")
        databases = world.deployment.catalog.owned_databases("sys")
        tenant = tenancy.Tenant.of("sys", databases, ["file:///lake/"])
        for name in (LOG_NAME, "mysql.user", "Penstock.*"):
            with pytest.raises(tenancy.TenantRefused):
                tenancy.check_feed(
                    tenant,
                    ChangefeedSettings.model_validate({"sink_uri": "file:///lake/x", "tables": [name]}),
                )
        client = world.client()
        client.headers["Authorization"] = f"Bearer {TOKENS['ann']}"
        for table in (LOG_NAME, "mysql.user"):
            assert client.get(f"/api/v1/tables/{table}").status_code == 404
            job = {"job": f"{table}/x", "spec": {"detail": {"consumer": {"consumer": "delta"}}}}
            assert client.post("/api/v1/jobs", json=job).status_code == 404
            feed = {"id": "x", "sink_uri": "file:///lake/x", "tables": [table]}
            assert client.post("/api/v1/changefeeds", json=feed).status_code == 403
        with world.world.client.begin() as txn, pytest.raises(Invalid, match="another account"):
            world.deployment.jobs("sys").register_job(
                txn,
                JobId.parse("mysql.user/x"),
                world.world.jobs.log,  # type: ignore[arg-type] # never read
            )


def test_the_log_that_is_removed_never_had_another_name(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}")
    names = capture_tables.TableNames(storage, None, None)  # type: ignore[arg-type] # not used
    for path in (
        paths.name_mark("penstock", "iscp_log", 1),
        paths.name_mark("penstock", "iscp_log", 2),
        paths.name_mark("shop", "kept", 2),
        paths.name_mark("shop", "iscp_log", 3),
    ):
        storage.write(path, b"")
    assert names.find_uninvited(["*.*"]) == {1}
    assert names.find_uninvited(["penstock.iscp_log"]) == set()
