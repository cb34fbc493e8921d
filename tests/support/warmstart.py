"""Processes of a service, forked from one that has imported what the service needs.

Most of a service's first seconds are Python's start and its imports. Tests that kill the same service again
and again spend them once. What is forked is a process of its own as any other, and runs the command line
from its beginning; only modules are there already, and with them where random numbers begin (of jitter;
unique ids are drawn from the system).
"""

import atexit
import json
import os
import selectors
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

from penstock import process

__all__ = ["WarmChild", "WarmStart", "shared_start"]

_MESSAGE_MAX = 1 << 16
_FDS_MAX = 1 << 16
_OUTPUTS = (1, 2)
_FAILED = 70
_COMMAND_LINE = "penstock.cli.main"


class WarmChild:
    """A process that was forked; what is used of Popen is the same here."""

    def __init__(self, told: socket.socket, output: IO[str]) -> None:
        self.stdout = output
        self.pid = int(told.recv(_MESSAGE_MAX))
        self._told = told
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._wait_end(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; raise TimeoutExpired when that takes longer."""
        code = self._wait_end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _wait_end(self, timeout_s: float | None) -> int | None:
        if self._code is None:
            self._told.settimeout(timeout_s)
            try:
                self._code = int(self._told.recv(_MESSAGE_MAX) or _FAILED)
            except (BlockingIOError, TimeoutError):
                return None
            self._told.close()
        return self._code


class WarmStart:
    """A context: the process that others are forked from, with these modules imported.

    None of them may start a thread when it is imported. Children live on when it ends.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> Self:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __spec__.name, str(theirs.fileno()), *self._modules]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.close()  # the end of what it is asked is the end of it
        self._process.wait()

    def fork(self, arguments: Sequence[str], log: IO[str]) -> WarmChild:
        """Run `penstock` with these arguments, in our directory and environment as they are now.

        Its standard output is a pipe, its errors go to `log`.
        """
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, written = os.pipe()
        try:
            wanted = {
                "arguments": list(arguments),
                "folder": str(Path.cwd()),
                "environment": dict(os.environ),
            }
            socket.send_fds(
                self._asking, [json.dumps(wanted).encode()], [written, log.fileno(), theirs.fileno()]
            )
        finally:
            os.close(written)
            theirs.close()
        return WarmChild(told, os.fdopen(output))


@cache
def shared_start(*modules: str) -> WarmStart:
    """Return the warm start that this process keeps to its end and shares."""
    made = WarmStart(*modules).__enter__()
    atexit.register(made.__exit__)
    return made


def _serve(asked: socket.socket) -> None:
    """Fork whenever somebody asks, and tell how those ended, until nobody can ask any more."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not asked:
                    waiting.unregister(key.fd)
                    _tell_end(key.fd, *key.data)
                    continue
                wanted, fds, _, _ = socket.recv_fds(asked, _MESSAGE_MAX, len(_OUTPUTS) + 1)
                if not wanted:
                    return
                pid, told = _fork_child(json.loads(wanted), fds)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))


def _tell_end(process_fd: int, pid: int, told: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(process_fd)
    with told:
        told.send(b"%d" % os.waitstatus_to_exitcode(status))


def _fork_child(wanted: dict[str, Any], fds: list[int]) -> tuple[int, socket.socket]:
    pid = os.fork()
    if not pid:
        _become(wanted, fds)
    told = socket.socket(fileno=fds.pop())
    for fd in fds:
        os.close(fd)
    told.send(b"%d" % pid)
    return pid, told


def _become(wanted: dict[str, Any], fds: list[int]) -> None:
    """Be `penstock` as it is wanted, and nothing of what this process was."""
    for fd, output in zip(fds, _OUTPUTS, strict=False):
        os.dup2(fd, output)
    os.closerange(max(_OUTPUTS) + 1, _FDS_MAX)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = ["penstock", *wanted["arguments"]]
    code: object = _FAILED
    try:
        import_module(_COMMAND_LINE).main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - it ends like any program
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    process.prepare_libraries()
    for _module in (_COMMAND_LINE, *sys.argv[2:]):
        import_module(_module)
    with socket.socket(fileno=int(sys.argv[1])) as _asked:
        _serve(_asked)
