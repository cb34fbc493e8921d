"""What consumers of table formats do: keep a copy, commit by commit, whatever the format.

Every commit has rows and watermark, and is made on top of the very version that was looked at. So of two
writers one is fenced, whichever of the two is the one that was given up; and what an attempt leaves behind
that was killed is known to be nobody's as soon as somebody else has committed.

One attempt to commit: the files that it writes, and those that earlier ones left.

New files go to a folder that is named by the watermark on top of which they are put. What is there already,
and does not belong to the copy, is of attempts on top of the same version that came to nothing: some were
killed, others may still be writing. As soon as this one has committed, none of them can any more, and their
files go. Nothing is removed that was not there before the commit: whoever starts on top of it writes later.

Mends leave the watermark, so it tells nothing of their files: those have a folder of their own, in which
nothing is removed like that.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.changes.columns import choose_columns, key_names
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
from penstock.eventstore.sides import HANDLE, RESERVED
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, read_net_changes

__all__ = ["LakeConsumer", "StagedCommit"]


_MENDS = "mends"

_log = logging.getLogger(__name__)


class StagedCommit:
    """A context that removes what was written when it comes to nothing.

    Raises Fenced when an iteration of a job was faster, Unavailable when somebody else was.
    """

    def __init__(
        self,
        table: LakeTable,
        base: Version | None,
        schema: pa.Schema,
        *,
        whole: bool,
        name: str,
        mends: bool = False,
    ) -> None:
        self._table = table
        self._base = base
        self.written: list[WrittenFile] = []
        with self._overtaken():
            self.staging = table.stage(base, schema, whole=whole)
        self.store = self.staging.open_store()
        self.there: list[DataFile] = table.files(base) if base else []
        """The files of the copy."""
        self.spread = False
        """Whether executors write: tasks that are tried again leave files of which only storage knows."""
        watermark = base.marks.watermark if base else 0
        self._folder = f"{table.folder}/{_MENDS if mends else watermark}"
        self._name = name
        known = {each.path for each in self.there}
        self._strays = [] if mends else [each for each in self.store.names(self._folder) if each not in known]
        self._decided = False

    @property
    def names(self) -> tuple[str, str]:
        """The folder of new files, and how their names begin."""
        return self._folder, self._name

    def writer(self) -> FileWriter:
        """Writes files that belong to the attempt."""
        schema = self.staging.file_schema
        return FileWriter(self.store, schema, folder=self._folder, name=self._name, written=self.written)

    def commit(self, marks: LakeWatermark, removed: Sequence[DataFile]) -> None:
        """Commit, and remove what earlier attempts left."""
        self._decided = True
        with self._overtaken():
            self.staging.commit(marks, self.written, removed)
        written = {each.path for each in self.written}
        self._remove(path for path in self._strays if path not in written)

    @contextmanager
    def _overtaken(self) -> Iterator[None]:
        try:
            yield
        except Overtaken as error:
            now, base = self._table.look(), self._base
            if now is not None and self._is_in(now):
                return
            self._decided = False
            if (now and now.marks) != (base and base.marks):
                raise Fenced(f"{self._table.place} was changed by another iteration of a job") from error
            raise Unavailable(
                f"{self._table.place} was changed by somebody else meanwhile; try again"
            ) from error

    def _is_in(self, version: Version) -> bool:
        """Whether a version has this attempt's files: then it was committed, and the answer was lost.

        The library's own second try met the first one, and took it for somebody else's.
        """
        written = {each.path for each in self.written}
        return any(each.path in written for each in self._table.files(version))

    def _mine(self) -> list[str]:
        return [
            path for path in self.store.names(self._folder) if path.startswith(f"{self._folder}/{self._name}")
        ]

    def _remove(self, paths: Iterable[str]) -> None:
        """Delete files of nothing; that this fails must neither undo what is done nor hide an error."""
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
        """Remove what was written in vain, unless it is not known whether it was."""
        if not self._decided:
            self._remove(self._mine())
        elif kind is None and self.spread:
            known = {each.path for each in self.written}
            self._remove(path for path in self._mine() if path not in known)


_MAINTENANCE_MS = 3_600_000


class LakeConsumer(Consumer):
    """Keeps a copy of a table; a format gives its `LakeTable`. Implements Comparable.

    A first copy, and one that is made anew, takes the place of what is there in one commit at the end. A tail
    writes the files again that hold changed keys.
    """

    _seen: tuple[Version | None] | None = None
    """The version that the log was reconciled with: the next commit is on top of it."""

    @abstractmethod
    def open_table(self) -> LakeTable:
        """The table that the options name."""

    @cached_property
    def table(self) -> LakeTable:
        """The copy."""
        return self.open_table()

    def check(self, schema: SchemaVersion) -> None:
        """See Consumer."""
        columns = choose_columns(schema.table, self.job.info.columns)
        ArrowColumns(columns, key_names(schema.table), schema.table, self.table.dialect)

    def committed_ts(self) -> int:
        """See Consumer."""
        version = self.table.look()
        self._seen = (version,)
        return version.marks.watermark if version and version.marks.owner == self.job.owner else 0

    def consume(self, data: DataRetriever) -> None:
        """See Consumer."""
        base = self._seen[0] if self._seen else self.table.look()
        self._seen = None
        columns = ArrowColumns(data.columns, data.keys, data.schema.table, self.table.dialect)
        marks = LakeWatermark(
            owner=self.job.owner, job=str(self.job.id), watermark=data.to_ts, column_id=columns.last_id
        )
        if data.data_type is DataType.SNAPSHOT:
            self._replace(base, data, columns, marks)
        else:
            self._advance(self._mine(base, data.from_ts), data, columns, marks)

    def close(self) -> None:
        """See Consumer."""
        if "table" in self.__dict__:  # it was used
            self.table.close()

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See Comparable."""
        stored = self.table.dialect.stored
        kept = [each for each in rows.schema if each.name == HANDLE or each.name not in RESERVED]
        return shape_rows(rows, pa.schema([pa.field(each.name, stored(each.type)) for each in kept]))

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """See Comparable."""
        version = self._mine(self.table.look(), at_ts)
        for file in self.table.files(version):
            yield from self.table.read(version, file)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """See Comparable."""
        version = self._mine(self.table.look(), at_ts)
        as_it_is = ArrowEvolution(version.schema, tuple(version.schema.names), rewrites=False)
        self._change(version, as_it_is, upserts, deletes, version.marks, mends=True)

    # first copies

    def _replace(
        self, base: Version | None, data: DataRetriever, columns: ArrowColumns, marks: LakeWatermark
    ) -> None:
        if base is not None:
            self.job.check_takeover(base.marks.owner, base.marks.job, self.table.place)
        with self._attempt(base, columns.schema, whole=True) as attempt:
            if data.large:
                attempt.spread = True
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

    def _mine(self, base: Version | None, watermark: int) -> Version:
        """The version, which has to be this job's at a watermark; raise Fenced when it is not."""
        if base is None or base.marks.owner != self.job.owner or base.marks.watermark != watermark:
            raise Fenced(f"{self.table.place} is not at {watermark} of job {self.job.id} (any more)")
        return base

    def _advance(
        self, base: Version, data: DataRetriever, columns: ArrowColumns, marks: LakeWatermark
    ) -> None:
        evolution = plan_arrow_evolution(base.schema, base.marks.column_id, columns)
        changes = read_net_changes(data, self.job.scratch)
        self._change(base, evolution, changes.upserts, changes.deletes, marks)
        if base.crowded or _stretch(base.marks.watermark) != _stretch(marks.watermark):
            self._maintain()

    def _change(
        self,
        base: Version,
        evolution: ArrowEvolution,
        upserts: pa.Table,
        deletes: pa.Table,
        marks: LakeWatermark,
        *,
        mends: bool = False,
    ) -> None:
        """Commit rows that come and keys that go, on top of a version."""
        schema, keys = evolution.schema, evolution.keys
        coming = _key_rows(upserts, schema)
        ordered = OrderedRows(upserts, coming)
        changed = KeySet(pa.concat_tables([coming, _key_rows(deletes, schema)]))
        with self._attempt(base, schema, whole=evolution.rewrites, mends=mends) as attempt:
            files = with_bounds(attempt.store, attempt.there, key_columns(base.schema)[0])
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
        self, base: Version | None, schema: pa.Schema, *, whole: bool, mends: bool = False
    ) -> StagedCommit:
        name = self.job.clock.unique_id()[:12]
        return StagedCommit(self.table, base, schema, whole=whole, name=name, mends=mends)

    def _maintain(self) -> None:
        """Maintain the table; what is committed is, whether that succeeds or not."""
        try:
            self.table.maintain()
        except PenstockError as error:
            _log.warning("old files stay for now at %s: %s", self.table.place, error)


def _key_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The key's columns of rows, as the copy has them."""
    keys = pa.schema([schema.field(name) for name in key_columns(schema)])
    return pa.Table.from_batches([shape_rows(batch, keys) for batch in rows.to_batches()], keys)


def _stretch(ts: int) -> int:
    return physical_ms(ts) // _MAINTENANCE_MS
