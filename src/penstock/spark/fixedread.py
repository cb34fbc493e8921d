"""What reads of the event store have in common: the moment is fixed first, then columns are checked."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.eventstore.read.partition import TableView
    from penstock.spark.options import SourceOptions
    from penstock.tables.schema import TableInfo

__all__ = ["TableAtVersion", "VersionedRead"]


@dataclass(frozen=True)
class TableAtVersion:
    """A table as of one timestamp."""

    view: "TableView"
    ts: int
    table: "TableInfo"

    @classmethod
    def of(cls, options: "SourceOptions", ts: int | None) -> "TableAtVersion":
        """The table that the options name, at a timestamp (None: the newest). Raises as `open_table` does."""
        from penstock.spark.tables import newest_ts, open_table, require_readable

        view = open_table(options, at_ts=ts)
        if ts is None:
            ts = newest_ts(view)
        else:
            require_readable(view, ts)
        return cls(view, ts, view.partitions[0].state(from_ts=ts).schema_at(ts).table)


class ResolvedSchema(Protocol):
    """What a read is of, once that is fixed."""

    @property
    def schema(self) -> "pa.Schema":
        """The columns of its rows."""


F = TypeVar("F", bound=ResolvedSchema)
R = TypeVar("R", bound=DataSourceReader)


class VersionedRead(ABC, Generic[F, R]):
    """A read of rows up to one timestamp, which `schema` fixes; implements TableRead.

    `parallelism` is how many tasks Spark runs at once: what is large enough is read by as many.
    """

    def __init__(self, options: "SourceOptions", *, parallelism: int) -> None:
        self.options = options
        self.parallelism = parallelism
        self._found: F | None = None

    def schema(self) -> "StructType":
        """The columns that are wanted, as the table has them at the timestamp, and the read's own."""
        from penstock.spark.sparkschema import spark_schema

        self._found = self._fixed(self.options.columns)
        return spark_schema(self._found.schema)

    def reader(self, schema: "StructType") -> R:
        """A reader of these columns; raise Invalid when the rows have them otherwise."""
        from penstock.spark.sparkschema import require_columns

        found = self._found or self._fixed(self.options.columns or tuple(schema.names))
        require_columns(schema, found.schema, table=self.options.table)
        return self._reader(found, schema)

    @abstractmethod
    def _fixed(self, columns: Sequence[str] | None) -> F:
        """Fix the timestamp, for these columns (None: all)."""

    @abstractmethod
    def _reader(self, found: F, schema: "StructType") -> R:
        """A reader of what was fixed, with a schema that fits it."""
