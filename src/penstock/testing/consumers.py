"""Doubles to test a consumer with: a source table as a dict, retrievers of its changes, and a job's context.

model = SourceModel(item_table("integer"))
model.commit({"id": 1, "name": "one"})
first = model.retriever(0, model.ts)            # a SNAPSHOT
model.churn(random.Random(7), commits=20)       # random changes of the table's columns
tail = model.retriever(first.to_ts, model.ts)   # a TAIL
consumer = Delta(job_context(tmp_path, "delta", {"uri": ...}))
consumer.consume(first)
consumer.consume(tail)
assert rows_of(target) == model.at(tail.to_ts)
"""

import random  # noqa: TID251 - only the type; the caller decides the numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.changes.columns import own_columns, own_key_names, with_commit_ts, with_deleted
from penstock.clock import compose_ts
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.jobs.consumer import DataType, JobContext, Retrieved
from penstock.jobs.job import JobId, JobKey
from penstock.jobs.spec import ConsumerInfo
from penstock.settings import Settings
from penstock.tables.keys import encode_handle
from penstock.tables.schema import TableInfo
from penstock.testing.versions import Key, Row, Snapshot, Step, Versions, in_schema, random_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.kv import Transaction

__all__ = ["Fault", "ListRetriever", "SourceModel", "job_context", "no_fault", "rows_by_key"]

START = compose_ts(1_700_000_000_000)

Fault = Callable[[str], None]
"""Is called with the name of the next step; it raises to make the step fail."""


def no_fault(_name: str) -> None:
    """Let every step succeed."""


@dataclass
class ListRetriever:
    """A DataRetriever over a list of batches. `fault` is called before each step and may raise.

    `given` counts the calls of `next`. `watermarks` are the transactions passed to `update_watermark`.
    """

    data_type: DataType
    from_ts: int
    to_ts: int
    schema: SchemaVersion
    columns: pa.Schema
    batches: Sequence[tuple[pa.RecordBatch, pa.RecordBatch]]
    large: bool = False
    spark: "SparkSession | None" = None
    fault: Fault = no_fault
    watermarks: list["Transaction"] = field(default_factory=list)
    given: int = 0

    @property
    def on_spark(self) -> bool:
        """Whether consumers are to use `dataframe`."""
        return self.large

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return own_key_names(self.schema.table)

    def again(self) -> "ListRetriever":
        """Return a retriever of the same changes, for a repeated iteration."""
        return ListRetriever(
            self.data_type,
            self.from_ts,
            self.to_ts,
            self.schema,
            self.columns,
            self.batches,
            large=self.large,
            spark=self.spark,
        )

    def next(self) -> Retrieved:
        """Return the next batch; after the last one, an empty batch that is marked as the last."""
        self.fault("next")
        self.given += 1
        if self.given <= len(self.batches):
            return Retrieved(*self.batches[self.given - 1], self.given == len(self.batches))
        return Retrieved(*self._nothing(), no_more_data=True)

    def dataframe(self) -> "DataFrame":
        """Return the net changes as a DataFrame; raise Invalid without a Spark session."""
        self.fault("dataframe")
        if self.spark is None:
            raise Invalid("this retriever was made without a session; pass spark=")
        return self.spark.createDataFrame(self.net()).persist()

    def net(self) -> pa.Table:
        """Return one row for each changed key, the rows of `dataframe`."""
        last: dict[Key, Row] = {}
        schema = with_deleted(self.columns)
        commit_ts, deleted = schema.names[-2:]
        for inserts, deletes in self.batches:
            gone = [{**row, deleted: True} for row in deletes.to_pylist()]
            come = [{**row, deleted: False} for row in inserts.to_pylist()]
            for row in sorted(gone + come, key=lambda row: (row[commit_ts], not row[deleted])):
                last[tuple(row[name] for name in self.keys)] = row
        return pa.Table.from_pylist(list(last.values()), schema)

    def update_watermark(self, txn: "Transaction") -> None:
        """Record the transaction in `watermarks`."""
        self.fault("update_watermark")
        self.watermarks.append(txn)

    def _nothing(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        return _batch([], with_commit_ts(self.columns)), _batch([], _delete_schema(self.columns, self.keys))


class SourceModel:
    """A table as a plain dict that remembers every moment, to compare consumers with.

    Keys are tuples of the primary key's values in their order. In a table without a primary key they are
    (handle,) as bytes; `commit` adds one to rows without `_handle`.
    """

    def __init__(self, table: TableInfo, *, database: str = "shop") -> None:
        self.versions = Versions(table)
        self.ts = START
        self._schemas = [SchemaVersion(0, 1, table, database)]
        self._handles = count(1)

    @property
    def table(self) -> TableInfo:
        """The current schema."""
        return self.versions.table

    def commit(self, *rows: Mapping[str, object], delete: Iterable[Key] = ()) -> int:
        """Commit one transaction that deletes keys and puts rows; return its commit timestamp."""
        self.ts += 2
        puts = {self._key(row): {**row} for row in rows}
        for key in delete:
            if key not in puts and self.versions.last(key) is not None:
                self.versions.write(self.ts, key, None)
        for key, row in puts.items():
            if not self.table.primary_key:
                row.pop(HANDLE, None)
            self.versions.write(self.ts, key, row)
        return self.ts

    def _key(self, row: Mapping[str, object]) -> Key:
        names = own_key_names(self.table)
        if not self.table.primary_key:
            return (row.get(HANDLE) or encode_handle(next(self._handles)),)
        return tuple(row[name] for name in names)

    def alter(self, table: TableInfo) -> int:
        """Return the table has other columns from now on; its key must stay."""
        self.ts += 2
        self.versions.alter(self.ts, table)
        self._schemas.append(SchemaVersion(self.ts, self.ts, table, self._schemas[0].database))
        return self.ts

    def at(self, ts: int) -> Snapshot:
        """Return the rows at a timestamp by key, in the schema of that time."""
        return self.versions.at(ts)

    def churn(
        self,
        mix: random.Random,
        *,
        commits: int = 10,
        numbers: int = 30,
        make: Callable[[TableInfo, int, random.Random], Row] = random_row,
    ) -> int:
        """Commit random transactions of inserts, updates and deletes that often hit the same keys.

        `make(table, number, mix)` makes a row; the number decides its key. Return the last commit timestamp.
        """
        for _ in range(commits):
            live = self.versions.live()
            rows = [make(self.table, mix.randrange(numbers), mix) for _ in range(mix.randrange(4))]
            if not self.table.primary_key:
                rows += [{**make(self.table, 0, mix), HANDLE: key[0]} for key in _some(live, mix)]
            self.commit(*rows, delete=_some(live, mix))
        return self.ts

    def retriever(
        self,
        from_ts: int,
        to_ts: int,
        *,
        columns: Sequence[str] | None = None,
        batch_rows: int = 16,
        ends_of_updates: bool = False,
        large: bool = False,
        spark: "SparkSession | None" = None,
    ) -> ListRetriever:
        """Return a retriever of the changes in (from_ts, to_ts]; with from_ts = 0, of all rows.

        It has the columns of the key and `columns`. `ends_of_updates` adds the deletes of rows that are put
        again in the same commit.
        """
        schema = next(schema for schema in reversed(self._schemas) if schema.since_ts <= to_ts)
        chosen = own_columns(schema.table, columns)
        steps = self._rows_at(to_ts) if from_ts == 0 else self._changes(from_ts, to_ts, ends_of_updates)
        batches = [_sides(part, schema.table, chosen) for part in _batches(steps, batch_rows)]
        kind = DataType.SNAPSHOT if from_ts == 0 else DataType.TAIL
        return ListRetriever(
            kind,
            from_ts,
            to_ts,
            schema,
            chosen,
            batches or [_sides((), schema.table, chosen)],
            large=large,
            spark=spark,
        )

    def iterations(
        self, mix: random.Random, *, count: int = 5, commits: int = 10, **rest: object
    ) -> Iterator[ListRetriever]:
        """Yield a snapshot and then tails, with random changes before each; `rest` is for `churn`."""
        from_ts = 0
        for _ in range(count):
            to_ts = self.churn(mix, commits=commits, **rest)  # type: ignore[arg-type] # as the caller says
            yield self.retriever(
                from_ts, to_ts, batch_rows=mix.choice([1, 3, 16, 1000]), ends_of_updates=mix.random() < 0.5
            )
            from_ts = to_ts

    def _rows_at(self, ts: int) -> list[Step]:
        begun = {step.key: step.ts for step in self.versions.steps(0, ts) if step.row is not None}
        return [Step(begun[key], 1, key, row) for key, row in sorted(self.at(ts).items(), key=repr)]

    def _changes(self, from_ts: int, to_ts: int, ends_of_updates: bool) -> list[Step]:  # noqa: FBT001 - see retriever
        steps = self.versions.steps(from_ts, to_ts)
        begun = {(step.ts, step.key) for step in steps if step.order == 1}
        return [step for step in steps if step.order or ends_of_updates or (step.ts, step.key) not in begun]


def _batches(steps: Sequence[Step], size: int) -> Iterator[tuple[Step, ...]]:
    left = iter(steps)
    while part := tuple(islice(left, size)):
        yield part


def _some(keys: Sequence[Key], mix: random.Random) -> list[Key]:
    return mix.sample(keys, min(len(keys), mix.randrange(3)))


def _sides(
    steps: Sequence[Step], table: TableInfo, columns: pa.Schema
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    names = own_key_names(table)
    begun = with_commit_ts(columns)
    commit_ts = begun.names[-1]
    inserts = [
        {**in_schema(step.row, table), **dict(zip(names, step.key, strict=True)), commit_ts: step.ts}
        for step in steps
        if step.row is not None
    ]
    deletes = [
        {**dict(zip(names, step.key, strict=True)), commit_ts: step.ts} for step in steps if step.row is None
    ]
    return _batch(inserts, begun), _batch(deletes, _delete_schema(columns, names))


def _delete_schema(columns: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    begun = with_commit_ts(columns)
    return pa.schema([*(begun.field(name) for name in keys), begun[-1]])


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def rows_by_key(table: pa.Table, keys: Sequence[str], *, hidden: str = "_") -> Snapshot:
    """Return the rows of a target by key, without columns whose names begin with `hidden`.

    Fail when a key occurs twice.
    """
    by_key: Snapshot = {}
    for row in table.to_pylist():
        key = tuple(row[name] for name in keys)
        assert key not in by_key, "a key occurs twice"
        by_key[key] = {name: cell for name, cell in row.items() if not name.startswith(hidden)}
    return by_key


def job_context(
    folder: Path,
    consumer: str,
    options: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    settings: Settings | None = None,
    spark: "SparkSession | None" = None,
    job: str = "job",
    job_id: int = 1,
    table_id: int = 1,
) -> JobContext:
    """Return the context of `shop.items/job`, with its scratch files in `folder`."""

    def session() -> "SparkSession":
        if spark is None:
            raise Invalid("this job has no Spark session; pass spark=")
        return spark

    return JobContext(
        id=JobId("shop", "items", job),
        key=JobKey(account_id=0, table_id=table_id, job_name=job, job_id=job_id),
        account="default",
        info=ConsumerInfo(
            consumer=consumer,
            columns=None if columns is None else tuple(columns),
            options=dict(options),
        ),
        settings=settings or Settings(),
        scratch=folder / "scratch",
        spark=session,
    )
