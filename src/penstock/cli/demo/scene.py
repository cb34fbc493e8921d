"""The deployment of the demonstration: what `penstock up` is told, in a folder of its own.

What follows the shop's tables: two changefeeds and three jobs.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.demo import shop
from penstock.cli.demo.shop import ORDERS, PRODUCTS
from penstock.control import changefeeds, jobs, search
from penstock.control.deployment import Deployment
from penstock.errors import Invalid
from penstock.jobs.job import JobId
from penstock.jobs.spec import JobSpec
from penstock.settings import Settings, parse

__all__ = [
    "CANAL_JSON",
    "FEEDS",
    "FULLTEXT",
    "JOBS",
    "PARQUET",
    "VECTOR",
    "DemoAnswer",
    "DemoPlace",
    "DemoTarget",
    "Scene",
    "asked",
    "create",
    "folder_of",
    "parquet_feed",
    "places",
    "scene_in",
]


CANAL_JSON, PARQUET = "shop-canal-json", "shop-parquet"
_FREE_ADDR = "127.0.0.1:0"
_SHORT_LIVED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""For a Spark of two minutes and few rows, compiling costs more than it saves: a third of all its time."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where everything is."""

    settings: Settings
    events: Path
    changes: Path
    targets: Path


@contextmanager
def folder_of(data: Path | None) -> Iterator[Path]:
    """The folder to use: the one given, which stays, or one that is removed in the end.

    Raises Invalid for one that has something in it.
    """
    if data is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
        taken = any(data.iterdir())
    except OSError as error:
        raise Invalid(f"{data} cannot be used ({error.strerror}); give another --data") from error
    if taken:
        raise Invalid(f"{data} is not empty; give --data a folder that is, or that is not there yet")
    yield data.absolute()


def scene_in(folder: Path) -> Scene:
    """A deployment below a folder, on free ports of loopback."""
    events, changes = folder / "events", folder / "changes"
    tree = {
        "pd_addrs": [_FREE_ADDR],
        "store": {"data": str(folder / "store"), "pd_addr": _FREE_ADDR, "stores": 3},
        "capture": {
            "data": str(folder / "capture"),
            "storage": events.as_uri(),
            "tables": ["shop.*"],
            "flight_addr": _FREE_ADDR,
            "flush_interval_s": 5,
            "idle_flush_interval_s": 5,
            "upkeep": {"merge_interval_s": 15},
        },
        "spark": {"master": "local[2]", "driver_memory": "1g", "conf": _SHORT_LIVED},
        "changefeeds": {
            # from the first table on; the other begins with a snapshot, when there are rows
            CANAL_JSON: {
                "sink_uri": _sink(changes, "canal-json", "&enable-tidb-extension=true"),
                "tables": ["shop.*"],
            }
        },
        "jobs": {"data": str(folder / "jobs"), "interval_s": 2, "watermark_interval_s": 5},
        "api": {"addr": _FREE_ADDR},
        "up": {"data": str(folder / "up")},
    }
    return Scene(parse(tree, origin="the demonstration"), events, changes, folder / "targets")


def _sink(changes: Path, protocol: str, parameters: str = "") -> str:
    uri = (changes / protocol).as_uri()
    return f"{uri}?protocol={protocol}&flush-interval=4s{parameters}"


def parquet_feed(changes: Path) -> dict[str, object]:
    """The changefeed that is created while everything runs: all rows first, on Spark, then what changes."""
    return {
        "sink_uri": _sink(changes, "parquet"),
        "tables": ["shop.*"],
        "start": "snapshot",
        "spark_rows": 1000,
    }


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
    DemoTarget("canal-json files", CANAL_JSON, None, "canal-json"),
    DemoTarget("parquet files", PARQUET, None, "parquet"),
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
    changefeeds.create(deployment, PARQUET, parquet_feed(scene.changes))
    for target in JOBS:
        job_id = JobId.parse(target.name)
        options = {"uri": str(scene.targets / target.folder), **_OPTIONS[target]}
        tree = {"detail": {"consumer": {"consumer": target.folder, "options": options}}}
        jobs.registered(deployment, job_id, JobSpec.parse(tree))


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """What an index found, best first, and how old what it knows is."""

    title: str
    rows: Sequence[dict[str, Any]]
    lag_s: float


def asked(deployment: Deployment, target: DemoTarget) -> DemoAnswer:
    """The best rows that an index finds for some words."""
    options = search.SearchOptions(
        words=shop.ASKED,
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
