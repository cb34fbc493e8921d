"""Who asks: accounts by their bearer tokens, and what each may see."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from penstock.api.errors import ProblemError
from penstock.settings import AccountSettings
from penstock.tables.accounts import SYSTEM

__all__ = ["Admin", "Asking", "Caller", "TokenAccounts", "admin", "asking", "known"]

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
