"""A database, a capture of it and the HTTP API in one process: for tests that ask as programs do.

with api_world(tmp_path, {"accounts": {"ann": {"token": TOKENS["ann"]}}}) as world:
    world.client("ann").get("/api/v1/tables")
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from penstock import eventloop
from penstock.api.app import create_app
from penstock.api.server import serve
from penstock.clock import SYSTEM
from penstock.control.deployment import Deployment, open_deployment
from penstock.settings import ApiSettings, Settings
from penstock.worker_processes import WorkerProcesses
from support.jobworld import JobWorld, job_world

__all__ = ["TOKENS", "ApiWorld", "api_world", "blocking"]

T = TypeVar("T")

TOKENS = {name: f"token-of-{name}-0123456789" for name in ("root", "ann", "bob")}
"""Tokens for accounts of tests."""
_TIMEOUT_S = 60.0
_LOOK_S = 0.05


@dataclass
class ApiWorld:
    """A database, a capture and the API for a test; all calls block."""

    world: JobWorld
    deployment: Deployment
    url: str
    folder: Path
    closing: ExitStack
    """Closes what tests open, in the end."""
    comparisons: WorkerProcesses
    """The processes in which the API compares tenants' targets."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something with the world."""
        return eventloop.run(work)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something that is asked over HTTP; fail when that takes a minute."""
        deadline = SYSTEM.monotonic() + _TIMEOUT_S
        while not holds():
            assert SYSTEM.monotonic() < deadline, what
            SYSTEM.pause(_LOOK_S)

    def client(self, account: str | None = None, url: str | None = None) -> httpx.Client:
        """Return an HTTP client of an account, or of nobody."""
        headers = {"Authorization": f"Bearer {TOKENS[account]}"} if account is not None else {}
        made = httpx.Client(base_url=url or self.url, headers=headers, timeout=_TIMEOUT_S)
        return self.closing.enter_context(made)

    @contextmanager
    def beside(self, **api: Any) -> Iterator[str]:
        """Another API of the same deployment, with some other settings, at the URL that is yielded."""
        settings = self.deployment.settings
        changed = Settings.model_validate(
            {**settings.model_dump(exclude={"api"}), "api": {**_tree(settings.api), **api}}
        )
        with (
            open_deployment(changed) as deployment,
            blocking(serve(create_app(deployment), changed.api)) as url,
        ):
            yield url


@contextmanager
def api_world(
    folder: Path,
    api: Mapping[str, Any] | None = None,
    *,
    capture: Mapping[str, Any] | None = None,
    jobs: Mapping[str, Any] | None = None,
) -> Iterator[ApiWorld]:
    """Return a world in `folder`, with settings of the API, of the capture and of jobs."""
    with blocking(job_world(folder, capture=capture, jobs=jobs)) as world:
        tree = {"addr": "127.0.0.1:0", **(api or {})}
        settings = world.settings.model_copy(
            update={"api": ApiSettings(**tree), "up": world.settings.up.model_copy(update={"data": folder})}
        )
        with open_deployment(settings) as deployment, ExitStack() as closing:
            app = create_app(deployment)
            with blocking(serve(app, settings.api)) as url:
                comparisons = app.state.service.comparisons
                yield ApiWorld(world, deployment, url, folder, closing, comparisons)


@contextmanager
def blocking(opened: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Return an async context for tests that block."""
    entered = eventloop.run(opened.__aenter__())
    try:
        yield entered
    finally:
        eventloop.run(opened.__aexit__(None, None, None))


def _tree(api: ApiSettings) -> dict[str, Any]:
    """Settings as a file has them: tokens as texts."""
    tree = api.model_dump()
    for account in tree["accounts"].values():
        if account["token"] is not None:
            account["token"] = account["token"].get_secret_value()
    return tree
