"""Requests to one server: tried again as long as that may help, within a time for each."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from penstock.clock import Clock
from penstock.consumers.webhook.answers import WAIT_MAX_S, Answer, Verdict, wait_s
from penstock.errors import Fenced, Invalid, Unavailable

_ANSWER_BYTES = 64 * 1024
_NOT_FOUND = 404
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


Headers = Callable[[], Mapping[str, str]]
"""Made for each attempt: a signature has the time in it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is; its path and query may be secrets."""

    secure: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def parse(cls, option: str, url: str) -> "Address":
        """Read a URL; raise Invalid, without showing it, when it is none that can be used."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Invalid(f"option {option} of consumer webhook is no URL; write https://host/path") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not _PRINTABLE.fullmatch(url):
            raise Invalid(f"option {option} of consumer webhook is no URL; write https://host/path")
        if parts.username or parts.password:
            raise Invalid(f"option {option} has a password; give it as option headers.Authorization instead")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", parts.hostname, port, path)

    @property
    def shown(self) -> str:
        """The server without what may be secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}{f':{self.port}' if self.port else ''}"


class Sender:
    """Sends to one address over one connection. For one thread."""

    def __init__(
        self, address: Address, *, timeout_s: float, attempts: int, ca_path: str | None, clock: Clock
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._ca_path = ca_path
        self._clock = clock
        self._connection: HTTPConnection | None = None

    def send(
        self, method: str, headers: Headers, body: bytes | None, *, missing: bytes | None = None
    ) -> bytes:
        """Send until the server takes it; return what it says, or `missing` for 404 if that is given.

        Raises Fenced for 409, Invalid for an answer that will not change, Unavailable when there was none
        after all attempts, or the server wants to be left alone for long.
        """
        failure = ""
        for attempt in range(self._attempts):
            answer, text = self._exchange(method, headers(), body)
            if answer.verdict is Verdict.TAKEN:
                return text
            if answer.status == _NOT_FOUND and missing is not None:
                return missing
            if answer.verdict is Verdict.FENCED:
                raise Fenced(f"{self._address.shown} answers that it is elsewhere (409)")
            if answer.verdict is Verdict.REFUSED:
                raise Invalid(f"{self._address.shown} {answer.reason}")
            failure = answer.reason
            now_s, chance = self._clock.wall_ms() / 1000, self._clock.random()
            pause_s = wait_s(attempt, answer.retry_after, now_s=now_s, chance=chance)
            if pause_s > WAIT_MAX_S:
                break
            if attempt < self._attempts - 1:
                self._clock.pause(pause_s)
        raise Unavailable(f"{self._address.shown} {failure}; the changes are sent again later")

    def _exchange(self, method: str, headers: Mapping[str, str], body: bytes | None) -> tuple[Answer, bytes]:
        """One attempt: the answer and its text."""
        late = threading.Event()
        try:
            with self._deadline(late) as connection:
                connection.request(method, self._address.path, body=body, headers=dict(headers))
                response = connection.getresponse()
                text = response.read(_ANSWER_BYTES + 1)
        except ssl.SSLCertVerificationError:
            self.close()
            raise Invalid(
                f"the certificate of {self._address.shown} is not trusted; check it, or the option ca_path"
            ) from None
        except (OSError, HTTPException) as error:
            self.close()
            return Answer(0, failure="took too long" if late.is_set() else _failure(error)), b""
        cut = bool(response.length) and len(text) <= _ANSWER_BYTES
        if late.is_set() or cut:  # http.client takes an answer that breaks off for one that ends
            self.close()
            return Answer(0, failure="took too long" if late.is_set() else "broke its answer off"), b""
        if response.will_close or len(text) > _ANSWER_BYTES:
            self.close()
        return Answer(response.status, response.getheader("Retry-After") or ""), text[:_ANSWER_BYTES]

    @contextmanager
    def _deadline(self, late: threading.Event) -> Iterator[HTTPConnection]:
        """The connection; it breaks when the whole exchange takes too long, however slowly bytes come."""
        connection = self._connected()
        timer = threading.Timer(self._timeout_s, _break, [connection.sock, late])
        timer.daemon = True
        timer.start()
        try:
            yield connection
        finally:
            timer.cancel()

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            made = self._make()
            made.connect()
            self._connection = made
        return self._connection

    def _make(self) -> HTTPConnection:
        where = self._address
        if not where.secure:
            return HTTPConnection(where.host, where.port, timeout=self._timeout_s)
        try:
            context = ssl.create_default_context(cafile=self._ca_path)
        except OSError:
            raise Invalid("option ca_path of consumer webhook cannot be read as certificates") from None
        return HTTPSConnection(where.host, where.port, timeout=self._timeout_s, context=context)

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _break(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _failure(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "took too long"
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, socket.gaierror):
        return "has no address"
    return f"broke the connection ({type(error).__name__})"
