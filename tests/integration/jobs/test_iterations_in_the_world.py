"""Iterations with everything real: store, capture, log and runner; and consumers as a user writes them."""

import threading
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from penstock.clock import SYSTEM
from penstock.errors import Fenced, Invalid
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.spec import JobSpec, UpdateOptions
from penstock.kv import Client
from support.iterationbench import all_rows
from support.jobdoubles import Copy, consumer_of
from support.jobworld import JobWorld, job_world

ITEMS = "shop.items"
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


async def _rows(world: JobWorld, ts: int) -> dict[tuple[int], dict[str, Any]]:
    return {(row["id"],): row for row in (await world.rows(ITEMS, ts)).to_pylist()}


def _scans() -> float:
    return REGISTRY.get_sample_value("penstock_jobs_scans_total", {"kind": "batches"}) or 0.0


async def test_jobs_that_share_read_the_table_once(tmp_path: Path) -> None:
    copies = {f"copy{number}": Copy() for number in range(8)}
    classes = {name: copy.consumer() for name, copy in copies.items()}
    async with job_world(tmp_path) as world:
        await world.create(ITEMS, COLUMNS)
        await world.insert(ITEMS, *({"id": number, "name": f"n{number}"} for number in range(50)))
        for name in copies:
            await world.register(f"{ITEMS}/{name}", consumer=name, trigger={"job_type": "default"})
        async with world.running(find=classes.__getitem__):

            async def level() -> bool:
                return len({(await world.job(f"{ITEMS}/{name}")).watermark for name in copies}) == 1

            marks = [(await world.caught_up(f"{ITEMS}/{name}", 1)).watermark for name in copies]
            while not await level():  # those that lag catch up one at a time
                await world.upsert(ITEMS, {"id": 1, "name": "again"})
                for name in copies:
                    await world.caught_up(f"{ITEMS}/{name}", max(marks))
            before = _scans(), sum(len(copy.commits) for copy in copies.values())
            await world.upsert(ITEMS, {"id": 2, "name": "changed"}, {"id": 99, "name": "new"})
            await world.until(lambda: all((99,) in copy.rows for copy in copies.values()))
            scans = _scans() - before[0]
            commits = sum(len(copy.commits) for copy in copies.values()) - before[1]
        assert commits == 8 * scans
        for copy in copies.values():
            assert copy.rows == await _rows(world, copy.ts)


class KvCopy:
    """Rows in the key-value store, in one transaction with the watermark."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.at_commit = threading.Event()
        self.may_commit = threading.Event()
        self.may_commit.set()
        self.refused: list[Exception] = []

    def consume(self, job: JobContext, data: DataRetriever) -> None:
        prefix = f"copy/{job.id.job}/".encode()
        changes = _last(data)
        self.at_commit.set()
        assert self.may_commit.wait(30)
        try:
            with self.client.begin() as txn:
                if data.data_type is DataType.SNAPSHOT:
                    for key, _ in txn.scan(prefix, prefix + b"\xff"):
                        txn.delete(key)
                for number, name in changes.items():
                    key = prefix + b"%08d" % number
                    txn.delete(key) if name is None else txn.put(key, name.encode())
                count = int(txn.get(b"count/" + prefix) or 0)
                txn.put(b"count/" + prefix, b"%d" % (count + 1))
                data.update_watermark(txn)
        except Fenced as error:
            self.refused.append(error)
            raise

    def rows(self, name: str) -> dict[int, str]:
        prefix = f"copy/{name}/".encode()
        found = self.client.snapshot(self.client.timestamp()).iter(prefix, prefix + b"\xff")
        return {int(key.removeprefix(prefix)): value.decode() for key, value in found}

    def commits(self, name: str) -> int:
        return int(self.client.snapshot(self.client.timestamp()).get(f"count/copy/{name}/".encode()) or 0)


def _last(data: DataRetriever) -> dict[int, str | None]:
    """The last change of each row."""
    rows = sorted(all_rows(data), key=lambda row: (row[COMMIT_TS], "name" in row))
    return {row["id"]: row.get("name") for row in rows}


async def test_rows_and_watermark_are_one_transaction_of_the_store(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        copy = KvCopy(world.client)
        await world.create(ITEMS, COLUMNS)
        await world.insert(ITEMS, {"id": 1, "name": "one"}, {"id": 2, "name": "two"})
        await world.register(f"{ITEMS}/copy", consumer="kv")
        async with world.running(find=lambda _name: consumer_of(copy.consume)):
            await world.caught_up(f"{ITEMS}/copy", 1)
            for number in range(3, 8):
                await world.insert(ITEMS, {"id": number, "name": f"n{number}"})
            await world.delete(ITEMS, 1)
            while 1 in (found := await world.do(copy.rows, "copy")):
                await SYSTEM.sleep(0.02)
        job = await world.job(f"{ITEMS}/copy")
        assert job.state is JobState.COMPLETED
        assert job.status.committed_ts == job.watermark
        expected = await _rows(world, job.watermark)
        assert found == {number: row["name"] for (number,), row in expected.items()}
        assert not copy.refused


async def test_an_update_that_interrupts_fences_the_transaction_of_its_iteration(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        copy = KvCopy(world.client)
        copy.may_commit.clear()
        await world.create(ITEMS, COLUMNS)
        await world.insert(ITEMS, {"id": 1, "name": "one"})
        await world.register(f"{ITEMS}/copy", consumer="kv")
        async with world.running(find=lambda _name: consumer_of(copy.consume)):
            await world.until(copy.at_commit.is_set)
            canceled = await world.do(_interrupt, world, JobId.parse(f"{ITEMS}/copy"))
            assert canceled.state is JobState.CANCELED
            copy.may_commit.set()
            await world.until(lambda: bool(copy.refused))
            job = await world.caught_up(f"{ITEMS}/copy", 1)
        assert job.spec.priority == 9
        assert await world.do(copy.rows, "copy") == {1: "one"}
        assert await world.do(copy.commits, "copy") == 1  # the one that was fenced wrote nothing


def _interrupt(world: JobWorld, job: JobId) -> Job:
    with world.client.begin() as txn:
        spec = JobSpec.parse({"detail": {"priority": 9}})
        return world.jobs.update_job_spec(txn, job, spec, UpdateOptions(interrupt=True))


async def test_a_job_that_is_unregistered_while_it_runs_writes_nothing_more(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        copy = KvCopy(world.client)
        copy.may_commit.clear()
        await world.create(ITEMS, COLUMNS)
        await world.insert(ITEMS, {"id": 1, "name": "one"})
        await world.register(f"{ITEMS}/copy", consumer="kv")
        async with world.running(find=lambda _name: consumer_of(copy.consume)):
            await world.until(copy.at_commit.is_set)

            def drop() -> None:
                with world.client.begin() as txn:
                    assert world.jobs.unregister_job(txn, JobId.parse(f"{ITEMS}/copy"))

            await world.do(drop)
            copy.may_commit.set()
            await world.until(lambda: bool(copy.refused))
        assert await world.do(copy.rows, "copy") == {}
        (job,) = await world.do(lambda: world.jobs.get_jobs(dropped=True))
        assert not job.live
        assert job.watermark == 0


async def test_each_consumer_has_its_own_error_and_siblings_go_on(tmp_path: Path) -> None:
    class Refusing(Consumer):
        def consume(self, data: DataRetriever) -> None:
            raise Invalid("the target has no such table; create it")

    good = Copy()
    classes = {"good": good.consumer(), "bad": Refusing}
    async with job_world(tmp_path) as world:
        await world.create(ITEMS, COLUMNS)
        await world.insert(ITEMS, {"id": 1, "name": "one"})
        for name in classes:
            await world.register(f"{ITEMS}/{name}", consumer=name, trigger={"job_type": "default"})
        async with world.running(find=classes.__getitem__):
            bad = await world.wait_until_stopped(f"{ITEMS}/bad")
            for number in (1, 2):
                await world.upsert(ITEMS, {"id": number, "name": f"n{number}"})
                await world.until(
                    lambda number=number: good.rows.get((number,), {}).get("name") == f"n{number}"
                )
        assert (bad.status.error_code, bad.watermark) == (10000, 0)
        assert bad.status.error_msg == "the target has no such table; create it"
        assert good.rows == await _rows(world, good.ts)
