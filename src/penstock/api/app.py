"""The application: every route, and what stands before them.

The pages: files of this package, served as they are. No build step, nothing from elsewhere.

Their URLs hold a digest of all of them, so that a browser keeps each for ever and still has, after an
upgrade, either all of the old ones or all of the new ones: modules name each other relatively. Only the
entry page is asked for every time.
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
from penstock.api.deployment import ApiState, HealthPulse, LateDeployment, Reach, Reached, only_declared
from penstock.api.errors import answer, declared, handlers
from penstock.api.middleware import BodyLimit, Observed, Readers
from penstock.api.models import ProblemDetails
from penstock.api.routes import changefeeds, jobs, search, status, tables
from penstock.api.security import Gate, SafeHeaders, TokenAccounts
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment
from penstock.control.overview.gather import Rates
from penstock.settings import Settings

__all__ = ["create_app", "described", "mount"]


_FOLDER = Path(__file__).parent / "static"
_ENTRY = "index.html"
_PLACE = b"/static/current/"
"""What stands in the entry page for the folder with the digest."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class _Asset:
    """A file, as it is answered."""

    body: bytes
    media_type: str


def mount(app: FastAPI) -> None:
    """Answer `/` and `/static/` with the pages. They hold no data: whoever reads them needs no token.

    Files are read once. What is not among them is not found, whatever its path looks like.
    """
    files = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.is_file()}
    assets = {name: _Asset(path.read_bytes(), _TYPES[path.suffix]) for name, path in files.items()}
    digest = _digest(assets)
    entry = assets.pop(_ENTRY)
    page = entry.body.replace(_PLACE, f"/static/{digest}/".encode())
    etag = f'"{digest}"'

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    def index(request: Request) -> Response:
        headers = {"Cache-Control": _ASK_AGAIN, "ETag": etag}
        if etag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page, media_type=entry.media_type, headers=headers)

    @app.api_route("/static/{of}/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def asset(of: str, name: str) -> Response:
        found = assets.get(name) if of == digest else None
        if found is None:
            return Response(status_code=404, headers={"Cache-Control": _ASK_AGAIN})
        return Response(found.body, media_type=found.media_type, headers={"Cache-Control": _FOR_EVER})


def _digest(assets: dict[str, _Asset]) -> str:
    whole = hashlib.sha256()
    for name, each in sorted(assets.items()):
        whole.update(f"{name} {len(each.body)}\n".encode())
        whole.update(each.body)
    return whole.hexdigest()[:_DIGEST_CHARS]


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
    """The API of a deployment, with its pages. Its settings' `api` says who may ask, and how much.

    Raises Invalid when the token of an account cannot be read.
    """
    reach: Reach = Reached(deployment) if isinstance(deployment, Deployment) else deployment
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
    app.state.service = ApiState(
        settings=reach.settings,
        reach=reach,
        pulse=HealthPulse(reach, clock=clock),
        readers=Readers(settings.readers, accounts=len(settings.accounts)),
        rates=Rates(clock=clock),
        clock=clock,
    )
    for each in _ROUTERS:
        app.include_router(each, dependencies=[Depends(only_declared)])
    mount(app)
    app.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, _wrong_method)
    app.openapi = lambda: _description(app)  # type: ignore[method-assign] # FastAPI's own way to change it
    # The one that is added last stands first.
    app.add_middleware(BodyLimit, nbytes=settings.body_bytes)
    app.add_middleware(
        Gate, settings=settings, accounts=TokenAccounts(settings.accounts), clock=clock, free=status.PROBES
    )
    app.add_middleware(SafeHeaders, tls=settings.tls is not None)
    app.add_middleware(Observed, clock=clock)
    return app


def described() -> dict[str, Any]:
    """The OpenAPI description, for which no cluster is needed."""
    return create_app(LateDeployment(Settings())).openapi()


def _wrong_method(request: Request, _error: Exception) -> Response:
    """Says which methods there are: of all routes of the path, not of the first one."""
    routes = [each for router in _ROUTERS for each in router.routes if isinstance(each, APIRoute)]
    found = {
        method for each in routes if each.path_regex.match(request.url.path) for method in each.methods or ()
    }
    allowed = ", ".join(sorted(found or {"GET"}))
    return answer(405, f"this is no method here; there is {allowed}", {"Allow": allowed})


def _description(app: FastAPI) -> dict[str, Any]:
    """What is declared; refused arguments are answered by 400, as everything that is wrong with a request."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        models = found["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            models.pop(name, None)
        models[ProblemDetails.__name__] = ProblemDetails.model_json_schema()
        for methods in found["paths"].values():
            for method in _METHODS & methods.keys():
                responses = methods[method]["responses"]
                responses.pop("422", None)
                for status, each in declared(400, 421, *(() if method == "get" else (403,))).items():
                    responses.setdefault(str(status), each)
        app.openapi_schema = found
    return app.openapi_schema
