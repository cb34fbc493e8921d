"""What is kept of secrets is sealed with a key of the deployment: in the job log and for changefeeds."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import eventloop
from penstock.changefeeds.commands import create_changefeed
from penstock.changefeeds.model import ChangefeedStatus
from penstock.changefeeds.store import INFOS, STATUSES, ChangefeedStore
from penstock.control.deployment import open_deployment
from penstock.control.jobs import unregister_job
from penstock.control.secrets import prune_keys, rotate_key
from penstock.jobs.api import Jobs
from penstock.jobs.job import JobId
from penstock.jobs.log.job_log import JobLog
from penstock.kv import Client
from penstock.secret_keys import KEY_ROW, Keyring, MissingKey
from penstock.settings import ChangefeedSettings
from penstock.tables.codec import rows as rowcodec
from penstock.tables.values import to_cell
from support.jobworld import JobWorld, job_world
from support.webhookreceiver import WebhookReceiver

BEARER = "bearer-95c1f0e7b3"
SINK_SECRET = "sink-secret-11d9e2"
SINK = f"s3://lake/x?protocol=csv&secret-access-key={SINK_SECRET}"


def stored(client: Client) -> bytes:
    """Return all keys and values that the cluster has now."""
    with client.begin() as txn:
        return b"\n".join(key + value for key, value in txn.scan(b"", b"\xff"))


async def register(world: JobWorld, url: str) -> int:
    await world.create("shop.items", [("id", "bigint primary key")])
    ts = await world.insert("shop.items", {"id": 1})
    options = {"url": url, "headers.Authorization": f"Bearer {BEARER}"}
    await world.register("shop.items/hook", consumer="webhook", options=options)
    return ts


async def create_feed(world: JobWorld, feeds: ChangefeedStore) -> None:
    settings = ChangefeedSettings.model_validate(
        {"sink_uri": SINK, "storage_options": {"access_key_id": SINK_SECRET}}
    )
    await create_changefeed(feeds, "lake", settings, now_ts=await world.now_ts())


def put_in_clear(world: JobWorld) -> None:
    """Write the row of the job and a changefeed as earlier releases did."""
    log = world.jobs.log
    rows = log.ensure()
    column = rows.table.column("job_spec")
    with world.client.begin() as txn:
        for place, value in list(txn.scan(*rows.range)):
            (job,) = rows.jobs([(place, value)])
            source = {"database": "shop", "table": "items", "account": job.account}
            tree = {**job.spec.model_dump(mode="json", exclude_defaults=True), "source": source}
            cells = rowcodec.decode(value).cells
            cells[column.id] = to_cell(column.type, tree)
            txn.put(place, rowcodec.encode(cells))
        tree = {"settings": {"sink_uri": SINK, "storage_options": {"x": "${HOME}"}, "tables": ["*.*"]}}
        tree |= {"start_ts": 5, "snapshot": False, "created_ms": 1, "stopped": True, "left": None}
        txn.put(INFOS + b"old", json.dumps(tree).encode())
        txn.put(STATUSES + b"old", ChangefeedStatus(checkpoint_ts=5, ddl_ts=5).to_json())
        txn.delete(KEY_ROW)


async def test_the_cluster_has_no_secret_of_a_job_or_changefeed_in_clear(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        async with job_world(tmp_path) as world:
            ts = await register(world, receiver.url)
            feeds = ChangefeedStore(world.async_client)
            await create_feed(world, feeds)
            async with world.running():
                await world.caught_up("shop.items/hook", ts)
            found = await world.do(stored, world.client)
            assert (await feeds.get("lake")).info.settings["sink_uri"] == SINK
        assert receiver.seen[0].headers["Authorization"] == f"Bearer {BEARER}"
    assert BEARER.encode() not in found
    assert receiver.url.encode() not in found
    assert SINK_SECRET.encode() not in found


async def test_what_an_earlier_release_kept_in_clear_is_read_and_sealed_at_the_first_start(
    tmp_path: Path,
) -> None:
    with WebhookReceiver() as receiver:
        async with job_world(tmp_path) as world:
            ts = await register(world, receiver.url)
            await world.do(put_in_clear, world)
            assert BEARER.encode() in await world.do(stored, world.client)
            feeds = ChangefeedStore(world.async_client)
            old = (await feeds.get("old")).info
            assert old.settings["storage_options"] == {"x": "$${HOME}"}  # a text then, and no reference now
            async with world.running():
                await world.caught_up("shop.items/hook", ts)
                assert await feeds.reseal() == 1
                assert await feeds.reseal() == 0
                assert (await feeds.get("old")).info == old
                for _ in range(600):
                    found = await world.do(stored, world.client)
                    if BEARER.encode() not in found:
                        break
            assert (await world.job("shop.items/hook")).watermark >= ts
    assert BEARER.encode() not in found
    assert SINK_SECRET.encode() not in found


async def test_rows_of_dropped_jobs_are_sealed_too(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        await register(world, "http://127.0.0.1:9/")

        def unregister() -> None:
            with world.client.begin() as txn:
                assert world.jobs.unregister_job(txn, JobId.parse("shop.items/hook"))

        await world.do(unregister)
        await world.do(put_in_clear, world)
        assert await world.do(world.jobs.log.reseal) == 1
        assert await world.do(world.jobs.log.reseal) == 0
        assert BEARER.encode() not in await world.do(stored, world.client)
        (job,) = await world.do(lambda: world.jobs.get_jobs(dropped=True))
        assert job.spec.detail.consumer.options["headers.Authorization"] == f"Bearer {BEARER}"


async def test_a_process_without_the_key_says_so_and_changes_nothing(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        await register(world, "http://127.0.0.1:9/")
        feeds = ChangefeedStore(world.async_client)
        await create_feed(world, feeds)
        before = await world.do(stored, world.client)
        stranger = Keyring(tmp_path / "stranger")
        jobs = Jobs(world.client, keys=stranger)
        with pytest.raises(
            MissingKey, match=r"sealed with key [0-9a-f]{12}, which .*seal.key does not have; copy"
        ):
            await world.do(jobs.get_jobs)
        with pytest.raises(MissingKey):
            await ChangefeedStore(world.async_client, keys=stranger).list()
        settings = ChangefeedSettings.model_validate({"sink_uri": "s3://other/y?protocol=csv"})
        with pytest.raises(MissingKey):
            await create_changefeed(
                ChangefeedStore(world.async_client, keys=stranger),
                "more",
                settings,
                now_ts=await world.now_ts(),
            )
        with pytest.raises(MissingKey):
            await world.do(JobLog(world.client, keys=stranger).reseal)
        assert not stranger.path.exists()
        assert await world.do(stored, world.client) == before


async def test_a_rotation_seals_everything_with_the_new_key_while_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "deployment"
    async with job_world(tmp_path) as world:
        world.jobs = Jobs(world.client, keys=Keyring(path))
        await register(world, "http://127.0.0.1:9/")
        running = ChangefeedStore(world.async_client, keys=Keyring(path))
        await create_feed(world, running)
        settings = world.settings.model_copy(update={"secrets_dir": path})

        def rotate() -> tuple[dict[str, Any], dict[str, Any]]:
            with open_deployment(settings) as deployment:
                prepared = rotate_key(deployment, prepare=True)
                assert not prepared["seals"]
                return rotate_key(deployment), prune_keys(deployment)

        first = Keyring(path).ids
        rotated, pruned = await world.do(rotate)
        assert (rotated["jobs"], rotated["changefeeds"], pruned["dropped"]) == (1, 1, list(first))
        assert (pruned["jobs"], pruned["changefeeds"]) == (0, 0)
        assert Keyring(path).ids == (rotated["key"],) != first
        # Processes that run have read the file again.
        job = await world.job("shop.items/hook")
        assert job.spec.detail.consumer.options["headers.Authorization"] == f"Bearer {BEARER}"
        assert (await running.get("lake")).info.settings["sink_uri"] == SINK
        await running.reseal()
        await world.register("shop.items/second", consumer="webhook", options={"url": "http://127.0.0.1:9/"})


async def test_a_deployment_whose_key_is_lost_goes_on_without_what_it_sealed(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        await register(world, "http://127.0.0.1:9/")
        await create_feed(world, ChangefeedStore(world.async_client))
        settings = world.settings.model_copy(update={"secrets_dir": tmp_path / "new"})

        def recover() -> None:
            with open_deployment(settings) as deployment:
                with pytest.raises(MissingKey):
                    rotate_key(deployment)
                assert not deployment.keys.path.exists()
                rotated = rotate_key(deployment, lost=True)
                assert (rotated["jobs"], rotated["changefeeds"]) == (1, 1)
                (job,) = deployment.jobs().get_jobs()
                assert job.spec.detail.consumer.options == {}
                assert job.spec.consumer == "webhook"
                (feed,) = eventloop.run(deployment.feeds.list())
                assert feed.info.settings["sink_uri"] == ""
                eventloop.run(deployment.feeds.remove("lake"))
                unregister_job(deployment.jobs(), JobId.parse("shop.items/hook"))

        await world.do(recover)
