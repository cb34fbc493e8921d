"""A name of a database or a table goes from one account to another: its former owner gets none of the rows.

Changefeeds name databases, jobs follow tables by their ids, and readers of the API name tables. What counts
for all of them is whose the table was when a row was committed.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.clock import SYSTEM
from penstock.consumers.kv import KvTable
from penstock.consumers.schema_evolution import TargetColumn
from penstock.errors import Invalid
from penstock.jobs.job import ErrorCode, JobId, JobKey
from penstock.kv.transact import transact
from penstock.tables.accounts import owner_field
from penstock.tables.meta import ACCOUNTS, MetaWriter
from penstock.testing.consumers import job_context
from support.apiworld import TOKENS, ApiWorld, api_world
from support.jobdoubles import Copy

FEEDS = "/api/v1/changefeeds"
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
SECRET = "known-to-bob-alone"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("hands")
    accounts: dict[str, Any] = {"root": {"token": TOKENS["root"], "admin": True}} | {
        account: {"token": TOKENS[account], "targets": [f"file://{folder}/{account}"]}
        for account in ("ann", "bob")
    }
    with api_world(folder, {"accounts": accounts, "requests_burst": 100_000}) as made:
        for account in ("ann", "bob"):
            made.world.db.create_account(account)
        yield made


def own(world: ApiWorld, account: str, database: str, value: str) -> int:
    """Make a database of an account with a table and a row; return when the row was committed."""
    world.world.db.create_database(database, account=account)
    world.world.db.create_table(f"{database}.items", COLUMNS)
    return world.run(world.world.insert(f"{database}.items", {"id": 1, "name": value}))


def feed(world: ApiWorld, account: str, name: str, database: str) -> None:
    made = world.client(account).post(
        FEEDS,
        json={
            "id": name,
            "sink_uri": f"file://{world.folder}/{account}/{name}",
            "tables": [f"{database}.*"],
            "start": "snapshot",
            "sink": {"protocol": "canal-json", "flush-interval": "1s"},
        },
    )
    assert made.status_code == 201, made.text


def texts(world: ApiWorld, account: str, name: str) -> str:
    """Everything that a changefeed wrote: rows, schemas and statements."""
    files = (world.folder / account / name).rglob("*")
    return "".join(f"{path.name}\n{path.read_text()}\n" for path in sorted(files) if path.is_file())


@asynccontextmanager
async def running(world: ApiWorld) -> AsyncIterator[None]:
    """Run the changefeeds, as `penstock changefeed run` does."""
    runner = ChangefeedRunner(
        world.deployment.settings,
        world.deployment.feeds,
        lambda order: LocalEngine(order.options.target),
        owner="here",
    )
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def reached(world: ApiWorld, name: str, ts: int) -> None:
    """Wait until a changefeed has passed a timestamp."""
    async with asyncio.timeout(60):
        while (await world.deployment.feeds.get(name)).status.checkpoint_ts < ts:
            await SYSTEM.sleep(0.05)


def give(world: ApiWorld, database: str, account: str) -> None:
    """Give a database to another account, as an operator's tool may do."""
    db = world.world.db
    owner = next(known for known in db.accounts() if known.name == account)
    info = next(known for known in db.databases() if known.name == database)
    begin = world.world.client.begin
    transact(
        begin, lambda txn: MetaWriter(txn).put_field(ACCOUNTS, owner_field(info.id), owner.id), clock=SYSTEM
    )


def test_a_changefeed_does_not_follow_the_name_of_its_dropped_database(world: ApiWorld) -> None:
    own(world, "ann", "shared", "known-to-ann")
    own(world, "ann", "lasting", "of-ann")
    for name in ("runs", "waits"):
        feed(world, "ann", name, "shared")

    async def attack() -> None:
        async with running(world):
            for name in ("runs", "waits"):
                await reached(world, f"ann.{name}", await world.world.now_ts())
        client = world.client("ann")
        paused = await asyncio.to_thread(client.post, f"{FEEDS}/waits/pause")
        assert paused.status_code == 200, paused.text
        async with running(world):
            await asyncio.to_thread(world.world.db.drop_database, "shared")
            await asyncio.to_thread(own, world, "bob", "shared", SECRET)
            await world.world.readable("shared.items")
            await reached(world, "ann.runs", await world.world.now_ts())
            # It was captured long before this one looks at whose the database is.
            resumed = await asyncio.to_thread(client.post, f"{FEEDS}/waits/resume")
            assert resumed.status_code == 200, resumed.text
            await reached(world, "ann.waits", await world.world.now_ts())
            last = await world.world.insert("shared.items", {"id": 2, "name": f"{SECRET}-too"})
            await world.world.do(world.world.db.create_table, f"shared.{SECRET}", COLUMNS)
            await world.world.do(world.world.db.drop_database, "shared")
            for name in ("runs", "waits"):
                await reached(world, f"ann.{name}", max(last, await world.world.now_ts()))

    world.run(attack())
    for name in ("runs", "waits"):
        wrote = texts(world, "ann", name)
        assert "known-to-ann" in wrote
        assert SECRET not in wrote
        assert wrote.count("DROP DATABASE") == 1, "bob's databases come and go without a word to ann"
        assert wrote.count("CREATE DATABASE") == 0
        assert world.client("ann").get(f"{FEEDS}/{name}").json()["state"] == "normal"
        assert world.client("ann").delete(f"{FEEDS}/{name}").status_code == 204


def test_a_changefeed_loses_a_database_that_is_given_away_and_those_of_admins_go_on(world: ApiWorld) -> None:
    own(world, "ann", "given", "written-by-ann")
    own(world, "bob", "kept", "of-bob")
    feed(world, "ann", "loses", "given")
    made = world.client("root").post(
        FEEDS,
        json={
            "id": "all",
            "sink_uri": f"file://{world.folder}/root/all",
            "tables": ["given.*"],
            "start": "snapshot",
            "sink": {"protocol": "canal-json", "flush-interval": "1s"},
        },
    )
    assert made.status_code == 201, made.text

    async def attack() -> None:
        async with running(world):
            for name in ("ann.loses", "all"):
                await reached(world, name, await world.world.now_ts())
            await world.world.do(give, world, "given", "bob")
            ts = await world.world.insert("given.items", {"id": 2, "name": SECRET})
            await world.world.do(world.world.db.rename_table, "kept.items", f"given.{SECRET}")
            for name in ("ann.loses", "all"):
                await reached(world, name, max(ts, await world.world.now_ts()))

    world.run(attack())
    lost, everything = texts(world, "ann", "loses"), texts(world, "root", "all")
    assert "written-by-ann" in lost
    assert SECRET not in lost
    assert "DROP TABLE `given`.`items`" in lost
    assert SECRET in everything, "changefeeds of admins go on"
    assert "DROP TABLE" not in everything
    read = world.client("ann").get("/api/v1/tables/given.items/changes")
    assert read.status_code == 404, read.text
    before = world.client("bob").get("/api/v1/tables/given.items/changes", params={"from_ts": 1})
    assert "written-by-ann" not in before.text


def test_a_job_stops_when_its_table_goes_to_another_account(world: ApiWorld) -> None:
    own(world, "ann", "of_ann", "written-by-ann")
    own(world, "bob", "of_bob", "of-bob")
    copies = {"copy": Copy()}

    async def attack() -> None:
        job = await world.world.register("of_ann.items/copy", consumer="copy")
        async with world.world.running(find=lambda name: copies[name].consumer()):
            first = await world.world.insert("of_ann.items", {"id": 2, "name": "also-by-ann"})
            await world.world.caught_up("of_ann.items/copy", first)
            await world.world.do(world.world.db.rename_table, "of_ann.items", "of_bob.moved")
            await world.world.insert("of_bob.moved", {"id": 3, "name": SECRET})

            def stopped() -> bool:
                found = next(row for row in world.world.jobs.get_jobs() if row.key == job.key)
                return found.status.error_code == ErrorCode.TABLE_GONE

            async with asyncio.timeout(60):
                while not await asyncio.to_thread(stopped):
                    await SYSTEM.sleep(0.05)

    world.run(attack())
    assert SECRET not in str(copies["copy"].rows)
    assert "also-by-ann" in str(copies["copy"].rows)


def test_a_copy_does_not_follow_its_database_to_another_account(world: ApiWorld) -> None:
    """A tail is written to the target that is there, and so is a repair."""
    own(world, "ann", "source_of_ann", "written-by-ann")
    own(world, "ann", "target_of_ann", "of-ann")
    name, client = "source_of_ann.items/copied", world.client("ann")

    async def attack() -> None:
        await world.world.register(name, consumer="kv", options={"table": "target_of_ann.copied"})
        async with world.world.running():
            first = await world.world.insert("source_of_ann.items", {"id": 2, "name": "before"})
            await world.world.caught_up(name, first)
            await world.world.do(give, world, "target_of_ann", "bob")
            await world.world.insert("source_of_ann.items", {"id": 3, "name": "after"})
            job = await world.world.wait_until_stopped(name)
            assert "database target_of_ann belongs to account bob" in job.status.error_msg

    world.run(attack())
    for what in ("verify", "repair"):
        refused = client.post(f"/api/v1/jobs/{name}/{what}")
        assert (refused.status_code, "belongs to account bob" in refused.text) == (400, True), refused.text
    left = world.run(world.world.rows("target_of_ann.copied"))
    assert sorted(left.column("name").to_pylist()) == ["before", "written-by-ann"]


def test_a_commit_that_began_before_a_database_changed_hands_is_refused(world: ApiWorld) -> None:
    own(world, "ann", "late_of_ann", "x")
    db, account = world.world.db, world.world.db.account_of("late_of_ann").id
    job = replace(job_context(world.folder, "kv", {"table": "late_of_ann.copy"}), key=key_of(account))
    consumer = KvTable(replace(job, settings=world.world.settings))
    mark = consumer._schema().claim([TargetColumn(1, "id", "bigint", key=True)], 0)
    give(world, "late_of_ann", "bob")
    for check in (
        lambda txn: consumer._marks.check_claim(txn, mark.attempt),
        lambda txn: consumer._marks.check_at(txn, 7),
    ):
        with db.begin() as txn, pytest.raises(Invalid, match="belongs to account bob"):
            check(txn)


def key_of(account_id: int) -> JobKey:
    return JobKey(account_id=account_id, table_id=5, job_name="copy", job_id=1)


def test_a_rebuild_does_not_fill_the_target_of_one_account_with_rows_of_another(world: ApiWorld) -> None:
    own(world, "ann", "again", "written-by-ann")
    world.run(world.world.register("again.items/copy", consumer="copy"))
    world.world.db.drop_database("again")
    own(world, "bob", "again", SECRET)
    with world.world.client.begin() as txn, pytest.raises(Invalid, match="from account ann to bob"):
        world.world.jobs.rebuild_job(txn, JobId.parse("again.items/copy"))
