"""`penstock up`: runs the parts of a deployment, restarts those that end, and stops all in order.

A lock on the folder `up.data` allows one supervisor there at a time.
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

from penstock import eventloop, process, settings, tracing
from penstock.cli.service import run_until_signalled
from penstock.cli.up.display import Display, LogDisplay, TerminalDisplay, forward_line
from penstock.cli.up.parts import Service, ServiceConfig, address_of, move_folders, parts_of, with_address
from penstock.cli.up.process import PartProcess, ProcessExit
from penstock.cli.up.supervision import Supervision
from penstock.clock import SYSTEM, Clock
from penstock.control.part_states import PartState, PartStatus, UpStates
from penstock.durable_files import create_private, make_data_directory
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.settings import Settings, with_tokens

__all__ = ["Supervisor", "folder_lock", "part_command", "run_deployment", "serve", "up_settings"]


_LOCK_NAME = "lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder during the block; the lock ends with the process at the latest.

    Raises Invalid when another process has the lock, or when the folder cannot be written to.
    """
    path = folder / _LOCK_NAME
    try:
        make_data_directory(folder, with_content=False)  # parts narrow their own folders below it
        create_private(path)
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
_KILL_S = 20.0

_log = logging.getLogger(__name__)


def part_command(name: str) -> Sequence[str]:
    """Return the command that starts a part.

    -P keeps files of the working directory from being imported as modules.
    """
    return (sys.executable, "-P", "-m", "penstock.cli.up.part", name)


class Supervisor:
    """Runs the parts of the settings, each as one process, until `run` is cancelled.

    The states of the parts are in `states`, and in the file that `penstock status` and the pages read.
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
        self._supervision = Supervision({part.name: part.rank for part in parts}, settings.up)
        self._statuses = {
            part.name: PartStatus(
                name=part.name, kind=part.kind, state=PartState.STARTING, since_ms=clock.wall_ms()
            )
            for part in parts
        }
        self._processes: dict[str, PartProcess] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def states(self) -> UpStates:
        """The states of the parts. Thread-safe."""
        return UpStates(os.getpid(), tuple(self._statuses.values()))

    @property
    def settings(self) -> Settings:
        """The settings of the parts; once the parts are ready, with the addresses that they have chosen."""
        return self._settings

    async def wait_ready(self) -> None:
        """Wait until every part has been ready once.

        Raises Unavailable with the error of a part that is not ready after two minutes, and the error of
        `run` when that has ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                await self._settled.wait()
        if self._supervision.all_were_ready:
            return
        if isinstance(self._failure, PenstockError):
            raise self._failure
        late = next(part for part in self.states.parts if part.state is not PartState.RUNNING)
        reason = late.error or "it has not reported that it is ready"
        raise Unavailable(f"{late.name} did not start: {reason}") from self._failure

    async def run(self) -> None:
        """Run the parts until cancelled, then stop them in reverse order; when cancelled again, kill them.

        Raises Invalid when another supervisor has the lock of the folder, or when a package that the settings
        need is missing.
        """
        try:
            tracing.require_packages(self._settings.tracing)
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
            self._display.show_starting(self.states)
            await self._run_parts()
        finally:
            try:
                await self._stop()
            finally:
                await self._kill(list(self._processes))
                UpStates.remove(self._settings.up.data)
                self._display.show_stopped()

    async def _run_parts(self) -> None:
        while True:
            self._changed.clear()
            for name in self._supervision.due_parts(self._clock.monotonic()):
                self._start_part(self._parts[name])
            await self._wait_until(self._supervision.next_start_at())

    async def _wait_until(self, at: float | None) -> None:
        """Wait until a part changes its state, or until a time. Raises the error of a failed task."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._changed.wait())]
        if at is not None:
            waits.append(asyncio.create_task(self._clock.sleep(max(at - self._clock.monotonic(), 0))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for task in self._tasks.values():
            if task.done():
                task.result()  # raises a defect of ours

    def _start_part(self, part: Service) -> None:
        self._supervision.record_start(part.name)
        try:
            process = self._start_process(part)
        except OSError as error:
            self._on_exit(part, f"cannot be started ({error.strerror})")
            return
        self._processes[part.name] = process
        self._set_status(part.name, state=PartState.STARTING, pid=process.pid)
        self._tasks[part.name] = asyncio.create_task(self._follow(part, process))

    async def _follow(self, part: Service, process: PartProcess) -> None:
        """Follow one process of a part from its start to its exit."""
        began = self._clock.monotonic()
        ready = await process.wait_ready()
        if ready is not None:
            self._on_ready(part, ready, self._clock.monotonic() - began)
        exited = await process.wait_exit()
        del self._processes[part.name]
        self._on_exit(part, exited)

    def _start_process(self, part: Service) -> PartProcess:
        config = ServiceConfig(
            kind=part.kind, settings=part.settings, log_format=self._log_format, log_level=self._log_level
        )
        on_line = functools.partial(forward_line, part.name, log_format=self._log_format)
        return PartProcess.start(self._command(part.name), config.encode(), on_line, clock=self._clock)

    def _on_ready(self, part: Service, ready: dict[str, Any], took_s: float) -> None:
        waiting = not self._supervision.all_were_ready
        self._supervision.record_ready(part.name, self._clock.monotonic())
        addr, metrics_addr = address_of(part.kind, ready), ready.get("metrics")
        if addr is not None:
            self._settings = with_address(self._settings, part.kind, addr)
            self._parts = {service.name: service for service in parts_of(self._settings)}
        self._set_status(part.name, state=PartState.RUNNING, addr=addr, metrics_addr=metrics_addr)
        self._display.show_ready(self._statuses[part.name], took_s)
        if waiting and self._supervision.all_were_ready:
            self._display.show_all_ready(self.states, self._settings.pd_addrs)
            self._settled.set()

    def _on_exit(self, part: Service, exited: ProcessExit | str) -> None:
        restart = self._supervision.record_exit(part.name, self._clock.monotonic(), str(exited))
        gone = {"pid": None, "addr": None, "metrics_addr": None}
        if restart is None:
            self._set_status(part.name, state=PartState.STOPPED, **gone)
            return
        restarts = self._statuses[part.name].restarts + 1
        self._set_status(part.name, state=PartState.WAITING, restarts=restarts, error=str(exited), **gone)
        self._display.show_exit(self._statuses[part.name], restart.wait_s, new_reason=restart.new_reason)

    def _set_status(self, name: str, **changes: Any) -> None:
        self._statuses[name] = replace(self._statuses[name], since_ms=self._clock.wall_ms(), **changes)
        self._write_states()
        self._changed.set()

    def _write_states(self) -> None:
        try:
            self.states.write(self._settings.up.data)
        except OSError as error:  # readers see an older state; the parts keep running
            _log.warning("the state of the parts cannot be written", extra={"error": str(error)})

    async def _stop(self) -> None:
        """Stop parts, first those that nothing depends on; kill those that take too long."""
        self._supervision.stop()
        if self._supervision.stoppable_parts():
            self._display.show_stopping()
        while names := self._supervision.stoppable_parts():
            for name in names:
                self._processes[name].stop()
            await asyncio.wait([self._tasks[name] for name in names], timeout=self._settings.up.stop_s)
            late = [name for name in names if name in self._processes]
            for name in late:
                self._display.show_kill(self._statuses[name])
            await self._kill(late)

    async def _kill(self, names: Collection[str]) -> None:
        """Kill running parts; wait a limited time for their exits."""
        for name in names:
            self._processes[name].kill()
        if names:
            await asyncio.wait([self._tasks[name] for name in names], timeout=_KILL_S)


@contextmanager
def run_deployment(
    settings: Settings, *, log_format: str = "text", log_level: str = "INFO"
) -> Iterator[Supervisor]:
    """Run a deployment during the block, which begins once every part is ready.

    Blocks; call it from any thread but the event loop's. Raises Unavailable with the error of a part that is
    not ready after two minutes, and Invalid when another supervisor has the folder or a package is missing.
    """
    supervisor = Supervisor(with_tokens(settings, make=True), log_format=log_format, log_level=log_level)

    async def begin() -> "asyncio.Task[None]":
        return asyncio.create_task(supervisor.run())

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    task = eventloop.run(begin())
    try:
        eventloop.run(supervisor.wait_ready())
        yield supervisor
    finally:
        with contextlib.suppress(PenstockError):  # `wait_ready` has raised it
            eventloop.run(end())


def up_settings(config: Path | None, data: Path | None) -> Settings:
    """Return the settings of a file, or the defaults, with default folders moved to `data`.

    Raises Invalid for a wrong value.
    """
    loaded = settings.read_file(config) if config is not None else Settings()
    return move_folders(loaded, data) if data is not None else loaded


def serve(settings: Settings, *, log_format: str, log_level: str | None) -> None:
    """Run a deployment until SIGTERM or SIGINT, then stop it; a second signal kills it.

    On a terminal it prints what happens, and parts log warnings only, unless `log_level` is given. Elsewhere
    it logs, and prints one line of JSON once everything is ready. Raises Invalid when another `penstock up`
    has the folder.
    """
    settings = with_tokens(settings, make=True)
    on_terminal = sys.stdout.isatty()
    level = log_level or ("WARNING" if on_terminal else "INFO")
    process.configure_logs(style=log_format, level=level)
    token_path = settings.admin_token_path
    display: Display = (
        TerminalDisplay(token_path=token_path)
        if on_terminal
        else LogDisplay(announce=True, token_path=token_path)
    )
    supervisor = Supervisor(settings, log_format=log_format, log_level=level, display=display)
    run_until_signalled(supervisor.run())
