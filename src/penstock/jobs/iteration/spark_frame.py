"""The seam to Spark: the changes of an iteration as one DataFrame, for consumers that work on executors."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from penstock.follow.source_2 import TableScan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame  # noqa: PLC0414 - the only place that names Spark's types
    from pyspark.sql import SparkSession as SparkSession  # noqa: PLC0414 - likewise


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


class SharedFrame(Protocol):
    """The changes of a range, persisted; for any number of threads."""

    @property
    def dataframe(self) -> "DataFrame":
        """One row for each key that changed, as DataRetriever has it."""

    @property
    def traced(self) -> tuple[tuple[int, int], ...]:
        """Transactions among them that are traced, by commit timestamp, and how many rows each has here."""

    def release(self) -> None:
        """Let go of what is persisted. Nobody uses the DataFrame any more."""


class Frames(Protocol):
    """Makes them. Thread-safe."""

    def open(self, scan: TableScan, columns: Collection[str] | None) -> SharedFrame:
        """Read a range on executors; `columns` beside those of the key, None: all. Blocks.

        Jobs run in the scheduler pool of the calling thread. Raises Unavailable when Spark fails.
        """
