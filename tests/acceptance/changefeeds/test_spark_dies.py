"""`penstock up` with a changefeed and a job on Spark, whose Java is killed; under the widest umask."""

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.sinks.storage.layout import METADATA_PATH
from penstock.changefeeds.sinks.storage.options import sink_options
from penstock.clock import SYSTEM
from penstock.control.part_states import UpStates
from penstock.kv import Client
from penstock.object_storage import open_storage
from penstock.settings import parse
from penstock.tables import Catalog
from penstock.testing.directory import Replica
from support.command import ServiceProcess, penstock
from support.s3server import FaultyS3, Held, S3Bucket
from support.spark import QUICK_SPARK
from support.sparkcluster import java_of

pytestmark = pytest.mark.timeout(1200)
WAIT_S = 300.0
GOES_ON_S = 30.0  # after a kill, on a machine that has a core for each process that wants one
FEEDS = {"copy": "canal-json", "lake": "parquet", "lines": "csv"}

T = TypeVar("T")


def wait_for(find: Callable[[], T]) -> T:
    """Return the first answer that is true."""
    deadline = SYSTEM.monotonic() + WAIT_S
    while not (found := find()):
        assert SYSTEM.monotonic() < deadline, "it did not come"
        SYSTEM.pause(0.1)
    return found


class World:
    """A deployment whose changefeeds and whose job do everything on Spark."""

    def __init__(self, folder: Path, bucket: S3Bucket | None = None) -> None:
        """Events and files are in a bucket, if there is one, else in folders."""
        self.folder = folder
        self.config = folder / "penstock.yaml"
        place = f"file://{folder}" if bucket is None else bucket.url
        options = {} if bucket is None else {"storage_options": bucket.options}
        tree = {
            "secrets_dir": str(folder / "secrets"),
            "store": {"pd_addr": "127.0.0.1:0", "data": str(folder / "store")},
            "capture": {
                "flight_addr": "127.0.0.1:0",
                "storage": f"{place}/events",
                "data": str(folder / "capture"),
                "flush_interval_s": 1,
                **options,
            },
            "changefeeds": {
                name: {
                    "sink_uri": f"{place}/{name}",
                    **options,
                    "sink": {"protocol": protocol, "flush-interval": "1s"},
                }
                for name, protocol in FEEDS.items()
            },
            "jobs": {"data": str(folder / "jobs")},
            "up": {"api": False, "data": str(folder / "up")},
            "spark": QUICK_SPARK,
        }
        self.config.write_text(yaml.safe_dump(tree))
        settings = parse(tree)
        self.options = sink_options(settings.changefeeds["copy"])
        self.events = open_storage(settings.capture.storage, settings.capture.storage_options)
        self.process = ServiceProcess(folder / "up.log", "up", "--config", str(self.config))

    def part(self, name: str = "changefeeds") -> Any:
        states = UpStates.read(self.folder / "up")
        assert states is not None
        return next(part for part in states.parts if part.name == name)

    def java(self, name: str = "changefeeds") -> int:
        """Wait for the Java of a part; return its process id."""
        return wait_for(lambda: java_of(self.part(name).pid))

    def register_job(self) -> None:
        """Register a job that copies the table into Parquet files."""
        options = ["--consumer", "parquet", "--option", f"uri={self.folder}/job"]
        places = ["--pd", self.pd_addrs[0], "--config", str(self.config)]
        done = penstock("job", "register", "shop.items/copy", *options, *places, timeout_s=WAIT_S)
        assert done.returncode == 0, done.stderr

    def job_rows(self) -> set[int]:
        """Return what the job has copied."""
        files = list((self.folder / "job").glob("**/*.parquet"))
        with suppress(OSError, pa.ArrowInvalid):  # the job writes a file, or has replaced one
            return {row["id"] for file in files for row in pq.read_table(file).to_pylist()}
        return set()

    def insert(self, *numbers: int) -> None:
        with Client.connect(self.pd_addrs) as client:
            Catalog(client).table("shop.items").insert([{"id": number} for number in numbers])

    @property
    def pd_addrs(self) -> list[str]:
        addrs: list[str] = self.process.ready["pd"]
        return addrs

    def copied(self) -> set[int]:
        storage = self.options.target.open()
        if not storage.exists(METADATA_PATH):  # the first checkpoint is still to come
            return set()
        replica = Replica(storage, files=FileOptions(protocol=self.options.protocol))
        replica.catch_up()
        return {row["id"] for row in replica.tables.get("shop.items", {}).values()}

    def check_files(self) -> list[int]:
        """Check every promise of the directory; return the rows of all its files, in their order."""
        storage = self.options.target.open()
        replica = Replica(storage, files=FileOptions(protocol=self.options.protocol))
        replica.catch_up()
        replica.check()
        paths = sorted(path for path in storage.names("") if path.endswith(".json") and "/CDC" in path)
        lines = [line for path in paths for line in (storage.read(path) or b"").splitlines()]
        return [int(row["id"]) for line in lines for row in json.loads(line)["data"]]

    def objects(self) -> int:
        """How many objects of rows there are."""
        return sum("/data/" in path for path in self.events.names(""))

    def change(self, command: str) -> None:
        """Pause or resume the changefeed."""
        arguments = "changefeed", command, "copy", "--config", str(self.config), "--pd", self.pd_addrs[0]
        done = penstock(*arguments, timeout_s=WAIT_S)
        assert done.returncode == 0, done.stderr

    def metric(self, name: str, part: str = "changefeeds") -> float:
        connection = HTTPConnection(self.part(part).metrics_addr, timeout=30)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def status(self) -> dict[str, Any]:
        done = penstock("status", "--json", "--config", str(self.config), timeout_s=WAIT_S)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def readable_by_others(self) -> dict[str, str]:
        """What of its folders, and of what its processes write to, others can do something with, and modes.

        Without the targets of the changefeeds, which are for others, what the test itself has made, and what
        is in a folder for temporary files that only its user may enter.
        """
        scratch = self.folder / "scratch"
        targets = {self.folder / name for name in (*FEEDS, "job")}
        ours = {self.config, self.folder / "up.log", scratch, *targets}
        private = {path for path in scratch.iterdir() if path.is_dir() and not path.stat().st_mode & 0o077}
        hidden = {*targets, *private}
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


def test_changefeeds_and_jobs_whose_java_is_killed_go_on_with_a_new_session_and_say_so(world: World) -> None:
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
    # Three rows were read, encoded and written, by each; they are counted just after the file has appeared.
    rows = 9 * len(FEEDS)
    status = wait_for(lambda: found if (found := world.status())["engines"]["spark"] >= rows else None)
    assert status is not None
    assert status["engine"] == "spark"
    assert status["engines"]["local"] == 0
    assert any((world.folder / "scratch").iterdir()), "Spark has no scratch files there"
    assert world.readable_by_others() == {}

    world.register_job()
    wait_for(lambda: world.job_rows() == {1, 2, 3})
    wait_for(lambda: world.metric("penstock_spark_session_starting", "jobs") == 0)
    java_of_jobs = world.java("jobs")

    os.kill(java_of_jobs, signal.SIGKILL)
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
    wait_for(lambda: world.job_rows() == {1, 2, 3, 4, 5})
    assert world.java("jobs") != java_of_jobs
    assert world.metric("penstock_spark_sessions_lost_total", "jobs") == 1
    assert "the Spark session died; a new one is built" in world.process.log
    assert world.process.log.count("Java was killed by SIGKILL") >= 2
    assert "Traceback" not in world.process.log


@pytest.fixture
def world_on_s3(tmp_path: Path, s3_bucket: S3Bucket, faulty_s3: FaultyS3) -> Iterator[World]:
    world = World(tmp_path, faulty_s3.before(s3_bucket))
    with world.process:
        yield world


def kill_at(world: World, held: Held, rows: set[int]) -> None:
    """Kill Java while a task waits for the remote; the rows must come, soon after the kill."""
    assert held.reached.wait(WAIT_S), f"no task has come to {held.method} of {held.part}"
    os.kill(world.java(), signal.SIGKILL)
    killed_at = SYSTEM.monotonic()
    assert held.gone.wait(WAIT_S), "the request was not of a task"
    wait_for(lambda: rows <= world.copied())
    took_s = SYSTEM.monotonic() - killed_at
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    sys.stdout.write(f"{held.method} {held.part}: {took_s:.1f} s after the kill, load {busy:.1f} a core\n")
    assert took_s <= GOES_ON_S * busy


def test_java_that_is_killed_in_the_middle_of_a_put_or_a_read_loses_and_repeats_nothing(
    world_on_s3: World, faulty_s3: FaultyS3
) -> None:
    world = world_on_s3
    with Client.connect(world.pd_addrs) as client:
        catalog = Catalog(client)
        catalog.create_database("shop")
        catalog.create_table("shop.items", [("id", "bigint primary key")])
    world.insert(1, 2, 3)
    wait_for(lambda: world.copied() == {1, 2, 3})
    put = Held("PUT", "/CDC")
    faulty_s3.held.append(put)
    world.insert(4, 5)
    kill_at(world, put, {4, 5})

    world.change("pause")
    for number in (6, 7):  # of what is in objects a task has to read some
        before = world.objects()
        world.insert(number)
        wait_for(lambda: world.objects() > before)  # noqa: B023 - awaited at once
    read = Held("GET", "/data/")
    faulty_s3.held.append(read)
    world.change("resume")
    kill_at(world, read, {6, 7})
    rows = world.check_files()
    assert len(rows) == 7, "nothing is lost, and nothing is there twice"
    assert [sorted(rows[:3]), sorted(rows[3:5]), rows[5:]] == [[1, 2, 3], [4, 5], [6, 7]]
