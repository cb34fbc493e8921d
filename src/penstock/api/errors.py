"""Errors as HTTP answers in the format of RFC 9457: one line with the problem and the remedy.

An answer never contains a value of a row.
"""

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

__all__ = [
    "MEDIA_TYPE",
    "ProblemError",
    "answer_failure",
    "answer_problem",
    "answer_refusal",
    "handlers",
    "problem_responses",
]

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
_log = logging.getLogger(__name__)

_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (  # the first that matches counts
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
    """A refusal by the API itself. With `why`, the metric of refused requests counts it under that label."""

    def __init__(
        self, status: int, detail: str, *, why: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.why = why


def answer_problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem as an answer; a 503 gets a Retry-After header."""
    body = ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=detail)
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return JSONResponse(
        body.model_dump(), status, headers={**retry, **(headers or {})}, media_type=MEDIA_TYPE
    )


def answer_failure(error: BaseException) -> Response:
    """Return the answer to an error that no route has handled. Answer and log contain no value of a row."""
    if isinstance(error, PenstockError):
        return _answer_penstock_error(error)
    _log.error("a request failed", extra={"reason": failure_of(error).message})
    return answer_problem(500, "an unexpected error happened; the log of the API says where")


def handlers() -> dict[Any, Any]:
    """Return the exception handlers of the application."""
    return {
        PenstockError: lambda _, error: _answer_penstock_error(error),
        RequestValidationError: _answer_invalid_request,
        HTTPException: lambda _, error: answer_refusal(error),
    }


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of the problems that an operation may answer."""
    schema = {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def _answer_penstock_error(error: PenstockError) -> Response:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("a request failed", extra={"reason": str(error)})
    return answer_problem(status, " ".join(str(error).split()))


def _answer_invalid_request(_request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return answer_problem(400, f"{where} is refused: {first['msg']}")


def answer_refusal(error: HTTPException) -> Response:
    """Return the answer to a refusal by the API itself, or by the router."""
    if isinstance(error, ProblemError) and error.why:
        metrics.API_REFUSED_TOTAL.labels(error.why).inc()
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and not isinstance(error, ProblemError):
        detail = "there is nothing at this path; /openapi.json lists the paths"
    return answer_problem(error.status_code, detail, error.headers)
