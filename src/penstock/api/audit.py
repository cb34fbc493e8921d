"""The audit log: who did what through the API, to which object, with which outcome. It has no values.

An entry is written for every request that changes something or reads rows, and for every refused caller. It
has the account, the action (the name of the operation), the object, the outcome and the caller's address;
never a query, a filter, an option, a body or a token. Listings and the polling of the pages are in the log of
requests only.
"""

import logging
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import Scope

from penstock.durable_files import create_private
from penstock.errors import Invalid
from penstock.process import JsonFormatter

__all__ = ["NameObject", "open_audit_file", "record_request"]

_READS = frozenset({"read_changes", "search_by_words"})
"""Operations that only read, and show rows."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSED_CALLERS = frozenset({401, 403, 421})
_TOO_MANY = 429
_OBJECT_CHARS = 300
_OBJECT_KEY = "audit_object"

_log = logging.getLogger("penstock.audit")


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
    _log.info(
        "audit",
        extra={
            "account": None if caller is None else caller.name,
            "admin": caller is not None and caller.admin,
            "action": action or "unknown",
            "object": named[:_OBJECT_CHARS] or None,
            "outcome": _outcome(status),
            "status": status,
            "client": (scope.get("client") or (None,))[0],
        },
    )


def _outcome(status: int) -> str:
    if status == 0:
        return "broken off"
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"


def open_audit_file(path: Path) -> None:
    """Append the audit log to a file of this user, one JSON object per line, and to nothing else.

    The file may be moved away at any time, as logrotate does: the next entry begins a new one. Raises Invalid
    when it cannot be written.
    """
    try:
        if not path.exists():
            create_private(path)
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise Invalid(
            f"the audit log {path} cannot be written ({error.strerror}); check api.audit_path"
        ) from error
    handler.setFormatter(JsonFormatter("api"))
    _log.handlers = [handler]
    _log.setLevel(logging.INFO)
    _log.propagate = False
