"""One part as a process: gets its configuration, reports when it is ready, stops when its input ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from penstock.cli.up.parts import STOP
from penstock.clock import SYSTEM, Clock

__all__ = ["PartProcess", "ProcessExit"]

_LINE_BYTES = 1 << 16
_POLL_S = 0.02
_DESCENDANTS_S = 10.0
"""Seconds that processes of a part, such as a Java machine, may outlive it."""
_ERROR_PREFIX = "penstock: "
"""The prefix of the line with the error that ended a part."""
_ERROR_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended."""

    code: int
    """Its exit code; below zero, the signal that ended it."""
    error: str
    """Its error message, or else the last line that it wrote to standard error."""

    def __str__(self) -> str:
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        if self.code == 0:
            return "ended without being stopped"
        return self.error or f"ended with exit code {self.code}"


class PartProcess:
    """A process in a session of its own, so that Ctrl-C does not reach it. Create it with `start` on a loop.

    Its input stays open until `stop`, or until this process ends; the end of input ends it. `on_line` gets
    its output, from other threads; the error that ended it goes to `ProcessExit` instead.
    """

    def __init__(
        self, child: "subprocess.Popen[bytes]", config: bytes, on_line: Callable[[str], None], clock: Clock
    ) -> None:
        self._child = child
        self._config = config
        self._on_line = on_line
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        self._ended: asyncio.Future[ProcessExit] = self._loop.create_future()
        self._config_sent = threading.Event()
        self._is_ready = False
        self._error = self._last_line = ""
        self.pid = child.pid
        assert child.stdout is not None
        assert child.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_lines, args=(child.stdout, self._take_output), daemon=True),
            threading.Thread(target=self._read_lines, args=(child.stderr, self._take_error), daemon=True),
        ]
        for thread in (*self._readers, threading.Thread(target=self._supervise, daemon=True)):
            thread.start()

    @classmethod
    def start(
        cls, command: Sequence[str], config: bytes, on_line: Callable[[str], None], *, clock: Clock = SYSTEM
    ) -> "PartProcess":
        """Start a command and send it its configuration. Raises OSError when it cannot be started."""
        child = subprocess.Popen(  # noqa: S603 - our own parts
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(child, config, on_line, clock)

    async def wait_ready(self) -> dict[str, Any] | None:
        """Wait until it is ready; return what it printed then, or None when it ended before."""
        return await asyncio.shield(self._ready)

    async def wait_exit(self) -> ProcessExit:
        """Wait until the process and its descendants have ended."""
        return await asyncio.shield(self._ended)

    def stop(self) -> None:
        """Tell it to end in an orderly way. A second call does nothing."""
        if self._config_sent.is_set():
            self._end_input()
        else:  # its configuration is still being sent, so it has not begun
            self.kill()

    def kill(self) -> None:
        """Kill the process and its descendants."""
        if not self._ended.done():
            self._signal_group(signal.SIGKILL)

    def _end_input(self) -> None:
        pipe = self._child.stdin
        assert pipe is not None
        if pipe.closed:
            return
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # it has ended, or has not read its configuration
            os.write(pipe.fileno(), STOP)
        with contextlib.suppress(OSError):
            pipe.close()

    def _signal_group(self, number: int) -> bool:
        """Signal the process and its descendants; return whether there was one."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or the id belongs to another process now
            return False
        return True

    def _supervise(self) -> None:
        """Run on a thread: send the configuration, wait for the exit and for the descendants."""
        with contextlib.suppress(OSError):  # it has ended already; its exit says why
            self._send_config()
        self._config_sent.set()
        code = self._child.wait()
        self._wait_for_descendants()
        for reader in self._readers:
            reader.join(_DESCENDANTS_S)  # a process in another session may hold the pipe open
        exited = ProcessExit(code, self._error or self._last_line)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(self._finish, exited)

    def _send_config(self) -> None:
        assert self._child.stdin is not None
        pipe, rest = self._child.stdin.fileno(), self._config
        while rest:
            rest = rest[os.write(pipe, rest) :]
        self._config = b""  # it has secrets

    def _wait_for_descendants(self) -> None:
        deadline = self._clock.monotonic() + _DESCENDANTS_S
        while self._signal_group(0):
            with contextlib.suppress(ChildProcessError):  # in a container they may be our children now
                os.waitpid(-self.pid, os.WNOHANG)
            if self._clock.monotonic() > deadline:
                self._signal_group(signal.SIGKILL)
                return
            self._clock.pause(_POLL_S)

    def _finish(self, exited: ProcessExit) -> None:
        self._end_input()
        if not self._ready.done():
            self._ready.set_result(None)
        self._ended.set_result(exited)

    def _read_lines(self, stream: IO[bytes], take: Callable[[str], None]) -> None:
        with stream:
            while line := stream.readline(_LINE_BYTES):
                take(line.decode(errors="replace").rstrip("\r\n"))

    def _take_output(self, line: str) -> None:
        """Take a line of standard output; the first JSON object means that the part is ready."""
        ready = None if self._is_ready else _parse_object(line)
        if ready is None:
            self._on_line(line)
            return
        self._is_ready = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_ready, ready)

    def _set_ready(self, ready: dict[str, Any]) -> None:
        if not self._ready.done():
            self._ready.set_result(ready)

    def _take_error(self, line: str) -> None:
        """Take a line of standard error; keep the part's own error, and pass other lines on."""
        if line.startswith(_ERROR_PREFIX):
            self._error = line.removeprefix(_ERROR_PREFIX)[:_ERROR_CHARS_MAX]
            return
        self._last_line = line.strip()[:_ERROR_CHARS_MAX] or self._last_line
        self._on_line(line)


def _parse_object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
