"""Errors as answers: RFC 9457, one line that says what is wrong and what to do, never a row's value."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from penstock import metrics
from penstock.api.models import ProblemDetails
from penstock.control.tenancy import TenantRefused
from penstock.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    Invalid,
    KeyExists,
    NotFound,
    PenstockError,
    StaleRead,
    Unavailable,
    Undetermined,
)
from penstock.jobs.error_codes import failure_of

__all__ = ["MEDIA_TYPE", "ProblemError", "answer", "declared", "failed", "handlers", "refused"]

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
_log = logging.getLogger(__name__)

_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (  # the first that fits
    (TenantRefused, 403),
    (NotFound, 404),
    (AlreadyExists, 409),
    (KeyExists, 409),
    (Invalid, 400),
    (Conflict, 409),
    (Fenced, 409),
    (StaleRead, 410),
    (Unavailable, 503),
    (Undetermined, 503),
)


class ProblemError(HTTPException):
    """A refusal of the API's own: `why` counts it among those refused."""

    def __init__(
        self, status: int, detail: str, *, why: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.why = why


def answer(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """A problem as an answer; one that passes says when to come again."""
    body = ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=detail)
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return JSONResponse(
        body.model_dump(), status, headers={**retry, **(headers or {})}, media_type=MEDIA_TYPE
    )


def failed(error: BaseException) -> Response:
    """The answer to what nobody expected. What is told and logged has no value of a row in it."""
    if isinstance(error, PenstockError):
        return _penstock(error)
    _log.error("a request failed", extra={"reason": failure_of(error).message})
    return answer(500, "something unexpected happened; the log of the API says where")


def handlers() -> dict[Any, Any]:
    """Which error is answered by what."""
    return {
        PenstockError: lambda _, error: _penstock(error),
        RequestValidationError: _unreadable,
        HTTPException: lambda _, error: refused(error),
    }


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation says of the problems that it may answer."""
    schema = {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def _penstock(error: PenstockError) -> Response:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("a request failed", extra={"reason": str(error)})
    return answer(status, " ".join(str(error).split()))


def _unreadable(_request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return answer(400, f"{where} is refused: {first['msg']}")


def refused(error: HTTPException) -> Response:
    """The answer to what the API itself, or the router, refuses."""
    if isinstance(error, ProblemError) and error.why:
        metrics.API_REFUSED_TOTAL.labels(error.why).inc()
    said = {404: "there is nothing here; /openapi.json says what there is"}
    detail = (
        error.detail if isinstance(error, ProblemError) else said.get(error.status_code, str(error.detail))
    )
    return answer(error.status_code, detail, error.headers)
