"""The application: routes, middleware and the pages.

The pages are files of this package and are served as they are, without a build step. Their URLs contain a
digest of all files, so a browser may cache each for ever and still has, after an upgrade, either all old
files or all new ones: modules import each other by relative paths. Only the entry page is always requested.
"""

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from penstock import __version__
from penstock.api.deployment import (
    ApiState,
    HealthPulse,
    LateDeployment,
    OpenDeployment,
    Reach,
    ReadMeter,
    refuse_unknown_parameters,
)
from penstock.api.errors import answer_problem, handlers, problem_responses
from penstock.api.middleware import BodyLimit, ConcurrencyLimit, Readers, RequestLog
from penstock.api.models import ProblemDetails
from penstock.api.routes import changefeeds, jobs, search, status, tables
from penstock.api.security import Gate, SafeHeaders, TokenAccounts
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment
from penstock.control.overview.gather import FactsCache
from penstock.control.search_workers import SearchWorkers
from penstock.settings import Settings
from penstock.shares import Shares
from penstock.verify.isolated import verification_processes

__all__ = ["create_app", "describe_api", "mount_pages"]


_FOLDER = Path(__file__).parent / "static"
_ENTRY = "index.html"
_DIGEST_FOLDER = b"/static/current/"
"""The placeholder in the entry page for the folder with the digest."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class _Asset:
    """A file of the pages, with its media type."""

    body: bytes
    media_type: str


def mount_pages(app: FastAPI) -> None:
    """Serve the pages at `/` and `/static/`. They contain no data, so they need no token.

    The files are read once, here. No request path is ever resolved on disk.
    """
    files = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.is_file()}
    assets = {name: _Asset(path.read_bytes(), _TYPES[path.suffix]) for name, path in files.items()}
    digest = _digest(assets)
    entry = assets.pop(_ENTRY)
    page = entry.body.replace(_DIGEST_FOLDER, f"/static/{digest}/".encode())
    etag = f'"{digest}"'

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    def index(request: Request) -> Response:
        headers = {"Cache-Control": _REVALIDATE, "ETag": etag}
        if etag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page, media_type=entry.media_type, headers=headers)

    @app.api_route("/static/{version}/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def asset(version: str, name: str) -> Response:
        found = assets.get(name) if version == digest else None
        if found is None:
            return Response(status_code=404, headers={"Cache-Control": _REVALIDATE})
        return Response(found.body, media_type=found.media_type, headers={"Cache-Control": _CACHE_FOREVER})


def _digest(assets: dict[str, _Asset]) -> str:
    digest = hashlib.sha256()
    for name, file in sorted(assets.items()):
        digest.update(f"{name} {len(file.body)}\n".encode())
        digest.update(file.body)
    return digest.hexdigest()[:_DIGEST_CHARS]


_ROUTERS = (
    status.root,
    status.api,
    tables.api,
    changefeeds.api,
    jobs.api,
    search.api,
)
_METHODS = frozenset({"get", "post", "put", "patch", "delete"})


def create_app(deployment: Deployment | Reach, *, clock: Clock = SYSTEM) -> FastAPI:
    """Return the application of a deployment: API and pages, with the accounts and limits of its settings.

    Raises Invalid when the token of an account cannot be read.
    """
    reach: Reach = OpenDeployment(deployment) if isinstance(deployment, Deployment) else deployment
    settings = reach.settings.api
    app = FastAPI(
        title="Penstock",
        version=__version__,
        description="Change data capture and change propagation: changefeeds, jobs, tables and search.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        exception_handlers=handlers(),
        redirect_slashes=False,
    )
    usage = ReadMeter(reach)
    readers = Readers(settings.readers, accounts=len(settings.accounts), charge=usage.charge, clock=clock)
    app.state.service = ApiState(
        settings=reach.settings,
        reach=reach,
        pulse=HealthPulse(reach, clock=clock),
        readers=readers,
        searches=SearchWorkers(reach.settings, count=readers.most, clock=clock),
        comparisons=verification_processes(reach.settings, count=readers.most, clock=clock),
        usage=usage,
        facts=FactsCache(clock=clock),
        clock=clock,
    )
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(refuse_unknown_parameters)])
    mount_pages(app)
    app.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, _wrong_method)
    app.openapi = lambda: _description(app)  # type: ignore[method-assign] # as FastAPI documents it
    # The middleware that is added last runs first.
    app.add_middleware(BodyLimit, nbytes=settings.body_bytes)
    app.add_middleware(
        ConcurrencyLimit, shares=Shares.of(settings.requests_at_once, settings.account_requests)
    )
    app.add_middleware(
        Gate, settings=settings, accounts=TokenAccounts(settings.accounts), clock=clock, free=status.PROBES
    )
    app.add_middleware(SafeHeaders, tls=settings.tls is not None)
    app.add_middleware(RequestLog, clock=clock)
    return app


def describe_api() -> dict[str, Any]:
    """Return the OpenAPI description. It needs no cluster."""
    return create_app(LateDeployment(Settings())).openapi()


def _wrong_method(request: Request, _error: Exception) -> Response:
    """Name the methods of all routes of the path; FastAPI would name those of the first route only."""
    routes = [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    methods = {
        method
        for route in routes
        if route.path_regex.match(request.url.path)
        for method in route.methods or ()
    }
    allowed = ", ".join(sorted(methods or {"GET"}))
    return answer_problem(
        405, f"this path does not support {request.method}; use {allowed}", {"Allow": allowed}
    )


def _description(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description of all routes.

    Invalid arguments are answered with 400, as every other fault of a request, so FastAPI's 422 is removed.
    """
    if app.openapi_schema is None:
        description = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        models = description["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            models.pop(name, None)
        models[ProblemDetails.__name__] = ProblemDetails.model_json_schema()
        for methods in description["paths"].values():
            for method in _METHODS & methods.keys():
                responses = methods[method]["responses"]
                responses.pop("422", None)
                for status, response in problem_responses(400, 403, 421, 503).items():
                    responses.setdefault(str(status), response)
        app.openapi_schema = description
    return app.openapi_schema
