"""A script of SQL on its way: TiDB runs it, Penstock captures it, TiCDC's consumer applies Penstock's files.

TiDB and its store run in one process and write down every transaction that commits; each goes into Penstock's
store as it comes. The capture, the changefeeds, both consumers and both databases are processes of their own.
"""

import random  # noqa: TID251 - seeded
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from penstock.changefeeds.sinks.storage.layout import METADATA_PATH, decode_checkpoint
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.kv import Client
from penstock.object_storage import open_storage
from support.capture import CaptureProcess
from support.command import ServiceProcess, penstock
from support.judges import StorageConsumer, TidbScript
from support.mariadb import MariaDb
from support.sameness import differences
from support.spark import QUICK_SPARK
from support.warmstart import shared_start
from support.warmstore import WarmStore

__all__ = ["PROTOCOLS", "JudgeWorld"]

_DEADLINE_S = 600.0  # a killed changefeed starts Spark anew, and writes many small files after that
_POLL_S = 0.3
# The consumer orders the work of its workers by keys, but reads the columns of a canal-json key in any order:
# two changes of a row with a composite key can reach two workers. One worker keeps the files' order.
_DOWNSTREAM = "?safe-mode=true&batch-dml-enable=false&worker-count=1&time-zone="
PROTOCOLS: Mapping[str, str] = {
    "canal-json": "protocol=canal-json&enable-tidb-extension=true",
    "csv": "protocol=csv&include-commit-ts=true&output-old-value=true",
}
"""The parameters of each changefeed; the consumer has the same, those of csv in a file."""
# TiCDC leaves out deletes of tables without a key unless it is told not to.
_CONSUMER_CONFIG = """
force-replicate = true
[sink.csv]
include-commit-ts = true
output-old-value = true
"""


@dataclass(frozen=True)
class _Feed:
    """A changefeed's directory, the consumer that applies it, and the database that it is applied to."""

    protocol: str
    folder: Path
    database: MariaDb
    consumer: StorageConsumer


class JudgeWorld:
    """A context: everything runs from entry to exit. `sink` has parameters for every changefeed."""

    def __init__(self, folder: Path, patterns: list[str], sink: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._patterns = patterns
        self._sink = dict(sink or {})
        self._stack = ExitStack()
        self._config = folder / "penstock.yaml"
        self._feeds: list[_Feed] = []
        self.kills = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            store = stack.enter_context(WarmStore.start(self._folder / "store", stores=1))
            self._client = stack.enter_context(Client.connect([store.pd_addr]))
            stack.enter_context(CaptureProcess(self._folder, self._settings(store.pd_addr)))
            self._runner = stack.enter_context(self._changefeeds())
            for protocol in PROTOCOLS:
                self._feeds.append(self._follow(protocol, stack))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _settings(self, pd_addr: str) -> dict[str, Any]:
        return {
            "pd_addrs": [pd_addr],
            "secrets_dir": str(self._folder / "secrets"),
            "capture": {
                "data": str(self._folder / "capture"),
                "storage": f"file://{self._folder}/events",
                "flight_addr": "127.0.0.1:0",
                "tables": self._patterns,
            },
            "spark": QUICK_SPARK,
            "changefeeds": {
                protocol: {
                    "sink_uri": f"file://{self._directory(protocol)}?{parameters}&flush-interval=1s",
                    "sink": self._sink,
                    "tables": self._patterns,
                    "lease_ttl_s": 3,
                }
                for protocol, parameters in PROTOCOLS.items()
            },
        }

    def _directory(self, protocol: str) -> Path:
        return self._folder / f"files-{protocol}"

    def _changefeeds(self) -> ServiceProcess:
        warm = shared_start("penstock.cli.services.changefeeds")
        log = self._folder / "changefeeds.log"
        return ServiceProcess(log, "changefeed", "run", "--config", str(self._config), warm=warm)

    def _follow(self, protocol: str, stack: ExitStack) -> _Feed:
        folder = self._directory(protocol)
        folder.mkdir(exist_ok=True)
        database = stack.enter_context(MariaDb.start())
        log = self._folder / f"consumer-{protocol}.log"
        config = self._folder / "consumer.toml"
        config.write_text(_CONSUMER_CONFIG)
        upstream = f"file://{folder}?{PROTOCOLS[protocol]}"
        consumer = StorageConsumer(upstream, database.uri + _DOWNSTREAM, log, config=config)
        stack.enter_context(consumer)
        return _Feed(protocol, folder, database, consumer)

    def run(self, script: Path, *, check_points: bool = True) -> list[str]:
        """Run a script to its end; return what differs between TiDB and the databases, at which CHECKPOINT.

        Without `check_points` TiDB runs without a stop, and only the end is compared.
        """
        found: list[str] = []
        with TidbScript(script, self._folder / "tidb.log", step=check_points) as tidb:
            for kind, value in tidb:
                if kind == "txn":
                    self._commit(value)
                elif kind == "statement" and value["error"]:
                    found.append(f"TiDB refused {value['sql']}: {value['error']}")
                elif kind == "point" and (check_points or value["name"] == "end"):
                    found += self._compare(value)
                    if value["name"] != "end":
                        tidb.go_on()
        return found

    def _commit(self, txn: Mapping[str, Any]) -> None:
        source = txn.get("txn_source", 0)
        with self._client.begin(async_commit=False, one_pc=False, txn_source=source) as written:
            for mutation in txn["muts"]:
                key = bytes.fromhex(mutation["key"])
                if mutation["op"] == "put":
                    written.put(key, bytes.fromhex(mutation["value"]))
                elif mutation["op"] == "del":
                    written.delete(key)
                else:
                    written.lock_keys([key])

    def _compare(self, point: Mapping[str, Any]) -> list[str]:
        now_ts = self._client.timestamp()
        found = []
        for feed in self._feeds:
            try:
                self._wait_for(feed, now_ts)
                feed.consumer.catch_up(_DEADLINE_S)
            except Unavailable as error:
                raise AssertionError(f"{feed.protocol} at {point['name']}: {error}") from None
            found += [
                f"{feed.protocol} at {point['name']}: {line}" for line in differences(point, feed.database)
            ]
        return found

    def _wait_for(self, feed: _Feed, ts: int) -> None:
        storage = open_storage(f"file://{feed.folder}")
        deadline = SYSTEM.monotonic() + _DEADLINE_S
        looked_at = SYSTEM.monotonic()
        while True:
            data = storage.read(METADATA_PATH)
            if data is not None and decode_checkpoint(data) >= ts:
                return
            feed.consumer.check()
            if SYSTEM.monotonic() > looked_at + 10:
                looked_at = SYSTEM.monotonic()
                state = self._state(feed.protocol)
                if state["state"] == "failed" or SYSTEM.monotonic() > deadline:
                    raise Unavailable(f"the changefeed is {state['state']}: {state['error'] or 'no error'}")
            SYSTEM.pause(_POLL_S)

    def _state(self, name: str) -> Mapping[str, Any]:
        done = penstock("changefeed", "query", name, "--config", str(self._config))
        if done.returncode:
            return {"state": "unknown", "error": done.stderr.strip()}
        state: Mapping[str, Any] = yaml.safe_load(done.stdout)
        return state

    @contextmanager
    def killing(self, seed: str, times: int) -> Iterator[None]:
        """Kill the changefeeds' process up to so many times, each time after some files were written."""
        stopped = threading.Event()
        failures: list[BaseException] = []

        def disturb() -> None:
            drawn = random.Random(seed)  # noqa: S311 - moments, no secrets
            try:
                while not stopped.is_set() and self.kills < times:
                    self._wait_for_files(drawn.randint(1, 15), stopped.is_set)
                    if stopped.wait(drawn.uniform(0.0, 0.7)):
                        return
                    self._runner.kill()
                    self.kills += 1
                    self._runner.start()
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
        assert not failures

    def _wait_for_files(self, more: int, given_up: Callable[[], bool]) -> None:
        wanted = self._count_files() + more
        deadline = SYSTEM.monotonic() + _DEADLINE_S
        while self._count_files() < wanted and not given_up():
            assert SYSTEM.monotonic() < deadline, "no files are written"
            SYSTEM.pause(0.05)

    def _count_files(self) -> int:
        return sum(1 for feed in self._feeds for path in feed.folder.rglob("*") if path.is_file())
