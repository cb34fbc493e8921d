"""What all consumers of table formats do: keep a copy, commit by commit, whatever the format.

Every commit has rows and watermark, and is made on top of the very version that was read. So of two writers
one is fenced, whichever of them was abandoned. What a killed attempt leaves behind belongs to nothing as soon
as another one has committed.

New files go to a folder that is named by the watermark on top of which they are put. Files that are there
already, and do not belong to the copy, are from failed attempts on top of the same version: some were killed,
others may still be writing. As soon as this one has committed, none of them can commit, and their files are
removed. Only files from before the commit are removed: an attempt on top of it writes later.

Repairs do not move the watermark, so it says nothing about their files: those have a folder of their own, in
which nothing is removed like that.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import ClassVar, Self

import pyarrow as pa

from penstock.changes.columns import own_columns, own_key_names
from penstock.clock import physical_ms
from penstock.columnar.key_order import KeySet, OrderedRows
from penstock.consumers.lake.files import DataFile, FileWriter, WrittenFile, with_bounds
from penstock.consumers.lake.merge import merge, plan
from penstock.consumers.lake.spark_writer import WriteTask, write_on_executors
from penstock.consumers.lake.table import LakeTable, LakeWatermark, Overtaken, Version
from penstock.consumers.schema_evolution import (
    ArrowColumns,
    ArrowEvolution,
    key_columns,
    plan_arrow_evolution,
    shape_rows,
)
from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, read_net_changes

__all__ = ["LakeConsumer", "StagedCommit"]


_REPAIRS = "mends"  # the folder's name since the first version

_log = logging.getLogger(__name__)


class StagedCommit:
    """One attempt to commit: a context that removes the written files when it fails.

    Raises Fenced when an iteration of a job was faster, Unavailable when another writer was.
    """

    def __init__(
        self,
        table: LakeTable,
        base: Version | None,
        schema: pa.Schema,
        *,
        whole: bool,
        name: str,
        repairs: bool = False,
    ) -> None:
        self._table = table
        self._base = base
        self.written: list[WrittenFile] = []
        with self._translate_overtaken():
            self.staging = table.stage(base, schema, whole=whole)
        self.store = self.staging.open_store()
        self.current_files: list[DataFile] = table.files(base) if base else []
        """The files of the copy."""
        self.on_executors = False
        """Whether executors write: retried tasks leave files that only storage knows."""
        watermark = base.marks.watermark if base else 0
        self._folder = f"{table.folder}/{_REPAIRS if repairs else watermark}"
        self._name = name
        known = {file.path for file in self.current_files}
        self._strays = (
            [] if repairs else [path for path in self.store.names(self._folder) if path not in known]
        )
        self._decided = False

    @property
    def names(self) -> tuple[str, str]:
        """The folder of new files, and the beginning of their names."""
        return self._folder, self._name

    def writer(self) -> FileWriter:
        """Return a writer for files of this attempt."""
        schema = self.staging.file_schema
        return FileWriter(self.store, schema, folder=self._folder, name=self._name, written=self.written)

    def commit(self, marks: LakeWatermark, removed: Sequence[DataFile]) -> None:
        """Commit, and remove what earlier attempts left."""
        self._decided = True
        with self._translate_overtaken():
            self.staging.commit(marks, self.written, removed)
        written = {file.path for file in self.written}
        self._remove(path for path in self._strays if path not in written)

    @contextmanager
    def _translate_overtaken(self) -> Iterator[None]:
        try:
            yield
        except Overtaken as error:
            now, base = self._table.latest(), self._base
            if now is not None and self._is_committed_in(now):
                return
            self._decided = False
            if (now and now.marks) != (base and base.marks):
                raise Fenced(f"{self._table.place} was changed by another iteration of a job") from error
            raise Unavailable(f"{self._table.place} was changed by another writer; try again") from error

    def _is_committed_in(self, version: Version) -> bool:
        """Return whether a version has this attempt's files: then it was committed, and the answer was lost.

        The library's own retry met the first try, and took it for another writer's.
        """
        written = {file.path for file in self.written}
        return any(file.path in written for file in self._table.files(version))

    def _own_paths(self) -> list[str]:
        return [
            path for path in self.store.names(self._folder) if path.startswith(f"{self._folder}/{self._name}")
        ]

    def _remove(self, paths: Iterable[str]) -> None:
        """Delete files that belong to nothing; a failure must neither undo the commit nor hide an error."""
        try:
            for path in paths:
                self.store.delete(path)
        except PenstockError as error:
            _log.warning("files that belong to nothing are left at %s: %s", self._table.place, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Remove the written files after a failure, unless it is unknown whether they were committed."""
        if not self._decided:
            self._remove(self._own_paths())
        elif kind is None and self.on_executors:
            known = {file.path for file in self.written}
            self._remove(path for path in self._own_paths() if path not in known)


_MAINTENANCE_MS = 3_600_000


class LakeConsumer(Consumer):
    """Keeps a copy of a table; a format provides its `LakeTable`. Has the methods of Comparable.

    A first copy, and a rebuilt one, replaces the existing one in one commit at the end. A tail rewrites the
    files that have changed keys.
    """

    patience: ClassVar[int] = 12  # a tail that touches all files rewrites them all
    _seen: tuple[Version | None] | None = None
    """The version that the log was reconciled with: the next commit is on top of it."""

    @abstractmethod
    def open_table(self) -> LakeTable:
        """Return the table that the options name."""

    @cached_property
    def table(self) -> LakeTable:
        """The copy."""
        return self.open_table()

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when the format cannot have such a table."""
        columns = own_columns(schema.table, self.job.info.columns)
        ArrowColumns(columns, own_key_names(schema.table), schema.table, self.table.dialect)

    def committed_ts(self) -> int:
        """Return the watermark of the copy's newest version, 0 if it is not this job's."""
        version = self.table.latest()
        self._seen = (version,)
        return version.marks.watermark if version and version.marks.owner == self.job.owner else 0

    def consume(self, data: DataRetriever) -> None:
        """Commit all changes with the watermark on top of the version that was seen."""
        base = self._seen[0] if self._seen else self.table.latest()
        self._seen = None
        columns = ArrowColumns(data.columns, data.keys, data.schema.table, self.table.dialect)
        marks = LakeWatermark(
            owner=self.job.owner, job=str(self.job.id), watermark=data.to_ts, column_id=columns.last_id
        )
        if data.data_type is DataType.SNAPSHOT:
            self._replace(base, data, columns, marks)
        else:
            self._advance(self._require_at(base, data.from_ts), data, columns, marks)

    def close(self) -> None:
        """Close the table."""
        if "table" in self.__dict__:  # it was used
            self.table.close()

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the types of the format."""
        stored = self.table.dialect.stored
        shape = pa.schema([pa.field(column.name, stored(column.type)) for column in rows.schema])
        return shape_rows(rows, shape)

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the copy; raise Fenced when it is not at `at_ts`."""
        version = self._require_at(self.table.latest(), at_ts)
        for file in self.table.files(version):
            yield from self.table.read(version, file)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """Put rows in and delete keys in one commit; raise Fenced when the copy is not at `at_ts`."""
        version = self._require_at(self.table.latest(), at_ts)
        as_it_is = ArrowEvolution(version.schema, tuple(version.schema.names), rewrites=False)
        self._change(version, as_it_is, upserts, deletes, version.marks, repairs=True)

    # first copies

    def _replace(
        self, base: Version | None, data: DataRetriever, columns: ArrowColumns, marks: LakeWatermark
    ) -> None:
        if base is not None:
            self.job.check_takeover(base.marks.owner, base.marks.job, self.table.place)
        with self._attempt(base, columns.schema, whole=True) as attempt:
            if data.large:
                attempt.on_executors = True
                staging = attempt.staging
                task = WriteTask(staging.open_store, columns.schema, staging.file_schema, *attempt.names)
                attempt.written += write_on_executors(data.dataframe(), data.keys, task)
            else:
                self._write_first(data, columns, attempt.writer())
            attempt.commit(marks, ())
        self._maintain()

    def _write_first(self, data: DataRetriever, columns: ArrowColumns, writer: FileWriter) -> None:
        rows = read_net_changes(data, self.job.scratch).upserts
        for batch in OrderedRows(rows, _key_rows(rows, columns.schema)).take_rest():
            writer.write([shape_rows(batch, columns.schema)])
        writer.cut()

    # tails

    def _require_at(self, base: Version | None, watermark: int) -> Version:
        """Return the version if it is this job's at a watermark; raise Fenced when it is not."""
        if base is None or base.marks.owner != self.job.owner or base.marks.watermark != watermark:
            raise Fenced(f"{self.table.place} is not at {watermark} of job {self.job.id} (any more)")
        return base

    def _advance(
        self, base: Version, data: DataRetriever, columns: ArrowColumns, marks: LakeWatermark
    ) -> None:
        evolution = plan_arrow_evolution(base.schema, base.marks.column_id, columns)
        changes = read_net_changes(data, self.job.scratch)
        self._change(base, evolution, changes.upserts, changes.deletes, marks)
        if base.crowded or _hour(base.marks.watermark) != _hour(marks.watermark):
            self._maintain()

    def _change(
        self,
        base: Version,
        evolution: ArrowEvolution,
        upserts: pa.Table,
        deletes: pa.Table,
        marks: LakeWatermark,
        *,
        repairs: bool = False,
    ) -> None:
        """Commit upserts and deletes on top of a version."""
        schema, keys = evolution.schema, evolution.keys
        coming = _key_rows(upserts, schema)
        ordered = OrderedRows(upserts, coming)
        changed = KeySet(pa.concat_tables([coming, _key_rows(deletes, schema)]))
        with self._attempt(base, schema, whole=evolution.rewrites, repairs=repairs) as attempt:
            files = with_bounds(attempt.store, attempt.current_files, key_columns(base.schema)[0])
            groups = plan(files, changed, ordered, every=evolution.rewrites)
            merge(
                groups,
                changed,
                ordered,
                read=lambda file: map(evolution.convert, self.table.read(base, file)),
                arriving=lambda rows: shape_rows(rows, schema),
                writer=attempt.writer(),
                keys=keys,
            )
            attempt.commit(marks, [file for group in groups for file in group.files])

    def _attempt(
        self, base: Version | None, schema: pa.Schema, *, whole: bool, repairs: bool = False
    ) -> StagedCommit:
        name = self.job.clock.unique_id()[:12]
        return StagedCommit(self.table, base, schema, whole=whole, name=name, repairs=repairs)

    def _maintain(self) -> None:
        """Do the table's upkeep; whether that succeeds or not, the commit stands."""
        try:
            self.table.maintain()
        except PenstockError as error:
            _log.warning("old files stay for now at %s: %s", self.table.place, error)


def _key_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the key's columns of rows, as the copy has them."""
    keys = pa.schema([schema.field(name) for name in key_columns(schema)])
    return pa.Table.from_batches([shape_rows(batch, keys) for batch in rows.to_batches()], keys)


def _hour(ts: int) -> int:
    return physical_ms(ts) // _MAINTENANCE_MS
