"""Changes in SQL: a table function for small ranges, and views for any."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.types import TimestampType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from penstock.errors import Invalid
from penstock.spark.errors import one_line, spark_errors

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
    """The schema, and what is to be read: Spark hands it from the analysis to the task."""

    reader: "ChangeFeedReader | None" = None
    parts: "list[InputPartition]" = field(default_factory=list)


def changes_function(settings: "Settings | None", defaults: dict[str, str]) -> "UserDefinedTableFunction":
    """`penstock_changes(table, start [, end])` as a table function that knows these settings.

    Both ends are inside, as with startingVersion and endingVersion: whole numbers are versions, texts and
    timestamps are times. Spark runs it as one task and takes its rows one by one, because only such a
    function may find out its columns by itself: it is for thousands of changes, not for millions.
    """
    from pyspark.sql.functions import udtf

    class Changes:  # made here, so that it is pickled as a whole, with what it knows
        def __init__(self, planned: PlannedChanges) -> None:
            self._planned = planned

        @staticmethod
        def analyze(
            table: AnalyzeArgument, start: AnalyzeArgument, end: AnalyzeArgument | None = None
        ) -> AnalyzeResult:
            with one_line():
                return _planned(settings, defaults, [table, start, *([end] if end is not None else [])])

        def eval(self, *_given: Any) -> Iterator[tuple[Any, ...]]:
            with one_line():
                yield from _rows(self._planned)

    made = udtf(Changes, useArrow=True)
    return cast("UserDefinedTableFunction", made)  # or the class of that name that Spark Connect has


def changes_view(
    spark: "SparkSession",
    table: str,
    start: int | str | datetime,
    end: int | str | datetime | None = None,
    *,
    name: str = "",
    **options: str,
) -> "DataFrame":
    """Make the changes of a range a temporary view, read in parallel, and return them.

    The view's name is that of the table with `_changes` behind it unless `name` says another. Numbers are
    versions, other values times; both ends are inside. Without an end it is the newest at this moment, and
    stays that. `options` are options of the data source. Raises as a read of the change feed does.
    """
    found = name or f"{table.rpartition('.')[2]}_changes"
    if not _NAME.fullmatch(found):
        raise Invalid(f"{found!r} is no name for a view; use letters, digits and _")
    bounds = {**_bound("starting", start), **({} if end is None else _bound("ending", end))}
    reader = spark.read.format("penstock").option("readChangeFeed", "true").option("table", table)
    with spark_errors():
        changes = reader.options(**options, **bounds).load()
        changes.createOrReplaceTempView(found)
    return changes


def _planned(
    settings: "Settings | None", defaults: dict[str, str], given: list[AnalyzeArgument]
) -> PlannedChanges:
    from penstock.spark.change_feed import ChangeFeedRead
    from penstock.spark.options import parse_options

    if any(not each.isConstantExpression or each.value is None for each in given):
        raise Invalid(f"the arguments of {FUNCTION} must be constants; {_USAGE}")
    table, start, *end = map(_value, given)
    asked = {"table": str(table), "readChangeFeed": "true", **_bound("starting", start)}
    for last in end:
        asked |= _bound("ending", last)
    read = ChangeFeedRead(parse_options(asked, defaults=defaults, settings=settings), parallelism=1)
    schema = read.schema()
    reader = read.reader(schema)
    return PlannedChanges(schema=schema, reader=reader, parts=list(reader.partitions()))


def _rows(planned: PlannedChanges) -> Iterator[tuple[Any, ...]]:
    assert planned.reader is not None, "the analysis makes one"
    for part in planned.parts:
        for batch in planned.reader.read(part):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _value(given: AnalyzeArgument) -> Any:
    """The value of an argument. A TIMESTAMP is an instant; Spark gives it in this process's time zone."""
    if isinstance(given.dataType, TimestampType) and isinstance(given.value, datetime):
        return given.value.astimezone(UTC)
    return given.value


def _bound(end: str, given: Any) -> dict[str, str]:
    """The option for one end of the range; a time without a zone is UTC, as in options."""
    if isinstance(given, int) and not isinstance(given, bool):
        return {f"{end}Version": str(given)}
    if isinstance(given, date):
        return {f"{end}Timestamp": given.isoformat()}
    if isinstance(given, str):
        return {f"{end}Timestamp": given}
    raise Invalid(f"changes cannot begin or end at a {type(given).__name__}; {_USAGE}")
