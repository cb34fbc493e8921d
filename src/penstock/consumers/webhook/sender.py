"""Requests to one server: retried while that may help, with a timeout for each."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from urllib.parse import urlsplit

import httpx

from penstock.clock import Clock
from penstock.errors import Aborted, Fenced, Invalid, Unavailable
from penstock.eventloop import run, shared_loop
from penstock.retry import EQUAL_JITTER, BackoffPolicy
from penstock.targets import Target

_RETRIED = frozenset({408, 425, 429})  # like 5xx
_CONFLICT = 409
_HINTS = {
    401: "; check the options headers.* and secret",
    403: "; check the options headers.* and secret",
    413: "; lower the option request_bytes",
}

_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=30.0, jitter=EQUAL_JITTER)
WAIT_MAX_S = 60.0
"""A server that asks for a longer pause is left to the next iteration."""
_PIECE_S = 5.0
"""The longest part of a pause after which an interruption is noticed."""


class DeliveryResult(Enum):
    """What the answer to a request means."""

    ACCEPTED = auto()
    RETRY = auto()
    FENCED = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and the pause that the server asks for as it wrote it; or why there is no answer."""

    status: int
    retry_after: str = ""
    failure: str = ""

    @property
    def result(self) -> DeliveryResult:
        """2xx is accepted, 409 is another watermark; 408, 425, 429 and 5xx are retried, others refused."""
        if self.failure:
            return DeliveryResult.RETRY
        if 200 <= self.status < 300:
            return DeliveryResult.ACCEPTED
        if self.status == _CONFLICT:
            return DeliveryResult.FENCED
        return (
            DeliveryResult.RETRY if self.status in _RETRIED or self.status >= 500 else DeliveryResult.REFUSED
        )

    @property
    def reason(self) -> str:
        """What the server answered, with a hint for the person who repairs it."""
        if self.failure:
            return self.failure
        if 300 <= self.status < 400:
            return f"answers {self.status}; redirects are not followed; use the address that it leads to"
        return f"answers {self.status}{_HINTS.get(self.status, '')}"


def retry_delay_s(attempt: int, retry_after: str, *, now_s: float, chance: float) -> float:
    """Return the pause after an attempt (the first is 0): what the server asks for, else one that doubles."""
    asked_s = _parse_retry_after(retry_after.strip(), now_s)
    return asked_s if asked_s is not None else _BACKOFF.delay_s(attempt + 1, chance)


def _parse_retry_after(retry_after: str, now_s: float) -> float | None:
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError):
        return None


_ANSWER_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024  # of a body: between two chunks, other tasks of the loop run
_NOT_FOUND = 404
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


Resolve = Callable[[], Sequence[str]]
"""Returns the addresses of the server; raises TenantRefused when a tenant may not connect to one."""
Headers = Callable[[], Mapping[str, str]]
"""Called for each attempt, because a signature contains the time."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server; its path and query may be secrets."""

    secure: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def parse(cls, option: str, url: str) -> "Address":
        """Read a URL; raise Invalid, without showing it, when it cannot be used."""
        try:
            parts = urlsplit(url)
            port = parts.port
            httpx.URL(scheme="http", host=parts.hostname or "", port=port)
        except (ValueError, httpx.InvalidURL):
            raise Invalid(f"option {option} of consumer webhook is no URL; write https://host/path") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not _PRINTABLE.fullmatch(url):
            raise Invalid(f"option {option} of consumer webhook is no URL; write https://host/path")
        if parts.username or parts.password:
            raise Invalid(f"option {option} has a password; give it as option headers.Authorization instead")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", parts.hostname, port, path)

    def target(self, option: str) -> Target:
        """Return the server and the path for a tenant; raise TenantRefused when they cannot be checked."""
        path = self.path.partition("?")[0]
        return Target.of_server(option, "https" if self.secure else "http", self.host, self.port, path)

    @property
    def authority(self) -> str:
        """The server as the Host header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def public_url(self) -> str:
        """The server without what may be secret."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"


class Sender:
    """Sends to one address over one connection. For one thread, which is not that of the shared loop."""

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float,
        attempts: int,
        ca_path: str | None,
        clock: Clock,
        resolve: Resolve | None = None,
    ) -> None:
        self._address = address
        self._resolve = resolve
        self._host = address.host
        """What the connection is made to: the server's name, or an address of it that was checked."""
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._ca_path = ca_path
        self._clock = clock
        self._connection: httpx.AsyncHTTPTransport | None = None
        self._interrupted = False
        self._request_task: asyncio.Task[object] | None = None

    def interrupt(self) -> None:
        """Let the request that is being made, and every later one, raise Aborted. For any thread."""
        self._interrupted = True
        shared_loop().call_soon_threadsafe(self._cancel_request)

    def _cancel_request(self) -> None:
        if self._request_task is not None:
            self._request_task.cancel()

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, in pieces, so that an interruption is noticed."""
        while seconds > 0 and not self._interrupted:
            piece = min(seconds, _PIECE_S)
            self._clock.pause(piece)
            seconds -= piece

    def send(
        self, method: str, headers: Headers, body: bytes | None, *, missing: bytes | None = None
    ) -> bytes:
        """Send until the server accepts; return its answer, or `missing` for 404 if that is given.

        Raises Fenced for 409, Invalid for an answer that will not change, and Unavailable when all attempts
        failed or the server asks for a long pause.
        """
        failure = ""
        for attempt in range(self._attempts):
            if self._resolve is not None and self._connection is None:
                # The name is looked up here only: a transport that reconnects goes to the same address.
                addresses = self._resolve()
                self._host = addresses[attempt % len(addresses)]
            answer, text = self._exchange(method, headers(), body)
            if answer.result is DeliveryResult.ACCEPTED:
                return text
            if answer.status == _NOT_FOUND and missing is not None:
                return missing
            if answer.result is DeliveryResult.FENCED:
                raise Fenced(f"{self._address.public_url} answers that it has another watermark (409)")
            if answer.result is DeliveryResult.REFUSED:
                raise Invalid(f"{self._address.public_url} {answer.reason}")
            failure = answer.reason
            now_s, chance = self._clock.wall_ms() / 1000, self._clock.random()
            pause_s = retry_delay_s(attempt, answer.retry_after, now_s=now_s, chance=chance)
            if pause_s > WAIT_MAX_S:
                break
            if attempt < self._attempts - 1:
                self._pause(pause_s)
        raise Unavailable(f"{self._address.public_url} {failure}; the changes are sent again later")

    def _exchange(self, method: str, headers: Mapping[str, str], body: bytes | None) -> tuple[Answer, bytes]:
        """Make one attempt; return the answer and its text."""
        if self._connection is None:
            one = httpx.Limits(max_connections=1, keepalive_expiry=None)
            self._connection = httpx.AsyncHTTPTransport(
                verify=self._tls_context(), limits=one, trust_env=False
            )
        try:
            answer, text = run(self._answer(self._connection, self._request(method, headers, body)))
        except asyncio.CancelledError:
            self.close()
            raise Aborted("the job was canceled") from None
        except (OSError, httpx.TransportError) as error:
            self.close()
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
                server = self._address.public_url
                raise Invalid(
                    f"the certificate of {server} is not trusted; check it, or the option ca_path"
                ) from None
            return Answer(0, failure=_failure(error)), b""
        if answer.failure:
            self.close()
        return answer, text

    async def _answer(
        self, connection: httpx.AsyncHTTPTransport, request: httpx.Request
    ) -> tuple[Answer, bytes]:
        """Return the server's answer; raise TimeoutError when it takes too long, however slowly bytes come.

        Uses the transport, not a client: redirects, cookies and proxies are not wanted.
        """
        self._request_task = asyncio.current_task()
        if self._interrupted:
            raise asyncio.CancelledError
        async with asyncio.timeout(self._timeout_s):
            response = await connection.handle_async_request(request)
            text = bytearray()
            try:
                async for chunk in response.aiter_raw():
                    text += chunk
                    if len(text) > _ANSWER_BYTES:
                        break
            except httpx.RemoteProtocolError:
                return Answer(0, failure="interrupted its answer"), b""
            finally:
                await response.aclose()
        answer = Answer(response.status_code, response.headers.get("Retry-After", ""))
        return answer, bytes(text[:_ANSWER_BYTES])

    def _request(self, method: str, headers: Mapping[str, str], body: bytes | None) -> httpx.Request:
        """Make a request. The path is given as the target, because httpx would rewrite it in a URL."""
        address = self._address
        sent = httpx.Headers({"Accept-Encoding": "identity"})
        extensions: dict[str, object] = {"target": address.path.encode("ascii")}
        if self._host != address.host:  # its own name is for the server, and for its certificate
            sent["Host"] = address.authority
            extensions["sni_hostname"] = address.host
        sent.update(headers)
        if body is not None:
            sent["Content-Length"] = str(len(body))
        return httpx.Request(
            method,
            httpx.URL(scheme="https" if address.secure else "http", host=self._host, port=address.port),
            headers=sent,
            content=None if body is None else _split_body(body),
            extensions=extensions,
        )

    def _tls_context(self) -> ssl.SSLContext | bool:
        if not self._address.secure:
            return False  # nothing is verified, and no certificates are loaded
        try:
            return ssl.create_default_context(cafile=self._ca_path)
        except OSError:
            raise Invalid(
                "option ca_path of consumer webhook cannot be read as certificates; name a PEM file"
            ) from None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            run(self._connection.aclose())
        self._connection = None


async def _split_body(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _CHUNK_BYTES):
        yield body[start : start + _CHUNK_BYTES]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what led to it: httpx keeps errors of sockets and TLS as causes."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from _causes(inner)
        error = error.__cause__ or error.__context__


def _failure(error: Exception) -> str:
    causes = list(_causes(error))
    for kind, words in (
        (TimeoutError, "took too long"),
        (ConnectionRefusedError, "refused the connection"),
        (socket.gaierror, "has no address"),
    ):
        if any(isinstance(cause, kind) for cause in causes):
            return words
    return f"broke the connection ({type(error).__name__})"
