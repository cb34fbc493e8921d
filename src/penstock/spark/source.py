"""The Spark data source `penstock`: from options to the read that they ask for.

Spark calls it from Python processes of its own, on the driver's machine: one creates the source and asks for
its schema, another plans partitions, and the reader then travels to the executors. Only what is pickled with
the source reaches them: that is why settings and defaults are attributes of its class.

Making the data source, and what belongs to it in SQL, known to a session.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from penstock.spark.errors import one_line
from penstock.spark.sql import FUNCTION, changes_function
from penstock.spark.tasks import task_begins

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.settings import Settings
    from penstock.spark.options import SourceOptions
    from penstock.spark.tables import TableRead

__all__ = ["PenstockDataSource", "register"]


class PenstockDataSource(DataSource):
    """`spark.read.format("penstock")`. Registered by penstock.spark.register, or by being installed."""

    settings: ClassVar["Settings | None"] = None
    defaults: ClassVar[dict[str, str]] = {}
    parallelism: ClassVar[int] = os.cpu_count() or 1  # where nobody says how many tasks run at once
    _read: "TableRead | None" = None

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> "StructType":
        with one_line():
            return self._opened().schema()

    def reader(self, schema: "StructType") -> DataSourceReader:
        with one_line():
            return _OneLineReader(self._opened().reader(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from penstock.spark.stream import open_stream

        return open_stream(self._opened, schema)

    def _opened(self) -> "TableRead":
        if self._read is None:
            from penstock.spark.options import parse_options

            options = parse_options(self.options, defaults=self.defaults, settings=self.settings)
            self._read = self.open_read(options)
        return self._read

    @classmethod
    def open_read(cls, options: "SourceOptions") -> "TableRead":
        """The read that the options ask for."""
        if options.origin == "kv":
            from penstock.spark.table_read import KvRead

            return KvRead(options)
        if options.read_change_feed:
            from penstock.spark.change_feed import ChangeFeedRead

            return ChangeFeedRead(options, parallelism=cls.parallelism)
        from penstock.spark.table_read import SnapshotRead

        return SnapshotRead(options, parallelism=cls.parallelism)


class _OneLineReader(DataSourceReader):
    """A reader whose PenstockErrors Spark shows without the traceback of its worker."""

    def __init__(self, inner: DataSourceReader) -> None:
        self._inner = inner

    def partitions(self) -> Sequence[InputPartition]:
        with one_line():
            return self._inner.partitions()

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if type(partition) is InputPartition and partition.value is None:
            return  # Spark makes one up where a reader has planned none
        task_begins()
        with one_line():
            yield from self._inner.read(partition)


_PREFIX = "spark.penstock."


def register(spark: "SparkSession", settings: "Settings | None" = None) -> None:
    """Make the data source `penstock` and the SQL function `penstock_changes` known to a session.

    Doing it again replaces what they knew.

    What reads do not say themselves is taken from the session's spark.penstock.* configuration as it is now,
    then from `settings`, or else from the settings file that PENSTOCK_CONFIG names. Raises Invalid when a key
    of spark.penstock.* is unknown.
    """
    from penstock.spark.options import CONFIG_VARIABLE, check_defaults

    found = {
        key[len(_PREFIX) :]: value for key, value in spark.conf.getAll.items() if key.startswith(_PREFIX)
    }
    check_defaults(found)
    path = os.environ.get(CONFIG_VARIABLE)
    if settings is None and path and "config" not in {key.lower() for key in found}:
        found["config"] = str(Path(path).absolute())  # workers may run elsewhere and without the variable
    known = settings
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    at_once = PenstockDataSource.parallelism if context is None else context.defaultParallelism

    class Configured(PenstockDataSource):  # made here, so that it is pickled as a whole, with what it knows
        settings = known
        defaults = found
        parallelism = at_once

    spark.dataSource.register(Configured)
    spark.udtf.register(FUNCTION, changes_function(known, found))
