"""The Spark data source `penstock`: `register` makes it known to a session, options choose the read.

Spark calls the source from Python processes of its own, on the driver's machine: one creates it and asks for
its schema, another plans partitions, and the reader then goes to the executors. Only what is pickled with the
source reaches them, so settings and defaults are attributes of its class.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from penstock.errors import Invalid
from penstock.spark.errors import hide_worker_traceback
from penstock.spark.sql import table_functions
from penstock.spark.tasks import Parallelism, begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.settings import Settings
    from penstock.spark.filters import ReadFilter
    from penstock.spark.options import SourceOptions
    from penstock.spark.tables import FilteredReader, TableRead

__all__ = ["PenstockDataSource", "register"]


class PenstockDataSource(DataSource):
    """`spark.read.format("penstock")`, registered by `penstock.spark.register`, or installed."""

    settings: ClassVar["Settings | None"] = None
    defaults: ClassVar[dict[str, str] | None] = None
    """What `register` found in the session; None when nobody registered the source."""
    parallelism: ClassVar[Parallelism] = Parallelism(os.cpu_count() or 1)  # when nobody registered it
    _read: "TableRead | None" = None
    _where: str | None = None

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> "StructType":
        with hide_worker_traceback():
            declared = self._open().schema()
            self._filter(declared)  # refuse a wrong condition at once
            return declared

    def reader(self, schema: "StructType") -> DataSourceReader:
        with hide_worker_traceback():
            reader = self._open().reader(schema)
            reader.filter = self._filter(schema)
            return _OneLineReader(reader)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from penstock.spark.stream import open_stream

        return open_stream(self._open_stream, schema)

    def _open_stream(self) -> "TableRead":
        read = self._open()
        if self._where is not None:
            raise Invalid("option where is for batch reads; filter the rows of the stream instead")
        return read

    def _filter(self, schema: "StructType") -> "ReadFilter | None":
        if self._where is None:
            return None
        from penstock.spark.filters import ReadFilter

        return ReadFilter.where(self._where, schema)

    def _open(self) -> "TableRead":
        if self._read is None:
            from penstock.spark.defaults import launch_defaults
            from penstock.spark.options import parse_options

            defaults = launch_defaults() if self.defaults is None else self.defaults
            options = parse_options(self.options, defaults=defaults, settings=self.settings)
            self._where = options.where
            self._read = self.open_read(options)
        return self._read

    @classmethod
    def open_read(cls, options: "SourceOptions") -> "TableRead":
        """Return the read that the options ask for."""
        if options.tables:
            from penstock.spark.many_tables import ManyTablesRead

            return ManyTablesRead(options, parallelism=cls.parallelism)
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

    def __init__(self, inner: "FilteredReader") -> None:
        self._inner = inner

    def partitions(self) -> Sequence[InputPartition]:
        with hide_worker_traceback():
            return self._inner.partitions()

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        if partition is None or (type(partition) is InputPartition and partition.value is None):
            return  # Spark makes up a partition when a reader has planned none
        begin_task()
        with hide_worker_traceback():
            yield from self._inner.read(partition)


def register(spark: "SparkSession", settings: "Settings | None" = None) -> None:
    """Register the data source `penstock` and its SQL functions with a session.

    Options that a read does not give come from the session's spark.penstock.* configuration as it is now,
    then from `settings`, or else from the settings file that PENSTOCK_CONFIG names. Registering again
    replaces them. Raises Invalid when a key of spark.penstock.* is unknown.
    """
    from penstock.spark.defaults import PREFIX
    from penstock.spark.options import CONFIG_VARIABLE, check_defaults, for_reads
    from penstock.spark.parallelism import keep_parallelism

    session_defaults = {
        key[len(PREFIX) :]: value for key, value in spark.conf.getAll.items() if key.startswith(PREFIX)
    }
    check_defaults(session_defaults)
    path = os.environ.get(CONFIG_VARIABLE)
    if settings is None and path and "config" not in {key.lower() for key in session_defaults}:
        # Workers may run in another folder and without the variable.
        session_defaults["config"] = str(Path(path).absolute())
    session_settings = None if settings is None else for_reads(settings)
    at_once = keep_parallelism(spark)

    class Configured(PenstockDataSource):  # a local class is pickled as a whole, with its attributes
        settings = session_settings
        defaults = session_defaults
        parallelism = at_once

    spark.dataSource.register(Configured)
    for name, function in table_functions(session_settings, session_defaults).items():
        spark.udtf.register(name, function)
