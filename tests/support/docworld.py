"""A directory in which pages of the documentation are followed to the letter.

Addresses that pages show are exchanged for free ones, and settings files get small intervals, so that
several such worlds fit on one machine and nobody waits. Commands share one interpreter. Everything else runs
as it is written.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from penstock.clock import SYSTEM
from support.commandserver import CommandServer
from support.docblocks import Block, Kind, blocks_of, commands_of, matches

__all__ = ["DocWorld", "free_port"]

_COMMAND_S = 120.0
_READY_S = 120.0
_STOP_S = 90.0
_SHOWN_S = 240.0
_PAUSE_S = 0.3
_TAIL = 3000
_KEEP = "\nenv -0 > {file}\n"
_SHELL = ("bash", "-euo", "pipefail", "-c")


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class DocWorld:
    """Runs pages in one directory, one after the other; a context, which ends what they started.

    A block that is the same as one before, perhaps of another page, is not run again: a guide may begin with
    what the quick start did. Raises AssertionError with the page, the line and what was printed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        addresses: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        shown = ("127.0.0.1:2379", "127.0.0.1:8300", "127.0.0.1:8815")
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in shown} | dict(addresses or {})
        self._own_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._commands = CommandServer()
        self.environment = {**os.environ, "COLUMNS": "120", **(environment or {})}
        self._settings = dict(settings or {})
        self._done: set[tuple[str, str]] = set()
        self._prepared: dict[Path, str] = {}
        self._services = ExitStack()
        self._log = folder / "services.log"

    def __enter__(self) -> Self:
        self._commands.__enter__()
        self.environment["PATH"] = f"{self._commands.programs}{os.pathsep}{self._own_path}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._services.close()
        finally:
            self._commands.__exit__()

    def follow(self, page: Path) -> int:
        """Run every block of a page; return how many there were."""
        blocks = blocks_of(page.read_text(encoding="utf-8"))
        for block in blocks:
            try:
                self._take(block)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                log = self._log.read_text()[-_TAIL:] if self._log.exists() else ""
                raise AssertionError(f"{page.name}, line {block.line}: {error}\n{log}") from error
        return len(blocks)

    def _take(self, block: Block) -> None:
        text = self._with_addresses(block.text)
        if block.left_out:
            return
        if block.stops:
            self._services.close()
        if (block.kind, text) in self._done:
            return
        self._done.add((block.kind, text))
        if block.file is not None:
            self._write(block.file, text)
        elif block.service:
            self._begin(text)
        elif block.persists:
            self._persist(text)
        elif block.kind == Kind.BASH:
            self._run(text, code=block.exit_code)
        elif block.kind == Kind.PYTHON:
            self._run_command([f"{self._commands.programs}/python", "-c", text], code=block.exit_code)
        else:
            self._console(block)
        self._prepare()

    def _with_addresses(self, text: str) -> str:
        for shown, here in self._addresses.items():
            text = text.replace(shown, here)
        return text

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _prepare(self) -> None:
        """Settings files that are new, or were changed, get addresses that are free here."""
        for path in self.folder.glob("*.yaml"):
            text = path.read_text(encoding="utf-8")
            if self._prepared.get(path) != text and "pd_addrs" in text:
                tree = _overlaid(yaml.safe_load(self._with_addresses(text)) or {}, self._usual())
                path.write_text(yaml.safe_dump(_overlaid(self._settings, tree)), encoding="utf-8")
                self._prepared[path] = path.read_text(encoding="utf-8")

    def _usual(self) -> dict[str, Any]:
        """Return the defaults that a settings file does not set, with the addresses of this world."""
        pd, api, flight = (self._addresses[f"127.0.0.1:{port}"] for port in (2379, 8300, 8815))
        return {
            "pd_addrs": [pd],
            "store": {"pd_addr": pd},
            "capture": {"flight_addr": flight},
            "api": {"addr": api},
        }

    def _persist(self, text: str) -> None:
        deadline = SYSTEM.monotonic() + _SHOWN_S
        while True:
            try:
                self._run(text)
            except AssertionError:
                if SYSTEM.monotonic() > deadline:
                    raise
                SYSTEM.pause(_PAUSE_S)
            else:
                return

    def _console(self, block: Block) -> None:
        for command in commands_of(block):
            line, shown = self._with_addresses(command.line), self._with_addresses(command.output)
            deadline = SYSTEM.monotonic() + (_SHOWN_S if block.repeated else 0)
            while True:
                printed = self._run(line, code=None if block.repeated else block.exit_code)
                if matches(shown, printed):
                    break
                assert SYSTEM.monotonic() < deadline, f"{line}\nprinted\n{printed}\nand not\n{shown}"
                SYSTEM.pause(_PAUSE_S)

    def _run(self, text: str, *, code: int | None = 0) -> str:
        """Commands in a shell; what it exports holds from then on. No code: any will do."""
        kept = self.folder / ".environment"
        printed = self._run_command([*_SHELL, text + _KEEP.format(file=kept)], code=code)
        if kept.exists():
            pairs = (pair.partition("=") for pair in kept.read_text().split("\0") if pair)
            self.environment = {name: value for name, _, value in pairs}
            kept.unlink()
        return printed

    def _run_command(self, command: list[str], *, code: int | None) -> str:
        done = subprocess.run(  # noqa: S603 - what our own pages say
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        ended = f"ended with {done.returncode}"
        assert code in {None, done.returncode}, f"{command[-1]}\n{ended}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _begin(self, text: str) -> None:
        """Start a service; it is ready when it has printed a line."""
        with self._log.open("a") as log:
            child = subprocess.Popen(  # noqa: S603 - what our own pages say
                [*_SHELL, f"exec env {text}"],
                cwd=self.folder,
                env={**self.environment, "PATH": self._own_path},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._services.callback(self._end, child)
        assert child.stdout is not None
        readable, _, _ = select.select([child.stdout], [], [], _READY_S)
        assert readable, f"{text}\nis not ready"
        assert child.stdout.readline(), f"{text}\nended before it was ready"

    def _end(self, child: "subprocess.Popen[str]") -> None:
        child.send_signal(signal.SIGTERM)
        try:
            code = child.wait(_STOP_S)
        finally:
            child.kill()
            if child.stdout is not None:
                child.stdout.close()
        assert code == 0, f"a service ended with {code}"


def _overlaid(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees; where they say something of the same thing, the first counts."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            _overlaid(value, below) if isinstance(value, dict) and isinstance(below, dict) else value
        )
    return merged
