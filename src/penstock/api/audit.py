"""Which requests get an entry in the audit log, and what it says.

An entry is written for every request that changes something or reads rows, and for every refused caller. It
has the account, the action (the name of the operation), the object, the outcome and the caller's address.
Listings and the polling of the pages are in the log of requests only.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import Scope

from penstock.audit import write_entry

__all__ = ["NameObject", "record_request"]

_READS = frozenset({"read_changes", "search_by_words"})
"""Operations that only read, and show rows."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSED_CALLERS = frozenset({401, 403, 421})
_TOO_MANY = 429
_OBJECT_KEY = "audit_object"


def _object_namer(request: Request) -> Callable[[str], None]:
    def name_object(name: str) -> None:
        setattr(request.state, _OBJECT_KEY, name)

    return name_object


NameObject = Annotated[Callable[[str], None], Depends(_object_namer)]
"""Tells the audit log the object of a request whose path does not name it."""


def record_request(scope: Scope, status: int) -> None:
    """Write the entry of an answered request, if it gets one. Requests above the rate limit get none."""
    action = getattr(scope.get("route"), "name", None)
    changes = scope["method"] not in _SAFE_METHODS
    refused = status in _REFUSED_CALLERS
    if status == _TOO_MANY or not (changes or refused or action in _READS):
        return
    state = scope.get("state", {})
    caller = state.get("caller")
    named = state.get(_OBJECT_KEY) or "/".join(map(str, scope.get("path_params", {}).values()))
    write_entry(
        action or "unknown",
        named,
        _outcome(status),
        account=None if caller is None else caller.name,
        admin=caller is not None and caller.admin,
        status=status,
        client=(scope.get("client") or (None,))[0],
    )


def _outcome(status: int) -> str:
    if status == 0:
        return "broken off"
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"
