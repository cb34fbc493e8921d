"""A server that never answers: the kernel accepts what connects, and nobody reads it."""

import socket
from typing import Self

__all__ = ["BlackHole"]


class BlackHole:
    """A context; `address` is on loopback."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def accept_one(self) -> bool:
        """Return whether somebody has connected; take that connection and close it."""
        self._socket.settimeout(0)
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True
