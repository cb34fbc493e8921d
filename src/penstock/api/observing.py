"""What is known of requests afterwards: a line in the log, and metrics. Never a query, a header or a body."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import metrics
from penstock.api.errors import failed
from penstock.clock import Clock

__all__ = ["Observed"]

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
