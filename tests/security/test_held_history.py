"""An account whose targets take nothing holds back so much history as it may, and no more."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.changefeeds.engines.engine import SinkEngine
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner, EngineOrder
from penstock.clock import SYSTEM
from penstock.eventstore.history_holds import HistoryHolds
from penstock.follow.follower import JOBS_HOLDER
from penstock.follow.holds import HeldHistory, choose_released
from penstock.jobs.job import JobKey
from penstock.jobs.runner.held_bytes import release_over_quota
from penstock.settings import ApiSettings
from support.apiworld import TOKENS, ApiWorld, api_world
from support.jobdoubles import Copy
from support.jobworld import JobWorld, job_world

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


def key(number: int) -> JobKey:
    return JobKey(1, number, "job", 1)


def history(account: str, nbytes: int | None, *numbers: int) -> HeldHistory[JobKey]:
    return HeldHistory(account, nbytes, frozenset(map(key, numbers)))


@pytest.mark.parametrize(
    ("held", "released"),
    [
        ([history("ann", 60, 1), history("ann", 40, 2)], ()),
        ([history("ann", 60, 1), history("ann", 41, 2)], (1,)),
        ([history("ann", 300, 1, 2), history("ann", 200, 3), history("ann", 100, 4)], (1, 2, 3)),
        ([history("ann", 101, 1), history("bob", 1000, 2)], (1,)),
        ([history("bob", 1001, 2)], (2,)),
        ([history("ann", None, 1), history("ann", 1, 2)], (1,)),
        ([], ()),
    ],
)
def test_those_who_hold_most_of_an_account_are_released_first(
    held: list[HeldHistory[JobKey]], released: tuple[int, ...]
) -> None:
    assert choose_released(held, {"ann": 100, "bob": 1000}) == frozenset(map(key, released))


async def test_history_of_an_account_above_its_limit_is_not_held_and_its_job_goes_on(tmp_path: Path) -> None:
    """Eve's target takes no end of its first fill, before which her job has no watermark."""
    copies = {name: Copy() for name in ("ann", "bob", "eve")}
    answers = threading.Event()
    accounts = {
        "ann": {"token": TOKENS["ann"], "bytes_held_max": 1},
        "bob": {"token": TOKENS["bob"]},
        "eve": {"token": "token-of-eve-0123456789", "bytes_held_max": 1},
    }

    def wait_later(stage: str) -> None:
        if stage == "commit" and copies["ann"].ts and copies["bob"].ts:
            answers.wait(300)

    def wait_at_first(stage: str) -> None:
        if stage == "commit":
            answers.wait(300)

    def holds(world: JobWorld, table_id: int) -> list[int]:
        assert world.capture is not None
        held = HistoryHolds(world.capture.store._storage)
        return [hold.ts for hold in held.list_holds(table_id) if JOBS_HOLDER in hold.path]

    async with job_world(tmp_path) as world:
        settings = world.settings.model_copy(update={"api": ApiSettings(accounts=accounts)})
        tables = {}
        for account in copies:
            await world.do(world.db.create_account, account)
            await world.do(lambda name=account: world.db.create_database(f"of_{name}", account=name))
            tables[account] = await world.create(f"of_{account}.items", COLUMNS)
            await world.insert(f"of_{account}.items", {"id": 0, "name": "first"})
            await world.register(f"of_{account}.items/copy", consumer=account)
        quota = release_over_quota(world.source, settings, lag_s=0, every_s=0.1)
        faults = {"ann": wait_later, "bob": wait_later, "eve": wait_at_first}
        async with world.running(find=lambda name: copies[name].consumer(faults[name]), side_tasks=[quota]):
            await world.until(lambda: bool(copies["ann"].ts and copies["bob"].ts), "no first sync")
            for account in copies:
                await world.until(lambda id_=tables[account]: bool(holds(world, id_)), "nothing is held")
                rows = [{"id": number, "name": "x" * 60} for number in range(1, 200)]
                await world.insert(f"of_{account}.items", *rows)
            for account in ("ann", "eve"):
                await world.until(
                    lambda id_=tables[account]: not holds(world, id_), f"{account} holds back what she likes"
                )
                labels = {"account": account}
                assert (REGISTRY.get_sample_value("penstock_jobs_held_bytes", labels) or 0) > 1
            await world.until(lambda: bool(holds(world, tables["bob"])), "bob is within his limit")
            answers.set()
            await world.until(lambda: all(len(copy.rows) == 200 for copy in copies.values()), "rows are lost")
            await world.until(lambda: bool(holds(world, tables["ann"])), "ann is within her limit again")


def test_changefeeds_of_an_account_above_its_limit_hold_nothing_until_they_catch_up(tmp_path: Path) -> None:
    accounts = {
        "ann": {"token": TOKENS["ann"], "bytes_held_max": 1, "targets": [f"file://{tmp_path}/ann"]},
        "bob": {"token": TOKENS["bob"], "targets": [f"file://{tmp_path}/bob"]},
    }
    with api_world(tmp_path, {"accounts": accounts, "requests_burst": 100_000}) as world:
        db = world.world.db
        for account in accounts:
            db.create_account(account)
            db.create_database(f"of_{account}", account=account)
            db.create_table(f"of_{account}.items", COLUMNS)
            wanted = {
                "id": "copy",
                "sink_uri": f"file://{tmp_path}/{account}/copy",
                "tables": [f"of_{account}.*"],
                "sink": {"protocol": "canal-json", "flush-interval": "1s"},
            }
            made = world.client(account).post("/api/v1/changefeeds", json=wanted)
            assert made.status_code == 201, made.text
        tables = {account: db.table_info(f"of_{account}.items").id for account in accounts}
        world.run(_fall_behind(world, tables))


async def _fall_behind(world: ApiWorld, tables: Mapping[str, int]) -> None:
    answers = threading.Event()

    def open_engine(order: EngineOrder) -> SinkEngine:
        answers.wait(120)
        return LocalEngine(order.options.target)

    def holds(account: str) -> bool:
        assert world.world.capture is not None
        held = HistoryHolds(world.world.capture.store._storage).list_holds(tables[account])
        return any(f"changefeed-{account}.copy" in hold.path for hold in held)

    settings, feeds = world.deployment.settings, world.deployment.feeds
    runner = ChangefeedRunner(settings, feeds, open_engine, owner="here", lag_s=0, measure_s=0.1)
    task = asyncio.create_task(runner.run())
    until = world.world.until
    try:
        for account in tables:
            await until(lambda account=account: holds(account), "nothing is held")
        for account in tables:
            rows = [{"id": number, "name": "x" * 60} for number in range(200)]
            last_ts = await world.world.insert(f"of_{account}.items", *rows)
        await until(lambda: not holds("ann"), "ann holds back what she likes")
        assert (REGISTRY.get_sample_value("penstock_sink_held_bytes", {"account": "ann"}) or 0) > 1
        assert holds("bob"), "bob is within his limit"
        answers.set()
        for account in tables:
            async with asyncio.timeout(60):
                while (await feeds.get(f"{account}.copy")).status.checkpoint_ts < last_ts:
                    await SYSTEM.sleep(0.05)
        await until(lambda: holds("ann"), "ann is within her limit again")
    finally:
        answers.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
