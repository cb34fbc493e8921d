"""What stands before every route: by which names it is asked, by whom, how often; what browsers are told."""

import math
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.accounts import TokenAccounts
from penstock.api.errors import ProblemError, refused
from penstock.api.tokenbucket import RateLimit
from penstock.clock import Clock
from penstock.settings import ApiSettings
from penstock.settings.network import is_loopback, parted

__all__ = ["Gate", "SafeHeaders", "asked_names", "host_of"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TLS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}


def asked_names(settings: ApiSettings) -> frozenset[str]:
    """The names by which the API may be asked: those of the settings, its own, loopback's if it is there."""
    host = parted(settings.addr)[0]
    own = (host, *_LOOPBACK) if is_loopback(settings.addr) else (host,)
    return frozenset(name.lower() for name in (*settings.hosts, *own))


def host_of(authority: str) -> str:
    """The name in what a Host header says, in small letters; empty when it is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""


class Gate:
    """Refuses requests under foreign names, of foreign pages and of callers that ask too often.

    A foreign name means that some page made its own name lead here, to read with the rights of whoever looks
    at it. Who asks is put into the request's state; whether a token is needed is for the routes to say.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ApiSettings,
        accounts: TokenAccounts,
        clock: Clock,
        free: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._names = asked_names(settings)
        self._accounts = accounts
        self._clock = clock
        self._free = frozenset(free)  # paths that are not counted: those of probes
        self._rate = RateLimit(settings.requests_per_s, settings.requests_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope, Headers(scope=scope))
        except ProblemError as problem:
            await refused(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if host_of(headers.get("host", "")) not in self._names:
            raise ProblemError(421, "the API is not known by this name; add it to api.hosts", why="host")
        if scope["method"] not in _SAFE_METHODS and self._is_foreign(headers):
            raise ProblemError(403, "a page of another origin may not change anything here", why="origin")
        caller = self._accounts.caller(headers.get("authorization"))
        scope.setdefault("state", {})["caller"] = caller
        if scope["path"] in self._free:
            return
        address = (scope.get("client") or ("unknown",))[0]
        named = None if self._accounts.open else caller
        key = f"address {address}" if named is None else f"account {named.name}"
        wait = self._rate.take(key, self._clock.monotonic())
        if wait:
            raise ProblemError(
                429,
                "too many requests (api.requests_per_s); wait as long as Retry-After says",
                why="rate",
                headers={"Retry-After": str(math.ceil(wait))},
            )

    def _is_foreign(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is not None:
            return host_of(origin.partition("://")[2]) not in self._names
        return headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}


class SafeHeaders:
    """Puts on every answer what keeps browsers from doing more with it than it is for."""

    def __init__(self, app: ASGIApp, *, tls: bool) -> None:
        self._app = app
        self._headers = {**_HEADERS, **(_TLS_ONLY if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
