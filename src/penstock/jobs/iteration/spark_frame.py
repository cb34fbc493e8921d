"""The changes of an iteration as one Spark DataFrame, for consumers that work on executors.

The frame has one row for each key that changed, with a column that says which rows are deletes. Parts of a
range are read in parallel, and each yields the last change of its keys. A range of several parts goes through
one shuffle by key, and then the last of those changes is chosen; all rows of a snapshot have different keys,
so it needs no shuffle. The frame is persisted: what one consumer computes is there for all.
"""

import pickle
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock import metrics, tracing
from penstock.changes.batches import ChangeBatch
from penstock.changes.columns import choose_columns, key_names, own_columns, with_commit_ts, with_deleted
from penstock.changes.net_change import NetChanges, coalesce_by_key
from penstock.clock import SYSTEM
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.follow.source import TableScan
from penstock.jobs.iteration.ordering import BatchProjection
from penstock.spark.errors import first_line, hide_worker_traceback, translate_spark_errors
from penstock.spark.tasks import begin_task, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame  # noqa: PLC0414 - the only place here that names Spark's types
    from pyspark.sql import SparkSession as SparkSession  # noqa: PLC0414 - likewise
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition
    from penstock.tables.schema import TableInfo

__all__ = [
    "FrameColumns",
    "FrameWork",
    "Frames",
    "SharedFrame",
    "SparkFrame",
    "SparkFrames",
    "quote_name",
    "read_parts",
]


def quote_name(name: str) -> str:
    """Return a column's name quoted for Spark, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


class SharedFrame(Protocol):
    """The changes of a range, persisted; for any number of threads."""

    @property
    def dataframe(self) -> "DataFrame":
        """One row for each key that changed, in the columns of `DataRetriever.dataframe`."""

    @property
    def rows(self) -> int:
        """The number of its rows, as executors have counted them."""

    @property
    def traced(self) -> tuple[tuple[int, int], ...]:
        """Commit timestamps of the traced transactions among the rows, each with its number of rows."""

    def release(self) -> None:
        """Release what is persisted. No consumer uses the DataFrame any more."""


class Frames(Protocol):
    """Opens frames. Thread-safe."""

    def open(self, scan: TableScan, columns: Collection[str] | None) -> SharedFrame:
        """Read a range on executors; `columns` are those beside the key's, None for all. Blocks.

        Jobs run in the scheduler pool of the calling thread. Raises Unavailable when Spark fails.
        """


_PART_ROWS_MIN = 64 * 1024
_PART_ROWS_MAX = 1_000_000
_PART_BYTES_MAX = 64 * 1024 * 1024  # of objects: rows of an iteration may be wide
_PARTS_PER_TASK = 2  # parts for each task that runs at once, so that a long one delays the others less


@dataclass(frozen=True)
class SparkFrame:
    """A SharedFrame with Spark's DataFrame."""

    dataframe: "DataFrame"
    rows: int
    traced: tuple[tuple[int, int], ...] = ()

    def release(self) -> None:
        """Unpersist the DataFrame; raise Unavailable when Spark fails."""
        with _translate_errors():
            self.dataframe.unpersist()


class SparkFrames:
    """Opens frames with Spark. `session` returns the session of this process, and is called when needed."""

    def __init__(self, session: "Callable[[], SparkSession]") -> None:
        self._session = session

    def open(self, scan: "TableScan", columns: Collection[str] | None) -> SparkFrame:
        """Read a range on executors, and compute it, so that what cannot be read fails here.

        Raises SchemaRefused when the table had another key in the range, and Unavailable when Spark fails.
        """
        from pyspark import StorageLevel  # here: most processes that run jobs never need Spark

        from penstock.spark.arrow_types import spark_schema
        from penstock.spark.labels import label_jobs, without_tags

        spark = self._session()
        frame_columns = FrameColumns(scan.schema, choose_columns(scan.schema.table, columns))
        declared = spark_schema(with_deleted(frame_columns.columns), own_names=False)
        what = f"changes of {scan.schema.name} for jobs"
        tag = f"penstock-{SYSTEM.unique_id()}"
        with _translate_errors(), without_tags(spark), label_jobs(spark, what, tag=tag):
            plan = _plan_parts(spark, scan, columns, frame_columns)
            frame = _open_frame(spark, plan, frame_columns, declared)
            frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                traced: tuple[tuple[int, int], ...] = ()
                if tracing.current is None or scan.snapshot:
                    rows = frame.count()
                else:
                    rows, traced = _count_traced(frame, tracing.current.sampling)
            except BaseException:
                frame.unpersist()
                raise
        metrics.ROWS_TOTAL.labels("read", "spark").inc(rows)
        return SparkFrame(frame, rows, traced)


def own_frame(frame: "DataFrame", table: "TableInfo", columns: Collection[str] | None) -> "DataFrame":
    """Return the columns that a job selects of a frame, by the names that the table gives them."""
    read = [*with_commit_ts(choose_columns(table, columns)).names, frame.columns[-1]]
    names = with_deleted(own_columns(table, columns)).names
    selected = frame.select(*map(quote_name, read))
    return selected if read == names else selected.toDF(*names)


@dataclass(frozen=True)
class FrameColumns:
    """The columns of a frame, and the table's schema at the end of the range."""

    schema: "SchemaVersion"
    columns: "pa.Schema"


@dataclass(frozen=True)
class _FramePlan:
    """The parts of a range, and whether all keys are distinct."""

    parts: "tuple[ChangesPartition, ...]"
    distinct: bool


def _plan_parts(
    spark: "SparkSession", scan: "TableScan", columns: Collection[str] | None, frame_columns: FrameColumns
) -> _FramePlan:
    from penstock.changes import plan_changes
    from penstock.changes.collect import open_range, schema_parts
    from penstock.follow.scans import change_options
    from penstock.jobs.schema_changes import check_keys
    from penstock.spark.parallelism import default_parallelism

    if not scan.snapshot:
        states = open_range(scan.view, scan.from_ts, scan.to_ts)
        for _, _, version in schema_parts(states, scan.from_ts, scan.to_ts):
            check_keys(version.table, frame_columns.schema.table)
    tasks = _PARTS_PER_TASK * default_parallelism(spark)
    part_rows = -(-scan.rows // tasks)  # rounded up
    parts = plan_changes(
        scan.view,
        scan.from_ts,
        scan.to_ts,
        partition_rows=min(_PART_ROWS_MAX, max(_PART_ROWS_MIN, part_rows)),
        partition_bytes=_PART_BYTES_MAX,
        **change_options(scan.view, scan, columns),
    )
    return _FramePlan(tuple(parts), distinct=scan.snapshot)


def _open_frame(
    spark: "SparkSession", plan: _FramePlan, frame_columns: FrameColumns, declared: "StructType"
) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    from penstock.spark.parallelism import work_frame

    keys = key_names(frame_columns.schema.table)
    if not plan.parts:
        return spark.createDataFrame(pa.Table.from_batches([], with_deleted(frame_columns.columns)), declared)
    # Work travels as rows, and the functions are always the same: so are the plans of a table's frames.
    packed = [pickle.dumps(FrameWork(part, frame_columns, declared, plan.distinct)) for part in plan.parts]
    # In the user's session: consumers join the frame with frames of theirs.
    frame = work_frame(spark, packed).mapInArrow(read_parts, declared)
    if plan.distinct or len(packed) == 1:
        return frame
    by_key = frame.repartition(len(packed), *(F.col(quote_name(name)) for name in keys))
    return map_in_arrow(by_key, _LastRows(keys, declared), declared)


@dataclass(frozen=True)
class FrameWork:
    """A part of a frame, as an executor gets it."""

    part: "ChangesPartition"
    columns: FrameColumns
    declared: "StructType"
    distinct: bool


def read_parts(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Yield the net changes of the parts that rows name."""
    from penstock.spark.arrow_types import as_declared

    begin_task()
    for batch in batches:
        for packed in batch.column(0):
            with hide_worker_traceback():
                # Pickled by our own driver, for our own executors.
                work: FrameWork = pickle.loads(packed.as_buffer())  # noqa: S301 - see above
                rows = _read_part(work.part, work.columns, distinct=work.distinct)
                yield from as_declared(rows, work.declared)


@dataclass(frozen=True)
class _LastRows:
    """Chooses the last change of each key, out of those of several parts."""

    keys: tuple[str, ...]
    declared: "StructType"

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from penstock.spark.arrow_types import as_declared

        with hide_worker_traceback(), _scratch() as folder:
            yield from as_declared(last_rows(batches, self.keys, folder), self.declared)


def _count_traced(frame: "DataFrame", sampling: tracing.Sampling) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Compute a frame; return its number of rows, and of those the rows of each traced transaction."""

    def pick(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        begin_task()
        for batch in batches:
            picked = sampling.pick(batch.column(0).to_numpy())
            counts = [(picked.commit_ts, [0]), (picked.rows, [len(batch)])]  # 0 is no commit: it counts all
            columns = [pa.array([*values.tolist(), *more], pa.int64()) for values, more in counts]
            yield pa.RecordBatch.from_arrays(columns, ["commit_ts", "rows"])

    found = frame.select(COMMIT_TS).mapInArrow(pick, "commit_ts long, rows long").toArrow()
    counted = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    traced = tuple((commit_ts, rows) for commit_ts, rows in counted if commit_ts)
    return sum(rows for commit_ts, rows in counted if not commit_ts), traced


def _read_part(
    part: "ChangesPartition", frame_columns: FrameColumns, *, distinct: bool
) -> "Iterable[pa.RecordBatch]":
    """Return the net changes of a part; read it again if the capture that has it gives it up meanwhile."""
    from penstock.spark.tables import require_storage

    for partition in part.table.partitions:
        require_storage(partition.storage, partition.table_id)
    if distinct:
        return _read_net_rows(part, frame_columns, distinct=True)
    try:
        return list(_read_net_rows(part, frame_columns, distinct=False))
    except Unavailable:
        return list(_read_net_rows(part, frame_columns, distinct=False))


def _read_net_rows(
    part: "ChangesPartition", frame_columns: FrameColumns, *, distinct: bool
) -> "Iterator[pa.RecordBatch]":

    with part.collect() as handle, _scratch() as folder:
        yield from net_rows(handle, frame_columns.schema, frame_columns.columns, folder, distinct=distinct)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-net-") as folder:
        yield Path(folder)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise Unavailable for errors that Spark throws for reasons of its own: they may pass."""
    try:
        with translate_spark_errors():
            yield
    except PenstockError:
        raise
    except Exception as error:
        raise Unavailable(f"Spark failed: {first_line(error)}; the iteration is retried") from error


def net_rows(
    batches: Iterable[ChangeBatch],
    schema: SchemaVersion,
    columns: pa.Schema,
    scratch: Path,
    *,
    distinct: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Return one row for each key that changed; `columns` are those of `schema`, the key's first."""
    projection = BatchProjection(schema, columns.names)
    projected = (projection.project(batch) for batch in batches)
    if distinct:
        return (_mark_rows(batch.inserts, deleted=False) for batch in projected if batch.rows)
    pairs = ((batch.inserts, batch.deletes) for batch in projected)
    return _net_batches(coalesce_by_key(pairs, columns, key_names(schema.table), scratch), columns)


def last_rows(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], scratch: Path
) -> Iterator[pa.RecordBatch]:
    """Return the last row of each key, out of the rows of `net_rows` for several parts of a range."""
    source = iter(batches)
    first = next(source, None)
    if first is None:
        return iter(())
    columns = pa.schema(list(first.schema)[:-2])  # without _commit_ts and _deleted
    pairs = (_split_sides(batch, columns, keys) for batch in _chain(first, source))
    return _net_batches(coalesce_by_key(pairs, columns, keys, scratch), columns)


def _chain(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _split_sides(
    batch: pa.RecordBatch, columns: pa.Schema, keys: Sequence[str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Split marked rows into upserts and deletes."""
    begun = with_commit_ts(columns)
    ended = pa.schema([*(begun.field(name) for name in keys), begun[-1]])
    deleted = batch.columns[-1]
    inserts, deletes = batch.filter(pc.invert(deleted)), batch.filter(deleted)
    return inserts.select(begun.names).cast(begun), deletes.select(ended.names).cast(ended)


def _net_batches(net: NetChanges, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the marked rows of net changes; in deletes all columns but the key's are NULL."""
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
    marked = with_deleted(pa.schema(list(batch.schema)[:-1]))
    return pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(deleted, len(batch))], schema=marked)
