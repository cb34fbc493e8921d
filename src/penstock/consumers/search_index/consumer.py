"""What the consumers of search indexes have in common: first build, changes, comparing and mending."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from lance.commit import CommitConflictError
from lance.dataset import LanceDataset
from lance.fragment import FragmentMetadata
from pydantic import Field

from penstock.changes.columns import choose_columns, key_names
from penstock.consumers.options import ConsumerOptions, Properties, Seconds, revealed
from penstock.consumers.schema_evolution import shaped
from penstock.consumers.search_index.columns import Layout, follow_schema, key_names_of, keys_of
from penstock.consumers.search_index.fragment_writer import FragmentTask, RowMaker, write_on_executors
from penstock.consumers.search_index.lance_table import (
    LANCE_FAILURES,
    ROWS_ONLY,
    Earlier,
    IndexRows,
    IndexVersion,
    LanceTable,
    Marker,
)
from penstock.consumers.search_index.query import SearchQuery
from penstock.consumers.search_index.upkeep import IndexKeeper, IndexKind, Limits
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext, iter_batches, read_net_changes
from penstock.spark.errors import spark_errors
from penstock.tables.schema import TableInfo

__all__ = ["IndexConsumer", "IndexOptions"]

_DELETED = "_deleted"


class IndexOptions(ConsumerOptions):
    """Where an index is, and how it is kept."""

    places: ClassVar[tuple[str, ...]] = ("uri",)

    uri: str
    """The Lance dataset: a path, file://… or s3://…"""
    storage: Properties = Field(default_factory=dict, repr=False)
    """Options of the storage, by Lance's names: storage.region, storage.endpoint, …"""
    retain: Seconds = Field(900, gt=0)
    """How long a version can still be read after the next one."""
    retrain_share: float = Field(0.5, gt=0)
    """Changes since the index was made, by the rows of then, after which it is made anew."""


class IndexConsumer(Consumer):
    """Keeps a Lance dataset equal to what is made of a table's rows, with an index on it.

    Rows and watermark are one commit. A first build is not seen before its index is there; while an index is
    built anew, the old one goes on serving. Changes are found by searches as soon as they are committed:
    the index takes them in later.
    """

    def __init__(self, job: JobContext, options: IndexOptions) -> None:
        super().__init__(job)
        self.table = LanceTable(options.uri, revealed(options.storage), job.owner)
        self._options = options
        self._compared: IndexVersion | None = None
        self._seen: tuple[IndexVersion | None] | None = None
        """The version that `committed_ts` saw: a build replaces that one or nothing."""

    @abstractmethod
    def maker(self, table: TableInfo, columns: pa.Schema) -> RowMaker:
        """How rows are made of a table's; raise Invalid when they cannot be."""

    @abstractmethod
    def known_maker(self, recipe: str) -> RowMaker:
        """How rows were made that are there."""

    @abstractmethod
    def kind(self, dataset: LanceDataset) -> IndexKind:
        """The index that is wanted on a dataset."""

    @abstractmethod
    def ask(self, standing: IndexVersion, question: SearchQuery) -> dict[str, Any]:
        """A question as Lance's scan takes it, and the column that has the `score`; Invalid: it cannot be."""

    @property
    def limits(self) -> Limits:
        """How far the index may decay."""
        return Limits(changed_share=self._options.retrain_share)

    def committed_ts(self) -> int:
        """See Consumer."""
        found = self.table.latest()
        self._seen = (found,)
        return found.marker.of(self.job.owner) if found else 0

    def check(self, schema: SchemaVersion) -> None:
        """See Consumer."""
        columns = choose_columns(schema.table, self.job.info.columns)
        Layout.of(schema.table, columns, key_names(schema.table), self.maker(schema.table, columns))

    def consume(self, data: DataRetriever) -> None:
        """See Consumer."""
        table = data.schema.table
        layout = Layout.of(table, data.columns, data.keys, self.maker(table, data.columns))
        if data.data_type is DataType.SNAPSHOT:
            written = self._build(data, layout)
            keeper = self._keeper(written)
            standing = keeper.build(written)
        else:
            standing = self._follow(data, layout)
            keeper = self._keeper(standing)
        keeper.keep(standing)

    def _keeper(self, standing: IndexVersion) -> IndexKeeper:
        return IndexKeeper(self.table, self.kind(standing.dataset), self.limits, self._options.retain)

    def _build(self, data: DataRetriever, layout: Layout) -> IndexVersion:
        before = self._seen[0] if self._seen else self.table.latest()
        self._seen = None
        if before is not None:
            self.job.check_takeover(before.marker.owner, before.marker.job, f"the index at {self.table.uri}")
        task = FragmentTask(
            maker=layout.maker,
            columns=data.columns,
            schema=layout.schema,
            uri=self.table.uri,
            mode="create" if before is None else "overwrite",
            storage=self.table.storage,
        )
        try:
            if data.large:
                fragments = write_on_executors(data.dataframe(), task)
            else:
                fragments = task.write(batch.inserts for batch in iter_batches(data))
        except LANCE_FAILURES as error:
            self.table.check_absent(before, error)
            raise
        marker = Marker(
            owner=self.job.owner,
            job=str(self.job.id),
            watermark=data.to_ts,
            recipe=layout.maker.recipe,
            last_id=data.schema.table.max_column_id,
            attempt=self.job.clock.unique_id(),
            complete=False,
        )
        return self.table.replace(before, layout.schema, fragments, marker)

    def _follow(self, data: DataRetriever, layout: Layout) -> IndexVersion:
        before = self._ready(data.from_ts, layout)
        task = self._changes_of(before, layout.maker, data.columns)
        try:
            fragments, removed = self._written(data, task)
        except LANCE_FAILURES:
            self._at(data.from_ts)  # the version that was read may be gone because others went on
            raise
        last_id = data.schema.table.max_column_id
        return self._commit(before, fragments, removed, watermark=data.to_ts, last_id=last_id)

    def _written(self, data: DataRetriever, task: FragmentTask) -> tuple[list[FragmentMetadata], pa.Table]:
        """The fragments of rows that changed, and all keys that did."""
        if not data.large:
            net = read_net_changes(data, self._scratch())
            return task.write(net.upserts.to_batches()), net.changed_keys
        frame = data.dataframe()
        fragments = write_on_executors(frame.where(f"NOT {_DELETED}"), task)
        with spark_errors():
            return fragments, frame.select(*data.keys).toArrow()

    def _ready(self, from_ts: int, layout: Layout) -> IndexVersion:
        """The version to change, with the columns of the source; raise Fenced when it is at another time."""
        before = self._at(from_ts)
        if before.marker.recipe != layout.maker.recipe:
            raise Invalid(
                f"the index of job {self.job.id} was made with other options or columns;"
                " make it anew with `penstock job repair --rebuild`"
            )
        try:
            changed = follow_schema(before.dataset, before.marker.last_id, layout.columns)
        except CommitConflictError as error:
            raise Unavailable("the columns of the index are changed by others; try again") from error
        return self._at(from_ts) if changed else before

    def _at(self, ts: int) -> IndexVersion:
        found = self.table.latest()
        if found is None or found.marker.of(self.job.owner) != ts:
            raise Fenced(f"the index of job {self.job.id} is not at {ts}: another iteration was faster")
        return found

    def _changes_of(self, before: IndexVersion, maker: RowMaker, columns: pa.Schema) -> FragmentTask:
        schema = before.dataset.schema
        return FragmentTask(
            maker=maker,
            columns=columns,
            schema=schema,
            uri=self.table.uri,
            mode="append",
            storage=self.table.storage,
            earlier=Earlier(self.table.uri, before.version, key_names_of(schema), self.table.storage),
        )

    def _commit(
        self, before: IndexVersion, fragments: Sequence[FragmentMetadata], removed: pa.Table, **moved: Any
    ) -> IndexVersion:
        put = sum(each.physical_rows for each in fragments)

        def mark(marker: Marker, gone: int) -> Marker:
            changed = marker.changed_rows + max(gone, put)
            return replace(marker, job=str(self.job.id), changed_rows=changed, **moved)

        return self.table.change(before, IndexRows(fragments, keys_of(removed, before.dataset.schema)), mark)

    def _scratch(self) -> Path:
        self.job.scratch.mkdir(parents=True, exist_ok=True)
        return self.job.scratch

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See Comparable."""
        if self._compared is None:
            self._compared = self._at(self.committed_ts())
        schema = self._compared.dataset.schema
        made = self.known_maker(self._compared.marker.recipe).made(rows, None)
        keys = key_names_of(schema)
        names = [*keys, *(name for name in schema.names if name in made.schema.names and name not in keys)]
        return shaped(made, pa.schema([schema.field(name) for name in names]))

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """See Comparable."""
        self._compared = self.table.at(at_ts)
        yield from self._compared.dataset.to_batches(filter=ROWS_ONLY)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """See Comparable."""
        before = self._at(at_ts)
        maker = self.known_maker(before.marker.recipe)
        task = replace(self._changes_of(before, maker, upserts.schema), earlier=None)
        keys = list(key_names_of(before.dataset.schema))
        removed = pa.concat_tables([upserts.select(keys), deletes.select(keys)], promote_options="permissive")
        self._commit(before, task.write(upserts.to_batches()), removed)
