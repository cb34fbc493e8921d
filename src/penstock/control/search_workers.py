"""Searches in processes that can be ended, so that no search ends or holds the process that asks.

`SearchWorkers` keeps a few warm processes, each of which answers one search at a time. A search that takes
too long, or that needs too much memory, loses its process; the next search gets another. A process ends by
itself when the one that started it is gone.

A message is its length in eight bytes, and its bytes. Requests are pickles of ours. Answers are JSON and an
Arrow stream: a process that hostile input may have broken sends nothing that is executed.
"""

import contextlib
import io
import json
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import errors, metrics
from penstock.clock import SYSTEM, Clock
from penstock.consumers.search_index.search import SearchResult, search
from penstock.errors import PenstockError, Unavailable
from penstock.jobs.consumer import find_consumer
from penstock.jobs.job import Job
from penstock.settings import Settings

__all__ = ["SearchWorkers"]

_START_S = 60.0
"""Seconds that a process may take to import the index library."""
_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_IDLE_S = 60.0
"""Seconds after which a process that was not needed beside the others is ended."""
_ALARM_S = 5.0
"""Seconds after its deadline at which a process ends itself: nobody else has, so its starter is gone."""
_ANSWERED = ("Denied", "NotFound", "Invalid", "Unavailable", "Corrupt", "Fenced")
"""Errors of a search that the caller gets as they are; the first that matches counts."""


class _Broken(Exception):
    """The process ended, or it sent something else than an answer."""


class SearchWorkers:
    """At most `count` processes that answer searches; each is started when a search finds none free.

    One that was not needed for a while is ended when another search ends. Thread-safe. `close` ends them all.
    """

    def __init__(self, settings: Settings, *, count: int, clock: Clock = SYSTEM) -> None:
        self._settings = settings
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

    def search(
        self,
        job: Job,
        words: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        k: int = 10,
        filter: str | None = None,  # noqa: A002 - as `search` names it
        columns: Sequence[str] | None = None,
        every: bool = False,
    ) -> SearchResult:
        """Answer as `search_index.search.search` does; also raise Unavailable at a limit. Blocks."""
        options = {
            "vector": vector,
            "k": k,
            "filter": filter,
            "columns": columns,
            "every": every,
        }
        worker = self._take()
        keep = False
        try:
            with metrics.API_SEARCHES_RUNNING.track_inprogress():
                answer = worker.ask(job, words, options, self._settings.api.search_s)
            keep = not answer.tired
        except TimeoutError:
            metrics.API_SEARCHES_ENDED_TOTAL.labels("deadline").inc()
            raise Unavailable(
                f"the search took more than {self._settings.api.search_s:g} s (api.search_s) and was ended;"
                " write a narrower one"
            ) from None
        except _Broken:
            metrics.API_SEARCHES_ENDED_TOTAL.labels("died").inc()
            raise Unavailable(
                "the process of the search ended, perhaps by its limit of memory (api.search_bytes); try"
                " again, or write a narrower one"
            ) from None
        finally:
            self._put(worker, keep=keep)
        return answer.result()

    def close(self) -> None:
        """End all processes; later searches are refused."""
        with self._changed:
            self._closed = True
            workers, self._all, self._idle = self._all, set(), []
            self._changed.notify_all()
        for worker in workers:
            worker.end()

    def _take(self) -> "_Worker":
        """Return a free process, or a new one; raise Unavailable when none becomes free in time."""
        deadline = self._clock.monotonic() + self._settings.api.search_s
        with self._changed:
            while True:
                if self._closed:
                    raise Unavailable("the API is stopping; try again")
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive:
                        return worker
                    self._all.discard(worker)
                if len(self._all) + self._starting < self._count:
                    self._starting += 1
                    break
                if not self._changed.wait(deadline - self._clock.monotonic()):
                    raise Unavailable("other searches hold all processes (api.readers); try again")
        return self._start()

    def _start(self) -> "_Worker":
        started = None
        try:
            started = _Worker(self._settings)
        except (OSError, _Broken) as error:
            raise Unavailable(
                f"the process of a search cannot be started ({type(error).__name__}); check the machine's"
                " memory and processes"
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


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a process answered: JSON, and an Arrow stream when the search succeeded."""

    head: dict[str, Any]
    body: bytes

    @property
    def tired(self) -> bool:
        """Whether so much memory is left behind that the process should not answer another search."""
        return bool(self.head.get("tired"))

    def result(self) -> SearchResult:
        kind, message = self.head.get("error"), str(self.head.get("message"))
        if kind in _ANSWERED:
            raise getattr(errors, kind)(message)
        if kind is not None:
            raise RuntimeError(f"a search failed: {message}")
        with pa.ipc.open_stream(pa.py_buffer(self.body)) as stream:
            rows = stream.read_all()
        head = self.head
        return SearchResult(
            rows, int(head["watermark"]), float(head["lag_s"]), complete=bool(head["complete"])
        )


class _Worker:
    """One process. For one thread at a time, except `end`."""

    def __init__(self, settings: Settings) -> None:
        """Start it and wait until it is warm; raise OSError or _Broken when that fails."""
        self._socket, theirs = socket.socketpair()
        self._answer_max = settings.api.search_bytes
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
            _send(self._socket, pickle.dumps((list(sys.path), settings)))
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

    def ask(self, job: Job, words: str | None, options: dict[str, Any], seconds: float) -> _Answer:
        """Return the answer; raise TimeoutError when it takes longer, _Broken when the process ends."""
        deadline = SYSTEM.monotonic() + seconds
        try:
            self._socket.settimeout(seconds)
            _send(self._socket, pickle.dumps((job, words, options)))
            head = json.loads(_receive(self._socket, _HEAD_BYTES, deadline))
            return _Answer(head, _receive(self._socket, self._answer_max, deadline))
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise _Broken from error

    def end(self) -> None:
        """Kill the process, if it runs, and wait for its end."""
        self._socket.close()
        self._child.kill()
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
    """Answer searches until the other side is gone."""
    path, settings = pickle.loads(_receive(connection, sys.maxsize))  # noqa: S301 - from our starter
    sys.path[:] = path  # as the starter's, so that the functions of embeddings are found
    for consumer in ("fulltext", "vector"):
        with contextlib.suppress(PenstockError):  # without its packages, searches say what is missing
            find_consumer(consumer)
    ceiling = _limit_memory(settings.api.search_bytes)
    _send(connection, b"ready")
    while True:
        job, words, options = pickle.loads(_receive(connection, sys.maxsize))  # noqa: S301 - from our starter
        signal.setitimer(signal.ITIMER_REAL, settings.api.search_s + _ALARM_S)
        head, body = _answer(job, words, options, settings)
        signal.setitimer(signal.ITIMER_REAL, 0)
        head["tired"] = ceiling is not None and _data_bytes() > ceiling - settings.api.search_bytes / 2
        _send(connection, json.dumps(head).encode())
        _send(connection, body)


def _answer(
    job: Job, words: str | None, options: dict[str, Any], settings: Settings
) -> tuple[dict[str, Any], bytes]:
    try:
        found = search(job, words, **options, settings=settings)
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, found.rows.schema) as writer:
            writer.write_table(found.rows)
        head = {"watermark": found.watermark, "lag_s": found.lag_s, "complete": found.complete}
        return head, stream.getvalue()
    except PenstockError as error:
        kind = next((name for name in _ANSWERED if isinstance(error, getattr(errors, name))), "")
        return {"error": kind, "message": " ".join(str(error).split())[:2000]}, b""
    except MemoryError:  # Arrow's too
        message = "the search needs more memory than api.search_bytes; write a narrower one"
        return {"error": "Unavailable", "message": message}, b""
    except Exception as error:  # noqa: BLE001 - its text may hold values of rows
        return {"error": "", "message": type(error).__name__}, b""


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
    """Run a process of searches over the socket whose number is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        contextlib.suppress(_Broken, OSError),
    ):
        _serve(connection)


if __name__ == "__main__":
    main()
