"""A store, a capture and a changefeed as processes, files on an S3 server, and kill -9 of the changefeed.

Rows and schemas change all the time. Whenever the process is dead, a consumer that has followed the directory
has exactly the rows that the source had at its checkpoint. PENSTOCK_SEED draws other moments and other rows.
"""

import os
import random  # noqa: TID251 - seeded
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.clock import SYSTEM
from penstock.errors import Conflict
from penstock.eventstore.storage import Storage, open_storage
from penstock.kv import Client
from penstock.sink.consuming.datafiles import FileOptions
from penstock.tables import Catalog
from penstock.testing.capture import CaptureProcess
from penstock.testing.command import ServiceProcess, penstock
from penstock.testing.replica import Replica
from penstock.testing.spark import SMALL
from penstock.testing.store import StoreProcess
from penstock.testing.tablesat import TablesAt, tables_with_rows

pytestmark = pytest.mark.timeout(600)

SEED = os.environ.get("PENSTOCK_SEED", "6")
KILLS = 3
DEADLINE_S = 120.0
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
        self.client = client
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
        self.ddls = 0

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change rows and schemas from entry to exit; raise what went wrong with that."""
        stopped, failures = threading.Event(), list[BaseException]()

        def repeat(step: Callable[[int, random.Random], None], times: int, pause_s: float) -> None:
            drawn = random.Random(f"{SEED}-{step.__name__}")
            for number in range(1, times + 1):
                try:
                    step(number, drawn)
                except Conflict:
                    continue  # a schema changed meanwhile
                except BaseException as error:
                    failures.append(error)
                    raise
                if stopped.wait(pause_s):
                    return

        steps = [(self._write_large, 300, 0.2), (self._write_orders, 300, 0.2), (self._change_schema, 18, 3)]
        threads = [threading.Thread(target=repeat, args=each) for each in steps]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
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
        self.ddls += 1

    def insert(self, name: str, number: int) -> None:
        """Two rows that are not there yet."""
        self.tables.table(name).upsert([{"id": number, "name": f"{name}"}, {"id": -number, "name": "x"}])


class Follower:
    """A consumer that follows the directory, and what it must have."""

    def __init__(self, storage: Storage, source: Source) -> None:
        self._replica = Replica(storage, files=FileOptions(protocol="canal-json"))
        self._storage = storage
        self._source = source

    def check(self) -> int:
        """Read what is new; everything must be as it was at the checkpoint, which is returned."""
        self._replica.catch_up()
        ts = self._replica.checkpoint_ts
        held = {name: rows.values() for name, rows in self._replica.tables.items()}
        assert tables_with_rows(held) == self._source.tables.rows(ts)
        self._replica.check()
        return ts


class Commands:
    """`penstock changefeed` of the one changefeed there is."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def __call__(self, command: str, *arguments: str) -> Any:
        done = penstock("changefeed", command, *arguments, "--config", str(self._config))
        assert (done.returncode, done.stderr) == (0, ""), command
        assert "hunter2" not in done.stdout
        return yaml.safe_load(done.stdout)


def settings(folder: Path, pd_addr: str, s3: dict[str, str]) -> dict[str, Any]:
    feed = {
        "sink_uri": "s3://lake/changes?protocol=canal-json&enable-tidb-extension=true&flush-interval=1s",
        "sink": {"file-size": 100_000},
        "storage_options": s3,
        "tables": ["shop.*"],
        "start": "snapshot",
        "split_rows": 150,
    }
    return {
        "pd_addrs": [pd_addr],
        "capture": {
            "data": str(folder / "capture"),
            "storage": f"file://{folder}/events",
            "flight_addr": "127.0.0.1:0",
            "flush_interval_s": 5,
        },
        "spark": {"master": "local[2]", "driver_memory": "1g", "conf": SMALL},
        "changefeeds": {"all": feed},
    }


def test_a_consumer_has_the_rows_of_the_checkpoint_whenever_the_changefeed_is_killed(
    tmp_path: Path, s3_options: dict[str, str]
) -> None:
    drawn = random.Random(SEED)
    storage = open_storage("s3://lake/changes", s3_options)
    with (
        StoreProcess.start(tmp_path / "store", stores=1) as store,
        Client.connect([store.pd_addr]) as client,
    ):
        source = Source(client)
        tree = settings(tmp_path, store.pd_addr, s3_options)
        config = tmp_path / "penstock.yaml"
        commands = Commands(config)
        follower = Follower(storage, source)
        reached = 0
        with (
            CaptureProcess(tmp_path, tree),
            ServiceProcess(tmp_path / "changefeed.log", "changefeed", "run", "--config", str(config)) as sink,
        ):
            assert sink.ready == {"changefeeds": ["all"]}
            with source.changing():
                for _ in range(KILLS):
                    before = len(storage.names(""))
                    until(lambda: len(storage.names("")) > before + 2, "nothing is written")  # noqa: B023
                    SYSTEM.pause(drawn.uniform(0, 6))
                    sink.kill()
                    if storage.exists("metadata"):
                        reached = follower.check()
                    sink.start()
                paused = commands("pause", "all")
                assert paused["state"] == "stopped"
            after = client.timestamp()
            assert after > reached
            (listed,) = commands("list")
            assert listed["state"] == "stopped"
            assert commands("resume", "all")["state"] == "normal"
            until(lambda: commands("query", "all")["checkpoint_ts"] >= after, "it does not catch up")
            assert follower.check() >= reached
            assert sink.terminate() == 0, sink.log
            kept = commands("query", "all")
            assert (kept["state"], kept["error"]) == ("normal", "")
            assert follower.check() == kept["checkpoint_ts"] >= after
        assert source.ddls >= 3
