"""A table of two regions that executors loaded and a capture follows, for reads on a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.eventstore import paths
from penstock.eventstore.capture.capture import Capture
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings
from penstock.spark import register
from penstock.spark.bulk import load_snapshot
from penstock.tables import Catalog
from penstock.tables.keys import record_key
from penstock.testing.store import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 120
NAME = "shop.orders"
ORDERS = [("id", "bigint primary key"), ("customer", "varchar(64)")]


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds; fail with `what` when that takes minutes."""
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, what
        SYSTEM.pause(0.05)


class LoadedWorld:
    """A table of two regions that executors loaded, and the capture that goes on from there."""

    def __init__(
        self, spark: "SparkSession", folder: Path, pd_addr: str, *, events: StorageRef | None = None
    ) -> None:
        self.folder = folder
        self.events = events or StorageRef(f"file://{folder}/events")
        self.pd_addr = pd_addr
        self.settings = self.settings_of("capture-1", flush_interval_s=0.3)
        self.cluster = ClusterRef.of(self.settings)
        self.db = Catalog(self.cluster.client())
        self.db.create_database("shop")
        self.table_id = self.create(NAME)
        self.orders = self.db.table(NAME)
        self.load = load_snapshot(spark, self.settings, NAME)
        self.capture = eventloop.run(Capture.start(self.settings))
        register(spark, self.settings)
        self.spark = spark

    def settings_of(self, capture: str, **more: Any) -> Settings:
        """Return a capture of the one table and no other, with data of its own."""
        given = {
            "id": capture,
            "data": str(self.folder / capture),
            "storage": self.events.url,
            "storage_options": dict(self.events.options),
            "tables": [NAME],
            "flight_addr": "127.0.0.1:0",
            "lease_ttl_s": 3,
            "upkeep": {"merge": False},
        }
        return Settings.model_validate({"pd_addrs": [self.pd_addr], "capture": given | more})

    def create(self, name: str) -> int:
        """Return a table of 200 rows in two regions."""
        table_id = self.db.create_table(name, ORDERS).id
        self.db.table(name).insert([{"id": number, "customer": f"c{number}"} for number in range(200)])

        async def split() -> None:
            admin = Admin(self.pd_addr)
            await admin.split([record_key(table_id, 100)])
            await admin.close()

        eventloop.run(split())
        return table_id

    def close(self) -> None:
        """Stop the capture as a crash would, and let the cluster go."""
        eventloop.run(self.capture.stop(flush=False))
        self.cluster.close()

    def change(self) -> None:
        """Change some rows, and wait until that can be read."""
        self.orders.update([{"id": 1, "customer": "changed"}])
        self.orders.delete([2])
        self.orders.insert([{"id": 1000, "customer": "new"}])
        self.catch_up()

    def catch_up(self) -> int:
        """Wait until everything committed can be read; return a timestamp after it."""
        now = self.cluster.client().timestamp()
        until(
            lambda: (
                self.table_id in self.capture.tables and self.capture.store.readable_ts(self.table_id) >= now
            ),
            "the capture does not catch up",
        )
        return now

    def flush(self) -> None:
        """Wait until everything committed is in objects."""
        now = self.catch_up()
        until(lambda: self.state().flushed_ts >= now, "the capture does not flush")

    def state(self) -> Any:
        """Return the table's manifest, as the capture has it."""
        return self.capture.store.ownership(self.table_id).state

    def list_stored(self, table_id: int) -> list[str]:
        """Return every object that storage has of a table."""
        storage, root = self.events.open(), paths.table_root(table_id)
        sides = [paths.object_folder(root, side) for side in ("data", "tombstone")]
        return [name for folder in sides for name in storage.names(folder)]

    def frame(self, **options: Any) -> "DataFrame":
        """Return a read of the table."""
        return self.spark.read.format("penstock").options(table=NAME, **options).load()

    def feed(self, **options: Any) -> "DataFrame":
        """Its changes since it was loaded."""
        return self.frame(readChangeFeed=True, startingVersion=self.load.ts + 1, **options)

    def stream(self, **options: Any) -> "DataFrame":
        """Return a stream of it."""
        reader = self.spark.readStream.format("penstock").options(table=NAME, readChangeFeed=True, **options)
        return reader.load()

    def rows(self) -> list[dict[str, Any]]:
        """Its rows, from the key-value store."""
        found: list[dict[str, Any]] = self.orders.to_arrow().to_pylist()
        return found
