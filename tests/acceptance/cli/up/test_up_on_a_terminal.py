"""`penstock up` on a terminal, with everything that it runs."""

import fcntl
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import yaml

from penstock.clock import SYSTEM
from penstock.control.part_states import UpStates

DEADLINE_S = 90.0
SETTINGS = {
    "store": {"pd_addr": "127.0.0.1:0"},
    "capture": {"flight_addr": "127.0.0.1:0"},
    "api": {"addr": "127.0.0.1:0"},
    "up": {"captures": 2},
}

TAKE_TERMINAL = (
    "import os, sys\n"
    "os.close(os.open(os.ttyname(0), os.O_RDWR))\n"  # who leads a session gets the first one that it opens
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


class Terminal:
    """A terminal with one program, and what it has shown."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._keys, screen = os.openpty()
        fcntl.fcntl(self._keys, fcntl.F_SETFL, os.O_NONBLOCK)
        self._shown = b""
        self.child = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, sys.executable, "-m", "penstock.cli.main", *arguments],
            cwd=folder,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            env={**os.environ, "COLUMNS": "120", "TERM": "xterm", "NO_COLOR": "1"},
            start_new_session=True,
        )
        os.close(screen)

    @property
    def shown(self) -> str:
        try:
            while chunk := os.read(self._keys, 1 << 16):
                self._shown += chunk
        except OSError:  # nothing more for now, or for ever
            pass
        return re.sub(r"\x1b\[[0-9;]*m", "", self._shown.decode()).replace("\r\n", "\n")

    def type(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def until(self, words: str) -> str:
        deadline = SYSTEM.monotonic() + DEADLINE_S
        while words not in self.shown:
            assert SYSTEM.monotonic() < deadline, self.shown
            assert self.child.poll() is None, self.shown
            SYSTEM.pause(0.05)
        return self.shown

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self._keys)


def started_by(states: UpStates) -> list[str]:
    """Programs that parts have started."""
    parents, found = {part.pid for part in states.parts}, []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, fields = path.read_text().rpartition(")")
            if int(fields.split()[1]) in parents:
                found.append(name)
    return found


def test_people_see_each_part_and_where_the_pages_are_and_ctrl_c_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump(SETTINGS))
    terminal = Terminal(tmp_path, "up", "--config", "penstock.yaml")
    try:
        shown = terminal.until("Ctrl-C stops everything.")
        ready = re.findall(r"✓ (\S+) +ready", shown)
        assert ready[0] == "store"
        assert set(ready[1:3]) == {"capture-1", "capture-2"}
        assert set(ready[3:]) == {"changefeeds", "jobs", "api"}
        states = UpStates.read(tmp_path / "penstock-data/up")
        assert states is not None
        pids = [part.pid for part in states.parts]
        assert started_by(states) == []  # there is no changefeed, and no job that is large
        (pages,) = re.findall(r"pages +(http://\S+)", shown)
        with urllib.request.urlopen(f"{pages}/health", timeout=10) as answer:
            assert answer.status == 200
        (pd_addr,) = re.findall(r"placement driver +(\S+)", shown)
        assert pd_addr == states.parts[0].addr
        terminal.type(b"\x03")  # the terminal sends SIGINT to those in the foreground: the supervisor alone
        assert terminal.child.wait(60) == 0
        assert terminal.shown.endswith("✓ stopped\n"), terminal.shown
        assert "ended" not in terminal.shown
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        terminal.close()
