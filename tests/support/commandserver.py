"""One interpreter that runs the `penstock` and `python` commands of a shell, one after the other.

Most of a command's time is Python's start and its imports. A shell finds small programs of these names in a
directory of ours; they hand what they were given to this process, which does it with their output, working
directory and environment, and answers with the exit code. Commands that read from another one's pipe, and
such as run until they are stopped, are not for it.
"""

import contextlib
import json
import os
import runpy
import selectors
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

__all__ = ["CommandServer"]

_CLIENT = """#!{python} -SE
import json, os, socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.connect({path!r})
socket.send_fds(asking, [b"!"], [1, 2])
given = {{"program": {name!r}, "arguments": sys.argv[1:], "folder": os.getcwd()}}
asking.sendall(json.dumps({{**given, "environment": dict(os.environ)}}).encode())
asking.shutdown(socket.SHUT_WR)
sys.exit(int(asking.recv(8) or b"70"))
"""
_PROGRAMS = ("penstock", "python")
_OUTPUTS = (1, 2)
_CHUNK = 1 << 16


class CommandServer:
    """A context: the process, and `programs`, the directory for the front of PATH."""

    programs: Path

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="penstock-")  # a socket's path has to be short
        self.programs = Path(self._folder.name)
        path = str(self.programs / "commands")
        for name in _PROGRAMS:
            program = self.programs / name
            program.write_text(_CLIENT.format(python=sys.executable, path=path, name=name))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        command = [sys.executable, "-m", __spec__.name, path]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - ours
        assert self._child.stdout is not None
        assert self._child.stdout.readline(), "the process that runs commands did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate()  # the end of its input is the end of it
        self._folder.cleanup()


def _serve(path: str) -> None:
    """Run what comes, until the input of this process ends."""
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as waiting:
        listening.bind(path)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(sys.stdin, selectors.EVENT_READ)
        while True:
            if any(key.fileobj is sys.stdin for key, _ in waiting.select()):
                return
            asking, _ = listening.accept()
            with asking, contextlib.suppress(BrokenPipeError):
                asking.sendall(b"%d" % _serve_request(asking))


def _serve_request(asking: socket.socket) -> int:
    _, outputs, _, _ = socket.recv_fds(asking, 1, len(_OUTPUTS))
    try:
        given = json.loads(b"".join(iter(lambda: asking.recv(_CHUNK), b"")))
        with _in_place(given, outputs):
            return _run_command(given["program"], given["arguments"])
    finally:
        for output in outputs:
            os.close(output)


@contextlib.contextmanager
def _in_place(given: dict[str, Any], outputs: Sequence[int]) -> Iterator[None]:
    """Be where the command was called, with its output; and nowhere special afterwards."""
    own = [os.dup(standard) for standard in _OUTPUTS]
    path, environment = list(sys.path), dict(os.environ)
    for output, standard in zip(outputs, _OUTPUTS, strict=True):
        os.dup2(output, standard)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        for kept, standard in zip(own, _OUTPUTS, strict=True):
            os.dup2(kept, standard)
            os.close(kept)


def _run_command(program: str, arguments: list[str]) -> int:
    """Run a command; return its exit code."""
    try:
        _run(program, arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except BaseException:  # noqa: BLE001 - whatever a program raises is its own end
        traceback.print_exc()
        return 1
    return 0


def _run(program: str, arguments: list[str]) -> None:
    if program == "penstock":
        sys.argv = [program, *arguments]
        (command,) = entry_points(group="console_scripts", name=program)
        command.load()()
    elif arguments[0] == "-c":
        sys.argv = arguments
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - what pages say
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1])
