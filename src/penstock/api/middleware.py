"""Limits on bodies, on concurrent requests and reads, on the time of an answer; log and metrics of requests.

Log and metrics never contain a query, a header or a body.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import metrics
from penstock.api.audit import record_request
from penstock.api.errors import ProblemError, answer_failure, answer_refusal
from penstock.clock import SYSTEM, Clock
from penstock.eventloop import AccountPlaces
from penstock.jobs.usage import Usage
from penstock.shares import Shares

__all__ = ["BodyLimit", "ConcurrencyLimit", "Readers", "RequestLog", "StreamedAnswer"]


_ANSWER_S = 600.0


class BodyLimit:
    """Refuses bodies of more than `nbytes`, also those without a Content-Length."""

    def __init__(self, app: ASGIApp, *, nbytes: int) -> None:
        self._app = app
        self._nbytes = nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a body that is declared too long; count the bytes of the others while they come."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > self._nbytes:
            await answer_refusal(self._problem())(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._nbytes:
                raise self._problem()
            return message

        await self._app(scope, receive_counted, send)

    def _problem(self) -> ProblemError:
        return ProblemError(
            413, f"the body has more than {self._nbytes} bytes (api.body_bytes); send less", why="body"
        )


_TURN_S = 5.0
_WAITING_PER_PLACE = 4


class ConcurrencyLimit:
    """Works on only so many requests of an account at a time; its others wait a moment, then get a 503.

    Every request blocks a thread of one pool. So requests of one account that hang, however many, leave
    threads to others: `shares` has the cap and the floor of each account. Requests without a known token are
    not counted, because they reach nothing that blocks. For one event loop.
    """

    def __init__(self, app: ASGIApp, *, shares: Shares, wait_s: float = _TURN_S) -> None:
        self._app = app
        self._places = AccountPlaces(shares)
        self._wait_s = wait_s
        self._waiting_max = _WAITING_PER_PLACE * shares.count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on in its turn."""
        caller = scope.get("state", {}).get("caller")
        if scope["type"] != "http" or caller is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._places.enter(caller.name, wait_s=self._wait_s, waiting_max=self._waiting_max)
        except TimeoutError:
            await answer_refusal(self._problem())(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._places.leave(caller.name)

    def _problem(self) -> ProblemError:
        return ProblemError(
            503,
            "too many requests of the account run at the same time (api.account_requests); try again in a"
            " moment",
            why="requests",
            headers={"Retry-After": "1"},
        )


@dataclass(slots=True)
class ReadCost:
    """What a read costs its account beside its time; whoever reads fills it in."""

    rows: int = 0
    nbytes: int = 0


class Readers:
    """Allows `count` reads at a time; refuses others with a 503, and charges reads to their accounts.

    With several accounts, one account has at most `count - 1` reads. An account that reads nothing may begin
    one all the same, up to twice `count` reads: so slow reads of others, however many, shut nobody out.
    """

    def __init__(
        self,
        count: int,
        *,
        accounts: int = 1,
        charge: Callable[[str, Usage], None] = lambda _account, _usage: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._count = count
        self._account_count = max(count - 1, 1) if accounts > 1 else count
        self._charge = charge
        self._clock = clock
        self._lock = threading.Lock()
        self._reading: Counter[str] = Counter()

    @property
    def most(self) -> int:
        """The number of reads that may run at once."""
        return 2 * self._count

    @contextmanager
    def reading(self, account: str) -> Iterator[ReadCost]:
        """Count a read during the block, and charge it; raise a 503 problem when there are too many."""
        self._enter(account)
        began, cost = self._clock.monotonic(), ReadCost()
        try:
            yield cost
        finally:
            with self._lock:
                self._reading[account] -= 1
                if not self._reading[account]:
                    del self._reading[account]
            self._charge(account, Usage(cost.rows, cost.nbytes, self._clock.monotonic() - began))

    def _enter(self, account: str) -> None:
        with self._lock:
            held, total = self._reading[account], self._reading.total()
            if total < (self._count if held else self.most) and held < self._account_count:
                self._reading[account] += 1
                return
        raise ProblemError(
            503,
            "too many reads run at the same time (api.readers); try again in a moment",
            why="readers",
            headers={"Retry-After": "1"},
        )


class StreamedAnswer(StreamingResponse):
    """An answer that is produced while it is sent. `closing` is closed at the end, whatever happens.

    An answer that takes too long is cut off, and so is one whose client takes nothing of it for `stall_s`:
    others need the reader that it holds. `sent` counts the bytes of the body.
    """

    def __init__(self, content: Iterator[bytes], *, stall_s: float, **rest: Any) -> None:
        super().__init__(content, **rest)
        self.closing = ExitStack()
        self.sent = 0
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer within the time limits, then close `closing`."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._stall_s):
                await send(message)
            self.sent += len(message.get("body", b""))

        try:
            async with asyncio.timeout(_ANSWER_S):
                await super().__call__(scope, receive, send_in_time)
        finally:
            ending = asyncio.ensure_future(run_in_threadpool(self.closing.close))
            await asyncio.shield(ending)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger(__name__)


class RequestLog:
    """Logs and counts every request, and answers errors that nothing else has handled."""

    def __init__(self, app: ASGIApp, *, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on.

        An answer that fails after its start stays unfinished: the server closes the connection.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:  # noqa: BLE001 - the last place that can answer
            answer = answer_failure(error)
            if not status:
                await answer(scope, receive, send_noted)
            else:
                _log.warning("an answer broke off", extra={"path": _path(scope)})
        finally:
            self._record(scope, status, self._clock.monotonic() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")
        metrics.API_REQUESTS_TOTAL.labels(method, route, str(status)).inc()
        metrics.API_REQUEST_SECONDS.labels(route).observe(seconds)
        record_request(scope, status)
        caller = scope.get("state", {}).get("caller")
        _log.info(
            "request",
            extra={
                "method": method,
                "path": _path(scope),
                "status": status,
                "seconds": round(seconds, 4),
                "account": None if caller is None else caller.name,
                "client": (scope.get("client") or (None,))[0],
            },
        )


def _path(scope: Scope) -> str:
    """Return the path as it was sent, without its query. Escapes stay, so that it cannot forge a log line."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
    return ascii(raw.partition(b"?")[0].decode("ascii", "backslashreplace"))[1:-1][:500]
