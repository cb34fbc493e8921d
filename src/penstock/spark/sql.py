"""Tables and changes in SQL: table functions, which are one task, and views, which are read in parallel."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.types import TimestampType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from penstock.errors import Invalid
from penstock.spark.errors import hide_worker_traceback, translate_spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.udtf import UserDefinedTableFunction

    from penstock.settings import Settings
    from penstock.spark.tables import FilteredReader, TableRead

__all__ = ["changes_view", "table_functions"]

FUNCTION, SNAPSHOT = "penstock_changes", "penstock_snapshot"

_NAME = re.compile(r"\w+")
_USAGE = f"write {FUNCTION}('shop.orders', 445644800000000001) or with an end as the third argument"
_SNAPSHOT_USAGE = f"write {SNAPSHOT}('shop.orders') or with a version or time as the second argument"


@dataclass
class PlannedRead(AnalyzeResult):
    """The schema and the parts to read; Spark hands it from the analysis to the task."""

    reader: "FilteredReader | None" = None
    parts: "list[InputPartition]" = field(default_factory=list)


def table_functions(
    settings: "Settings | None", defaults: dict[str, str]
) -> "dict[str, UserDefinedTableFunction]":
    """Return the table functions of SQL by name, with these settings.

    `penstock_changes(table, start [, end])` includes both ends, as startingVersion and endingVersion do.
    `penstock_snapshot(table [, at])` is the newest snapshot, or that of a version or time. Whole numbers are
    versions, texts and timestamps are times. Spark runs a function as one task.
    """

    class Changes:  # a local class is pickled as a whole, with the settings that it uses
        def __init__(self, planned: PlannedRead) -> None:
            self._planned = planned

        @staticmethod
        def analyze(
            table: AnalyzeArgument, start: AnalyzeArgument, end: AnalyzeArgument | None = None
        ) -> AnalyzeResult:
            with hide_worker_traceback():
                values = _constants(FUNCTION, _USAGE, [table, start, *([end] if end is not None else [])])
                ends = zip(("starting", "ending"), values[1:], strict=False)
                options = {"table": str(values[0]), "readChangeFeed": "true"}
                for which, at in ends:
                    options |= _bound_option(f"{which}Version", f"{which}Timestamp", at)
                return _plan(settings, defaults, options)

        def eval(self, *_given: Any) -> "Iterator[pa.RecordBatch]":
            yield from _read(self._planned)

    class Snapshot:
        def __init__(self, planned: PlannedRead) -> None:
            self._planned = planned

        @staticmethod
        def analyze(table: AnalyzeArgument, at: AnalyzeArgument | None = None) -> AnalyzeResult:
            with hide_worker_traceback():
                values = _constants(SNAPSHOT, _SNAPSHOT_USAGE, [table, *([at] if at is not None else [])])
                moment = _bound_option("versionAsOf", "timestampAsOf", values[1]) if len(values) > 1 else {}
                return _plan(settings, defaults, {"table": str(values[0]), **moment})

        def eval(self, *_given: Any) -> "Iterator[pa.RecordBatch]":
            yield from _read(self._planned)

    return {FUNCTION: _in_batches(Changes), SNAPSHOT: _in_batches(Snapshot)}


def _in_batches(handler: type) -> "UserDefinedTableFunction":
    """Return a table function whose handler finds out its columns and yields Arrow batches.

    Spark has both, but `arrow_udtf` refuses handlers with `analyze` up to 4.3, though its workers run them.
    """
    from pyspark.sql.functions import udtf
    from pyspark.util import PythonEvalType

    # Or the class of that name that Spark Connect has.
    function = cast("UserDefinedTableFunction", udtf(handler, useArrow=True))
    function.evalType = PythonEvalType.SQL_ARROW_UDTF
    return function


def changes_view(
    spark: "SparkSession",
    table: str,
    start: int | str | datetime,
    end: int | str | datetime | None = None,
    *,
    name: str = "",
    **options: str,
) -> "DataFrame":
    """Create a temporary view of the changes of a range, which is read in parallel; return the changes.

    Without `name`, the view's name is that of the table with `_changes` after it. Numbers are versions, other
    values are times; both ends are included. Without `end`, the range ends with the newest change at this
    moment, and stays so. `options` are options of the data source. Raises Invalid for a name or an
    option that cannot be, StaleRead when history of the range is gone, Unavailable when it is not complete.
    """
    view_name = name or f"{table.rpartition('.')[2]}_changes"
    if not _NAME.fullmatch(view_name):
        raise Invalid(f"{view_name!r} is not a name for a view; use letters, digits and _")
    bounds = _bound_option("startingVersion", "startingTimestamp", start)
    bounds |= {} if end is None else _bound_option("endingVersion", "endingTimestamp", end)
    reader = spark.read.format("penstock").option("readChangeFeed", "true").option("table", table)
    with translate_spark_errors():
        changes = reader.options(**options, **bounds).load()
        changes.createOrReplaceTempView(view_name)
    return changes


def _constants(function: str, usage: str, given: list[AnalyzeArgument]) -> list[Any]:
    if any(not argument.isConstantExpression or argument.value is None for argument in given):
        raise Invalid(f"the arguments of {function} must be constants; {usage}")
    return [_value(argument) for argument in given]


def _plan(settings: "Settings | None", defaults: dict[str, str], options: dict[str, str]) -> PlannedRead:
    from penstock.spark.change_feed import ChangeFeedRead
    from penstock.spark.options import parse_options
    from penstock.spark.table_read import SnapshotRead
    from penstock.spark.tasks import Parallelism

    parsed = parse_options(options, defaults=defaults, settings=settings)
    kind = ChangeFeedRead if parsed.read_change_feed else SnapshotRead
    read: TableRead = kind(parsed, parallelism=Parallelism(1))  # one task reads all parts
    schema = read.schema()
    reader = read.reader(schema)
    return PlannedRead(schema=schema, reader=reader, parts=list(reader.partitions()))


def _read(planned: PlannedRead) -> "Iterator[pa.RecordBatch]":
    from penstock.spark.tasks import begin_task

    assert planned.reader is not None, "the analysis sets the reader"
    begin_task()
    with hide_worker_traceback():
        for part in planned.parts:
            yield from planned.reader.read(part)


def _value(given: AnalyzeArgument) -> Any:
    """Return the value of an argument. Spark gives a TIMESTAMP, an instant, in this process's time zone."""
    if isinstance(given.dataType, TimestampType) and isinstance(given.value, datetime):
        return given.value.astimezone(UTC)
    return given.value


def _bound_option(version: str, timestamp: str, given: Any) -> dict[str, str]:
    """Return the option for a moment; a time without a zone is UTC, as in options."""
    if isinstance(given, int) and not isinstance(given, bool):
        return {version: str(given)}
    if isinstance(given, date):
        return {timestamp: given.isoformat()}
    if isinstance(given, str):
        return {timestamp: given}
    what = type(given).__name__
    if version == "versionAsOf":
        raise Invalid(f"there is no snapshot at a {what}; {_SNAPSHOT_USAGE}")
    raise Invalid(f"changes cannot begin or end at a {what}; {_USAGE}")
