"""What all consumers of search indexes share: first build, changes, comparison and repair."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from lance.commit import CommitConflictError
from lance.dataset import LanceDataset
from lance.fragment import FragmentMetadata
from pydantic import Field

from penstock.changes.columns import own_columns, own_key_names
from penstock.consumers.options import ConsumerOptions, Properties, Seconds, reveal_secrets
from penstock.consumers.schema_evolution import shape_rows
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
from penstock.durable_files import make_private_folder
from penstock.errors import Fenced, Invalid, PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import (
    Consumer,
    DataRetriever,
    DataType,
    JobContext,
    iter_batches,
    read_net_changes,
)
from penstock.jobs.custom_code import check_code
from penstock.jobs.iteration.spark_frame import quote_name
from penstock.jobs.spec import ConsumerInfo
from penstock.spark.errors import translate_spark_errors
from penstock.tables.schema import TableInfo
from penstock.targets import Target

__all__ = ["IndexConsumer", "IndexOptions"]


class IndexOptions(ConsumerOptions):
    """Where an index is, and how it is maintained."""

    places: ClassVar[tuple[str, ...]] = ("uri",)

    uri: str
    """The Lance dataset: a path, file://… or s3://…"""
    storage: Properties = Field(default_factory=dict, repr=False)
    """Options of the storage, by Lance's names: storage.region, storage.endpoint, …"""
    retain: Seconds = Field(900, gt=0)
    """How long a version can still be read after the next one."""
    retrain_share: float = Field(0.5, gt=0)
    """Rebuild the index once this share of its rows has changed."""


class IndexConsumer(Consumer):
    """Keeps a Lance dataset equal to what is made of a table's rows, with an index on it.

    Rows and watermark are one commit. A first build is not visible before its index is there; while an index
    is rebuilt, the old one keeps serving. Searches find changes as soon as they are committed: the index
    includes them later.
    """

    options_type: ClassVar[type[IndexOptions]] = IndexOptions
    patience: ClassVar[int] = 12  # an index of many rows is trained in one call

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...]:
        """Return where the dataset is."""
        options = cls.options_type.parse(info)
        return (Target.of_storage("uri", options.uri, reveal_secrets(options.storage)),)

    def __init__(self, job: JobContext, options: IndexOptions) -> None:
        super().__init__(job)
        self.table = LanceTable(options.uri, reveal_secrets(options.storage), job.owner)
        self._options = options
        self._compared: IndexVersion | None = None
        self._seen: tuple[IndexVersion | None] | None = None
        """The version that `committed_ts` saw: a build replaces that version or nothing."""

    @abstractmethod
    def maker(self, table: TableInfo, columns: pa.Schema) -> RowMaker:
        """Return what makes index rows of a table's rows; raise Invalid when that is impossible."""

    @abstractmethod
    def parse_maker(self, recipe: str) -> RowMaker:
        """Return what made the existing rows, from the marker's recipe.

        Raises Invalid when the recipe names a function that the settings do not allow: whoever can write to
        the target could have put it there.
        """

    def check_function(self, name: str | None, built_in: Collection[str], what: str) -> None:
        """Raise Invalid when an option or a recipe names a function that the settings do not allow."""
        if name is not None and name not in built_in and ":" in name:
            check_code(name, self.job.settings.jobs.allowed_code, f"{what} {name!r} of job {self.job.id}")

    @abstractmethod
    def kind(self, dataset: LanceDataset) -> IndexKind:
        """Return the index that a dataset should have."""

    @abstractmethod
    def scan_arguments(self, current: IndexVersion, query: SearchQuery) -> dict[str, Any]:
        """Return the arguments of Lance's scan for a query, and as `score` the column that ranks rows.

        Raises Invalid when the index cannot answer such a query.
        """

    @property
    def limits(self) -> Limits:
        """How far the index may decay."""
        return Limits(changed_share=self._options.retrain_share)

    def committed_ts(self) -> int:
        """Return the watermark of the newest version, 0 if it is incomplete or of another job."""
        with self._read_errors():
            found = self.table.latest()
        self._seen = (found,)
        return found.marker.of(self.job.owner) if found else 0

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        """Raise Unavailable for what Lance raises: it does not tell damage from storage that is away."""
        try:
            yield
        except (MemoryError, PenstockError):
            raise
        except (*LANCE_FAILURES, ArithmeticError, LookupError, NotImplementedError, TypeError) as error:
            raise self._unreadable(error) from error
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":  # a panic of a library in Rust is no Exception
                raise
            raise self._unreadable(error) from error

    def _unreadable(self, error: BaseException) -> Unavailable:
        return Unavailable(
            f"the index at {self.table.uri} cannot be read ({type(error).__name__}); check its storage, or"
            f" fill it anew with `penstock job repair --rebuild {self.job.id}`"
        )

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when no index can be made of such a table."""
        columns = own_columns(schema.table, self.job.info.columns)
        Layout.of(schema.table, columns, own_key_names(schema.table), self.maker(schema.table, columns))

    def consume(self, data: DataRetriever) -> None:
        """Commit all changes with the watermark, then do the index's upkeep."""
        table = data.schema.table
        layout = Layout.of(table, data.columns, data.keys, self.maker(table, data.columns))
        if data.data_type is DataType.SNAPSHOT:
            written = self._build(data, layout)
            keeper = self._keeper(written)
            current = keeper.build(written)
        else:
            current = self._follow(data, layout)
            keeper = self._keeper(current)
        keeper.keep(current)

    def _keeper(self, current: IndexVersion) -> IndexKeeper:
        return IndexKeeper(self.table, self.kind(current.dataset), self.limits, self._options.retain)

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
            if data.on_spark:
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
            last_id=data.schema.table.settled_column_id,
            attempt=self.job.clock.unique_id(),
            complete=False,
        )
        return self.table.replace(before, layout.schema, fragments, marker)

    def _follow(self, data: DataRetriever, layout: Layout) -> IndexVersion:
        before = self._prepare(data.from_ts, layout)
        task = self._changes_of(before, layout.maker, data.columns)
        try:
            fragments, removed = self._write_changes(data, task)
        except LANCE_FAILURES:
            self._require_at(
                data.from_ts
            )  # another writer may have replaced and removed the version that was read
            raise
        last_id = data.schema.table.settled_column_id
        return self._commit(before, fragments, removed, watermark=data.to_ts, last_id=last_id)

    def _write_changes(
        self, data: DataRetriever, task: FragmentTask
    ) -> tuple[list[FragmentMetadata], pa.Table]:
        """Write the changed rows; return their fragments, and all keys that changed."""
        if not data.on_spark:
            net = read_net_changes(data, self._scratch())
            return task.write(net.upserts.to_batches()), net.changed_keys
        frame = data.dataframe()
        deleted = quote_name(frame.columns[-1])
        fragments = write_on_executors(frame.where(f"NOT {deleted}"), task)
        with translate_spark_errors():
            return fragments, frame.select(*map(quote_name, data.keys)).toArrow()

    def _prepare(self, from_ts: int, layout: Layout) -> IndexVersion:
        """Return the version to change, with the source's columns; raise Fenced if it is not at `from_ts`."""
        before = self._require_at(from_ts)
        if before.marker.recipe != layout.maker.recipe:
            raise Invalid(
                f"the index of job {self.job.id} was made with other options or columns;"
                " rebuild it with `penstock job repair --rebuild`"
            )
        try:
            changed = follow_schema(before.dataset, before.marker.last_id, layout.columns)
        except CommitConflictError as error:
            raise Unavailable(
                "the columns of the index are being changed by another writer; try again"
            ) from error
        return self._require_at(from_ts) if changed else before

    def _require_at(self, ts: int) -> IndexVersion:
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
        put = sum(fragment.physical_rows for fragment in fragments)

        def mark(marker: Marker, gone: int) -> Marker:
            changed = marker.changed_rows + max(gone, put)
            return replace(marker, job=str(self.job.id), changed_rows=changed, **moved)

        return self.table.change(before, IndexRows(fragments, keys_of(removed, before.dataset.schema)), mark)

    def _scratch(self) -> Path:
        make_private_folder(self.job.scratch)
        return self.job.scratch

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the index rows of source rows, in the columns that can be compared."""
        if self._compared is None:
            self._compared = self._require_at(self.committed_ts())
        schema = self._compared.dataset.schema
        rows_made = self.parse_maker(self._compared.marker.recipe).make(rows, None)
        keys = key_names_of(schema)
        names = [
            *keys,
            *(name for name in schema.names if name in rows_made.schema.names and name not in keys),
        ]
        return shape_rows(rows_made, pa.schema([schema.field(name) for name in names]))

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the version at `at_ts`; raise Fenced when it is gone."""
        with self._read_errors():
            self._compared = self.table.at(at_ts)
            yield from self._compared.dataset.to_batches(filter=ROWS_ONLY)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """Replace and delete rows in one commit; raise Fenced when the index is not at `at_ts`."""
        before = self._require_at(at_ts)
        maker = self.parse_maker(before.marker.recipe)
        task = replace(self._changes_of(before, maker, upserts.schema), earlier=None)
        keys = list(key_names_of(before.dataset.schema))
        removed = pa.concat_tables([upserts.select(keys), deletes.select(keys)], promote_options="permissive")
        self._commit(before, task.write(upserts.to_batches()), removed)
