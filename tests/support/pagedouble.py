"""An API for tests of the pages: it answers as the real one does, of a shop that is always the same.

with page_world() as world:
    page.goto(world.url)
    world.troubled = True    # from the next answer on
"""

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from penstock.api.app import mount_pages
from penstock.api.models import ChangesPage, SearchAnswer, TableDetail, VerifyAnswer
from penstock.control.display import format_ms
from penstock.control.overview.model import ChangefeedRow, JobRow, Overview, TableRow
from support import pagedata

__all__ = ["PageWorld", "page_world", "serve_app"]

Row = TypeVar("Row")

CSP = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_WAIT_S = 20.0


@dataclass
class PageWorld:
    """What tests change, while it is served at `url`. Answers take effect from the next request on."""

    url: str = ""
    troubled: bool = False
    """Whether a lock, a remote and a disk hold everything up."""
    token: str | None = None
    """What has to be shown; None: nothing."""
    silent: str = ""
    """Why it cannot answer now; empty: it can."""
    empty: bool = False
    """Whether nothing was made yet."""
    states: dict[str, str] = field(default_factory=dict)
    """States that were asked for, by changefeed or job."""
    asked: list[str] = field(default_factory=list)
    """Requests for data, as method and path with its query."""

    def overview(self) -> Overview:
        """Return the deployment now."""
        found = pagedata.overview(troubled=self.troubled)
        if self.empty:
            lists = ("problems", "parts", "stages", "tables", "changefeeds", "jobs", "indexes")
            return Overview.model_validate(
                {**found.model_dump(), **{name: [] for name in lists}, "totals": {}}
            )
        return found.model_copy(
            update={
                "changefeeds": [
                    changefeed.model_copy(update={"state": self.states.get(changefeed.id, changefeed.state)})
                    for changefeed in found.changefeeds
                ],
                "jobs": [
                    job.model_copy(update={"state": self.states.get(job.job, job.state)})
                    for job in found.jobs
                ],
            }
        )


@contextmanager
def page_world(**switches: Any) -> Iterator[PageWorld]:
    """Serve it on a loopback address, with the pages."""
    world = PageWorld(**switches)
    with serve_app(_app(world)) as world.url:
        yield world


@contextmanager
def serve_app(app: FastAPI) -> Iterator[str]:
    """Serve an application on a thread of its own; gives its address, and waits until it has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="pages")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_WAIT_S)
            assert not thread.is_alive(), "the server of the pages does not end"


def _app(world: PageWorld) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.middleware("http")
    async def secured(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path.startswith("/api/"):
            world.asked.append(f"{request.method} {request.url.path}?{request.url.query}".rstrip("?"))
        answer = await go_on(request)
        answer.headers["Content-Security-Policy"] = CSP
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    @app.exception_handler(HTTPException)
    def problem(_request: Request, error: HTTPException) -> Response:
        tree = {
            "type": "about:blank",
            "title": "Refused",
            "status": error.status_code,
            "detail": error.detail,
        }
        return JSONResponse(tree, error.status_code, error.headers, "application/problem+json")

    app.include_router(_router(world))
    mount_pages(app)
    return app


def _router(world: PageWorld) -> APIRouter:
    def admitted(request: Request) -> None:
        if world.silent:
            raise HTTPException(503, world.silent, {"Retry-After": "1"})
        if world.token is not None and request.headers.get("Authorization") != f"Bearer {world.token}":
            raise HTTPException(401, "the token is not known; check api.accounts")

    router = APIRouter(prefix="/api/v1", dependencies=[Depends(admitted)])

    @router.get("/me")
    def me() -> dict[str, Any]:
        return {"account": "shopkeeper", "admin": False}

    @router.get("/overview")
    def overview() -> Overview:
        return world.overview()

    _add_changefeeds(router, world)
    _add_jobs(router, world)
    _add_tables(router, world)
    return router


def _add_changefeeds(router: APIRouter, world: PageWorld) -> None:
    def get(name: str) -> ChangefeedRow:
        return _first(world.overview().changefeeds, lambda each: each.id == name, f"changefeed {name}")

    @router.get("/changefeeds")
    def listed() -> list[dict[str, Any]]:
        return [
            changefeed.model_dump(exclude={"spool", "held_by"}) for changefeed in world.overview().changefeeds
        ]

    @router.get("/changefeeds/{name}")
    def one(name: str) -> dict[str, Any]:
        row = get(name)
        settings = {
            "sink_uri": "s3://lake/shop?protocol=canal-json&secret-access-key=***",
            "tables": ["shop.*", "staging.imports"],
            "sink": {"file-size": "64 MiB"},
        }
        more = {
            "start_ts": row.checkpoint_ts,
            "ddl_ts": row.checkpoint_ts,
            "snapshot": True,
            "settings": settings,
        }
        return {**row.model_dump(exclude={"spool", "held_by"}), **more}

    @router.post("/changefeeds/{name}/{deed}")
    def change(name: str, deed: str) -> ChangefeedRow:
        get(name)
        world.states[name] = {"pause": "stopped", "resume": "normal"}[deed]
        return get(name)


def _add_jobs(router: APIRouter, world: PageWorld) -> None:
    def get(name: str) -> JobRow:
        return _first(world.overview().jobs, lambda each: each.job == name, f"job {name}")

    @router.get("/jobs")
    def listed() -> list[dict[str, Any]]:
        return [job.model_dump(exclude={"held_by"}) for job in world.overview().jobs]

    @router.get("/jobs/{table}/{name}")
    def one(table: str, name: str) -> dict[str, Any]:
        row = get(f"{table}/{name}")
        began = format_ms(pagedata.NOW_MS - 3000)
        spec = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": row.consumer, "options": {"uri": "s3://lake/index"}}},
        }
        return {
            **row.model_dump(exclude={"held_by"}),
            "paused": row.state == "paused",
            "failures": 0,
            "created": format_ms(pagedata.NOW_MS - 86_400_000),
            "iteration": {
                "from_ts": row.watermark - 1,
                "to_ts": row.watermark,
                "started": began,
                "ended": None,
            },
            "spec": spec,
            "coverage": 0.998,
            "source_rows": 12_480,
        }

    @router.post("/jobs/{table}/{name}/verify")
    def verify(table: str, name: str) -> VerifyAnswer:
        row = get(f"{table}/{name}")
        missing = 3 if row.state in {"error", "paused"} else 0
        return VerifyAnswer(
            job=row.job,
            same=missing == 0,
            at_ts=row.watermark,
            at_time=row.watermark_time,
            source_rows=12_480,
            target_rows=12_480 - missing,
            missing=missing,
            different=0,
            extra=0,
            duplicates=0,
        )

    @router.post("/jobs/{table}/{name}/{deed}")
    def change(table: str, name: str, deed: str) -> JobRow:
        get(f"{table}/{name}")
        world.states[f"{table}/{name}"] = {"pause": "paused", "resume": "completed"}[deed]
        return get(f"{table}/{name}")

    @router.get("/search/{table}/{name}")
    def search(table: str, name: str, q: str, k: int = 10) -> SearchAnswer:
        return SearchAnswer.model_validate(pagedata.search_answer(get(f"{table}/{name}").job, q, k))

    @router.post("/search/{table}/{name}")
    async def search_vector(request: Request, table: str, name: str) -> SearchAnswer:
        asked = await request.json()
        if len(asked["vector"]) != 3:
            raise HTTPException(400, f"the index has vectors of 3 numbers, not {len(asked['vector'])}")
        return SearchAnswer.model_validate(pagedata.search_answer(get(f"{table}/{name}").job, "", asked["k"]))


def _add_tables(router: APIRouter, world: PageWorld) -> None:
    def get(name: str) -> TableRow:
        return _first(world.overview().tables, lambda each: each.table == name, f"table {name}")

    @router.get("/tables")
    def listed() -> list[dict[str, Any]]:
        return [table.model_dump(exclude={"held_by"}) for table in world.overview().tables]

    @router.get("/tables/{name}")
    def one(name: str) -> TableDetail:
        return TableDetail.model_validate(pagedata.detail(get(name)))

    @router.get("/tables/{name}/changes")
    def changes(
        name: str, from_ts: int | None = None, to_ts: int | None = None, skip: int = 0, limit: int = 50
    ) -> ChangesPage:
        row = get(name)
        if row.readable_ts is None:
            raise HTTPException(409, f"table {name} is not captured, or not yet")
        oldest, end = pagedata.detail(row)["oldest_ts"], row.readable_ts if to_ts is None else to_ts
        began = oldest if from_ts is None else from_ts
        if began < oldest:
            raise HTTPException(410, f"history of {name} before {oldest} is gone")
        chosen = [change for change in pagedata.changes() if began < change["_commit_ts"] <= end][skip:]
        page, more = chosen[:limit], len(chosen) > limit
        return ChangesPage(
            table=name,
            from_ts=began,
            to_ts=end,
            rows=page,
            more=more,
            next_from_ts=page[-1]["_commit_ts"] if more else None,
            next_skip=0,
        )


def _first(rows: list[Row], wanted: Callable[[Row], bool], name: str) -> Row:
    for row in rows:
        if wanted(row):
            return row
    raise HTTPException(404, f"there is no {name}")
