"""A capture as a process of its own, for tests that crash it."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from penstock.errors import Invalid

__all__ = ["CaptureProcess"]

_READY_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0


class CaptureProcess:
    """`penstock capture` as a child process. As a context manager it ends the process."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._config = folder / "penstock.yaml"
        self._log = folder / "capture.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(yaml.safe_dump(dict(settings)))
        self._child: subprocess.Popen[str] | None = None
        self.flight_addr = ""
        self.tables: list[int] = []

    def start(self) -> Self:
        """Start it, or start it again, and wait until it is ready; raise Invalid when it refuses."""
        assert self._child is None or self._child.poll() is not None, "the process still runs"
        command = [sys.executable, "-m", "penstock.app.cli", "capture", "--config", str(self._config)]
        with self._log.open("a") as log:
            self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603 - our own command line
        assert self._child.stdout is not None
        readable, _, _ = select.select([self._child.stdout], [], [], _READY_TIMEOUT_S)
        line = self._child.stdout.readline() if readable else ""
        if not line:
            self.kill()
            reason = (self._log.read_text().strip().splitlines() or ["no message"])[-1]
            raise Invalid(f"the capture did not start: {reason}")
        ready = json.loads(line)
        self.flight_addr, self.tables = ready["flight"], ready["tables"]
        return self

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        return self._log.read_text()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask the process to flush and stop; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._child is not None, "the process was not started"
        if self._child.poll() is None:
            os.kill(self._child.pid, number)
        code = self._child.wait(_STOP_TIMEOUT_S)
        if self._child.stdout is not None:
            self._child.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
