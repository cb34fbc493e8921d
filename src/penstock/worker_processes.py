"""Work in processes that can be ended, so that no hostile input ends or holds the process that asks.

`WorkerProcesses` keeps a few warm processes, each of which does one task at a time. A task that takes too
long, or that needs too much memory, loses its process; the next task gets another. A process ends by itself
when the one that started it is gone.

A message is its length in eight bytes, and its bytes. Tasks are pickles of ours. Answers are JSON and bytes
that the caller parses as data: a process that hostile input may have broken sends nothing that is executed.
"""

import contextlib
import json
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Denied, Fenced, Invalid, NotFound, PenstockError, StaleRead, Unavailable
from penstock.process import prepare_libraries

__all__ = [
    "ANSWERED",
    "Task",
    "TaskDied",
    "TaskFailed",
    "TaskLate",
    "WorkerAnswer",
    "WorkerProcesses",
    "WorkerSetup",
]

_START_S = 60.0
"""Seconds that a process may take to import its libraries."""
_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_IDLE_S = 60.0
"""Seconds after which a process that was not needed beside the others is ended."""
_ALARM_S = 5.0
"""Seconds after its deadline at which a process ends itself: nobody else has, so its starter is gone."""
_PROGRESS_S = 0.5
"""Least seconds between two messages that a task proceeds."""
_MESSAGE_CHARS = 2000

ANSWERED = (Denied, NotFound, Invalid, Unavailable, Corrupt, Fenced, StaleRead)
"""Errors of a task that the caller gets as they are; the first that matches counts."""


class TaskLate(Unavailable):
    """A task took too long and was ended."""


class TaskDied(Unavailable):
    """The process of a task ended before its answer, or needed more memory than it may have."""


class TaskFailed(PenstockError):
    """A task ended with an error that is not a PenstockError: a defect."""


class _Broken(Exception):
    """The process ended, or it sent something else than an answer."""


class _Gone(BaseException):
    """The process that asks is gone; whatever a task catches, it ends."""


def _do_nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a task returned: JSON of at most 64 KiB, and bytes."""

    head: Mapping[str, Any]
    body: bytes = b""


Task = Callable[[Callable[[], None]], WorkerAnswer]
"""Pickled; called in the process with a function to call whenever the task proceeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What a process is; pickled."""

    memory_bytes: int
    """Writable memory that its tasks may use beside what the process has before the first; kept on Linux."""
    task_s: float
    """Seconds that a task may take."""
    answered: tuple[type[PenstockError], ...] = ANSWERED
    warm_up: Callable[[], None] = _do_nothing
    """A function of a module: it imports what tasks need, before the limit of memory counts."""


class WorkerProcesses:
    """At most `count` processes; each is started when a task finds none free.

    One that was not needed for a while is ended when another task ends. Thread-safe. `close` ends them all.
    """

    def __init__(self, setup: WorkerSetup, *, count: int, clock: Clock = SYSTEM) -> None:
        self._setup = setup
        self._count = count
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._starting = 0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        with self._changed:
            return [worker.pid for worker in self._all]

    def run(
        self, task: Task, *, proceed: Callable[[], None] = lambda: None, stall_s: float | None = None
    ) -> WorkerAnswer:
        """Do a task and return its answer; raise its error. Blocks.

        `proceed` is called when the task says that it proceeds, and what it raises ends the task. Raises
        TaskLate after `task_s`, or when the task does not proceed for `stall_s`; TaskDied when the process
        ends or its memory does; Unavailable when there is no process.
        """
        worker = self._take()
        keep = False
        try:
            head, body = worker.ask(task, self._setup.task_s, proceed, stall_s)
            keep = not head.pop("tired", False)
        except _Broken:
            raise TaskDied("its process ended, perhaps by its limit of memory") from None
        finally:
            self._put(worker, keep=keep)
        _raise_error(head, self._setup.answered)
        return WorkerAnswer(head, body)

    def close(self) -> None:
        """End all processes; later tasks are refused."""
        with self._changed:
            self._closed = True
            workers, self._all, self._idle = self._all, set(), []
            self._changed.notify_all()
        for worker in workers:
            worker.end()

    def _take(self) -> "_Worker":
        """Return a free process, or a new one; raise Unavailable when none becomes free in time."""
        deadline = self._clock.monotonic() + self._setup.task_s
        with self._changed:
            while True:
                if self._closed:
                    raise Unavailable("this process is stopping; try again")
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive:
                        return worker
                    self._all.discard(worker)
                if len(self._all) + self._starting < self._count:
                    self._starting += 1
                    break
                if not self._changed.wait(deadline - self._clock.monotonic()):
                    raise Unavailable("others hold all processes; try again")
        return self._start()

    def _start(self) -> "_Worker":
        started = None
        try:
            started = _Worker(self._setup)
        except (OSError, _Broken) as error:
            raise Unavailable(
                f"a process cannot be started ({type(error).__name__}); check the machine's memory and"
                " processes"
            ) from error
        finally:
            with self._changed:
                self._starting -= 1
                unwanted = started if self._closed else None
                if started is not None and unwanted is None:
                    self._all.add(started)
                self._changed.notify_all()
            if unwanted is not None:
                unwanted.end()
        return started

    def _put(self, worker: "_Worker", *, keep: bool) -> None:
        with self._changed:
            if keep and not self._closed:
                worker.idle_at = self._clock.monotonic()
                self._idle.append(worker)
            ended = set() if worker in self._idle else {worker}
            # The last one is used first, so those before it are the ones that nobody needed for a while.
            ended |= {idle for idle in self._idle[:-1] if self._clock.monotonic() > idle.idle_at + _IDLE_S}
            self._idle = [idle for idle in self._idle if idle not in ended]
            self._all -= ended
            self._changed.notify()
        for unneeded in ended:
            unneeded.end()


def _raise_error(head: Mapping[str, Any], answered: Sequence[type[PenstockError]]) -> None:
    """Raise the error of an answer, if it has one."""
    kind, message = head.get("error"), str(head.get("message"))
    if kind is None:
        return
    if kind == MemoryError.__name__:
        raise TaskDied("it needs more memory than it may have")
    found = next((known for known in answered if known.__name__ == kind), None)
    if found is None:
        raise TaskFailed(f"a task failed by {message}; report it")
    error = found.__new__(
        found
    )  # not by its constructor: that makes the message of its arguments, and this one is finished
    Exception.__init__(error, message)
    vars(error).update(head.get("facts", {}))
    raise error


class _Worker:
    """One process. For one thread at a time, except `end`."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Start it and wait until it is warm; raise OSError or _Broken when that fails."""
        self._socket, theirs = socket.socketpair()
        self._answer_max = setup.memory_bytes
        self.idle_at = 0.0
        with theirs:
            # -P: what lies in the working directory is not imported. Native libraries write what they like
            # to standard error, values of rows among it, so nobody reads that.
            self._child = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        try:
            self._socket.settimeout(_START_S)
            _send(self._socket, pickle.dumps(list(sys.path)))
            _send(self._socket, pickle.dumps(setup))
            _receive(self._socket, _HEAD_BYTES)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.poll() is None

    def ask(
        self, task: Task, seconds: float, proceed: Callable[[], None], stall_s: float | None
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer; raise TaskLate when it takes longer, _Broken when the process ends."""
        deadline = SYSTEM.monotonic() + seconds
        try:
            self._socket.settimeout(seconds)
            _send(self._socket, pickle.dumps(task))
            while True:
                by = deadline if stall_s is None else min(deadline, SYSTEM.monotonic() + stall_s)
                head = json.loads(_receive(self._socket, _HEAD_BYTES, by))
                if not isinstance(head, dict):
                    raise _Broken
                if not head.get("proceeds"):
                    return head, _receive(self._socket, self._answer_max, deadline)
                proceed()
        except TimeoutError:
            if stall_s is not None and SYSTEM.monotonic() < deadline:
                raise TaskLate(f"it did not proceed for {stall_s:g} s and was ended") from None
            raise TaskLate(f"it took more than {seconds:g} s and was ended") from None
        except (OSError, ValueError, RecursionError) as error:
            raise _Broken from error

    def end(self) -> None:
        """Kill the process, if it runs, and wait for its end."""
        self._child.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # so that a thread that waits for it goes on
        self._socket.close()
        self._child.wait()


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def _receive(connection: socket.socket, bytes_max: int, deadline: float | None = None) -> bytes:
    """Return a message; raise _Broken at the end of the connection, TimeoutError after the deadline."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size, deadline))
    if length > bytes_max:
        raise _Broken
    return _receive_bytes(connection, length, deadline)


def _receive_bytes(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    received = bytearray()
    while len(received) < count:
        if deadline is not None:
            left_s = deadline - SYSTEM.monotonic()
            if left_s <= 0:
                raise TimeoutError
            connection.settimeout(left_s)
        chunk = connection.recv(min(count - len(received), _CHUNK_BYTES))
        if not chunk:
            raise _Broken
        received += chunk
    return bytes(received)


def _serve(connection: socket.socket) -> None:
    """Do tasks until the other side is gone."""
    sys.path[:] = pickle.loads(_receive(connection, sys.maxsize))  # noqa: S301 - as our starter's
    setup: WorkerSetup = pickle.loads(_receive(connection, sys.maxsize))  # noqa: S301 - from our starter
    setup.warm_up()
    ceiling = _limit_memory(setup.memory_bytes)
    _send(connection, b"ready")
    while True:
        message = _receive(connection, sys.maxsize)
        signal.setitimer(signal.ITIMER_REAL, setup.task_s + _ALARM_S)
        head, body = _answer(message, setup, _TaskProgress(connection).send)
        signal.setitimer(signal.ITIMER_REAL, 0)
        head["tired"] = ceiling is not None and _data_bytes() > ceiling - setup.memory_bytes / 2
        _send(connection, json.dumps(head).encode())
        _send(connection, body)


class _TaskProgress:
    """Tells the other side that a task proceeds, not too often."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sent_at = SYSTEM.monotonic()

    def send(self) -> None:
        now = SYSTEM.monotonic()
        if now >= self._sent_at + _PROGRESS_S:
            self._sent_at = now
            try:
                _send(self._connection, b'{"proceeds": true}')
            except OSError:
                raise _Gone from None


def _answer(message: bytes, setup: WorkerSetup, proceed: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
    try:
        task: Task = pickle.loads(message)  # noqa: S301 - from our starter
        answer = task(proceed)
        return dict(answer.head), answer.body
    except PenstockError as error:
        kind = next((known.__name__ for known in setup.answered if isinstance(error, known)), "")
        facts = {
            name: value for name, value in vars(error).items() if isinstance(value, (str, int, float, bool))
        }
        text = " ".join(str(error).split())[:_MESSAGE_CHARS]
        return {"error": kind, "message": text, "facts": facts}, b""
    except MemoryError:  # Arrow's too
        return {"error": MemoryError.__name__, "message": ""}, b""
    except Exception as error:  # noqa: BLE001 - its text may hold values of rows
        (*_, frame) = traceback.extract_tb(error.__traceback__)
        where = f"{type(error).__name__} (in {PurePath(frame.filename).name}:{frame.lineno})"
        return {"error": "", "message": where}, b""


def _limit_memory(nbytes: int) -> int | None:
    """Allow this process so many bytes more than it has; return the limit, or None where there is none.

    The limit is on writable memory, not on addresses: allocators reserve many addresses that they never use.
    """
    try:
        import resource

        used = _data_bytes()
        if used:
            resource.setrlimit(resource.RLIMIT_DATA, (used + nbytes, used + nbytes))
            return used + nbytes
    except (ImportError, OSError, ValueError):
        pass  # a system without such limits: the deadline is left
    return None


def _data_bytes() -> int:
    """Return the bytes of writable memory of this process; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    found = next((line for line in lines if line.startswith("VmData:")), "VmData: 0 kB")
    return int(found.split()[1]) * 1024


def main() -> None:
    """Do tasks that come over the socket whose number is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        contextlib.suppress(_Broken, _Gone, OSError),
    ):
        _serve(connection)


if __name__ == "__main__":
    # Before Arrow is imported: an allocator that reserves memory would give tasks more than they may have.
    prepare_libraries()
    # Tasks and setups are pickled by the name of the module, not as of __main__.
    from penstock.worker_processes import main as run

    run()
