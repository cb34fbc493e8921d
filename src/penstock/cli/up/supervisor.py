"""The supervisor: runs the parts of a deployment, starts them again when they end, stops them in order.

One supervisor a folder.

`penstock up` in the foreground.
"""

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock import eventloop, process, settings
from penstock.cli.service import run_until_signalled
from penstock.cli.up.display import Display, LogDisplay, TerminalDisplay, pass_on
from penstock.cli.up.parts import Service, ServiceConfig, address_of, anchored, parts_of, under
from penstock.cli.up.process import PartProcess, ProcessExit
from penstock.cli.up.supervision import Supervision
from penstock.clock import SYSTEM, Clock
from penstock.control.part_states import PartState, PartStatus, UpStates
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.settings import Settings

__all__ = ["Supervisor", "folder_lock", "part_command", "running", "serve", "up_settings"]


_NAME = "lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Have a folder to oneself; the lock ends with the process at the latest.

    Raises Invalid when somebody else has it, or it cannot be written to.
    """
    path = folder / _NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise Invalid(f"{path} cannot be written ({error.strerror}); check up.data, or --data") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip()
            raise Invalid(
                f"another `penstock up`{f' (process {holder})' if holder else ''} runs in {folder};"
                " stop it first, or choose another folder with --data"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


_READY_S = 120.0
_KILLED_S = 20.0

_log = logging.getLogger(__name__)


def part_command(name: str) -> Sequence[str]:
    """How a part is started; -P, so that no file of the working directory is taken for a module."""
    return (sys.executable, "-P", "-m", "penstock.cli.up.part", name)


class Supervisor:
    """Runs every part that settings tell of, once, until `run` is cancelled.

    What it does is in `states`, and in the file that `penstock status` and the pages read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        log_format: str = "text",
        log_level: str = "INFO",
        display: Display | None = None,
        command: Callable[[str], Sequence[str]] = part_command,
        clock: Clock = SYSTEM,
    ) -> None:
        parts = parts_of(settings)
        self._settings = settings
        self._parts = {part.name: part for part in parts}
        self._log_format = log_format
        self._log_level = log_level
        self._display: Display = display or LogDisplay()
        self._command = command
        self._clock = clock
        self._core = Supervision({part.name: part.rank for part in parts}, settings.up)
        self._statuses = {
            part.name: PartStatus(
                name=part.name, kind=part.kind, state=PartState.STARTING, since_ms=clock.wall_ms()
            )
            for part in parts
        }
        self._processes: dict[str, PartProcess] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def states(self) -> UpStates:
        """How the parts do; for any thread."""
        return UpStates(os.getpid(), tuple(self._statuses.values()))

    @property
    def settings(self) -> Settings:
        """What the parts are told; once they are ready, with the addresses that they got."""
        return self._settings

    async def ready(self) -> None:
        """Wait until every part has been ready once.

        Raises Unavailable with a part's error when one cannot start for two minutes, and what ended `run`
        when it ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                await self._settled.wait()
        if self._core.all_were_ready:
            return
        if isinstance(self._failure, PenstockError):
            raise self._failure
        late = next(part for part in self.states.parts if part.state is not PartState.RUNNING)
        reason = late.error or "it has not said that it is ready"
        raise Unavailable(f"{late.name} did not start: {reason}") from self._failure

    async def run(self) -> None:
        """Run the parts until this is cancelled, then stop them, the last first; cancelled again, kill them.

        Raises Invalid when another supervisor has the folder.
        """
        try:
            with folder_lock(self._settings.up.data):
                await self._run()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._settled.set()

    async def _run(self) -> None:
        try:
            self._write_states()
            self._display.starting(self.states)
            await self._look_after()
        finally:
            try:
                await self._stop()
            finally:
                await self._kill(list(self._processes))
                UpStates.remove(self._settings.up.data)
                self._display.stopped()

    async def _look_after(self) -> None:
        while True:
            self._changed.clear()
            for name in self._core.due(self._clock.monotonic()):
                self._begin(self._parts[name])
            await self._until(self._core.next_at())

    async def _until(self, at: float | None) -> None:
        """Wait for something to happen, or for a moment."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._changed.wait())]
        if at is not None:
            waits.append(asyncio.create_task(self._clock.sleep(max(at - self._clock.monotonic(), 0))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        for life in self._lives.values():
            if life.done():
                life.result()  # a mistake of ours is not for a task to keep

    def _begin(self, part: Service) -> None:
        self._core.began(part.name)
        try:
            process = self._start(part)
        except OSError as error:
            self._on_end(part, f"cannot be started ({error.strerror})")
            return
        self._processes[part.name] = process
        self._note(part.name, state=PartState.STARTING, pid=process.pid)
        self._lives[part.name] = asyncio.create_task(self._live(part, process))

    async def _live(self, part: Service, process: PartProcess) -> None:
        """One life of a part, from its start to its end."""
        began = self._clock.monotonic()
        said = await process.ready()
        if said is not None:
            self._on_ready(part, said, self._clock.monotonic() - began)
        ending = await process.ended()
        del self._processes[part.name]
        self._on_end(part, ending)

    def _start(self, part: Service) -> PartProcess:
        order = ServiceConfig(
            kind=part.kind, settings=part.settings, log_format=self._log_format, log_level=self._log_level
        )
        on_line = functools.partial(pass_on, part.name, log_format=self._log_format)
        return PartProcess.start(self._command(part.name), order.line(), on_line, clock=self._clock)

    def _on_ready(self, part: Service, said: dict[str, Any], took_s: float) -> None:
        waited_for = not self._core.all_were_ready
        self._core.ready(part.name, self._clock.monotonic())
        addr, metrics_addr = address_of(part.kind, said), said.get("metrics")
        if addr is not None:
            self._settings = anchored(self._settings, part.kind, addr)
            self._parts = {each.name: each for each in parts_of(self._settings)}
        self._note(part.name, state=PartState.RUNNING, addr=addr, metrics_addr=metrics_addr)
        self._display.ready(self._statuses[part.name], took_s)
        if waited_for and self._core.all_were_ready:
            self._display.everything_ready(self.states, self._settings.pd_addrs)
            self._settled.set()

    def _on_end(self, part: Service, ending: ProcessExit | str) -> None:
        again = self._core.ended(part.name, self._clock.monotonic(), str(ending))
        gone = {"pid": None, "addr": None, "metrics_addr": None}
        if again is None:
            self._note(part.name, state=PartState.STOPPED, **gone)
            return
        restarts = self._statuses[part.name].restarts + 1
        self._note(part.name, state=PartState.WAITING, restarts=restarts, error=str(ending), **gone)
        self._display.ended(self._statuses[part.name], again.wait_s, news=again.news)

    def _note(self, name: str, **changes: Any) -> None:
        self._statuses[name] = replace(self._statuses[name], since_ms=self._clock.wall_ms(), **changes)
        self._write_states()
        self._changed.set()

    def _write_states(self) -> None:
        try:
            self.states.write(self._settings.up.data)
        except OSError as error:  # who looks there sees an older state; the parts go on
            _log.warning("the state of the parts cannot be written", extra={"error": str(error)})

    async def _stop(self) -> None:
        """Ask parts to end, first those that nothing depends on, and wait; kill those that take too long."""
        self._core.stop()
        if self._core.stoppable():
            self._display.stopping()
        while names := self._core.stoppable():
            for name in names:
                self._processes[name].stop()
            await asyncio.wait([self._lives[name] for name in names], timeout=self._settings.up.stop_s)
            late = [name for name in names if name in self._processes]
            for name in late:
                self._display.killed(self._statuses[name])
            await self._kill(late)

    async def _kill(self, names: Collection[str]) -> None:
        """End parts that run at once; a machine that does not even do that is not waited for."""
        for name in names:
            self._processes[name].kill()
        if names:
            await asyncio.wait([self._lives[name] for name in names], timeout=_KILLED_S)


@contextmanager
def running(settings: Settings, *, log_format: str = "text", log_level: str = "INFO") -> Iterator[Supervisor]:
    """Run a deployment for a while: entered when every part is ready, stopped on the way out.

    Blocks; for any thread but the event loop's. Raises as `Supervisor.ready` does.
    """
    supervisor = Supervisor(settings, log_format=log_format, log_level=log_level)

    async def begin() -> "asyncio.Task[None]":
        return asyncio.create_task(supervisor.run())

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    task = eventloop.run(begin())
    try:
        eventloop.run(supervisor.ready())
        yield supervisor
    finally:
        with contextlib.suppress(PenstockError):  # told by `ready`
            eventloop.run(end())


def up_settings(config: Path | None, data: Path | None) -> Settings:
    """The settings of a file, or the defaults; folders that they do not choose are put under `data`.

    Raises Invalid for a value that is refused.
    """
    loaded = settings.load(config) if config is not None else Settings()
    return under(loaded, data) if data is not None else loaded


def serve(settings: Settings, *, log_format: str, log_level: str | None) -> None:
    """Run a deployment until SIGTERM or SIGINT, then stop it; the next signal ends it at once.

    On a terminal it tells people what happens, and parts say what is wrong only, unless `log_level` asks for
    more. Elsewhere it logs, and prints one line of JSON when everything is ready. Raises Invalid when
    another `penstock up` has the folder.
    """
    watched = sys.stdout.isatty()
    level = log_level or ("WARNING" if watched else "INFO")
    process.configure(style=log_format, level=level)
    display: Display = TerminalDisplay() if watched else LogDisplay(announce=True)
    supervisor = Supervisor(settings, log_format=log_format, log_level=level, display=display)
    run_until_signalled(supervisor.run())
