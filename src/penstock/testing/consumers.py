"""What consumers are tested with: changes that were written down, a table as a dict, and a job's context.

model = SourceModel(item_table("integer"))
model.commit({"id": 1, "name": "one"})
first = model.retriever(0, model.ts)            # a SNAPSHOT
model.churn(random.Random(7), commits=20)       # random changes of whatever columns the table has
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

from penstock.changes.columns import DELETED, choose_columns, key_names, with_commit_ts
from penstock.clock import compose_ts
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE
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
"""Called with the name of what is about to happen; raise to let it fail."""


def no_fault(_name: str) -> None:
    """Everything works."""


@dataclass
class ListRetriever:
    """A DataRetriever over batches that are there. `fault` is told what is about to happen, and may raise.

    `watermarks` are the transactions that `update_watermark` was called with.
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
    def keys(self) -> tuple[str, ...]:
        """See DataRetriever."""
        return key_names(self.schema.table)

    def again(self) -> "ListRetriever":
        """The same changes for an iteration that is repeated."""
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
        """See DataRetriever. The last batch comes again without rows when it is asked for more."""
        self.fault("next")
        self.given += 1
        if self.given <= len(self.batches):
            return Retrieved(*self.batches[self.given - 1], self.given == len(self.batches))
        return Retrieved(*self._nothing(), no_more_data=True)

    def dataframe(self) -> "DataFrame":
        """See DataRetriever."""
        self.fault("dataframe")
        if self.spark is None:
            raise Invalid("this retriever was made without a session; give it spark=")
        return self.spark.createDataFrame(self.net()).persist()

    def net(self) -> pa.Table:
        """One row for each key that changed, as `dataframe` has it."""
        last: dict[Key, Row] = {}
        for inserts, deletes in self.batches:
            gone = [{**row, DELETED: True} for row in deletes.to_pylist()]
            come = [{**row, DELETED: False} for row in inserts.to_pylist()]
            for row in sorted(gone + come, key=lambda row: (row[COMMIT_TS], not row[DELETED])):
                last[tuple(row[name] for name in self.keys)] = row
        schema = with_commit_ts(self.columns).append(pa.field(DELETED, pa.bool_(), nullable=False))
        return pa.Table.from_pylist(list(last.values()), schema)

    def update_watermark(self, txn: "Transaction") -> None:
        """See DataRetriever."""
        self.fault("update_watermark")
        self.watermarks.append(txn)

    def _nothing(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        return _batch([], with_commit_ts(self.columns)), _batch([], _delete_schema(self.columns, self.keys))


class SourceModel:
    """A table as a plain dict that remembers every moment: what consumers are held against.

    Keys are tuples of the primary key's values in its order; in a table without one, (handle,) as bytes,
    which `commit` gives to rows that have no `_handle`.
    """

    def __init__(self, table: TableInfo, *, database: str = "shop") -> None:
        self.versions = Versions(table)
        self.ts = START
        self._schemas = [SchemaVersion(0, 1, table, database)]
        self._handles = count(1)

    @property
    def table(self) -> TableInfo:
        """As it is now."""
        return self.versions.table

    def commit(self, *rows: Mapping[str, object], delete: Iterable[Key] = ()) -> int:
        """One transaction: keys lose their rows, rows are put. Returns its commit-ts."""
        self.ts += 2
        made = {self._key(row): {**row} for row in rows}
        for key in delete:
            if key not in made and self.versions.last(key) is not None:
                self.versions.write(self.ts, key, None)
        for key, row in made.items():
            row.pop(HANDLE, None)
            self.versions.write(self.ts, key, row)
        return self.ts

    def _key(self, row: Mapping[str, object]) -> Key:
        names = key_names(self.table)
        if names == (HANDLE,):
            return (row.get(HANDLE) or encode_handle(next(self._handles)),)
        return tuple(row[name] for name in names)

    def alter(self, table: TableInfo) -> int:
        """The table has other columns from now on; its key must stay."""
        self.ts += 2
        self.versions.alter(self.ts, table)
        self._schemas.append(SchemaVersion(self.ts, self.ts, table, self._schemas[0].database))
        return self.ts

    def at(self, ts: int) -> Snapshot:
        """The rows of a moment by key, in the schema of then."""
        return self.versions.at(ts)

    def churn(
        self,
        mix: random.Random,
        *,
        commits: int = 10,
        numbers: int = 30,
        make: Callable[[TableInfo, int, random.Random], Row] = random_row,
    ) -> int:
        """Random transactions: inserts, updates, deletes, and the same key again and again.

        `make(table, number, mix)` makes a row; the number decides its key.
        """
        for _ in range(commits):
            live = self.versions.live()
            rows = [make(self.table, mix.randrange(numbers), mix) for _ in range(mix.randrange(4))]
            if key_names(self.table) == (HANDLE,):
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
        """The changes in (from_ts, to_ts]; with from_ts = 0 all rows. `columns` beside those of the key.

        `ends_of_updates` also gives the deletes of rows that come back in the same commit.
        """
        schema = next(each for each in reversed(self._schemas) if each.since_ts <= to_ts)
        chosen = choose_columns(schema.table, columns)
        steps = self._rows_at(to_ts) if from_ts == 0 else self._changes(from_ts, to_ts, ends_of_updates)
        made = [_sides(part, schema.table, chosen) for part in _batched(steps, batch_rows)]
        kind = DataType.SNAPSHOT if from_ts == 0 else DataType.TAIL
        return ListRetriever(
            kind,
            from_ts,
            to_ts,
            schema,
            chosen,
            made or [_sides((), schema.table, chosen)],
            large=large,
            spark=spark,
        )

    def iterations(
        self, mix: random.Random, *, count: int = 5, commits: int = 10, **rest: object
    ) -> Iterator[ListRetriever]:
        """A first sync and then tails, with random changes before each; `rest` is for `churn`."""
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


def _batched(steps: Sequence[Step], size: int) -> Iterator[tuple[Step, ...]]:
    left = iter(steps)
    while part := tuple(islice(left, size)):
        yield part


def _some(keys: Sequence[Key], mix: random.Random) -> list[Key]:
    return mix.sample(keys, min(len(keys), mix.randrange(3)))


def _sides(
    steps: Sequence[Step], table: TableInfo, columns: pa.Schema
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    names = key_names(table)
    inserts = [
        {**in_schema(step.row, table), **dict(zip(names, step.key, strict=True)), COMMIT_TS: step.ts}
        for step in steps
        if step.row is not None
    ]
    deletes = [
        {**dict(zip(names, step.key, strict=True)), COMMIT_TS: step.ts} for step in steps if step.row is None
    ]
    return _batch(inserts, with_commit_ts(columns)), _batch(deletes, _delete_schema(columns, names))


def _delete_schema(columns: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    return with_commit_ts(pa.schema([columns.field(name) for name in keys]))


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def rows_by_key(table: pa.Table, keys: Sequence[str], *, hidden: str = "_") -> Snapshot:
    """Rows of a target by key, without columns whose names begin with `hidden`; none may be there twice."""
    found: Snapshot = {}
    for row in table.to_pylist():
        key = tuple(row[name] for name in keys)
        assert key not in found, "a key is there twice"
        found[key] = {name: cell for name, cell in row.items() if not name.startswith(hidden)}
    return found


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
    """The context of `shop.items/job`, with its scratch files in `folder`."""

    def session() -> "SparkSession":
        if spark is None:
            raise Invalid("this job has no Spark session; give spark=")
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
