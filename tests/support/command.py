"""Penstock's command line as processes of their own, as people run it."""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from penstock.errors import Invalid
from support.warmstart import WarmChild, WarmStart

__all__ = ["ServiceProcess", "penstock"]

_PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
_COMMAND_TIMEOUT_S = 60.0
_READY_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0


def penstock(
    *arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, also when it fails."""
    return subprocess.run(  # noqa: S603 - our own command line
        [*_PENSTOCK, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd
    )


class ServiceProcess:
    """A command that prints a line of JSON when it is ready, and runs until it is stopped.

    As a context manager it is started, and killed in the end. What it writes to standard error is added to
    the log file. It runs in `cwd`, or here. With `warm` it is forked from that one.
    """

    def __init__(
        self, log: Path, *arguments: str, cwd: Path | None = None, warm: WarmStart | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.ready: dict[str, Any] = {}
        self._log = log
        self._cwd = cwd
        self._command = [*_PENSTOCK, *arguments]
        self._warm = warm
        self._child: subprocess.Popen[str] | WarmChild | None = None

    def start(self) -> Self:
        """Start it, or start it again, and wait until it is ready; raise Invalid when it refuses."""
        assert self._child is None or self._child.poll() is not None, "the process still runs"
        with self._log.open("a") as log:
            self._child = self._launch(log)
        assert self._child.stdout is not None
        readable, _, _ = select.select([self._child.stdout], [], [], _READY_TIMEOUT_S)
        line = self._child.stdout.readline() if readable else ""
        if not line:
            self.kill()
            reason = (self.log.strip().splitlines() or ["no message"])[-1]
            raise Invalid(f"{self._command[len(_PENSTOCK)]} did not start: {reason}")
        self.ready = json.loads(line)
        return self

    def _launch(self, log: IO[str]) -> "subprocess.Popen[str] | WarmChild":
        if self._warm is not None:
            return self._warm.fork(self._command[len(_PENSTOCK) :], log)
        return subprocess.Popen(  # noqa: S603 - our own command
            self._command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self._cwd
        )

    @property
    def log(self) -> str:
        """What it wrote to standard error, in all its lives."""
        return self._log.read_text()

    @property
    def pid(self) -> int:
        assert self._child is not None, "the process was not started"
        return self._child.pid

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask the process to stop; return its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Wait until the process has ended by itself; return its exit code."""
        assert self._child is not None, "the process was not started"
        code = self._child.wait(timeout_s)
        if self._child.stdout is not None:
            self._child.stdout.close()
        return code

    def _end(self, number: signal.Signals) -> int:
        assert self._child is not None, "the process was not started"
        if self._child.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(self._child.pid, number)
        return self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
