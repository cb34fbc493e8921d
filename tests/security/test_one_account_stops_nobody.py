"""What the targets of one account do, or do not do, is not felt by the jobs of another."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client import REGISTRY

from penstock.changefeeds import run as changefeed_run
from penstock.changefeeds import runner as changefeed_runner
from penstock.changefeeds.commands import create_changefeed, pause_changefeed, resume_changefeed
from penstock.changefeeds.engines.engine import (
    DirectFile,
    DirectResult,
    EncodedSlice,
    EncodeWork,
    SinkEngine,
)
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.model import ChangefeedState
from penstock.changefeeds.runner import ChangefeedRunner, EngineOrder
from penstock.changefeeds.store import ChangefeedStore
from penstock.cli.up.parts import move_folders
from penstock.cli.up.supervisor import run_deployment
from penstock.clock import SYSTEM
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.errors import PenstockError
from penstock.eventloop import call_in_thread
from penstock.jobs.api import Jobs
from penstock.jobs.consumer import Consumer, DataRetriever, find_consumer
from penstock.jobs.iteration.consumer_run import AbandonedConsumers
from penstock.jobs.job import ErrorCode, JobId
from penstock.jobs.runner.runner import WornOut, watch_abandoned
from penstock.jobs.spec import JobSpec
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.secret_keys import Keyring
from penstock.settings import ApiSettings, ChangefeedSettings, parse
from penstock.shares import Shares
from penstock.tables import Catalog
from penstock.testing.consumers import job_context
from support.campaign import length
from support.jobworld import JobWorld, job_world
from support.spark import QUICK_SPARK
from support.webhookreceiver import WebhookReceiver

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
HOOKS = 12
"""More than there are workers."""
LAG_S = 10.0
"""How long a row of the other account may take; alone it takes a fraction of a second."""


class HostileServer:
    """Accepts every connection and never answers, or sends a byte a second of an endless head."""

    def __init__(self, *, drips: bool) -> None:
        self._drips = drips
        self._ended = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.asked = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/in"

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader  # what is sent is not even read
        self.asked += 1
        with contextlib.suppress(ConnectionError):
            if self._drips:
                writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), 1)
                if self._drips:
                    writer.write(b"x")
                    await writer.drain()
        writer.close()


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as made:
        yield made


async def _make_database(world: JobWorld, account: str, tables: int) -> None:
    await world.do(world.db.create_account, account)
    await world.do(lambda: world.db.create_database(f"of_{account}", account=account))
    for number in range(tables):
        await world.create(f"of_{account}.t{number}", COLUMNS)
        await world.insert(f"of_{account}.t{number}", {"id": 0, "name": account})


async def _until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = SYSTEM.monotonic() + seconds
    while not holds():
        assert SYSTEM.monotonic() < deadline, what
        await SYSTEM.sleep(0.02)


def _honest(receiver: WebhookReceiver) -> dict[str, str]:
    return {"url": receiver.url, "watermark_url": receiver.url}


def _running() -> float:
    return REGISTRY.get_sample_value("penstock_jobs_running_iterations") or 0.0


async def test_webhooks_that_drip_do_not_delay_the_jobs_of_another_account(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    async with job_world(tmp_path) as world, HostileServer(drips=True) as url:
        await _make_database(world, "ann", HOOKS)
        await _make_database(world, "bob", 1)
        for number in range(HOOKS):
            options = {"url": url, "timeout": "1h", "attempts": "100"}
            await world.register(f"of_ann.t{number}/hook", consumer="webhook", options=options)
        async with world.running():
            await _until(lambda: _running() >= 10, "the hostile jobs do not hold the workers")
            await world.register("of_bob.t0/good", consumer="webhook", options=_honest(receiver))
            for number in range(5):
                await world.insert("of_bob.t0", {"id": number + 1, "name": "new"})
                await _until(
                    partial(_has, receiver, number + 1),
                    "a row of bob is late while webhooks of ann hang",
                    LAG_S,
                )
            assert len(_consumer_threads("hook")) >= 10
            for number in range(HOOKS):
                await world.do(_unregister, world, f"of_ann.t{number}/hook")
            await _until(lambda: _running() == 0, "removed jobs hold their workers")
            await _until(lambda: not _consumer_threads("hook"), "the threads of removed jobs are there")
            assert REGISTRY.get_sample_value("penstock_jobs_abandoned_consumers") == 0


async def test_hundreds_of_hanging_webhooks_on_one_table_hold_few_threads_and_delay_nobody(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    jobs = {"iteration_consumers": 20, "account_consumers": 50}
    async with job_world(tmp_path, jobs=jobs) as world, HostileServer(drips=False) as url:
        await _make_database(world, "ann", 1)
        await _make_database(world, "bob", 1)
        info = {"consumer": "webhook", "options": {"url": url, "timeout": "1h", "attempts": "100"}}
        spec = JobSpec.parse({"detail": {"consumer": info}})  # jobs of this kind share iterations

        def register(txn: Transaction) -> None:
            for number in range(300):
                assert world.jobs.register_job(txn, JobId.parse(f"of_ann.t0/hook{number}"), spec)

        def threads() -> int:
            return sum(thread.name.startswith("penstock-job-hook") for thread in threading.enumerate())

        await world.do(transact, world.client.begin, register, clock=SYSTEM)
        async with world.running():
            await _until(lambda: threads() == 40, "two iterations of twenty hooks do not run")
            await world.register("of_bob.t0/good", consumer="webhook", options=_honest(receiver))
            for number in range(5):
                await world.insert("of_bob.t0", {"id": number + 1, "name": "new"})
                await _until(partial(_has, receiver, number + 1), "a row of bob is late", LAG_S)
                assert threads() == 40


def _has(receiver: WebhookReceiver, row: int) -> bool:
    return (str(row),) in receiver.rows  # a snapshot replaces all rows by new ones


def _consumer_threads(job: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"penstock-job-{job}"]


def _unregister(world: JobWorld, job: str) -> None:
    job_id = JobId.parse(job)
    assert transact(world.client.begin, lambda txn: world.jobs.unregister_job(txn, job_id), clock=SYSTEM)


async def test_a_webhook_without_progress_is_ended_reported_and_retried(tmp_path: Path) -> None:
    async with job_world(tmp_path, jobs={"stall_s": 1.0}) as world, HostileServer(drips=True) as url:
        await _make_database(world, "ann", 1)
        options = {"url": url, "timeout": "1h", "attempts": "100"}
        await world.register("of_ann.t0/hook", consumer="webhook", options=options)
        async with world.running():
            job_id = JobId.parse("of_ann.t0/hook")

            def failures() -> int:
                status = world.jobs.get_job(job_id).status
                assert status.error_code in {0, ErrorCode.STALLED}, status.error_msg
                return status.failures

            for wanted in (1, 2):
                deadline = SYSTEM.monotonic() + 30
                while await world.do(failures) < wanted:
                    assert SYSTEM.monotonic() < deadline, "the webhook is not ended"
                    await SYSTEM.sleep(0.05)
            status = (await world.do(world.jobs.get_job, job_id)).status
            assert (status.error_code, "jobs.stall_s" in status.error_msg) == (ErrorCode.STALLED, True)
            assert REGISTRY.get_sample_value("penstock_jobs_abandoned_consumers") == 0


async def test_a_runner_with_too_many_abandoned_consumers_ends_and_the_next_one_goes_on(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    abandoned, stop = AbandonedConsumers(2), threading.Event()

    class Deaf(Consumer):
        def consume(self, data: DataRetriever) -> None:
            del data
            stop.wait()

    async with job_world(tmp_path, jobs={"stall_s": 0.2}) as world:
        await _make_database(world, "ann", 2)
        await _make_database(world, "bob", 1)
        for number in range(2):
            await world.register(f"of_ann.t{number}/deaf", consumer="deaf")
        try:
            async with world.running(
                find={"deaf": Deaf}.__getitem__,
                abandoned=abandoned,
                grace_s=0.1,
                side_tasks=[watch_abandoned(abandoned)],
            ) as running:
                with pytest.raises(WornOut, match=r"jobs\.abandoned_max"):
                    await asyncio.wait_for(running.ended, 60)
            assert abandoned.count > 2
            await world.register("of_bob.t0/hook", consumer="webhook", options=_honest(receiver))
            async with world.running():
                await _until(lambda: ("0",) in receiver.rows, "the next runner does not run jobs")
            woken = [await world.do(world.jobs.get_job, JobId.parse("of_ann.t0/deaf"))]
            stop.set()  # the abandoned ones wake up and believe that they are done
            await _until(lambda: abandoned.count == 0, "the abandoned consumers do not end")
            assert [await world.do(world.jobs.get_job, JobId.parse("of_ann.t0/deaf"))] == woken
        finally:
            stop.set()


async def test_an_account_whose_consumers_do_not_return_begins_nothing_and_restarts_nobody(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    abandoned, stop = AbandonedConsumers(4), threading.Event()

    class Deaf(Consumer):
        def consume(self, data: DataRetriever) -> None:
            del data
            stop.wait()

    async with job_world(tmp_path, jobs={"stall_s": 0.2, "backoff_s": 0.1}) as world:
        await _make_database(world, "ann", 7)
        await _make_database(world, "bob", 1)
        await world.register("of_bob.t0/good", consumer="webhook", options=_honest(receiver))
        try:
            async with world.running(
                find=lambda name: Deaf if name == "deaf" else find_consumer(name),
                abandoned=abandoned,
                grace_s=0.1,
                side_tasks=[watch_abandoned(abandoned)],
            ) as running:
                await _until(lambda: len(abandoned.accounts) == 1, "the accounts are not known")
                for number in range(6):
                    await world.register(f"of_ann.t{number}/deaf", consumer="deaf")
                await _until(lambda: abandoned.count >= 2, "the consumers are not abandoned")
                await world.register("of_ann.t6/late", consumer="deaf")
                late = JobId.parse("of_ann.t6/late")

                async def code() -> int:
                    return (await world.do(world.jobs.get_job, late)).status.error_code

                await _until_code(code, ErrorCode.ABANDONED)
                status = (await world.do(world.jobs.get_job, late)).status
                assert "jobs.abandoned_max" in status.error_msg
                for number in range(3):
                    await world.insert("of_bob.t0", {"id": number + 1, "name": "new"})
                    await _until(partial(_has, receiver, number + 1), "a row of bob is late", LAG_S)
                assert not running.ended.done(), "one account has made the process end"
                stop.set()
                await _until_code(code, 0)
        finally:
            stop.set()


async def _until_code(code: Callable[[], Coroutine[Any, Any, int]], wanted: int) -> None:
    deadline = SYSTEM.monotonic() + 60
    while await code() != wanted:
        assert SYSTEM.monotonic() < deadline, f"the code of the job does not become {wanted}"
        await SYSTEM.sleep(0.05)


def test_several_accounts_with_too_many_abandoned_consumers_end_the_process() -> None:
    abandoned = AbandonedConsumers(8)
    abandoned.accounts = frozenset({"ann", "bob", "eve"})
    abandoned.add("ann", 100)
    assert not abandoned.worn_out
    for number in range(4):
        abandoned.add(f"account{number}", 2)
    assert abandoned.worn_out
    with pytest.raises(PenstockError):
        abandoned.check("ann")
    abandoned.check("account0")
    abandoned.accounts = frozenset({"ann"})
    abandoned.check("ann")


class _HangingEngine(LocalEngine):
    """An engine whose remote never answers."""

    stop = threading.Event()
    calls: ClassVar[list[str]] = []

    async def make_file(self, file: DirectFile) -> DirectResult:
        await self._threads.call(self._hang)
        return await super().make_file(file)

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        await self._threads.call(self._hang)
        return await super().encode(work)

    def _hang(self) -> None:
        self.calls.append(threading.current_thread().name)
        self.stop.wait()


async def test_changefeeds_of_one_account_that_hang_do_not_delay_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changefeed_runner, "_THREADS", Shares.of(4))
    monkeypatch.setattr(changefeed_runner, "_READS", Shares.of(4))
    monkeypatch.setattr(changefeed_runner, "_GRACE_S", 0.2)
    monkeypatch.setattr(changefeed_runner, "_ABANDONED_MAX", 2)
    monkeypatch.setattr(changefeed_run, "STALL_S", 0.1)
    accounts = {
        name: {"token": f"token-of-{name}-0123456789", "targets": [f"file://{tmp_path}/{name}"]}
        for name in ("ann", "bob")
    }

    def open_engine(order: EngineOrder) -> SinkEngine:
        kind = _HangingEngine if order.account == "ann" else LocalEngine
        return kind(order.options.target, place=order.place)

    async with job_world(tmp_path) as world:
        feeds = ChangefeedStore(world.async_client, keys=Keyring(world.settings.secrets_dir))
        settings = world.settings.model_copy(update={"api": ApiSettings(accounts=accounts)})
        runner = ChangefeedRunner(settings, feeds, open_engine, owner="here")

        async def create(account: str, name: str) -> None:
            uri = f"file://{tmp_path}/{account}/{name}?protocol=csv&flush-interval=1s"
            section = ChangefeedSettings(
                sink_uri=uri, tables=(f"of_{account}.*",), start="snapshot", lease_ttl_s=1
            )
            now_ts = await world.now_ts()
            await create_changefeed(feeds, f"{account}-{name}", section, now_ts=now_ts, account=account)

        await _make_database(world, "ann", 3)
        await _make_database(world, "bob", 1)
        for number in range(4):
            await create("ann", f"copy{number}")
        running = asyncio.create_task(runner.run())
        try:
            await _until(lambda: len(_HangingEngine.calls) == 4, "the changefeeds of ann do not hang")
            await create("bob", "copy")
            written = tmp_path / "bob" / "copy"
            await _until(lambda: bool(list(written.rglob("CDC*.csv"))), "no file of bob is written")
            assert len(_HangingEngine.calls) == 4
            status = (await feeds.get("ann-copy0")).status
            async with asyncio.timeout(60):
                while "does not answer" not in status.warning:
                    await SYSTEM.sleep(0.05)
                    status = (await feeds.get("ann-copy0")).status
            assert status.state is ChangefeedState.WARNING
            assert (await feeds.get("bob-copy")).status.state is ChangefeedState.NORMAL
            for number, count in enumerate((1, 2)):
                await pause_changefeed(feeds, f"ann-copy{number}")
                await _until(
                    lambda count=count: _abandoned() == count, "a changefeed that hangs is not ended"
                )
            await resume_changefeed(feeds, "ann-copy0")
            async with asyncio.timeout(60):
                while "2 changefeeds of the account were ended" not in status.error:
                    await SYSTEM.sleep(0.05)
                    status = (await feeds.get("ann-copy0")).status
            assert status.state is ChangefeedState.WARNING, "it begins no more than return"
            assert len(_HangingEngine.calls) == 4
            _HangingEngine.stop.set()
            await _until(lambda: _abandoned() == 0, "what returned is counted")
            copied = tmp_path / "ann" / "copy0"
            await _until(lambda: bool(list(copied.rglob("CDC*.csv"))), "it does not begin again")
        finally:
            _HangingEngine.stop.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _abandoned() -> float:
    return REGISTRY.get_sample_value("penstock_sink_abandoned_changefeeds") or 0.0


def _series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in REGISTRY.collect()
        for sample in family.samples
    }


def _handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_registering_and_removing_in_a_loop_leaves_nothing_behind(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    async with job_world(tmp_path) as world:
        await _make_database(world, "ann", 1)
        async with world.running():

            def cycle(count: int) -> None:
                for _ in range(count):
                    transact(world.client.begin, register, clock=SYSTEM)
                    _unregister(world, "of_ann.t0/hook")

            def register(txn: Transaction) -> None:
                assert world.jobs.register_job(txn, JobId.parse("of_ann.t0/hook"), spec)

            info = {"consumer": "webhook", "options": _honest(receiver)}
            spec = JobSpec.parse({"trigger": {"job_type": "greedy"}, "detail": {"consumer": info}})
            await world.register("of_ann.t0/hook", consumer="webhook", options=_honest(receiver))
            await _until(lambda: ("0",) in receiver.rows, "the job does not run")
            await world.do(_unregister, world, "of_ann.t0/hook")
            await _until(lambda: _running() == 0, "the removed job runs")
            series = _series()
            files, handles = _files(tmp_path / "jobs"), _handles()
            await world.do(cycle, length(60, 200))
            await _until(lambda: _running() == 0, "the removed jobs run")
            await _until(lambda: not _consumer_threads("hook"), "threads are left")
            await _until(lambda: _files(tmp_path / "jobs") <= files, "files are left")
            await _until(lambda: _handles() <= handles + 20, "handles are left")
            _, rows = await world.do(world.jobs.log.read_all)
            assert len(rows) <= 11, "rows of removed jobs of one name do not pile up"

            def grown() -> set[str]:
                return {name for name, labels in _series() - series if "job" in dict(labels)}

            await _until(lambda: not grown(), "series of removed jobs are left")


def test_the_error_of_a_worn_out_runner_is_ours() -> None:
    assert issubclass(WornOut, PenstockError), "so that the command ends with one line"


class _SilentPostgres(threading.Thread):
    """Lets a client sign in, and answers nothing after that."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.asked = threading.Event()

    def run(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            while connection.recv(8192)[4:8] == b"\x04\xd2\x16\x2f":  # it asks for TLS
                connection.sendall(b"N")
            connection.sendall(b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I")
            while connection.recv(8192):
                self.asked.set()


def test_a_consumer_of_a_database_that_never_answers_ends_when_it_is_interrupted(tmp_path: Path) -> None:
    server = _SilentPostgres()
    server.start()
    port = server.listener.getsockname()[1]
    dsn = f"host=127.0.0.1 port={port} user=a dbname=b gssencmode=disable"
    consumer: Any = find_consumer("postgres")(job_context(tmp_path, "postgres", {"dsn": dsn, "table": "t"}))
    with server.listener, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(consumer.committed_ts)
        assert server.asked.wait(30)
        assert not waiting.done()
        consumer.interrupt()
        with pytest.raises(PenstockError):
            waiting.result(30)
        consumer.close()


async def test_calls_of_targets_that_never_return_hold_no_thread_that_others_need() -> None:
    """Changefeeds call their storage so; the pool of `asyncio.to_thread` has a few threads for all."""
    stop = threading.Event()
    hanging = [asyncio.create_task(call_in_thread(stop.wait)) for _ in range(50)]
    try:
        await SYSTEM.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 20) == 7
        assert await asyncio.wait_for(call_in_thread(lambda: 8), 20) == 8
    finally:
        stop.set()
    assert all(await asyncio.gather(*hanging))


_DEAF = """
import threading
from penstock.jobs.consumer import Consumer

class Deaf(Consumer):
    def consume(self, data):
        threading.Event().wait()
"""


@pytest.mark.timeout(300)
def test_penstock_up_restarts_a_worn_out_runner_although_its_consumers_do_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deafness.py").write_text(_DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tree = {
        "store": {"pd_addr": "127.0.0.1:0"},
        "capture": {"flight_addr": "127.0.0.1:0", "flush_interval_s": 0.5},
        "jobs": {"stall_s": 0.5, "abandoned_max": 1, "allowed_code": ["deafness"]},
        "up": {"changefeeds": False, "api": False},
        "spark": QUICK_SPARK,
    }
    with run_deployment(move_folders(parse(tree), tmp_path / "up"), log_level="WARNING") as supervisor:

        def runner() -> PartStatus:
            return next(part for part in supervisor.states.parts if part.kind is PartKind.JOBS)

        first = runner().pid
        with Client.connect(supervisor.settings.pd_addrs) as client:
            db, jobs = Catalog(client), Jobs(client, keys=Keyring(supervisor.settings.secrets_dir))
            db.create_database("shop")
            for number in range(2):
                db.create_table(f"shop.t{number}", COLUMNS)
                db.table(f"shop.t{number}").insert([{"id": 1, "name": "a"}])
                spec = JobSpec.parse({"detail": {"consumer": {"consumer": "deafness:Deaf"}}})
                with client.begin() as txn:
                    assert jobs.register_job(txn, JobId("shop", f"t{number}", "deaf"), spec)
        deadline = SYSTEM.monotonic() + 200
        while not (runner().restarts and runner().state is PartState.RUNNING):
            assert SYSTEM.monotonic() < deadline, runner()
            SYSTEM.pause(0.05)
        assert runner().pid != first
        assert not Path(f"/proc/{first}").exists(), "its consumers would hold it for ever"
        assert "more than 1 consumers do not return" in runner().error
