"""One part as a process: started with an order, ready when it says so, stopped by the end of its input."""

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
_LOOK_S = 0.02
_LEFTOVERS_S = 10.0
"""How long what a part started itself (a Java machine) may outlive it."""
_LAST_WORDS = "penstock: "
"""How a part begins the line that says why it cannot go on."""
_WORDS_CHARS = 500


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended."""

    code: int
    """Its exit code; below zero, the signal that ended it."""
    words: str
    """Why, as it said itself, or else the last line that it wrote to standard error."""

    def __str__(self) -> str:
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        if self.code == 0:
            return "ended, though nobody asked it to"
        return self.words or f"ended with exit code {self.code}"


class PartProcess:
    """A process of its own session, so that Ctrl-C does not reach it. Made by `start`, on an event loop.

    Its input stays open until `stop`, or until this process is gone: that ends it in either case. `on_line`
    gets what it writes, from other threads; what it says of its own end is kept in `ProcessExit` instead.
    """

    def __init__(
        self, child: "subprocess.Popen[bytes]", order: bytes, on_line: Callable[[str], None], clock: Clock
    ) -> None:
        self._child = child
        self._order = order
        self._on_line = on_line
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        self._ended: asyncio.Future[ProcessExit] = self._loop.create_future()
        self._told = threading.Event()
        self._said_ready = False
        self._reason = self._last_line = ""
        self.pid = child.pid
        assert child.stdout is not None
        assert child.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(child.stdout, self._hear), daemon=True),
            threading.Thread(target=self._read, args=(child.stderr, self._note), daemon=True),
        ]
        for thread in (*self._readers, threading.Thread(target=self._attend, daemon=True)):
            thread.start()

    @classmethod
    def start(
        cls, command: Sequence[str], order: bytes, on_line: Callable[[str], None], *, clock: Clock = SYSTEM
    ) -> "PartProcess":
        """Start a command. Raises OSError when the machine cannot."""
        child = subprocess.Popen(  # noqa: S603 - our own parts
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(child, order, on_line, clock)

    async def ready(self) -> dict[str, Any] | None:
        """What it printed when it became ready; None when it ended before."""
        return await asyncio.shield(self._ready)

    async def ended(self) -> ProcessExit:
        """Wait until it, and what it started, is gone."""
        return await asyncio.shield(self._ended)

    def stop(self) -> None:
        """Ask it to end, and to take its time; may be called again."""
        if self._told.is_set():
            self._end_input()
        else:  # somebody still writes to the pipe, and the process has not begun
            self.kill()

    def kill(self) -> None:
        """End it at once, with what it started."""
        if not self._ended.done():
            self._signal_group(signal.SIGKILL)

    def _end_input(self) -> None:
        pipe = self._child.stdin
        assert pipe is not None
        if pipe.closed:
            return
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # it has ended, or has not even read its order
            os.write(pipe.fileno(), STOP)
        with contextlib.suppress(OSError):
            pipe.close()

    def _signal_group(self, number: int) -> bool:
        """Signal the process and those it started; whether there was one."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or a number that is somebody else's by now
            return False
        return True

    def _attend(self) -> None:
        """On a thread: hand over the order, wait for the end, see to what is left."""
        with contextlib.suppress(OSError):  # it has ended already, and says why
            self._hand_over()
        self._told.set()
        code = self._child.wait()
        self._see_to_leftovers()
        for reader in self._readers:
            reader.join(_LEFTOVERS_S)  # somebody in another session may hold the pipe open
        ending = ProcessExit(code, self._reason or self._last_line)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._end, ending)

    def _hand_over(self) -> None:
        assert self._child.stdin is not None
        pipe, rest = self._child.stdin.fileno(), self._order
        while rest:
            rest = rest[os.write(pipe, rest) :]
        self._order = b""

    def _see_to_leftovers(self) -> None:
        patience = self._clock.monotonic() + _LEFTOVERS_S
        while self._signal_group(0):
            with contextlib.suppress(ChildProcessError):  # in a container they may have become our children
                os.waitpid(-self.pid, os.WNOHANG)
            if self._clock.monotonic() > patience:
                self._signal_group(signal.SIGKILL)
                return
            self._clock.pause(_LOOK_S)

    def _end(self, ending: ProcessExit) -> None:
        self._end_input()
        if not self._ready.done():
            self._ready.set_result(None)
        self._ended.set_result(ending)

    def _read(self, stream: IO[bytes], take: Callable[[str], None]) -> None:
        with stream:
            while line := stream.readline(_LINE_BYTES):
                take(line.decode(errors="replace").rstrip("\r\n"))

    def _hear(self, line: str) -> None:
        """A line of standard output: the first object in JSON says that it is ready."""
        said = None if self._said_ready else _object(line)
        if said is None:
            self._on_line(line)
            return
        self._said_ready = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._be_ready, said)

    def _be_ready(self, said: dict[str, Any]) -> None:
        if not self._ready.done():
            self._ready.set_result(said)

    def _note(self, line: str) -> None:
        """A line of standard error."""
        if line.startswith(_LAST_WORDS):
            self._reason = line.removeprefix(_LAST_WORDS)[:_WORDS_CHARS]
            return
        self._last_line = line.strip()[:_WORDS_CHARS] or self._last_line
        self._on_line(line)


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
