"""`penstock up` as a person runs it: in an empty directory, with parts that are killed under it."""

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM
from penstock.control.deployment import Deployment, open_deployment
from penstock.control.part_states import PartState, PartStatus, UpStates
from penstock.errors import Unavailable
from penstock.settings import parse, with_tokens
from penstock.tables import Table
from support.command import ServiceProcess, penstock

DEADLINE_S = 60.0
SMALL: dict[str, Any] = {
    "store": {"pd_addr": "127.0.0.1:0"},
    "capture": {"flight_addr": "127.0.0.1:0", "lease_ttl_s": 2},
    "api": {"addr": "127.0.0.1:0"},
    "up": {"changefeeds": False, "jobs": False, "api": False, "backoff_s": 0.1},
}


class World:
    """A directory with settings, and `penstock up` in it."""

    def __init__(self, folder: Path, tree: dict[str, Any]) -> None:
        (folder / "penstock.yaml").write_text(yaml.safe_dump(tree))
        self.tree = tree
        self.folder = folder
        self.up = ServiceProcess(folder / "up.log", "up", "--config", "penstock.yaml", cwd=folder)

    @property
    def parts(self) -> dict[str, PartStatus]:
        states = UpStates.read(self.folder / "penstock-data/up")
        return {part.name: part for part in states.parts} if states is not None else {}

    def pid(self, name: str) -> int:
        pid = self.parts[name].pid
        assert pid is not None
        return pid

    @contextmanager
    def reached(self) -> Iterator[Deployment]:
        """The deployment, from outside."""
        capture = {**self.tree["capture"], "storage": f"file://{self.folder}/penstock-data/events"}
        secrets = str(self.folder / "penstock-data" / "secrets")
        tree = {**self.tree, "capture": capture, "pd_addrs": self.up.ready["pd"], "secrets_dir": secrets}
        with open_deployment(with_tokens(parse(tree))) as deployment:
            yield deployment

    def kill(self, name: str) -> None:
        """End a part at once, and wait until it is back."""
        before = self.parts[name]
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)

        def back() -> bool:
            now = self.parts[name]  # read once: it changes between two looks
            return (now.state, now.restarts) == (PartState.RUNNING, before.restarts + 1)

        self.until(back)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = SYSTEM.monotonic() + DEADLINE_S
        while not holds():
            assert SYSTEM.monotonic() < deadline, self.up.log
            SYSTEM.pause(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def captured(world: World, deployment: Deployment, table: Table, ts: int) -> set[int]:
    """The ids that the event store has as of a timestamp, once it can tell."""
    table_id, source = table.info.id, deployment.source

    def readable() -> bool:
        try:
            look = deployment.readable_ranges([table_id]).get(table_id)
        except Unavailable:
            return False
        return look is not None and look.readable_ts >= ts

    world.until(readable)
    with source.open(source.scan(table_id, 0, ts, ReadLimit()), None) as changes:
        return {row["id"] for batch in changes for row in batch.data.to_pylist()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("up"), SMALL)
    with made.up:
        yield made
        made.up.terminate()


def test_it_says_where_everything_is(world: World) -> None:
    (pd_addr,) = world.up.ready["pd"]
    assert world.up.ready["parts"]["store"] == pd_addr
    assert world.up.ready["parts"]["capture-1"] == world.parts["capture-1"].addr
    assert {part.state for part in world.parts.values()} == {PartState.RUNNING}
    assert "everything is ready" in world.up.log
    assert sorted(path.name for path in (world.folder / "penstock-data").iterdir()) == [
        "capture",
        "events",
        "secrets",
        "store",
        "up",
    ]


def test_every_part_shows_its_metrics(world: World) -> None:
    for part in world.parts.values():
        with urllib.request.urlopen(f"http://{part.metrics_addr}/metrics", timeout=10) as answer:
            assert b"penstock_" in answer.read()


def test_a_second_one_in_the_same_place_is_refused_with_one_line(world: World) -> None:
    done = penstock(
        "up", "--config", str(world.folder / "penstock.yaml"), "--data", str(world.folder / "penstock-data")
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"penstock: another `penstock up` (process {world.up.pid}) runs in")


def test_parts_that_are_killed_come_back_and_nothing_is_lost(world: World) -> None:
    with world.reached() as deployment:
        deployment.catalog.create_database("shop")
        deployment.catalog.create_table(
            "shop.orders", [("id", "bigint primary key"), ("note", "varchar(20)")]
        )
        orders = deployment.catalog.table("shop.orders")
        orders.insert([{"id": number, "note": "before"} for number in range(10)])
        world.kill("capture-1")
        orders.insert([{"id": number, "note": "between"} for number in range(10, 20)])
        assert captured(world, deployment, orders, deployment.now_ts()) == set(range(20))
        pd_addr = world.parts["store"].addr
        world.kill("store")
        assert world.parts["store"].addr == pd_addr
        orders.insert([{"id": number, "note": "after"} for number in range(20, 30)])
        assert captured(world, deployment, orders, deployment.now_ts()) == set(range(30))
    assert world.parts["store"].error == "was killed by SIGKILL"


def test_a_signal_ends_everything_in_order(world: World) -> None:
    pids = [world.pid(name) for name in world.parts]
    os.kill(world.up.pid, signal.SIGINT)
    assert world.up.wait() == 0
    assert not any(map(alive, pids))
    assert world.parts == {}
    assert world.up.log.index("capture-1   |") < world.up.log.index("store has stopped")
    assert world.up.log.splitlines()[-1].endswith("all parts have stopped")


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    world = World(tmp_path, SMALL)
    with world.up:
        pids = [world.pid(name) for name in ("store", "capture-1")]
        assert all(map(alive, pids))
        world.up.kill()
        world.until(lambda: not any(map(alive, pids)))
        assert world.parts == {}
        world.up.start()  # and it can be started again at once
        assert world.parts["store"].restarts == 0


def test_wrong_settings_of_a_part_are_told_once_and_can_be_mended_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "penstock-data").mkdir()
    blocked = tmp_path / "penstock-data" / "capture"
    blocked.write_text("in the way")
    world = World(tmp_path, SMALL)
    with ThreadPoolExecutor(1) as waiting:
        ready = waiting.submit(world.up.start)
        try:
            world.until(lambda: bool(world.parts) and world.parts["capture-1"].restarts >= 2)
            error = world.parts["capture-1"].error
        finally:
            blocked.unlink()
            ready.result()
    assert error == "data directory penstock-data/capture cannot be used (File exists); check capture.data"
    assert world.up.log.count(error) == 1
    assert world.up.terminate() == 0
