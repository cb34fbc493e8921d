"""A store, a capture and a changefeed as processes, files on an S3 server, and what happens to them in turn:
kill -9 of the changefeed, its Java, a Python worker of Spark's, the capture; SIGTERM to it and all
that it has started; a server that answers nobody for a while.

Rows and schemas change all the time. After each of these a consumer that has followed the directory has
exactly the rows that the source had at its checkpoint, and the changefeed goes on, by itself unless it was
ended. PENSTOCK_SEED draws other moments and other rows.
"""

import os
import random  # noqa: TID251 - seeded
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count, cycle, repeat
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.sinks.storage.layout import METADATA_PATH, decode_checkpoint
from penstock.clock import SYSTEM
from penstock.errors import Conflict
from penstock.eventstore import paths
from penstock.kv import Client
from penstock.object_storage import ObjectStorage, open_storage
from penstock.tables import Catalog
from penstock.testing.directory import Replica
from support.campaign import length
from support.capture import CaptureProcess
from support.command import ServiceProcess, penstock
from support.s3server import SECRET, S3Bucket, S3Server
from support.spark import QUICK_SPARK
from support.sparkcluster import is_alive, java_of, workers_of
from support.tablesat import TablesAt, tables_with_rows
from support.warmstart import shared_start
from support.warmstore import WarmStore

SEED = os.environ.get("PENSTOCK_SEED", "6")
# Java starts again after few of them; workers and captures come back soon.
VICTIMS = (
    *("changefeed", "worker", "capture", "worker", "java"),
    *("worker", "group", "capture", "remote", "worker"),
)
KILLS = length(len(VICTIMS), 1000)  # each once: twice took minutes of `make test`
MORE_S = 10.0  # for which one `allow_more` is enough
HANG_S = length(6, 600)  # the first time; later as in `make test`
STOP_S = 30.0  # in order, on a machine with other work: Java is killed when it takes five
DRIVER_MEMORY_MIB = 600  # Python and its libraries; what waits is in the spool, which Java has
JAVA_MEMORY_MIB = 1024 + 400  # the heap that QUICK_SPARK gives it, and what Java has beside
DEADLINE_S = 300.0  # Spark may have to start first, beside three other sessions that do

pytestmark = pytest.mark.timeout(600 + HANG_S + KILLS * 60)
LARGE = 400
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, what
        SYSTEM.pause(0.2)


class Source:
    """Tables under change: two writers of rows, and one of schemas that writes rows too."""

    def __init__(self, client: Client) -> None:
        self.db = Catalog(client)
        self.db.create_database("shop")
        for name in ("large", "orders", "scratch-0"):
            self.db.create_table(f"shop.{name}", COLUMNS)
        self.db.create_table("shop.notes", [("text", "varchar(64)")])
        self.tables = TablesAt(self.db, "shop")
        for name in ("large", "orders", "scratch-0", "notes"):
            self.tables.table(name)
        rows = [{"id": number, "name": "from before"} for number in range(LARGE)]
        self.tables.table("large").insert(rows)
        self._steps = {
            self._write_large: threading.Semaphore(0),
            self._write_orders: threading.Semaphore(0),
            self._change_schema: threading.Semaphore(0),
        }

    def allow_more(self) -> None:
        """One of every change of schemas, and rows for as long as these take."""
        for step, allowed in self._steps.items():
            allowed.release(6 if step == self._change_schema else 50)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change what is allowed, from entry to exit; raise what went wrong with that."""
        stopped, failures = threading.Event(), list[BaseException]()

        def repeat(step: Callable[[int, random.Random], None], allowed: threading.Semaphore) -> None:
            drawn = random.Random(f"{SEED}-{step.__name__}")
            for number in count(1):
                allowed.acquire()
                while not stopped.is_set():
                    try:
                        step(number, drawn)
                        break
                    except Conflict:
                        continue  # a schema changed meanwhile
                    except BaseException as error:
                        failures.append(error)
                        raise
                if stopped.wait(1.0 if step == self._change_schema else 0.1):
                    return

        threads = [threading.Thread(target=repeat, args=each) for each in self._steps.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            for allowed in self._steps.values():
                allowed.release()
            for thread in threads:
                thread.join()
        assert not failures

    def _write_large(self, number: int, drawn: random.Random) -> None:
        """Rows of every key range in one transaction, now and then a great many."""
        keys = drawn.sample(range(LARGE), 150 if number % 20 == 0 else 5)
        with self.db.begin() as txn:
            table = self.tables.table("large")
            table.upsert([{"id": key, "name": f"large {number}"} for key in keys[1:]], txn=txn)
            table.delete(keys[:1], txn=txn)

    def _write_orders(self, number: int, drawn: random.Random) -> None:
        keys = drawn.sample(range(40), 3)
        orders = self.tables.table("orders")
        orders.upsert([{"id": key, "name": f"orders {number}"} for key in keys])
        orders.delete([keys[0]])
        self.tables.table("notes").insert([{"text": f"note {number}"}])

    def _change_schema(self, number: int, _drawn: random.Random) -> None:
        """One of the changes in turn, and rows around it."""
        turn, which = divmod(number - 1, 6)
        self.insert(f"scratch-{turn}", number)
        match which:
            case 0:
                self.db.add_column("shop.orders", f"extra{turn}", "int default 7")
            case 1:
                self.db.truncate_table(f"shop.scratch-{turn}")
                self.insert(f"scratch-{turn}", number)
            case 2:
                self.db.create_table(f"shop.made-{turn}", COLUMNS)
                self.insert(f"made-{turn}", number)
            case 3:
                self.db.drop_column("shop.orders", f"extra{turn}")
            case 4:
                self.db.drop_table(f"shop.made-{turn}")
            case 5:
                self.db.rename_table(f"shop.scratch-{turn}", f"shop.scratch-{turn + 1}")
                self.insert(f"scratch-{turn + 1}", number)

    def insert(self, name: str, number: int) -> None:
        """Two rows that are not there yet."""
        self.tables.table(name).upsert([{"id": number, "name": f"{name}"}, {"id": -number, "name": "x"}])


def while_changing(source: Source, holds: Callable[[], bool]) -> Callable[[], bool]:
    """Return `holds`, which allows more changes before it is asked, again whenever these may be done."""
    more_at = 0.0

    def holds_by_then() -> bool:
        nonlocal more_at
        if SYSTEM.monotonic() >= more_at:  # on a busy machine few files take all there is
            source.allow_more()
            more_at = SYSTEM.monotonic() + MORE_S
        return holds()

    return holds_by_then


class Follower:
    """A consumer that follows the directory, and what it must have."""

    def __init__(self, storage: ObjectStorage, source: Source) -> None:
        self._replica = Replica(storage, files=FileOptions(protocol="canal-json"))
        self._storage = storage
        self._source = source

    def check(self, *, at_rest: bool = True) -> int:
        """Read what is new; everything must be as it was at the checkpoint, which is returned.

        While nothing is written, indexes and files must also be as they should.
        """
        self._replica.catch_up()
        ts = self._replica.checkpoint_ts
        held = {name: rows.values() for name, rows in self._replica.tables.items()}
        assert tables_with_rows(held) == self._source.tables.rows(ts)
        if at_rest:
            self._replica.check()
        return ts


class Commands:
    """`penstock changefeed` of the one changefeed there is."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def __call__(self, command: str, *arguments: str) -> Any:
        done = penstock("changefeed", command, *arguments, "--config", str(self._config))
        assert (done.returncode, done.stderr) == (0, ""), command
        assert SECRET not in done.stdout
        return yaml.safe_load(done.stdout)


def settings(folder: Path, pd_addr: str, bucket: S3Bucket) -> dict[str, Any]:
    feed = {
        "sink_uri": f"{bucket.url}/changes?protocol=canal-json&enable-tidb-extension=true&flush-interval=1s",
        "sink": {"file-size": 100_000, "spool-disk-quota": "1MiB"},  # a hang fills it
        "storage_options": bucket.options,
        "tables": ["shop.*"],
        "start": "snapshot",
        "split_rows": 150,
        "lease_ttl_s": 3,
    }
    return {
        "pd_addrs": [pd_addr],
        "secrets_dir": str(folder / "secrets"),
        "capture": {
            "data": str(folder / "capture"),
            "storage": f"file://{folder}/events",
            "flight_addr": "127.0.0.1:0",
            "flush_interval_s": 5,
        },
        "spark": QUICK_SPARK,
        "changefeeds": {"all": feed},
    }


@contextmanager
def after(holds: Callable[[], object]) -> Iterator[None]:
    """What is entered next has this before it."""
    until(lambda: bool(holds()), "the capture does not flush")
    yield


def objects(folder: Path, table_id: int) -> list[str]:
    """Of a table's rows: what a changefeed divides it by."""
    return open_storage(f"file://{folder}/events").names(
        paths.object_folder(paths.table_root(table_id), "data")
    )


def checkpoint(storage: ObjectStorage) -> int:
    data = storage.read(METADATA_PATH)
    return 0 if data is None else decode_checkpoint(data)


def memory_mib(pid: int) -> int:
    """What a process has in memory now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def hang(server: S3Server, sink: ServiceProcess, source: Source, seconds: float) -> None:
    """Let the remote answer nobody while rows change, and watch the memory of the changefeed and its Java."""
    until(lambda: java_of(sink.pid) is not None, "there is no Spark")
    java = java_of(sink.pid)
    assert java is not None
    with server.hanging():
        ends_at = SYSTEM.monotonic() + seconds
        while SYSTEM.monotonic() < ends_at:
            source.allow_more()
            more_at = min(ends_at, SYSTEM.monotonic() + MORE_S)
            while SYSTEM.monotonic() < more_at:
                SYSTEM.pause(0.5)
                assert memory_mib(sink.pid) < DRIVER_MEMORY_MIB
                assert memory_mib(java) < JAVA_MEMORY_MIB


def terminate_group(sink: ServiceProcess) -> None:
    """SIGTERM to the changefeed, its Java and Spark's workers at the same moment, as systemd sends it."""
    until(lambda: java_of(sink.pid) is not None, "there is no Spark")
    java = java_of(sink.pid)
    assert java is not None
    before, began_at = len(sink.log), SYSTEM.monotonic()
    for pid in (*workers_of(java), java):
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(pid, signal.SIGTERM)
    assert sink.terminate() == 0, sink.log[before:]
    assert SYSTEM.monotonic() - began_at < STOP_S
    assert "Traceback" not in sink.log[before:], sink.log[before:]
    assert not is_alive(java), "it leaves no Java behind"


def has_killed_worker(java: int) -> bool:
    """Kill a Python worker of Spark's; return False when there is none, or it has just ended by itself."""
    for pid in workers_of(java)[-1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def kill(victim: str, sink: ServiceProcess, capture: CaptureProcess, source: Source) -> None:
    """Kill what the changefeed needs; a capture is started again, and Spark's processes come back.

    Rows change while Spark has no worker: it starts one only for work.
    """
    if victim == "capture":
        capture.kill()
        capture.start()
        return
    until(lambda: java_of(sink.pid) is not None, "there is no Spark")
    java = java_of(sink.pid)
    assert java is not None
    if victim == "java":
        os.kill(java, signal.SIGKILL)
    else:
        until(while_changing(source, lambda: has_killed_worker(java)), "Spark has no workers")


def test_a_consumer_has_the_rows_of_the_checkpoint_whatever_is_killed(
    tmp_path: Path, s3_server: S3Server, s3_bucket: S3Bucket
) -> None:
    drawn = random.Random(SEED)
    storage = open_storage(f"{s3_bucket.url}/changes", s3_bucket.options)
    config = tmp_path / "penstock.yaml"
    changefeed = Commands(config)
    warm = shared_start("penstock.cli.services.changefeeds")
    hangs = chain([HANG_S], repeat(6))

    def disturb(source: Source) -> None:
        """Change more, and wait for a few more objects: whatever is going on then is interrupted."""
        wanted = len(storage.names("")) + drawn.randint(1, 12)
        enough = while_changing(source, lambda: len(storage.names("")) >= wanted)
        until(enough, "nothing is written")
        SYSTEM.pause(drawn.uniform(0, 0.5))

    with (
        WarmStore.start(tmp_path / "store", stores=1) as store,
        Client.connect([store.pd_addr]) as client,
    ):
        source = Source(client)
        follower = Follower(storage, source)
        with (
            CaptureProcess(tmp_path, settings(tmp_path, store.pd_addr, s3_bucket)) as capture,
            after(lambda: objects(tmp_path, source.tables.table("large").info.id)),
            ServiceProcess(tmp_path / "log", "changefeed", "run", "--config", str(config), warm=warm) as sink,
            source.changing(),
        ):
            assert sink.ready == {"changefeeds": ["all"]}
            disturb(source)  # in the middle of the snapshot
            for victim, _ in zip(cycle(VICTIMS), range(KILLS), strict=False):
                if victim in {"changefeed", "group"}:
                    sink.kill() if victim == "changefeed" else terminate_group(sink)
                    reached = checkpoint(storage)
                    if reached:
                        assert follower.check() == reached
                    sink.start()
                elif victim == "remote":
                    reached = checkpoint(storage)
                    hang(s3_server, sink, source, next(hangs))
                else:
                    kill(victim, sink, capture, source)
                    reached = follower.check(at_rest=False)
                until(lambda: checkpoint(storage) > reached, f"it does not go on after {victim}")  # noqa: B023 - awaited at once
                disturb(source)
            assert changefeed("pause", "all")["state"] == "stopped"
            (paused,) = changefeed("list")
            assert paused["state"] == "stopped"
            now_ts = client.timestamp()
            assert changefeed("resume", "all")["state"] == "normal"
            until(lambda: checkpoint(storage) >= now_ts, "it does not catch up")
            assert follower.check(at_rest=False) >= now_ts > paused["checkpoint_ts"] >= reached
            assert sink.terminate() == 0, sink.log
            stopped = changefeed("query", "all")
            assert (stopped["state"], stopped["error"]) == ("normal", "")
            assert follower.check() == stopped["checkpoint_ts"], "what was kept is what consumers were told"
