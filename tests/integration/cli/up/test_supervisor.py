"""The supervisor with parts that do nothing but speak its protocol."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.up.supervisor import Supervisor
from penstock.clock import SYSTEM
from penstock.control.part_states import PartState, PartStatus, UpStates
from penstock.errors import Invalid, Unavailable
from penstock.settings import parse
from support.fakepart import Journal, fake_part_command

DEADLINE_S = 30.0
SMALL = {"changefeeds": False, "jobs": False}


class World:
    """A supervisor in a folder of its own."""

    def __init__(self, folder: Path, **up: Any) -> None:
        chosen = {"data": folder / "up", "backoff_s": 0.05, "stop_s": 20, **SMALL, **up}
        self.settings = parse({"store": {"pd_addr": "127.0.0.1:0"}, "up": chosen})
        self.journal = Journal(folder)
        self.told: list[str] = []
        self.supervisor = Supervisor(
            self.settings,
            command=lambda name: fake_part_command(name, folder),
            display=self,
        )
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.task = asyncio.create_task(self.supervisor.run())
        try:
            yield
        finally:
            await self.stop()

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError, Invalid):
            await self.task

    def part(self, name: str) -> PartStatus:
        return next(part for part in self.supervisor.states.parts if part.name == name)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await SYSTEM.sleep(0.005)

    def show_starting(self, states: UpStates) -> None:
        self.told.append("starting")

    def show_ready(self, part: PartStatus, took_s: float) -> None:
        self.told.append(f"{part.name} is ready")

    def show_exit(self, part: PartStatus, wait_s: float, *, new_reason: bool) -> None:
        if new_reason:
            self.told.append(f"{part.name} {part.error}")

    def show_all_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        self.told.append(f"everything is ready at {','.join(pd_addrs)}")

    def show_stopping(self) -> None:
        self.told.append("stopping")

    def show_kill(self, part: PartStatus) -> None:
        self.told.append(f"{part.name} is killed")

    def show_stopped(self) -> None:
        self.told.append("stopped")


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has asked about is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_parts_begin_in_order_and_end_in_the_reverse_order(tmp_path: Path) -> None:
    world = World(tmp_path, captures=2)
    async with world.running():
        await world.supervisor.wait_ready()
        states = UpStates.read(tmp_path / "up")
        assert states == world.supervisor.states
        assert states is not None
        assert {part.state for part in states.parts} == {PartState.RUNNING}
        assert {part.metrics_addr for part in states.parts} == {"127.0.0.1:9100"}
        assert world.part("store").addr == "127.0.0.1:4321"
        assert world.part("store").pid == world.journal.pids("store")[0]
    begun = [part for what, part in world.journal.events if what == "began"]
    ended = [part for what, part in world.journal.events if what == "ended"]
    assert begun[0] == ended[-1] == "store"
    assert set(begun[1:3]) == set(ended[1:3]) == {"capture-1", "capture-2"}
    assert begun[3:] == ended[:1] == ["api"]
    assert world.told[-3:] == ["everything is ready at 127.0.0.1:4321", "stopping", "stopped"]
    assert UpStates.read(tmp_path / "up") is None
    assert {part.state for part in world.supervisor.states.parts} == {PartState.STOPPED}


async def test_a_part_that_is_killed_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        await world.supervisor.wait_ready()
        for name in ("store", "capture-1", "api"):
            os.kill(world.journal.pids(name)[0], signal.SIGKILL)
        await world.until(
            lambda: all(
                (part.state, part.restarts) == (PartState.RUNNING, 1)
                for part in world.supervisor.states.parts
            )
        )
        assert world.part("capture-1").error == "was killed by SIGKILL"
        assert world.part("store").addr == "127.0.0.1:4321"  # the port that it had
        assert len(world.journal.pids("capture-1")) == 2
    assert world.told.count("everything is ready at 127.0.0.1:4321") == 1


async def test_a_part_that_refuses_is_told_once_and_tried_until_it_can(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.journal.behave("capture-1", refuse="bucket is missing; make it", say=["a line"])
    async with world.running():
        await world.until(lambda: world.part("capture-1").restarts >= 3)
        assert world.part("capture-1").error == "bucket is missing; make it"
        assert world.part("api").state in (PartState.STARTING, PartState.RUNNING)  # others do not wait for it
        world.journal.behave("capture-1")
        await world.supervisor.wait_ready()
    assert world.told.count("capture-1 bucket is missing; make it") == 1


async def test_a_crash_is_told_by_its_last_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.journal.behave("store", crash=True)
    async with world.running():
        await world.until(lambda: world.part("store").restarts >= 1)
        assert world.part("store").error == "RuntimeError: a mistake"
    assert "store       | Traceback" in capfd.readouterr().err
    assert ("began", "capture-1") not in world.journal.events


async def test_a_part_that_does_not_end_is_killed_after_a_while(tmp_path: Path) -> None:
    world = World(tmp_path, stop_s=0.2)
    world.journal.behave("capture-1", stubborn=True)
    async with world.running():
        await world.supervisor.wait_ready()
    assert "capture-1 is killed" in world.told
    assert world.journal.events[-1] == ("ended", "store")
    assert not alive(world.journal.pids("capture-1")[0])


async def test_the_second_request_to_stop_kills_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, stop_s=600)
    world.journal.behave("capture-1", stubborn=True)
    world.journal.behave("store", stubborn=True)
    async with world.running():
        await world.supervisor.wait_ready()
        assert world.task is not None
        world.task.cancel()
        await world.until(lambda: ("ended", "api") in world.journal.events)
    assert not any(alive(world.journal.pids(name)[0]) for name in ("store", "capture-1", "api"))
    assert UpStates.read(tmp_path / "up") is None


async def test_what_a_part_started_does_not_outlive_its_kill(tmp_path: Path) -> None:
    world = World(tmp_path, stop_s=0.2, api=False)
    world.journal.behave("capture-1", child=True, stubborn=True)
    async with world.running():
        await world.supervisor.wait_ready()
        group = world.journal.pids("capture-1")[0]
        assert len(members(group)) == 2
    assert members(group) == []


def members(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


async def test_a_stop_before_anything_is_ready_ends_what_was_started(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.journal.behave("store", silent=True)
    async with world.running():
        await world.until(lambda: world.part("store").pid is not None)
    pid = world.journal.pids("store")
    assert not any(alive(each) for each in pid)
    with pytest.raises(Unavailable, match="store did not start"):
        await world.supervisor.wait_ready()


async def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    world, second = World(tmp_path, api=False), World(tmp_path, api=False)
    async with world.running():
        await world.supervisor.wait_ready()
        with pytest.raises(Invalid, match=rf"another `penstock up` \(process {os.getpid()}\) runs in"):
            await second.supervisor.run()
        with pytest.raises(Invalid, match="another"):
            await second.supervisor.wait_ready()
        assert UpStates.read(tmp_path / "up") == world.supervisor.states
    third = World(tmp_path, api=False)
    async with third.running():  # the folder is free again
        await third.supervisor.wait_ready()


async def test_parts_are_in_sessions_of_their_own_and_get_no_secret_by_command_line_or_environment(
    tmp_path: Path,
) -> None:
    token = "token-of-the-flight-service"
    world = World(tmp_path, api=False)
    world.settings = parse({**tree_of(world), "capture": {"flight_token": token}})
    world.supervisor = Supervisor(
        world.settings,
        command=lambda name: fake_part_command(name, tmp_path),
        display=world,
    )
    async with world.running():
        await world.supervisor.wait_ready()
        for name in ("store", "capture-1"):
            (pid,) = world.journal.pids(name)
            assert os.getsid(pid) == os.getpgid(pid) == pid
            assert token not in what_everybody_sees(pid)
    assert token not in written_in(tmp_path)


def what_everybody_sees(pid: int) -> str:
    return "".join(Path(f"/proc/{pid}/{what}").read_text() for what in ("cmdline", "environ"))


def written_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def tree_of(world: World) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(world.settings.model_dump_json(exclude_unset=True))
    return tree


async def test_lines_of_parts_come_out_with_their_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, api=False)
    world.journal.behave("store", say=["hello", "x" * 200_000])
    async with world.running():
        await world.supervisor.wait_ready()
    err = capfd.readouterr().err
    assert "store       | hello\n" in err
    assert err.count("x") >= 200_000


async def test_a_command_that_cannot_be_run_is_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path, api=False)
    world.supervisor = Supervisor(world.settings, command=lambda name: ("/no/such/command",), display=world)
    async with world.running():
        await world.until(lambda: world.part("store").restarts >= 2)
    assert world.told[1] == "store cannot be started (No such file or directory)"
