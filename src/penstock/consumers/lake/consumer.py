"""What consumers of table formats do: keep a copy, commit by commit, whatever the format.

Every commit has rows and watermark, and is made on top of the very version that was looked at. So of two
writers one is fenced, whichever of the two is the one that was given up; and what an attempt leaves behind
that was killed is known to be nobody's as soon as somebody else has committed.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import pyarrow as pa

from penstock.changes.columns import chosen_columns, key_names
from penstock.clock import physical_ms
from penstock.consumers.lake.attempt import StagedCommit
from penstock.consumers.lake.files import with_bounds
from penstock.consumers.lake.filewriting import FileWriter
from penstock.consumers.lake.key_order import KeySet, OrderedRows
from penstock.consumers.lake.merge import merge, plan
from penstock.consumers.lake.spark_writer import WriteTask, write_on_executors
from penstock.consumers.lake.table import LakeTable, LakeWatermark, Version
from penstock.consumers.lakeschema import LakeEvolution, TargetColumns, evolve, key_columns, shaped
from penstock.errors import Fenced, PenstockError
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE, RESERVED
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, gather

__all__ = ["LakeConsumer"]

_MAINTENANCE_MS = 3_600_000

_log = logging.getLogger(__name__)


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
        columns = chosen_columns(schema.table, self.job.info.columns)
        TargetColumns(columns, key_names(schema.table), schema.table, self.table.dialect)

    def committed_ts(self) -> int:
        """See Consumer."""
        version = self.table.look()
        self._seen = (version,)
        return version.marks.watermark if version and version.marks.owner == self.job.owner else 0

    def consume(self, data: DataRetriever) -> None:
        """See Consumer."""
        base = self._seen[0] if self._seen else self.table.look()
        self._seen = None
        columns = TargetColumns(data.columns, data.keys, data.schema.table, self.table.dialect)
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
        return shaped(rows, pa.schema([pa.field(each.name, stored(each.type)) for each in kept]))

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """See Comparable."""
        version = self._mine(self.table.look(), at_ts)
        for file in self.table.files(version):
            yield from self.table.read(version, file)

    def mend(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """See Comparable."""
        version = self._mine(self.table.look(), at_ts)
        as_it_is = LakeEvolution(version.schema, tuple(version.schema.names), rewrites=False)
        self._change(version, as_it_is, upserts, deletes, version.marks, mends=True)

    # first copies

    def _replace(
        self, base: Version | None, data: DataRetriever, columns: TargetColumns, marks: LakeWatermark
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

    def _write_first(self, data: DataRetriever, columns: TargetColumns, writer: FileWriter) -> None:
        rows = gather(data, self.job.scratch).upserts
        for batch in OrderedRows(rows, _key_rows(rows, columns.schema)).rest():
            writer.write([shaped(batch, columns.schema)])
        writer.cut()

    # tails

    def _mine(self, base: Version | None, watermark: int) -> Version:
        """The version, which has to be this job's at a watermark; raise Fenced when it is not."""
        if base is None or base.marks.owner != self.job.owner or base.marks.watermark != watermark:
            raise Fenced(f"{self.table.place} is not at {watermark} of job {self.job.id} (any more)")
        return base

    def _advance(
        self, base: Version, data: DataRetriever, columns: TargetColumns, marks: LakeWatermark
    ) -> None:
        evolution = evolve(base.schema, base.marks.column_id, columns)
        changes = gather(data, self.job.scratch)
        self._change(base, evolution, changes.upserts, changes.deletes, marks)
        if base.crowded or _stretch(base.marks.watermark) != _stretch(marks.watermark):
            self._maintain()

    def _change(
        self,
        base: Version,
        evolution: LakeEvolution,
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
                read=lambda file: map(evolution.carried, self.table.read(base, file)),
                arriving=lambda rows: shaped(rows, schema),
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
    return pa.Table.from_batches([shaped(batch, keys) for batch in rows.to_batches()], keys)


def _stretch(ts: int) -> int:
    return physical_ms(ts) // _MAINTENANCE_MS
