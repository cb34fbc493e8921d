"""What every request passes before its route: host names, callers by bearer token, rate limits, safe headers.

`Gate` refuses requests, `TokenAccounts` finds callers.
"""

import hashlib
import hmac
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.errors import ProblemError, answer_refusal
from penstock.clock import Clock
from penstock.settings import AccountSettings, ApiSettings
from penstock.settings.network import accepted_hosts, host_of
from penstock.shares import RateLimit
from penstock.tables.accounts import SYSTEM_ACCOUNT

__all__ = [
    "Admin",
    "Authenticated",
    "Caller",
    "Gate",
    "SafeHeaders",
    "TokenAccounts",
    "is_foreign",
    "known_caller",
    "require_admin",
    "require_caller",
]


_SCHEME = HTTPBearer(
    auto_error=False,
    description="Token of an account (api.accounts); without accounts, the one in the file admin.token of"
    " secrets_dir.",
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The account of a request. An admin may read and change everything."""

    name: str
    admin: bool
    targets: tuple[str, ...] = ()

    @property
    def account(self) -> str | None:
        """The account whose objects it sees; None when it sees those of all accounts."""
        return None if self.admin else self.name


_ANYONE = Caller(SYSTEM_ACCOUNT.name, admin=True)


class TokenAccounts:
    """Callers by their tokens. Without accounts every caller is an admin; commands never serve so."""

    def __init__(self, accounts: Mapping[str, AccountSettings]) -> None:
        """Read the tokens; raise Invalid when the file of a token cannot be used."""
        self._known = [
            (
                _digest(account.read_token(name).get_secret_value()),
                Caller(name, account.admin, account.targets),
            )
            for name, account in accounts.items()
        ]

    @property
    def open(self) -> bool:
        """Whether there are no accounts, so that no token is needed."""
        return not self._known

    def caller(self, authorization: str | None) -> Caller | None:
        """Return the caller of an Authorization header; None when its token is unknown.

        It takes the same time for every token, so that the time does not reveal one.
        """
        if not self._known:
            return _ANYONE
        scheme, token = get_authorization_scheme_param(authorization)
        given = _digest(token)
        found = None
        for digest, caller in self._known:
            if hmac.compare_digest(given, digest):
                found = caller
        return found if scheme.lower() == "bearer" else None


def known_caller(request: Request) -> Caller | None:
    """Return the caller that the gate has found; None when the request has no known token."""
    found: Caller | None = getattr(request.state, "caller", None)
    return found


def require_caller(request: Request, _token: Annotated[object, Depends(_SCHEME)]) -> Caller:
    """Return the caller; raise a 401 problem when there is none."""
    caller = known_caller(request)
    if caller is None:
        raise ProblemError(
            401,
            "the request needs the token of an account; send Authorization: Bearer TOKEN (without"
            " api.accounts, the token in the file admin.token of secrets_dir)",
            why="token",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return caller


Authenticated = Annotated[Caller, Depends(require_caller)]


def require_admin(caller: Authenticated) -> Caller:
    """Return the caller; raise a 403 problem when it is not an admin."""
    if not caller.admin:
        raise ProblemError(403, "the request is for admins only; send the token of an admin", why="admin")
    return caller


Admin = Annotated[Caller, Depends(require_admin)]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


_PORTS = {"http": 80, "https": 443}
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


def is_foreign(headers: Mapping[str, str], *, scheme: str, names: Collection[str]) -> bool:
    """Return whether a browser sent the request for a page of another origin: scheme, host or port differ.

    A browser's own word, Sec-Fetch-Site, counts first: pages cannot forge it, and it stays true behind a
    proxy that ends TLS. A browser that does not send it names the origin of the page in Origin. Programs
    that are no browsers send neither.
    """
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")
    if site is not None:
        known = origin is None or host_of(origin.partition("://")[2]) in names
        return site not in {"none", "same-origin"} or not known
    if origin is None:
        return False
    page = _origin_of(origin)
    return page is None or page != _origin_of(f"{scheme}://{headers.get('host', '')}")


def _origin_of(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None when the text is no origin of the web."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.scheme not in _PORTS:
        return None
    return parts.scheme, parts.hostname.lower(), _PORTS[parts.scheme] if port is None else port


class Gate:
    """Refuses requests with unknown host names, from pages of other origins, and above the rate limit.

    An unknown host name is a sign of DNS rebinding: a page has pointed its own name here, to read with the
    rights of its visitor. A page of another origin may open our pages and probes, as a link does, and nothing
    else: also a read costs the deployment something. The gate puts the caller into the request's state; the
    routes decide whether they need one.
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
        self._names = accepted_hosts(settings.addr, settings.hosts)
        self._accounts = accounts
        self._clock = clock
        self._free = frozenset(free)  # paths without a rate limit: those of probes
        self._rate = RateLimit(settings.requests_per_s, settings.requests_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request; pass the others on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope, Headers(scope=scope))
        except ProblemError as problem:
            await answer_refusal(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if host_of(headers.get("host", "")) not in self._names:
            raise ProblemError(
                421, "the host name of the request is unknown; add it to api.hosts", why="host"
            )
        is_open = scope["method"] in _SAFE_METHODS and self._has_no_data(scope["path"])
        if not is_open and is_foreign(headers, scheme=scope["scheme"], names=self._names):
            raise ProblemError(
                403, "a page of another origin may not use this API; use its own pages", why="origin"
            )
        caller = self._accounts.caller(headers.get("authorization"))
        scope.setdefault("state", {})["caller"] = caller
        if scope["path"] in self._free:
            return
        address = (scope.get("client") or ("unknown",))[0]
        account = None if self._accounts.open else caller
        key = f"address {address}" if account is None else f"account {account.name}"
        wait = self._rate.take(key, self._clock.monotonic())
        if wait:
            raise ProblemError(
                429,
                "too many requests (api.requests_per_s); retry after the seconds of Retry-After",
                why="rate",
                headers={"Retry-After": str(math.ceil(wait))},
            )

    def _has_no_data(self, path: str) -> bool:
        """Return whether a path answers everybody the same: a page, a file of the pages, or a probe."""
        return path == "/" or path.startswith("/static/") or path in self._free


class SafeHeaders:
    """Adds security headers to every answer, which restrict what browsers do with it."""

    def __init__(self, app: ASGIApp, *, tls: bool) -> None:
        self._app = app
        self._headers = {**_HEADERS, **(_TLS_ONLY if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to its answer."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
