"""`option("readChangeFeed", True)`: what changed in a table, one row for each side of each change."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import Invalid, Unavailable
from penstock.spark.fixedread import FixedRead, Moment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.changes import ChangesPartition
    from penstock.eventstore.partition import PartitionState, TableView
    from penstock.spark.changerows import ChangeRows
    from penstock.spark.options import SourceOptions
    from penstock.spark.streaming import ChangeStreamReader

__all__ = ["ChangeFeedInput", "ChangeFeedRead", "ChangeFeedReader", "feed_parts", "read_feed"]

_PART_ROWS_MIN = 64 * 1024  # below it a task costs more than it saves
_SHARES = 2  # for each task that runs at once, so that a long one keeps the others waiting less
_NO_START = (
    "no start is given for the changes; give startingVersion or startingTimestamp:"
    " 0 begins with the rows that the table has at the end"
)


@dataclass(frozen=True)
class _Range:
    """What a read is of, once that is fixed: changes up to a moment."""

    end: Moment
    rows: "ChangeRows"

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the feed."""
        return self.rows.schema


class ChangeFeedRead(FixedRead[_Range, "ChangeFeedReader"]):
    """A read of the changes up to one timestamp; the table's columns are as they are then."""

    def reader(self, schema: "StructType") -> "ChangeFeedReader":
        """A reader of these columns; raise Invalid when the feed has them otherwise, or has no start."""
        if self._options.from_ts is None:
            raise Invalid(_NO_START)
        return super().reader(schema)

    def stream_reader(self, schema: "StructType") -> "ChangeStreamReader":
        """A reader of a stream with these columns. Asks nobody, and raises nothing."""
        from penstock.spark.streaming import ChangeStreamReader
        from penstock.spark.streamschema import Declared

        found, options = self._found, self._options
        declared = None if found is None else Declared(found.end.table, found.end.ts, options.columns)
        return ChangeStreamReader(options, schema, declared, parallelism=self._parallelism)

    def _fixed(self, columns: Sequence[str] | None) -> _Range:
        from penstock.spark.changerows import ChangeRows
        from penstock.spark.tablerows import naming

        with naming(self._options.table, inclusive=True):
            end = Moment.of(self._options, self._options.to_ts)
            return _Range(end, ChangeRows(end.table, columns))

    def _reader(self, found: _Range, schema: "StructType") -> "ChangeFeedReader":
        return ChangeFeedReader(self._options, found, schema, parallelism=self._parallelism)


class ChangeFeedReader(DataSourceReader):
    """Plans the parts of the range on the driver, and reads each on an executor."""

    def __init__(
        self, options: "SourceOptions", wanted: _Range, schema: "StructType", *, parallelism: int
    ) -> None:
        self._options = options
        self._range = wanted
        self._schema = schema
        self._parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """Parts that follow each other in time."""
        from penstock.spark.handlerange import handle_bounds
        from penstock.spark.tablerows import naming, open_table, planned

        options, wanted = self._options, self._range
        from_ts, to_ts = options.from_ts or 0, wanted.end.ts
        if from_ts == to_ts:
            return []  # nothing has happened since
        if from_ts > to_ts:
            raise Unavailable(
                f"changes of {options.table} can be read up to {to_ts}, and are to start at {from_ts + 1};"
                " wait, or start earlier"
            )
        bounds = handle_bounds(wanted.end.table, options.range_from, options.range_to)

        def plan(view: "TableView") -> "list[ChangesPartition]":
            return feed_parts(
                view,
                from_ts,
                to_ts,
                wanted.rows,
                handles=bounds,
                part_bytes=options.partition_bytes,
                parallelism=self._parallelism,
            )

        with naming(options.table, inclusive=True):
            parts = planned(wanted.end.view, plan, again=lambda: open_table(options, at_ts=to_ts))
        return [ChangeFeedInput(each) for each in parts]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The changes of a part, in order, in Spark's own Arrow schema."""
        from penstock.spark.sparkschema import as_declared
        from penstock.spark.tablerows import naming

        assert isinstance(partition, ChangeFeedInput)
        with naming(self._options.table, inclusive=True):
            yield from as_declared(read_feed(partition.part, self._range.rows), self._schema)


class ChangeFeedInput(InputPartition):
    """A part, in the form that Spark hands to an executor."""

    def __init__(self, part: "ChangesPartition") -> None:
        super().__init__(None)
        self.part = part


def feed_parts(
    view: "TableView",
    from_ts: int,
    to_ts: int,
    rows: "ChangeRows",
    *,
    handles: tuple[bytes, bytes] = (b"", b""),
    part_bytes: int,
    parallelism: int,
) -> "list[ChangesPartition]":
    """The changes of a range in parts of at most about `part_bytes`, fewer where tasks would be idle.

    What there is depends on what was flushed when it is planned; the rows of all parts together do not.
    Raises as `plan_changes` does.
    """
    from penstock.changes import plan_changes
    from penstock.changes.collecting import fix_range, schema_parts
    from penstock.spark.changerows import FEED_BATCH_ROWS

    view, states, _ = fix_range(view, from_ts, to_ts)
    versions = [schema.table for _, _, schema in schema_parts(states, from_ts or to_ts - 1, to_ts)]
    planned = plan_changes(
        view,
        from_ts,
        to_ts,
        columns=rows.reads(versions),
        coalesce=False,
        old_rows=True,
        batch_rows=FEED_BATCH_ROWS,
        partition_rows=_part_rows(states, from_ts, to_ts, part_bytes, parallelism),
    )
    within = (part.within(*handles) for part in planned)
    return [part for part in within if part is not None]


def read_feed(part: "ChangesPartition", rows: "ChangeRows") -> "Iterator[pa.RecordBatch]":
    """The rows of a part on an executor, in order. Raises as `collect_changes` does."""
    from penstock.spark.tablerows import require_storage

    for partition in part.table.partitions:
        require_storage(partition.storage, partition.table_id)
    with part.collect() as handle:
        for batch in handle:
            yield rows.of(batch)


def _part_rows(
    states: "Iterable[PartitionState]", from_ts: int, to_ts: int, part_bytes: int, parallelism: int
) -> int:
    infos = [
        info
        for state in states
        for side in ("data", "tombstone")
        for info in (
            state.changes(side, from_ts, to_ts)
            if from_ts
            else state.visible(side, min(to_ts, state.flushed_ts))
        )
    ]
    rows, nbytes = sum(info.rows for info in infos), sum(info.size_bytes for info in infos)
    largest = max(1, part_bytes * rows // nbytes) if nbytes else _PART_ROWS_MIN
    return min(largest, max(_PART_ROWS_MIN, -(-rows // (_SHARES * parallelism))))
