"""Verifies a changefeed's directory: whether its files lead to the rows of the source at its checkpoint.

The directory is read once, in the order of its changes; only hashes of rows are kept, on disk when there are
many. The source is read at the checkpoint, so that the changefeed may go on meanwhile. Some files do not say
when a change was committed, and may be ahead of the checkpoint: keys that changed after it are left out then.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, OP_INSERT, DecodedChanges
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.reader import Contents, DirectoryReader, TableChanges, TableVersion
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.clock import compose_ts, physical_ms
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.accounts import SYSTEM_ACCOUNT
from penstock.tables.schema import TableInfo
from penstock.verify.compare import Counts
from penstock.verify.key_changes import (
    ADDED,
    PUT,
    REMOVED,
    Basis,
    ComparisonSpill,
    HashedRows,
    Shape,
    TableResult,
)
from penstock.verify.lineage import Lineage, Lineages, SourceRows, with_ids_of

__all__ = [
    "DirectoryRows",
    "FeedFacts",
    "FeedReport",
    "FeedVerifier",
    "SourceTables",
    "TableReport",
    "VerifyScope",
    "directory_reader",
]


_FAULTS_MAX = 20


class DirectoryRows:
    """Spills the changes of a directory; implements Damage. `shapes` are those of lineages that are compared.

    A row that does not fit is a fault of its table; the other rows of the table count.
    """

    def __init__(self, lineages: Lineages, shapes: Mapping[int, Shape], spill: ComparisonSpill) -> None:
        self.changes = 0
        self.repeated: Counter[int] = Counter()
        """How many changes of a lineage the files repeat."""
        self.untimed: set[int] = set()
        """Lineages with changes that do not say when they were committed."""
        self.blind: set[int] = set()
        """Lineages without keys whose updates do not say the row before."""
        self._lineages = lineages
        self._shapes = shapes
        self._spill = spill
        self._faults: dict[int, list[str]] = defaultdict(list)

    def faults(self, lineage: int) -> tuple[str, ...]:
        """Return what is wrong with the files of a lineage, up to `_FAULTS_MAX` sentences."""
        found = self._faults.get(lineage, [])
        more = len(found) - _FAULTS_MAX
        return (*found[:_FAULTS_MAX], *([f"and {more} more"] if more > 0 else []))

    def unreadable(self, of: TableVersion, what: str) -> None:
        """Note that a file of a table is missing or damaged."""
        found = self._lineages.at(of)
        if found is not None:
            self._faults[found[0].number].append(what)

    def again(self, of: TableVersion, changes: int) -> None:
        """Note that a file of a table repeats changes."""
        found = self._lineages.at(of)
        if found is not None:
            self.repeated[found[0].number] += changes

    def take(self, delivery: TableChanges) -> None:
        """Spill changes that come after all that were taken of the table."""
        first, self.changes = self.changes, self.changes + len(delivery.changes)
        found = self._lineages.at(TableVersion(delivery.name, delivery.version))
        shape = None if found is None else self._shapes.get(found[0].number)
        if found is None or shape is None:
            return  # the table does not exist at the end
        number, version = found[0].number, found[1]
        if delivery.changes.commit_ts.null_count:
            self.untimed.add(number)
        try:
            self._take(number, shape, version, delivery.changes, first)
        except (Corrupt, Invalid) as error:
            if str(error) not in self._faults[number]:
                self._faults[number].append(str(error))

    def _take(
        self, number: int, shape: Shape, version: TableInfo, changes: DecodedChanges, first: int
    ) -> None:
        rows = shape.hashes(changes.rows, version)
        old_at = np.asarray(pc.indices_nonzero(changes.old.is_valid())).astype(np.int64)
        old = pa.RecordBatch.from_struct_array(changes.old.take(pa.array(old_at)))
        before = shape.hashes(old, version)
        ops = changes.ops
        is_delete, is_insert = (np.asarray(pc.equal(ops, op)) for op in (OP_DELETE, OP_INSERT))
        kinds = np.where(is_delete, REMOVED, np.where(is_insert, ADDED, PUT)).astype(np.uint8)
        # A change has two places in the order: 2i removes the row before it, 2i + 1 is the change itself.
        orders = 2 * np.arange(first, first + len(changes), dtype=np.uint64)
        is_removed = np.ones(len(old_at), np.bool_)
        if shape.keys:
            is_removed = before.keys != rows.keys[old_at]  # the update changed the key
        elif (kinds == PUT).sum() > len(old_at):
            self.blind.add(number)
        removed = HashedRows(before.keys[is_removed], before.rows[is_removed])
        self._spill.change(
            number, removed, orders[old_at[is_removed]], np.full(len(removed), REMOVED, np.uint8)
        )
        self._spill.change(number, rows, orders + np.uint64(1), kinds)


class VerifyScope(StrEnum):
    """Which rows of a table were compared."""

    ALL = "all rows"
    CHANGES = "changes only"
    """Only keys that the directory has changes of: it does not begin with all rows of the table."""
    NOTHING = "nothing"
    """The note says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """The result for one table."""

    table: str
    scope: VerifyScope
    source_rows: int = 0
    target_rows: int = 0
    counts: Counts = field(default_factory=Counts)
    samples: Mapping[str, list[str]] = field(default_factory=dict, repr=False)
    """Digests of some keys, by how their rows differ; no values."""
    keys_seen: int = 0
    """How many keys the directory has changes of."""
    keys_moving: int = 0
    """How many keys were left out, because they changed after the checkpoint and files do not say when."""
    faults: tuple[str, ...] = ()
    """Sentences about missing or damaged files, and about columns that differ."""
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether a row or a file is not as it should be."""
        return bool(self.counts.total or self.faults)

    @property
    def same(self) -> bool | None:
        """Whether nothing differs; None when nothing was compared and no file is wrong."""
        return None if self.scope is VerifyScope.NOTHING and not self.differs else not self.differs


@dataclass(frozen=True, slots=True)
class FeedReport:
    """The result for a changefeed whose directory was read up to its checkpoint `at_ts`."""

    feed: str
    at_ts: int
    tables: tuple[TableReport, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs in any table that could be compared."""
        return not any(table.differs for table in self.tables)


_DAY_MS = 86_400_000

OnRowsRead = Callable[[str, int], None]
"""Called with the table or side that is being read, and the rows read so far."""


class SourceTables(Protocol):
    """The tables that a changefeed reads. Blocks; every method may raise Unavailable."""

    def tables(self, at_ts: int) -> Sequence[SchemaVersion]:
        """Return every table that existed at a timestamp."""

    def rows(self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows at a timestamp, with the columns of that time; raise StaleRead if it is gone."""

    def changed_keys(
        self, schema: SchemaVersion, after_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the keys of all rows that changed after a timestamp, up to now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFacts:
    """The tables that a changefeed replicates, and where it starts."""

    name: str
    tables: tuple[str, ...]
    start_ts: int
    snapshot: bool
    """Whether it begins with all rows at `start_ts`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tables without which it goes on, and why."""
    account: str = SYSTEM_ACCOUNT.name
    """The account whose tables it replicates; `sys`: those of all."""


class _Verified(NamedTuple):
    """A table that is compared: in the directory, in the source, or in both."""

    number: int
    name: str
    lineage: Lineage | None
    schema: SchemaVersion | None
    source: SourceRows | None
    shape: Shape
    basis: Basis


def directory_reader(options: SinkOptions, damage: DirectoryRows | None = None) -> DirectoryReader:
    """Return a reader of the directory that a sink with these options writes."""
    files = FileOptions(protocol=options.protocol, terminator=options.terminator, csv=options.csv)
    layout = DirectoryLayout(options.date_separator, options.use_table_id_as_path)
    return DirectoryReader(options.target.open(), files, layout, damage=damage)


class FeedVerifier:
    """Compares one directory with its source. Blocks; files go below `folder`."""

    def __init__(
        self,
        facts: FeedFacts,
        options: SinkOptions,
        source: SourceTables,
        folder: Path,
        *,
        on_progress: OnRowsRead = lambda _what, _rows: None,
        buffer_bytes: int = 64 << 20,
    ) -> None:
        self._facts = facts
        self._options = options
        self._source = source
        self._folder = folder
        self._on_progress = on_progress
        self._buffer_bytes = buffer_bytes

    def verify(self) -> FeedReport:
        """Compare the directory with its source at the checkpoint.

        Raises Invalid when there is no directory or it cannot be read, Unavailable before its first rows are
        complete, StaleRead when the source cannot be read at the checkpoint any more.
        """
        reader = directory_reader(self._options)
        contents = reader.contents()
        if contents.checkpoint_ts < self._facts.start_ts:
            raise Unavailable(
                f"changefeed {self._facts.name} has not written all rows of its start yet; wait for its"
                " checkpoint"
            )
        lineages = Lineages(snapshot=self._facts.snapshot)
        for ddl in reader.outline(contents):
            lineages.learn(ddl)
        tables = self._tables(lineages, contents.checkpoint_ts)
        with ComparisonSpill(self._folder, buffer_bytes=self._buffer_bytes) as spill:
            shapes = {table.number: table.shape for table in tables}
            rows = DirectoryRows(lineages, shapes, spill)
            self._replay(directory_reader(self._options, rows), contents, rows)
            notes = {
                table.number: self._expect(table, rows, spill, contents.checkpoint_ts) for table in tables
            }
            bases = {table.number: table.basis for table in tables if not notes[table.number]}
            results = spill.results(bases)
        reports = (_report(table, results.get(table.number), rows, notes[table.number]) for table in tables)
        compared = {table.name.lower() for table in tables}
        missing = (
            TableReport(table=name, scope=VerifyScope.NOTHING, note=_describe_left_out(reason))
            for name, reason in self._facts.left_out.items()
            if name.lower() not in compared  # its description cannot be read
        )
        ordered = sorted((*reports, *missing), key=lambda report: report.table)
        return FeedReport(self._facts.name, contents.checkpoint_ts, tuple(ordered))

    def _replay(self, reader: DirectoryReader, contents: Contents, rows: DirectoryRows) -> None:
        for delivery in reader.round(contents):
            if isinstance(delivery, TableChanges):
                rows.take(delivery)
                self._on_progress("directory", rows.changes)

    # Which tables there are, and how they are compared.

    def _tables(self, lineages: Lineages, at_ts: int) -> list[_Verified]:
        replicated = TableFilter(self._facts.tables)
        of_account = TableFilter(self._facts.tables, account=self._facts.account)
        schemas = {
            schema.name.lower(): schema for schema in self._source.tables(at_ts) if of_account.matches(schema)
        }
        written = {
            lineage.name.lower(): lineage for lineage in lineages if _is_replicated(lineage, replicated)
        }
        numbers = count(lineages.born)
        return [
            self._table(
                written[name].number if name in written else next(numbers),
                schemas[name].name if name in schemas else written[name].name,
                lineages,
                schemas.get(name),
                at_ts,
            )
            for name in {**written, **schemas}
        ]

    def _table(
        self, number: int, name: str, lineages: Lineages, schema: SchemaVersion | None, at_ts: int
    ) -> _Verified:
        lineage = lineages.find(name)
        source = None if schema is None else SourceRows(schema, self._options)
        if schema is not None and source is not None:
            shape = Shape(lineages.give_ids(lineage, schema.table), source.names)
        else:
            assert lineage is not None, "a table is in the source or in the directory"
            assert lineage.columns is not None, "a lineage has a schema file"
            shape = Shape(lineage.columns, [column.name for column in lineage.columns.stored_columns])
        basis = Basis(keyed=bool(shape.keys), whole=self._is_whole(lineage, at_ts))
        return _Verified(number, name, lineage, schema, source, shape, basis)

    def _is_whole(self, lineage: Lineage | None, at_ts: int) -> bool:
        """Return whether the directory leads to all rows: it has them from the start, and none expired."""
        born_ts = self._facts.start_ts if lineage is None else lineage.born_ts
        days = self._options.file_expiration_days
        kept_ts = compose_ts(max(0, physical_ms(at_ts) - days * _DAY_MS)) if days else 0
        return born_ts >= kept_ts and (self._facts.snapshot if lineage is None else lineage.whole)

    # What should be there.

    def _expect(self, table: _Verified, rows: DirectoryRows, spill: ComparisonSpill, at_ts: int) -> str:
        """Read a table's source; return why it cannot be compared, if so."""
        reason = self._facts.left_out.get(table.name)
        problem = _incomparable(table, rows) if reason is None else _describe_left_out(reason)
        if problem or table.schema is None or table.source is None:
            return problem
        if not table.basis.whole and table.lineage is None:
            return ""  # the directory has no changes of it
        if table.number in rows.untimed and not self._leave_out(table, table.schema, spill, at_ts):
            return "its rows have no key, and changed meanwhile; pause the changefeed, and compare again"
        version = with_ids_of(table.source.table, table.shape.table)
        read = 0
        batches = self._source.rows(table.schema, at_ts, table.source.reads)
        for batch in table.source.read(batches, at_ts):
            spill.want(table.number, table.shape.hashes(batch, version))
            read += batch.num_rows
            self._on_progress(table.name, read)
        return ""

    def _leave_out(self, table: _Verified, schema: SchemaVersion, spill: ComparisonSpill, at_ts: int) -> bool:
        """Leave out keys that changed after the checkpoint; return False when rows without keys changed."""
        if not table.basis.keyed:
            changed = self._source.changed_keys(schema, at_ts, ())
            return not any(batch.num_rows for batch in changed)
        keys = SourceRows(schema, self._options, only_keys=True)
        version = with_ids_of(keys.table, table.shape.table)
        for batch in keys.read(self._source.changed_keys(schema, at_ts, keys.reads), at_ts):
            spill.leave_out(table.number, table.shape.key_hashes(batch, version))
        return True


def _is_replicated(lineage: Lineage, replicated: TableFilter) -> bool:
    """Return whether the changefeed still replicates a table: its tables may have been updated."""
    assert lineage.columns is not None, "a lineage has a schema file"
    return replicated.matches(SchemaVersion(0, 0, lineage.columns, lineage.name.partition(".")[0]))


def _describe_left_out(reason: str) -> str:
    return f"the changefeed goes on without it, because it cannot be captured: {reason}"


def _incomparable(table: _Verified, rows: DirectoryRows) -> str:
    """Return why a table cannot be compared; empty when it can."""
    if table.lineage is not None and table.lineage.loses_rows:
        return "partitions of it were dropped, truncated or exchanged, and files do not say which rows went"
    if not table.basis.keyed and not table.basis.whole:
        return "its rows have no key, and the directory does not begin with all of them"
    if table.number in rows.blind:
        return "its rows have no key, and updates do not say the row before; use output-old-value"
    return ""


def _report(table: _Verified, result: TableResult | None, rows: DirectoryRows, problem: str) -> TableReport:
    faults = (*_shape_faults(table), *rows.faults(table.number))
    if result is None:
        return TableReport(table=table.name, scope=VerifyScope.NOTHING, faults=faults, note=problem)
    repeated = Counts(duplicates=rows.repeated[table.number])
    return TableReport(
        table=table.name,
        scope=VerifyScope.ALL if table.basis.whole else VerifyScope.CHANGES,
        source_rows=result.wanted,
        target_rows=result.found,
        counts=result.counts + repeated,
        samples=result.samples,
        keys_seen=result.seen,
        keys_moving=result.moving,
        faults=faults,
        note="" if table.basis.whole else f"changes only: {result.seen} keys seen are compared",
    )


def _shape_faults(table: _Verified) -> tuple[str, ...]:
    if table.schema is None:
        return (f"the source has no table {table.name}",)
    if table.lineage is None or table.lineage.columns is None or table.source is None:
        return ()
    written = [column.name.lower() for column in table.lineage.columns.stored_columns]
    expected = [column.name.lower() for column in table.source.table.stored_columns]
    if written == expected:
        return ()
    return (f"its columns are {', '.join(written)} where the source has {', '.join(expected)}",)
