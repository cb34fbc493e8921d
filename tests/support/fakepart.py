"""A part that does nothing but speak the protocol of `penstock up`: for tests of whoever looks after it.

`fake_part_command` starts it. It writes what happens to it to a journal in its folder, and
behaves as FOLDER/NAME.json says: {"refuse": "why"}, {"crash": true}, {"silent": true}, {"stubborn": true},
{"child": true}, {"say": ["line"]}.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["Journal", "fake_part_command", "main"]

_CHUNK_BYTES = 1 << 16


def fake_part_command(name: str, folder: Path) -> tuple[str, ...]:
    """Return how it is started: without site-packages, which it does not need and would wait for."""
    return (sys.executable, "-I", "-S", __file__, name, str(folder))


class Journal:
    """What happened to the parts of a folder, in order, and how they are to behave."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "journal"

    def add(self, part: str, what: str) -> None:
        """Append a line, whole."""
        line = f"{what} {part} {os.getpid()}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    @property
    def events(self) -> list[tuple[str, str]]:
        """What happened, to which part."""
        return [(what, part) for what, part, _ in self._lines()]

    def pids(self, part: str) -> list[int]:
        """Return the processes that a part was, the latest last."""
        return [int(pid) for what, name, pid in self._lines() if (what, name) == ("began", part)]

    def behave(self, part: str, **how: Any) -> None:
        """Decide how a part behaves from its next start on."""
        (self._folder / f"{part}.json").write_text(json.dumps(how))

    def behaviour(self, part: str) -> dict[str, Any]:
        """Return what was decided."""
        path = self._folder / f"{part}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self._path.read_text().splitlines()] if self._path.exists() else []


def main() -> None:
    """Behave."""
    name, journal = sys.argv[1], Journal(Path(sys.argv[2]))
    order = json.loads(_read_line())
    journal.add(name, "began")
    how = journal.behaviour(name)
    for line in how.get("say", ()):
        sys.stderr.write(f"{line}\n")
    if "refuse" in how:
        sys.stderr.write(f"penstock: {how['refuse']}\n")
        sys.exit(2)
    if "crash" in how:
        raise RuntimeError("a mistake")
    if "silent" not in how:
        sys.stdout.write(json.dumps(_ready(order) | _child(how)) + "\n")
        sys.stdout.flush()
    while os.read(0, _CHUNK_BYTES):
        pass
    if "stubborn" in how:
        while True:
            signal.pause()
    journal.add(name, "ended")


def _ready(order: dict[str, Any]) -> dict[str, str]:
    pd_addr = order["settings"].get("store", {}).get("pd_addr", "127.0.0.1:2379")
    addr = pd_addr.replace(":0", ":4321") if pd_addr.endswith(":0") else pd_addr
    answers = {"store": {"pd": addr}, "capture": {"flight": "127.0.0.1:8815"}, "api": {"api": "http://x:1"}}
    return answers.get(order["kind"], {}) | {"metrics": "127.0.0.1:9100"}


def _child(how: dict[str, Any]) -> dict[str, int]:
    """Return a process that a part leaves behind."""
    if "child" not in how:
        return {}
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    left = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own
    return {"child": left.pid}


def _read_line() -> bytes:
    found = b""
    while not found.endswith(b"\n") and (chunk := os.read(0, _CHUNK_BYTES)):
        found += chunk
    return found


if __name__ == "__main__":
    main()
