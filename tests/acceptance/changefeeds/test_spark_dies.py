"""`penstock up` with a changefeed on Spark, whose Java is killed; under the widest umask there is."""

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.sinks.storage.options import sink_options
from penstock.clock import SYSTEM
from penstock.control.part_states import UpStates
from penstock.kv import Client
from penstock.settings import parse
from penstock.tables import Catalog
from penstock.testing.directory import Replica
from support.command import ServiceProcess, penstock
from support.spark import QUICK_SPARK
from support.sparkcluster import java_of

pytestmark = pytest.mark.timeout(1200)
WAIT_S = 300.0

T = TypeVar("T")


def wait_for(find: Callable[[], T]) -> T:
    """Return the first answer that is true."""
    deadline = SYSTEM.monotonic() + WAIT_S
    while not (found := find()):
        assert SYSTEM.monotonic() < deadline, "it did not come"
        SYSTEM.pause(0.1)
    return found


class World:
    """A deployment whose changefeed does everything on Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "penstock.yaml"
        tree = {
            "secrets_dir": str(folder / "secrets"),
            "store": {"pd_addr": "127.0.0.1:0", "data": str(folder / "store")},
            "capture": {
                "flight_addr": "127.0.0.1:0",
                "storage": f"file://{folder}/events",
                "data": str(folder / "capture"),
            },
            "changefeeds": {
                "copy": {
                    "sink_uri": f"file://{folder}/copy",
                    "sink": {"protocol": "canal-json", "flush-interval": "1s"},
                }
            },
            "up": {"jobs": False, "api": False, "data": str(folder / "up")},
            "spark": QUICK_SPARK,
        }
        self.config.write_text(yaml.safe_dump(tree))
        self.options = sink_options(parse(tree).changefeeds["copy"])
        self.process = ServiceProcess(folder / "up.log", "up", "--config", str(self.config))

    def part(self) -> Any:
        states = UpStates.read(self.folder / "up")
        assert states is not None
        return next(part for part in states.parts if part.name == "changefeeds")

    def java(self) -> int:
        """Wait for the changefeeds' Java; return its process id."""
        return wait_for(lambda: java_of(self.part().pid))

    def insert(self, *numbers: int) -> None:
        with Client.connect(self.pd_addrs) as client:
            Catalog(client).table("shop.items").insert([{"id": number} for number in numbers])

    @property
    def pd_addrs(self) -> list[str]:
        addrs: list[str] = self.process.ready["pd"]
        return addrs

    def copied(self) -> set[int]:
        if not (self.folder / "copy" / "metadata").exists():  # the first checkpoint is still to come
            return set()
        files = FileOptions(protocol=self.options.protocol)
        replica = Replica(self.options.target.open(), files=files)
        replica.catch_up()
        return {row["id"] for row in replica.tables.get("shop.items", {}).values()}

    def metric(self, name: str) -> float:
        connection = HTTPConnection(self.part().metrics_addr, timeout=30)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def status(self) -> dict[str, Any]:
        done = penstock("status", "--json", "--config", str(self.config))
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def readable_by_others(self) -> dict[str, str]:
        """What of its folders, and of what its processes write to, others can do something with, and modes.

        Without the target of the changefeed, which is for others, what the test itself has made, and what is
        in a folder for temporary files that only its user may enter.
        """
        scratch = self.folder / "scratch"
        ours = {self.config, self.folder / "up.log", self.folder / "copy", scratch}
        private = {path for path in scratch.iterdir() if path.is_dir() and not path.stat().st_mode & 0o077}
        hidden = {self.folder / "copy", *private}
        paths = set(self.folder.rglob("*"))
        for pid in (self.part().pid, self.java()):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    path, flags = handle.readlink(), Path(f"/proc/{pid}/fdinfo/{handle.name}").read_text()
                except OSError:  # closed meanwhile
                    continue
                if int(flags.split()[3], 8) & os.O_ACCMODE and path.is_file():
                    paths.add(path)
        found = {}
        for path in paths - ours:
            if not hidden.isdisjoint(path.parents):
                continue
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if mode & 0o077 and not stat.S_ISLNK(mode):
                found[str(path)] = f"{stat.S_IMODE(mode):o}"
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(scratch))
    before = os.umask(0)
    try:
        with world.process:
            os.umask(before)
            yield world
    finally:
        os.umask(before)


def test_a_changefeed_whose_java_is_killed_goes_on_with_a_new_session_and_says_so(world: World) -> None:
    with Client.connect(world.pd_addrs) as client:
        catalog = Catalog(client)
        catalog.create_database("shop")
        catalog.create_table("shop.items", [("id", "bigint primary key")])
    first = world.java()  # which starts with the changefeed, before there is a row
    os.kill(first, signal.SIGSTOP)  # so that there is time to look
    status = world.status()
    assert {part["name"]: part["state"] for part in status["parts"]}["changefeeds"] == "starting Spark"
    assert not [problem for problem in status["problems"] if problem["part"] == "changefeeds"]
    os.kill(first, signal.SIGCONT)

    world.insert(1, 2, 3)
    wait_for(lambda: world.copied() == {1, 2, 3})
    assert world.metric("penstock_spark_session_missing") == 0
    wait_for(lambda: world.metric("penstock_spark_session_starting") == 0)
    # Three rows were read, encoded and written; they are counted just after the file has appeared.
    wait_for(lambda: world.status()["engines"]["spark"] >= 9)
    status = world.status()
    assert status["engine"] == "spark"
    assert status["engines"]["local"] == 0
    assert any((world.folder / "scratch").iterdir()), "Spark has no scratch files there"
    assert world.readable_by_others() == {}

    os.kill(first, signal.SIGKILL)
    world.insert(4, 5)
    second = wait_for(lambda: {world.java()} - {first}).pop()
    os.kill(second, signal.SIGSTOP)  # so that there is time to look
    assert world.metric("penstock_spark_session_missing") == 1
    assert world.metric("penstock_spark_sessions_lost_total") == 1
    status = world.status()
    assert [problem["what"] for problem in status["problems"] if problem["part"] == "changefeeds"] == [
        "spark_lost"
    ]
    part = next(part for part in status["parts"] if part["name"] == "changefeeds")
    assert (part["state"], part["error"]) == ("degraded", "its Spark session is lost; a new one is built")
    os.kill(second, signal.SIGCONT)

    wait_for(lambda: world.copied() == {1, 2, 3, 4, 5})
    wait_for(lambda: world.metric("penstock_spark_session_missing") == 0)
    assert "the Spark session died; a new one is built" in world.process.log
    assert "Java was killed by SIGKILL" in world.process.log
    assert "Traceback" not in world.process.log
