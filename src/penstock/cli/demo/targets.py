"""What follows the shop's tables: two changefeeds and three jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.demo import scene as scenes
from penstock.cli.demo import wording
from penstock.cli.demo.scene import Scene
from penstock.cli.demo.shop import ORDERS, PRODUCTS
from penstock.control import changefeeds, freshcalls, search
from penstock.control.deployment import Deployment
from penstock.jobs.jobid import JobId
from penstock.jobs.spec import JobSpec

__all__ = [
    "FEEDS",
    "FULLTEXT",
    "JOBS",
    "VECTOR",
    "DemoAnswer",
    "DemoPlace",
    "DemoTarget",
    "asked",
    "create",
    "places",
]


@dataclass(frozen=True, slots=True)
class DemoTarget:
    """Something that follows tables. `tables` None: all of the shop."""

    title: str
    name: str
    """Of the changefeed, or of the job."""
    tables: frozenset[str] | None
    folder: str
    """Below the folder of changes, or that of targets."""

    @property
    def verified_as(self) -> str:
        """What `penstock verify` calls it."""
        return self.name if "/" in self.name else f"changefeed:{self.name}"


FEEDS = (
    DemoTarget("canal-json files", scenes.CANAL_JSON, None, "canal-json"),
    DemoTarget("parquet files", scenes.PARQUET, None, "parquet"),
)
FULLTEXT = DemoTarget("full-text index", f"{PRODUCTS}/fulltext", frozenset({PRODUCTS}), "fulltext")
VECTOR = DemoTarget("vector index", f"{PRODUCTS}/vector", frozenset({PRODUCTS}), "vector")
DELTA = DemoTarget("delta table", f"{ORDERS}/delta", frozenset({ORDERS}), "delta")
JOBS = (FULLTEXT, VECTOR, DELTA)
_OPTIONS = {
    FULLTEXT: {"text_columns": "name,description", "stem": "true"},
    VECTOR: {"text_columns": "name,description"},
    DELTA: {},
}
_FOUND_MAX = 3


def create(deployment: Deployment, scene: Scene) -> None:
    """Make those that are not in the settings."""
    changefeeds.create(deployment, scenes.PARQUET, scenes.parquet_feed(scene.changes))
    for target in JOBS:
        job_id = JobId.parse(target.name)
        options = {"uri": str(scene.targets / target.folder), **_OPTIONS[target]}
        tree = {"detail": {"consumer": {"consumer": target.folder, "options": options}}}
        freshcalls.registered(deployment, job_id, JobSpec.parse(tree))


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """What an index found, best first, and how old what it knows is."""

    title: str
    rows: Sequence[dict[str, Any]]
    lag_s: float


def asked(deployment: Deployment, target: DemoTarget) -> DemoAnswer:
    """The best rows that an index finds for some words."""
    options = search.SearchOptions(
        words=wording.ASKED,
        vector=None,
        k=_FOUND_MAX,
        where=None,
        columns=("id", "name", "description"),
        every=False,
    )
    found = search.found(deployment, JobId.parse(target.name), options)
    return DemoAnswer(target.title, found["rows"], found["lag_s"])


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """A folder that something is written to, and what is in it."""

    title: str
    files: int
    nbytes: int


def places(scene: Scene) -> list[DemoPlace]:
    """Everything that was written for the shop's tables."""
    folders: Iterable[tuple[str, Path]] = [
        ("event store", scene.events),
        *((each.title, scene.changes / each.folder) for each in FEEDS),
        *((each.title, scene.targets / each.folder) for each in JOBS),
    ]
    return [_place(title, folder) for title, folder in folders]


def _place(title: str, folder: Path) -> DemoPlace:
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:  # removed between both
            continue
    return DemoPlace(title, len(sizes), sum(sizes))
