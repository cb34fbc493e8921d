"""A proxy between a client and a server that breaks connections after a given byte."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

_CHUNK = 16 * 1024
_CLOSE_S = 10.0


class CuttingProxy:
    """Forwards connections from the socket file `listens` to the socket file `server`. It is a context.

    After `cut_after(n)` connections break once n more bytes have passed, in both directions together.
    """

    def __init__(self, listens: Path, server: Path) -> None:
        self._listens = listens
        self._server = server
        self._lock = threading.Lock()
        self._left: int | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._socket.bind(str(self._listens))
        self._socket.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._cut()
        for thread in self._threads:
            thread.join(_CLOSE_S)
            assert not thread.is_alive()

    def cut_after(self, nbytes: int) -> None:
        """Break open connections and new ones after so many bytes."""
        with self._lock:
            self._left = nbytes

    def heal(self) -> None:
        """Stop breaking connections."""
        with self._lock:
            self._left = None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server))
            with self._lock:
                self._open |= {client, server}
            self._start(self._pass, client, server)
            self._start(self._pass, server, client)

    def _pass(self, origin: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := origin.recv(_CHUNK):
                allowed = self._allowance(len(chunk))
                target.sendall(chunk[:allowed])
                if allowed < len(chunk):
                    self._cut()
                    return
        except OSError:
            pass
        for end in (origin, target):
            _close(end)

    def _allowance(self, nbytes: int) -> int:
        with self._lock:
            if self._left is None:
                return nbytes
            allowed = min(nbytes, self._left)
            self._left -= allowed
            return allowed

    def _cut(self) -> None:
        with self._lock:
            ended, self._open = self._open, set()
        for end in ended:
            _close(end)

    def _start(self, work: Callable[..., None], *ends: socket.socket) -> None:
        thread = threading.Thread(target=work, args=ends, daemon=True)
        self._threads.append(thread)
        thread.start()


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
