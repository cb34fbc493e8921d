"""The deployment of the demonstration: its settings in one folder, two changefeeds and three jobs."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.demo import shop
from penstock.cli.demo.shop import ORDERS, PRODUCTS
from penstock.control.changefeeds import create_from_options
from penstock.control.deployment import Deployment
from penstock.control.jobs import register_job
from penstock.control.search import SearchOptions, search_index
from penstock.durable_files import make_private_folder
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
    "ask_index",
    "create_targets",
    "demo_folder",
    "make_scene",
    "measure_places",
    "parquet_feed",
]


CANAL_JSON, PARQUET = "shop-canal-json", "shop-parquet"
_FREE_ADDR = "127.0.0.1:0"
_SHORT_LIVED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""A Spark of two minutes and few rows loses more by compiling than it gains: a third of its time."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The settings and the folders of the demonstration."""

    settings: Settings
    events: Path
    changes: Path
    targets: Path


@contextmanager
def demo_folder(data: Path | None) -> Iterator[Path]:
    """Yield the folder to use: the one given, which stays, or a temporary one, which is removed.

    Raises Invalid when the given folder is not empty.
    """
    if data is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        make_private_folder(data)
        has_files = any(data.iterdir())
    except OSError as error:
        raise Invalid(f"{data} cannot be used ({error.strerror}); give another --data") from error
    if has_files:
        raise Invalid(f"{data} is not empty; give --data an empty folder, or one that does not exist yet")
    yield data.absolute()


def make_scene(folder: Path) -> Scene:
    """Return the scene in a folder, with free ports of loopback."""
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
            # This one runs before the first table; the other starts with a snapshot, once there are rows.
            CANAL_JSON: {
                "sink_uri": _sink(changes, "canal-json", "&enable-tidb-extension=true"),
                "tables": ["shop.*"],
            }
        },
        "jobs": {"data": str(folder / "jobs"), "interval_s": 2, "watermark_interval_s": 5},
        "api": {"addr": _FREE_ADDR},
        "up": {"data": str(folder / "up")},
        "secrets_dir": str(folder / "secrets"),
    }
    return Scene(parse(tree, origin="the demonstration"), events, changes, folder / "targets")


def _sink(changes: Path, protocol: str, parameters: str = "") -> str:
    uri = (changes / protocol).as_uri()
    return f"{uri}?protocol={protocol}&flush-interval=4s{parameters}"


def parquet_feed(changes: Path) -> dict[str, object]:
    """Return the changefeed that is created while everything runs: first all rows, then changes."""
    return {
        "sink_uri": _sink(changes, "parquet"),
        "tables": ["shop.*"],
        "start": "snapshot",
    }


@dataclass(frozen=True, slots=True)
class DemoTarget:
    """A changefeed or a job. `tables` are those it follows; None means all of the shop."""

    title: str
    name: str
    """The name of the changefeed, or of the job."""
    tables: frozenset[str] | None
    folder: str
    """The folder below that of changes, or that of targets."""

    @property
    def verify_name(self) -> str:
        """Its name for `penstock verify`."""
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
_ROWS_FOUND_MAX = 3


def create_targets(deployment: Deployment, scene: Scene) -> None:
    """Create the changefeed and the jobs that are not in the settings."""
    create_from_options(deployment, PARQUET, parquet_feed(scene.changes))
    for target in JOBS:
        job_id = JobId.parse(target.name)
        options = {"uri": str(scene.targets / target.folder), **_OPTIONS[target]}
        tree = {"detail": {"consumer": {"consumer": target.folder, "options": options}}}
        register_job(deployment, job_id, JobSpec.parse(tree))


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """The rows that an index found, the best first, and the lag of the index."""

    title: str
    rows: Sequence[dict[str, Any]]
    lag_s: float


def ask_index(deployment: Deployment, target: DemoTarget) -> DemoAnswer:
    """Search an index for the words of the demonstration."""
    options = SearchOptions(
        words=shop.SEARCH_WORDS,
        vector=None,
        k=_ROWS_FOUND_MAX,
        where=None,
        columns=("id", "name", "description"),
        every=False,
    )
    answer = search_index(deployment, JobId.parse(target.name), options)
    return DemoAnswer(target.title, answer["rows"], answer["lag_s"])


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """A folder that is written to: its files and their bytes."""

    title: str
    files: int
    nbytes: int


def measure_places(scene: Scene) -> list[DemoPlace]:
    """Return the files and bytes of the event store and of every target."""
    folders: Iterable[tuple[str, Path]] = [
        ("event store", scene.events),
        *((target.title, scene.changes / target.folder) for target in FEEDS),
        *((target.title, scene.targets / target.folder) for target in JOBS),
    ]
    return [_measure_place(title, folder) for title, folder in folders]


def _measure_place(title: str, folder: Path) -> DemoPlace:
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:  # removed between the two calls
            continue
    return DemoPlace(title, len(sizes), sum(sizes))
