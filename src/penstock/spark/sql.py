"""Changes in SQL: a table function for small ranges, and views for ranges of any size."""

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
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.udtf import UserDefinedTableFunction

    from penstock.settings import Settings
    from penstock.spark.change_feed import ChangeFeedReader

__all__ = ["FUNCTION", "changes_function", "changes_view"]

FUNCTION = "penstock_changes"

_NAME = re.compile(r"\w+")
_USAGE = f"write {FUNCTION}('shop.orders', 445644800000000001) or with an end as the third argument"


@dataclass
class PlannedChanges(AnalyzeResult):
    """The schema and the parts to read; Spark hands it from the analysis to the task."""

    reader: "ChangeFeedReader | None" = None
    parts: "list[InputPartition]" = field(default_factory=list)


def changes_function(settings: "Settings | None", defaults: dict[str, str]) -> "UserDefinedTableFunction":
    """Return the table function `penstock_changes(table, start [, end])` with these settings.

    Both ends are included, as with startingVersion and endingVersion. Whole numbers are versions, texts and
    timestamps are times. Spark runs the function as one task and takes its rows one by one, because only such
    a function may find out its columns by itself: it is for thousands of changes, not for millions.
    """
    from pyspark.sql.functions import udtf

    class Changes:  # a local class is pickled as a whole, with the settings that it uses
        def __init__(self, planned: PlannedChanges) -> None:
            self._planned = planned

        @staticmethod
        def analyze(
            table: AnalyzeArgument, start: AnalyzeArgument, end: AnalyzeArgument | None = None
        ) -> AnalyzeResult:
            with hide_worker_traceback():
                return _plan(settings, defaults, [table, start, *([end] if end is not None else [])])

        def eval(self, *_given: Any) -> Iterator[tuple[Any, ...]]:
            with hide_worker_traceback():
                yield from _rows(self._planned)

    function = udtf(Changes, useArrow=True)
    return cast("UserDefinedTableFunction", function)  # or the class of that name that Spark Connect has


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
    moment, and stays so. `options` are options of the data source. Raises what a read of the change feed
    raises.
    """
    view_name = name or f"{table.rpartition('.')[2]}_changes"
    if not _NAME.fullmatch(view_name):
        raise Invalid(f"{view_name!r} is not a name for a view; use letters, digits and _")
    bounds = {**_bound_option("starting", start), **({} if end is None else _bound_option("ending", end))}
    reader = spark.read.format("penstock").option("readChangeFeed", "true").option("table", table)
    with translate_spark_errors():
        changes = reader.options(**options, **bounds).load()
        changes.createOrReplaceTempView(view_name)
    return changes


def _plan(
    settings: "Settings | None", defaults: dict[str, str], given: list[AnalyzeArgument]
) -> PlannedChanges:
    from penstock.spark.change_feed import ChangeFeedRead
    from penstock.spark.options import parse_options

    if any(not argument.isConstantExpression or argument.value is None for argument in given):
        raise Invalid(f"the arguments of {FUNCTION} must be constants; {_USAGE}")
    table, start, *end = map(_value, given)
    options = {"table": str(table), "readChangeFeed": "true", **_bound_option("starting", start)}
    for last in end:
        options |= _bound_option("ending", last)
    read = ChangeFeedRead(parse_options(options, defaults=defaults, settings=settings), parallelism=1)
    schema = read.schema()
    reader = read.reader(schema)
    return PlannedChanges(schema=schema, reader=reader, parts=list(reader.partitions()))


def _rows(planned: PlannedChanges) -> Iterator[tuple[Any, ...]]:
    assert planned.reader is not None, "the analysis sets the reader"
    for part in planned.parts:
        for batch in planned.reader.read(part):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _value(given: AnalyzeArgument) -> Any:
    """Return the value of an argument. Spark gives a TIMESTAMP, an instant, in this process's time zone."""
    if isinstance(given.dataType, TimestampType) and isinstance(given.value, datetime):
        return given.value.astimezone(UTC)
    return given.value


def _bound_option(end: str, given: Any) -> dict[str, str]:
    """Return the option for one end of the range; a time without a zone is UTC, as in options."""
    if isinstance(given, int) and not isinstance(given, bool):
        return {f"{end}Version": str(given)}
    if isinstance(given, date):
        return {f"{end}Timestamp": given.isoformat()}
    if isinstance(given, str):
        return {f"{end}Timestamp": given}
    raise Invalid(f"changes cannot begin or end at a {type(given).__name__}; {_USAGE}")
