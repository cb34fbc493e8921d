"""How much one request may bring, how many read at a time, and how long an answer may take to be taken.

What is known of requests afterwards: a line in the log, and metrics. Never a query, a header or a body.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import metrics
from penstock.api.errors import ProblemError, failed, refused
from penstock.clock import Clock

__all__ = ["BodyLimit", "Observed", "Readers", "StreamedAnswer"]


_ANSWER_S = 600.0


class BodyLimit:
    """Refuses bodies of more than `nbytes`, also those that do not say beforehand how long they are."""

    def __init__(self, app: ASGIApp, *, nbytes: int) -> None:
        self._app = app
        self._nbytes = nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "0")
        if said.isascii() and said.isdigit() and int(said) > self._nbytes:
            await refused(self._problem())(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._nbytes:
                raise self._problem()
            return message

        await self._app(scope, counted, send)

    def _problem(self) -> ProblemError:
        return ProblemError(413, f"the body has more than {self._nbytes} bytes (api.body_bytes)", why="body")


class Readers:
    """Lets `count` reads happen at a time; others are told to come again.

    Where there are several accounts none has all of them: one place is left for the others.
    """

    def __init__(self, count: int, *, accounts: int = 1) -> None:
        self._count = count
        self._each = max(count - 1, 1) if accounts > 1 else count
        self._lock = threading.Lock()
        self._reading: Counter[str] = Counter()

    @contextmanager
    def reading(self, account: str) -> Iterator[None]:
        """Read within the block; raise a 503 problem when too many read."""
        self._enter(account)
        try:
            yield
        finally:
            with self._lock:
                self._reading[account] -= 1

    def _enter(self, account: str) -> None:
        with self._lock:
            if self._reading.total() < self._count and self._reading[account] < self._each:
                self._reading[account] += 1
                return
        raise ProblemError(
            503,
            "as many reads are under way as may be (api.readers); come again in a moment",
            why="readers",
            headers={"Retry-After": "1"},
        )


class StreamedAnswer(StreamingResponse):
    """An answer that is made while it is sent. `closing` is closed in the end, whatever happens.

    A client that takes it too slowly is left: what it holds is needed by others.
    """

    def __init__(self, content: Iterator[bytes], **rest: Any) -> None:
        super().__init__(content, **rest)
        self.closing = ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await super().__call__(scope, receive, send)
        finally:
            ending = asyncio.ensure_future(run_in_threadpool(self.closing.close))
            await asyncio.shield(ending)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger(__name__)


class Observed:
    """Tells what became of every request, and answers for what nobody caught."""

    def __init__(self, app: ASGIApp, *, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. An answer that broke off is left unfinished: the server closes the connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            answer = failed(error)
            if not status:
                await answer(scope, receive, noted)
            else:
                _log.warning("an answer broke off", extra={"path": _path(scope)})
        finally:
            self._tell(scope, status, self._clock.monotonic() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")
        metrics.API_REQUESTS_TOTAL.labels(method, route, str(status)).inc()
        metrics.API_REQUEST_SECONDS.labels(route).observe(seconds)
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
    """As it was sent, without its query: what is escaped stays so, and no line can be forged."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
    return ascii(raw.partition(b"?")[0].decode("ascii", "backslashreplace"))[1:-1][:500]
