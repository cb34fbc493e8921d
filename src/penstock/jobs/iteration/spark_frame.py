"""The seam to Spark: the changes of an iteration as one DataFrame, for consumers that work on executors.

The changes of an iteration as one DataFrame, read by executors: one row for each key that changed.

Parts of a range are read beside each other, and each gives the last change of its keys. A range of several
parts goes through one shuffle by key, after which the last of those is chosen; all rows of a snapshot have
different keys, so that there is none. The frame is persisted: what one consumer computes is there for all.

Net changes as rows of one kind, with a column that says which of them are deletes. Pure but for spools.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock import tracing
from penstock.changes.batches import ChangeBatch
from penstock.changes.columns import DELETED, key_names, with_commit_ts
from penstock.changes.net_change import NetChanges, coalesce_by_key
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.follow.source import TableScan
from penstock.jobs.iteration.ordering import BatchProjection
from penstock.spark.errors import first_line, one_line, spark_errors
from penstock.spark.tasks import map_in_arrow, task_begins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame  # noqa: PLC0414 - the only place here that names Spark's types
    from pyspark.sql import SparkSession as SparkSession  # noqa: PLC0414 - likewise
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition

__all__ = ["Frames", "SharedFrame", "SparkFrame", "SparkFrames", "quote_name"]


def quote_name(name: str) -> str:
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

        from penstock.changes.columns import choose_columns
        from penstock.spark.tables import spark_schema

        spark = self._session()
        wanted = _Wanted(scan.schema, choose_columns(scan.schema.table, columns))
        declared = spark_schema(net_schema(wanted.columns))
        with _spark_fails():
            frame = _open_frame(spark, _plan_parts(spark, scan, columns, wanted), wanted, declared)
            frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                if tracing.current is None or scan.snapshot:
                    frame.count()
                    traced: tuple[tuple[int, int], ...] = ()
                else:
                    traced = _count_traced(frame, tracing.current.sampling)
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


def _plan_parts(
    spark: "SparkSession", scan: "TableScan", columns: Collection[str] | None, wanted: _Wanted
) -> _Plan:
    from penstock.changes import plan_changes
    from penstock.changes.collect import open_range, schema_parts
    from penstock.follow.scans import change_options
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
        **change_options(scan.view, scan, columns),
    )
    return _Plan(tuple(parts), distinct=scan.snapshot, local=scan.rows <= LOCAL_ROWS)


def _open_frame(spark: "SparkSession", plan: _Plan, wanted: _Wanted, declared: "StructType") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    from penstock.changes.columns import key_names

    keys = key_names(wanted.schema.table)
    if plan.local or not plan.parts:
        return _open_local_frame(spark, plan, wanted, declared, keys)
    shipped, distinct = plan.parts, plan.distinct

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from penstock.spark.tables import as_declared

        task_begins()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with one_line():
                    yield from as_declared(_part_rows(shipped[number], wanted, distinct=distinct), declared)

    def last(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from penstock.spark.tables import as_declared

        with one_line(), _scratch() as folder:
            yield from as_declared(last_rows(batches, keys, folder), declared)

    frame = spark.range(0, len(shipped), 1, len(shipped)).mapInArrow(read, declared)
    if distinct or len(shipped) == 1:
        return frame
    by_key = frame.repartition(len(shipped), *(F.col(quote_name(name)) for name in keys))
    return map_in_arrow(by_key, last, declared)


def _count_traced(frame: "DataFrame", sampling: tracing.Sampling) -> tuple[tuple[int, int], ...]:
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


def _open_local_frame(
    spark: "SparkSession", plan: _Plan, wanted: _Wanted, declared: "StructType", keys: Sequence[str]
) -> "DataFrame":
    """A frame of few rows, which are read here."""
    import pyarrow as pa

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


def net_schema(columns: pa.Schema) -> pa.Schema:
    """The columns, `_commit_ts` and `_deleted`; raise Invalid when the table has a column of such a name."""
    for name in columns.names:
        if name.lower() in {COMMIT_TS, DELETED}:
            raise Invalid(
                f"column {name} has a name that DataFrames of changes need; leave it out with columns"
            )
    return with_commit_ts(columns).append(pa.field(DELETED, pa.bool_(), nullable=False))


def net_rows(
    batches: Iterable[ChangeBatch],
    schema: SchemaVersion,
    columns: pa.Schema,
    scratch: Path,
    *,
    distinct: bool = False,
) -> Iterator[pa.RecordBatch]:
    """One row for each key that changed in some batches; `columns` are those of `schema`, the key's first."""
    projection = BatchProjection(schema, columns.names)
    pieces = (projection.piece(batch) for batch in batches)
    if distinct:
        return (_mark_rows(piece.inserts, deleted=False) for piece in pieces if piece.rows)
    pairs = ((piece.inserts, piece.deletes) for piece in pieces)
    return _rows(coalesce_by_key(pairs, columns, key_names(schema.table), scratch), columns)


def last_rows(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], scratch: Path
) -> Iterator[pa.RecordBatch]:
    """The last row of each key, out of rows that `net_rows` gave for several parts of a range."""
    source = iter(batches)
    first = next(source, None)
    if first is None:
        return iter(())
    columns = pa.schema([each for each in first.schema if each.name not in {COMMIT_TS, DELETED}])
    pairs = (_sides(batch, columns, keys) for batch in _with(first, source))
    return _rows(coalesce_by_key(pairs, columns, keys, scratch), columns)


def _with(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _sides(
    batch: pa.RecordBatch, columns: pa.Schema, keys: Sequence[str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Upserts and deletes of marked rows."""
    begun = with_commit_ts(columns)
    ended = pa.schema([begun.field(name) for name in (*keys, COMMIT_TS)])
    deleted = batch.column(DELETED)
    inserts, deletes = batch.filter(pc.invert(deleted)), batch.filter(deleted)
    return inserts.select(begun.names).cast(begun), deletes.select(ended.names).cast(ended)


def _rows(net: NetChanges, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in net.upserts.to_batches():
        yield _mark_rows(batch, deleted=False)
    begun = with_commit_ts(columns)
    for batch in net.deletes.to_batches():
        known = set(batch.schema.names)
        arrays = [
            batch.column(field.name) if field.name in known else pa.nulls(len(batch), field.type)
            for field in begun
        ]
        yield _mark_rows(pa.RecordBatch.from_arrays(arrays, schema=begun), deleted=True)


def _mark_rows(batch: pa.RecordBatch, *, deleted: bool) -> pa.RecordBatch:
    field = pa.field(DELETED, pa.bool_(), nullable=False)
    return batch.append_column(field, pa.repeat(deleted, len(batch)))
