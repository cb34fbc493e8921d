"""The changes of an iteration as one DataFrame, read by executors: one row for each key that changed.

Parts of a range are read beside each other, and each gives the last change of its keys. A range of several
parts goes through one shuffle by key, after which the last of those is chosen; all rows of a snapshot have
different keys, so that there is none. The frame is persisted: what one consumer computes is there for all.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import tracing
from penstock.errors import PenstockError, Unavailable
from penstock.spark.arrowmapping import map_in_arrow
from penstock.spark.errors import first_line, one_line, spark_errors
from penstock.spark.workerprocess import task_begins

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition
    from penstock.eventstore.schema_version import SchemaVersion
    from penstock.follow.source_2 import TableScan

__all__ = ["SparkFrame", "SparkFrames"]

LOCAL_ROWS = 10_000
"""Changes up to which a frame is made in the driver: a task costs more than it saves."""
_PART_ROWS_MIN = 64 * 1024
_PART_ROWS_MAX = 1_000_000
_SHARES = 2  # for each task that runs at once, so that a long one keeps the others waiting less


@dataclass(frozen=True)
class SparkFrame:
    """Implements SharedFrame."""

    dataframe: "DataFrame"
    traced: tuple[tuple[int, int], ...] = ()

    def release(self) -> None:
        """See SharedFrame."""
        with _spark_fails():
            self.dataframe.unpersist()


class SparkFrames:
    """Implements Frames. `session` gives the session of this process, and is asked when one is needed."""

    def __init__(self, session: "Callable[[], SparkSession]") -> None:
        self._session = session

    def open(self, scan: "TableScan", columns: Collection[str] | None) -> SparkFrame:
        """See Frames. Computes it, so that what cannot be read fails here.

        Raises SchemaRefused when the table had another key in the range.
        """
        from pyspark import StorageLevel  # here: most processes that run jobs never need Spark

        from penstock.changes.columns import chosen_columns
        from penstock.jobs.iteration.netrows import net_schema
        from penstock.spark.sparkschema import spark_schema

        spark = self._session()
        wanted = _Wanted(scan.schema, chosen_columns(scan.schema.table, columns))
        declared = spark_schema(net_schema(wanted.columns))
        with _spark_fails():
            frame = _frame(spark, _planned(spark, scan, columns, wanted), wanted, declared)
            frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                if tracing.current is None or scan.snapshot:
                    frame.count()
                    traced: tuple[tuple[int, int], ...] = ()
                else:
                    traced = _traced(frame, tracing.current.sampling)
            except BaseException:
                frame.unpersist()
                raise
        return SparkFrame(frame, traced)


@dataclass(frozen=True)
class _Wanted:
    """The columns that are wanted, of a table as it is at the end."""

    schema: "SchemaVersion"
    columns: "pa.Schema"


@dataclass(frozen=True)
class _Plan:
    """Parts, and whether a key can be in several of them."""

    parts: "tuple[ChangesPartition, ...]"
    distinct: bool
    local: bool


def _planned(
    spark: "SparkSession", scan: "TableScan", columns: Collection[str] | None, wanted: _Wanted
) -> _Plan:
    from penstock.changes import plan_changes
    from penstock.changes.collect import open_range, schema_parts
    from penstock.follow.scans import change_wishes
    from penstock.jobs.schema_changes import check_keys
    from penstock.spark.jvm import driver_context

    if not scan.snapshot:
        states = open_range(scan.view, scan.from_ts, scan.to_ts)
        for _, _, version in schema_parts(states, scan.from_ts, scan.to_ts):
            check_keys(version.table, wanted.schema.table)
    tasks = _SHARES * driver_context(spark).defaultParallelism
    share = -(-scan.rows // tasks)
    parts = plan_changes(
        scan.view,
        scan.from_ts,
        scan.to_ts,
        partition_rows=min(_PART_ROWS_MAX, max(_PART_ROWS_MIN, share)),
        **change_wishes(scan.view, scan, columns),
    )
    return _Plan(tuple(parts), distinct=scan.snapshot, local=scan.rows <= LOCAL_ROWS)


def _frame(spark: "SparkSession", plan: _Plan, wanted: _Wanted, declared: "StructType") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    from penstock.changes.columns import key_names
    from penstock.jobs.iteration.spark_frame import quoted

    keys = key_names(wanted.schema.table)
    if plan.local or not plan.parts:
        return _local(spark, plan, wanted, declared, keys)
    shipped, distinct = plan.parts, plan.distinct

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from penstock.spark.sparkschema import as_declared

        task_begins()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with one_line():
                    yield from as_declared(_part_rows(shipped[number], wanted, distinct=distinct), declared)

    def last(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from penstock.jobs.iteration.netrows import last_rows
        from penstock.spark.sparkschema import as_declared

        with one_line(), _scratch() as folder:
            yield from as_declared(last_rows(batches, keys, folder), declared)

    frame = spark.range(0, len(shipped), 1, len(shipped)).mapInArrow(read, declared)
    if distinct or len(shipped) == 1:
        return frame
    by_key = frame.repartition(len(shipped), *(F.col(quoted(name)) for name in keys))
    return map_in_arrow(by_key, last, declared)


def _traced(frame: "DataFrame", sampling: tracing.Sampling) -> tuple[tuple[int, int], ...]:
    """Compute a frame, and pick the transactions that are traced among its rows."""
    from penstock.eventstore.sides import COMMIT_TS

    def pick(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        task_begins()
        for batch in batches:
            picked = sampling.pick(batch.column(0).to_numpy())
            columns = [pa.array(each.view("int64"), pa.int64()) for each in (picked.commit_ts, picked.rows)]
            yield pa.RecordBatch.from_arrays(columns, ["commit_ts", "rows"])

    found = frame.select(COMMIT_TS).mapInArrow(pick, "commit_ts long, rows long").toArrow()
    return tuple(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _local(
    spark: "SparkSession", plan: _Plan, wanted: _Wanted, declared: "StructType", keys: Sequence[str]
) -> "DataFrame":
    """A frame of few rows, which are read here."""
    import pyarrow as pa

    from penstock.jobs.iteration.netrows import last_rows, net_schema

    found = [batch for part in plan.parts for batch in _part_rows(part, wanted, distinct=plan.distinct)]
    if len(plan.parts) > 1 and not plan.distinct:
        with _scratch() as folder:
            found = list(last_rows(found, keys, folder))
    return spark.createDataFrame(pa.Table.from_batches(found, net_schema(wanted.columns)), declared)


def _part_rows(part: "ChangesPartition", wanted: _Wanted, *, distinct: bool) -> "Iterable[pa.RecordBatch]":
    """The net changes of a part, which is read again when the capture that has it gives it up meanwhile."""
    from penstock.spark.tables import require_storage

    for partition in part.table.partitions:
        require_storage(partition.storage, partition.table_id)
    if distinct:
        return _read(part, wanted, distinct=True)
    try:
        return list(_read(part, wanted, distinct=False))
    except Unavailable:
        return list(_read(part, wanted, distinct=False))


def _read(part: "ChangesPartition", wanted: _Wanted, *, distinct: bool) -> "Iterator[pa.RecordBatch]":
    from penstock.jobs.iteration.netrows import net_rows

    with part.collect() as handle, _scratch() as folder:
        yield from net_rows(handle, wanted.schema, wanted.columns, folder, distinct=distinct)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-net-") as folder:
        yield Path(folder)


@contextmanager
def _spark_fails() -> Iterator[None]:
    """What Spark throws for reasons of its own may pass."""
    try:
        with spark_errors():
            yield
    except PenstockError:
        raise
    except Exception as error:
        raise Unavailable(f"Spark failed: {first_line(error)}; it is tried again") from error
