"""What stands before every route: by which names it is asked, by whom, how often; what browsers are told.

Who asks: accounts by their bearer tokens, and what each may see.

How many requests each caller may make. Pure: the time is an argument.
"""

import hashlib
import hmac
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.errors import ProblemError, refused
from penstock.clock import Clock
from penstock.settings import AccountSettings, ApiSettings
from penstock.settings.network import is_loopback, parted
from penstock.tables.accounts import SYSTEM

__all__ = [
    "Admin",
    "Asking",
    "Caller",
    "Gate",
    "RateLimit",
    "SafeHeaders",
    "TokenAccounts",
    "admin",
    "asked_names",
    "asking",
    "host_of",
    "known",
]


_SCHEME = HTTPBearer(
    auto_error=False, description="Token of an account (api.accounts); not asked for when there are none."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """An account that asks. An admin sees and touches everything."""

    name: str
    admin: bool
    targets: tuple[str, ...] = ()

    @property
    def account(self) -> str | None:
        """The account whose things it sees; None: everybody's."""
        return None if self.admin else self.name


_ANYBODY = Caller(SYSTEM.name, admin=True)


class TokenAccounts:
    """Callers by their tokens. Without accounts anybody is an admin: only loopback is served then."""

    def __init__(self, accounts: Mapping[str, AccountSettings]) -> None:
        """Raises Invalid when the file of a token cannot be used."""
        self._known = [
            (_digest(each.read_token(name).get_secret_value()), Caller(name, each.admin, each.targets))
            for name, each in accounts.items()
        ]

    @property
    def open(self) -> bool:
        """Whether there are none."""
        return not self._known

    def caller(self, authorization: str | None) -> Caller | None:
        """Who has the token of a header; None: nobody. Takes the same time for every token."""
        if not self._known:
            return _ANYBODY
        scheme, token = get_authorization_scheme_param(authorization)
        given = _digest(token)
        found = None
        for digest, caller in self._known:
            if hmac.compare_digest(given, digest):
                found = caller
        return found if scheme.lower() == "bearer" else None


def known(request: Request) -> Caller | None:
    """Who asks, as the gate has found; None: nobody that is known."""
    found: Caller | None = getattr(request.state, "caller", None)
    return found


def asking(request: Request, _token: Annotated[object, Depends(_SCHEME)]) -> Caller:
    """Who asks; raise a 401 problem when that is nobody."""
    caller = known(request)
    if caller is None:
        raise ProblemError(
            401,
            "this needs the token of an account; send Authorization: Bearer",
            why="token",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return caller


Asking = Annotated[Caller, Depends(asking)]


def admin(caller: Asking) -> Caller:
    """Who asks, an admin; raise a 403 problem when it is none."""
    if not caller.admin:
        raise ProblemError(403, "this is for admins; ask with the token of one", why="admin")
    return caller


Admin = Annotated[Caller, Depends(admin)]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


_KEYS_MAX = 10_000


class RateLimit:
    """A bucket of `burst` tokens for each key, which gets `per_s` tokens in a second; a request takes one.

    Keys that were not seen for long are forgotten when there are more than `keys_max`: their buckets are
    full again, unless more callers than that come within a burst.
    """

    def __init__(self, per_s: float, burst: int, *, keys_max: int = _KEYS_MAX) -> None:
        self._per_s = per_s
        self._burst = burst
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at what time

    def take(self, key: str, now: float) -> float:
        """Take a token; 0, or how many seconds it takes until there is one."""
        tokens, at = self._buckets.pop(key, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - at) * self._per_s)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_s
        self._buckets[key] = (tokens - 1 if not wait else tokens, now)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return wait


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
