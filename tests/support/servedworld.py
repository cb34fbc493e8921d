"""Tables that readers in other processes find by name, with their newest rows served over Flight."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.find import NameMarks
from penstock.eventstore.read.flight_client import FlightReader
from penstock.tables.schema import TableInfo
from support.feedworld import FeedWorld
from support.tableworld import NAME, TableWorld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ServedDatabase", "ServedWorld"]


class ServedWorld(TableWorld):
    """A TableWorld with what a capture adds to it. Its store must not be reopened."""

    def __init__(self, folder: Path, table: TableInfo, **settings: Any) -> None:
        super().__init__(folder, table, **settings)
        self.flight = FlightService("127.0.0.1:0", self.store, self.reader)
        database, _, name = NAME.partition(".")
        for number in self.ids:
            NameMarks(self.storage.open()).mark([(database, name)], number)

    def close(self) -> None:
        """Stop serving, and stop without a flush."""
        self.flight.close()
        super().close()

    def flight_rows(self) -> FlightReader:
        """Return a reader of the newest rows, for readers in other processes."""
        return FlightReader(self.flight.addr)

    def options(self, **more: Any) -> dict[str, str]:
        """Return the options for a Spark read, and `more`."""
        found = {"table": NAME, "storage": self.storage.url, "flightAddr": self.flight.addr}
        return {name: str(value) for name, value in {**found, **more}.items() if value is not None}

    def load(self, spark: "SparkSession", **more: Any) -> "DataFrame":
        """Return a read of the table; None removes an option."""
        return spark.read.format("penstock").options(**self.options(**more)).load()

    def feed(self, spark: "SparkSession", **more: Any) -> "DataFrame":
        """Return a read of its changes."""
        return self.load(spark, readChangeFeed="true", **more)


class ServedDatabase(FeedWorld):
    """A FeedWorld with what a capture adds to it. Its time goes on by itself."""

    def __init__(self, folder: Path) -> None:
        clock = count(1_700_000_000_000)
        super().__init__(folder / "capture", lambda: next(clock), url=f"file://{folder}/events")
        self.flight = FlightService("127.0.0.1:0", self.store, self.reader)
        self.create_database("shop")

    def __exit__(self, *rest: object) -> None:
        self.flight.close()
        super().__exit__(*rest)

    def options(self, **more: Any) -> dict[str, str]:
        """Return the options for a Spark read of `shop.items`, and `more`."""
        found = {"table": NAME, "storage": self.storage.url, "flightAddr": self.flight.addr}
        return {name: str(value) for name, value in {**found, **more}.items()}

    def resolve_all(self) -> int:
        """Resolve everything so far, so that it can be read; return up to when."""
        ts = self.resolve_ddls()
        for physical_id in sorted(self.uncaptured):
            self.capture(physical_id)
        self.resolve()
        return ts
