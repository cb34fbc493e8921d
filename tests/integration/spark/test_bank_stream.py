"""A bank of several tables, followed by one stream: no batch shows half of a transfer.

Everything is real and a process of its own: the store, the capture, Spark's driver. The driver is killed;
while it is away a table gets a column, another table appears and takes part, and a third one is dropped. The
capture is killed, too: the stream waits for it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.clock import SYSTEM
from penstock.errors import Conflict, PenstockError
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import Settings
from penstock.tables import Catalog
from support.bankstream import MARKER, follow
from support.capture import CaptureProcess
from support.warmstore import WarmStore

ACCOUNTS = 8
OPENING = 100
TOTAL = 2 * ACCOUNTS * OPENING
DEADLINE_S = 180.0
COLUMNS = [("id", "bigint primary key"), ("balance", "bigint")]


@dataclass
class Bank:
    """Accounts in some tables, and writers that move money between any two of them."""

    db: Catalog
    tables: list[str]
    failures: list[PenstockError] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    _writers: list[threading.Thread] = field(default_factory=list)

    def write(self) -> None:
        """Transfer until stopped; a conflict with another writer or a DDL is no transfer."""
        try:
            while not self.stopped.is_set():
                try:
                    self._transfer()
                except Conflict:
                    continue
                self.stopped.wait(0.1)
        except PenstockError as error:
            self.failures.append(error)

    def _transfer(self) -> None:
        source, target = (self.tables[int(SYSTEM.random() * len(self.tables))] for _ in range(2))
        one, other = (int(SYSTEM.random() * ACCOUNTS) for _ in range(2))
        amount = 1 + int(SYSTEM.random() * 9)
        if (source, one) == (target, other):
            return
        with self.db.begin() as txn:
            for name, account, change in ((source, one, -amount), (target, other, amount)):
                table = self.db.table(name)
                row = table.get(account, txn=txn) or {"id": account, "balance": 0}
                table.upsert([{**row, "balance": row["balance"] + change}], txn=txn)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._writers = [threading.Thread(target=self.write) for _ in range(3)]
        for writer in self._writers:
            writer.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Wait until the last transfer is done."""
        self.stopped.set()
        for writer in self._writers:
            writer.join()
        assert not self.failures, self.failures


@contextmanager
def killed_driver(config: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver of its own, which is killed in the end with its workers; Java ends without it."""
    with (folder / "driver.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("bank_driver.py")), str(config), str(folder)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def until(holds: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, "it did not happen"
        SYSTEM.pause(0.05)


@pytest.mark.timeout(900)
def test_the_sum_over_tables_is_the_same_in_every_batch_over_kills_and_ddls(
    spark: SparkSession, tmp_path: Path
):
    with WarmStore.start(tmp_path / "store") as store:
        tree = {
            "pd_addrs": [store.pd_addr],
            "capture": {
                "data": str(tmp_path / "capture"),
                "storage": f"file://{tmp_path}/events",
                "flight_addr": "127.0.0.1:0",
                "flush_interval_s": 2.0,
            },
        }
        cluster = ClusterRef.of(Settings.model_validate(tree))
        db = Catalog(cluster.client())
        db.create_database("shop")
        for name in ("shop.left", "shop.right", "shop.spare"):
            db.create_table(name, COLUMNS)
            opening = 0 if name == "shop.spare" else OPENING
            db.table(name).insert([{"id": number, "balance": opening} for number in range(ACCOUNTS)])
        bank = Bank(db, ["shop.left", "shop.right"])
        config = tmp_path / "penstock.yaml"
        with CaptureProcess(tmp_path, tree) as capture, bank.writing():
            with killed_driver(config, tmp_path) as driver:
                assert driver.stdout is not None
                for _ in range(3):
                    assert driver.stdout.readline(), (tmp_path / "driver.log").read_text()
            db.add_column("shop.left", "note", "varchar(10) default 'new'")
            db.create_table("shop.third", COLUMNS)
            bank.tables = [*bank.tables, "shop.third"]
            batches: list[int] = []
            ends: list[int] = []

            def done(number: int, marked: bool) -> None:
                batches.append(number)
                ends.extend([number] if marked else [])

            query = follow(spark, config, tmp_path, done)
            try:
                until(lambda: len(batches) >= 2 or not query.isActive)
                db.drop_table("shop.spare")
                after = len(batches) + 1
                until(lambda: len(batches) >= after or not query.isActive)
                bank.stop()
                db.create_table(MARKER, COLUMNS)
                db.table(MARKER).insert([{"id": 1, "balance": 0}])
                until(lambda: bool(ends) or not query.isActive)
                capture.kill()  # the only one; the stream looks for it twice a second
                again = Bank(db, bank.tables)
                with again.writing():
                    capture.start()
                    after = len(batches) + 1
                    until(lambda: len(batches) >= after or not query.isActive)
                db.table(MARKER).insert([{"id": 2, "balance": 0}])
                until(lambda: len(ends) == 2 or not query.isActive)
                assert query.exception() is None
            finally:
                query.stop()
            final = {
                name: {row["id"]: row["balance"] for row in db.table(name).to_arrow().to_pylist()}
                for name in (*bank.tables, MARKER)
            }
        cluster.close()
    seen = replay(tmp_path / "batches")
    assert seen.tables == final
    assert seen.kinds["drop"] == 1
    assert seen.columns == {"shop.left": {2, 3}, "shop.right": {2}, "shop.third": {2}} | {
        "shop.spare": {2},
        MARKER: {2},
    }


@dataclass
class Seen:
    """What a consumer has after all batches."""

    tables: dict[str, dict[int, int]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    columns: dict[str, set[int]] = field(default_factory=dict)


def replay(folder: Path) -> Seen:
    """Apply the batches in their order; the sum is right after each."""
    seen = Seen()
    batches = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: int(path.name))
    assert len(batches) >= 6
    for path in batches:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        schemas = {(row["_table"], row["_schema"]) for row in rows}
        assert len(schemas) == len(dict(schemas)), "rows from before and after a DDL are in one batch"
        for name, declared in schemas:
            seen.columns.setdefault(name, set()).add(declared.count("`") // 2)
        ends = {"delete", "update_preimage"}
        for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_change_type"] not in ends)):
            seen.kinds[row["_change_type"]] += 1
            if row["_change_type"] == "drop":
                del seen.tables[row["_table"]]
                continue
            accounts = seen.tables.setdefault(row["_table"], {})
            account = json.loads(row["payload"])
            if row["_change_type"] in ends:
                assert accounts.pop(account["id"]) == account["balance"], "a change was missed"
            else:
                assert account["id"] not in accounts, "a change came twice"
                accounts[account["id"]] = account["balance"]
        assert sum(sum(accounts.values()) for accounts in seen.tables.values()) == TOTAL, path.name
    return seen
