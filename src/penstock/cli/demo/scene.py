"""The deployment of the demonstration: what `penstock up` is told, in a folder of its own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import Invalid
from penstock.settings import Settings, parse

__all__ = ["CANAL_JSON", "PARQUET", "Scene", "folder_of", "parquet_feed", "scene_in"]

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
