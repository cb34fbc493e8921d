"""Which tables a directory leads to, and which column of a version is which column of the last one. Pure.

A table keeps its rows through changes of its columns and new names; it ends when it is dropped, truncated, or
gets a name that the changefeed does not carry.

Rows of a source as a reader of the changefeed's files has them: encoded, and read again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pyarrow as pa

from penstock.changefeeds.codecs.decoder import FileOptions, decoded
from penstock.changefeeds.codecs.encoder import encoder_of, shown_columns
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.codecs.row_changes import INSERT, RowChanges
from penstock.changefeeds.codecs.row_filter import RowFilter
from penstock.changefeeds.directory.reader import Ddl, TableVersion
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import TableInfo

__all__ = ["Lineage", "Lineages", "SourceRows", "with_ids_of"]


_SEVERAL_CHANGES = 61  # TiDB's number of an ALTER TABLE with several parts
_RECOVER_TABLE = 25
_CHANGES_OF_COLUMNS = frozenset({int(DdlAction.MODIFY_COLUMN), _SEVERAL_CHANGES})
_EXCHANGE_PARTITION = 42
_LOSES_ROWS = frozenset({20, 23, _EXCHANGE_PARTITION})  # and DROP, TRUNCATE PARTITION, of which no row tells
_NOT_FROM_THE_BEGINNING = frozenset({int(DdlAction.RENAME_TABLE), _RECOVER_TABLE})


@dataclass(slots=True)
class Lineage:
    """A table, from its first version in the directory to its last. Columns keep their ids all along."""

    number: int
    name: str
    born_ts: int
    whole: bool
    """Whether every row that it has was written into the directory."""
    columns: TableInfo | None = None
    """The newest version."""
    loses_rows: bool = False
    """Whether rows went with a partition, so that nobody can tell which."""


class Lineages:
    """Learns the schema files of a directory in their order. `snapshot`: it begins with all rows."""

    def __init__(self, *, snapshot: bool) -> None:
        self._snapshot = snapshot
        self._now: dict[str, Lineage] = {}
        self._versions: dict[tuple[str, int], tuple[Lineage, TableInfo]] = {}
        self._exchanges: set[int] = set()  # versions at which a partition was exchanged
        self._undone: dict[int, list[Lineage]] = {}  # tables with a file without a DDL, by its version
        self.born = 0
        """How many there were ever; their numbers are below."""
        self._ids = count(1)

    def __iter__(self) -> Iterator[Lineage]:
        """The tables that are there at the end."""
        return iter(self._now.values())

    def named(self, name: str) -> Lineage | None:
        """The table of that name at the end, whatever its case; None: there is none."""
        return self._now.get(name.lower())

    def at(self, of: TableVersion) -> tuple[Lineage, TableInfo] | None:
        """The table that had a version, and the columns then; None when there is no such version."""
        return self._versions.get((of.name.lower(), of.version))

    def learn(self, ddl: Ddl) -> None:
        """A schema file, after all that were learned."""
        name = ddl.name.lower()
        if ddl.table is None:
            if ddl.type == DdlAction.DROP_SCHEMA:
                self._now = {
                    each: kept for each, kept in self._now.items() if not each.startswith(f"{name}.")
                }
        elif ddl.type == DdlAction.DROP_TABLE or self._leaves(ddl):
            self._now.pop(name, None)
        else:
            self._enter(ddl, ddl.table)

    def _leaves(self, ddl: Ddl) -> bool:
        """Whether a table gets a name that is not carried: its file has the name that it had."""
        renamed = ddl.type == DdlAction.RENAME_TABLE and ddl.renamed_from is None
        return renamed and ddl.name.lower() in self._now

    def _enter(self, ddl: Ddl, table: TableInfo) -> None:
        name = ddl.name.lower()
        if ddl.renamed_from is not None:
            known = self._now.pop(".".join(ddl.renamed_from).lower(), None)
        else:
            known = None if ddl.type == DdlAction.TRUNCATE_TABLE else self._now.get(name)
        lineage = known or self._new(ddl)
        if ddl.type == DdlAction.CREATE_TABLE and lineage.born_ts == ddl.version:
            lineage.whole = True  # it may have been described before
        lineage.name = ddl.name
        lineage.columns = self._identified(lineage.columns, table, ddl.type)
        self._note_lost_rows(lineage, ddl)
        self._now[name] = lineage
        self._versions[name, ddl.version] = lineage, lineage.columns

    def _note_lost_rows(self, lineage: Lineage, ddl: Ddl) -> None:
        """The statement of an exchange is in the partitioned table's file; the other's says the version."""
        if ddl.type == _EXCHANGE_PARTITION:
            self._exchanges.add(ddl.version)
            for other in self._undone.get(ddl.version, []):
                other.loses_rows = True
        if not ddl.query:
            self._undone.setdefault(ddl.version, []).append(lineage)
        exchanged = not ddl.query and ddl.version in self._exchanges
        lineage.loses_rows |= exchanged or ddl.type in _LOSES_ROWS

    def _new(self, ddl: Ddl) -> Lineage:
        begins = ddl.type in {DdlAction.CREATE_TABLE, DdlAction.TRUNCATE_TABLE}
        whole = begins or (self._snapshot and ddl.type not in _NOT_FROM_THE_BEGINNING)
        self.born += 1
        return Lineage(self.born - 1, ddl.name, ddl.version, whole)

    def _identified(self, before: TableInfo | None, after: TableInfo, action: int) -> TableInfo:
        """The columns with the ids that they had; one that took another's place may have its id."""
        there = {column.name.lower() for column in after.columns}
        earlier = () if before is None else before.columns
        known = {column.name.lower(): column.id for column in earlier}
        changes = action in _CHANGES_OF_COLUMNS
        gone = {each.offset: each.id for each in earlier if changes and each.name.lower() not in there}
        columns = []
        for column in after.columns:
            found = known.get(column.name.lower()) or gone.get(column.offset) or next(self._ids)
            columns.append(replace(column, id=found))
        return replace(after, columns=tuple(columns))

    def expected(self, lineage: Lineage | None, table: TableInfo) -> TableInfo:
        """A table of the source with the ids that its columns have here; new ones where there are none."""
        earlier = () if lineage is None or lineage.columns is None else lineage.columns.columns
        known = {column.name.lower(): column.id for column in earlier}
        ids = (known.get(column.name.lower()) or next(self._ids) for column in table.columns)
        columns = (replace(column, id=given) for column, given in zip(table.columns, ids, strict=True))
        return replace(table, columns=tuple(columns))


def with_ids_of(table: TableInfo, like: TableInfo) -> TableInfo:
    """A table with the ids that columns of the same names have in another one, which has all of them."""
    known = {column.name.lower(): column.id for column in like.columns}
    columns = tuple(replace(column, id=known[column.name.lower()]) for column in table.columns)
    return replace(table, columns=columns)


_ROWS = 16 * 1024
_ONLY_KEYS: tuple[str, ...] = ()


class SourceRows:
    """What the changefeed's encoder makes of rows: text loses types, so both sides must have been text.

    With `only_keys`, rows have the columns of the primary key alone, and the row filter does not count.
    Raises Invalid when the options do not fit the table.
    """

    def __init__(self, schema: SchemaVersion, options: SinkOptions, *, only_keys: bool = False) -> None:
        encoding = replace(options.encoder(schema), compression="none")
        if only_keys:
            encoding = replace(encoding, columns=_ONLY_KEYS, where="")
        self._options = options
        self._filter = RowFilter.of(schema, encoding.where)
        self._shown = [column.name for column in shown_columns(schema, encoding)]
        self._encoder = encoder_of(schema, encoding)
        looked_at = () if self._filter is None else self._filter.columns
        self.reads = [
            column.name
            for column in schema.table.stored_columns
            if column.name in self._shown or column.name in looked_at
        ]
        """The columns that it needs."""
        self.names = self._shown
        """The columns of what it gives."""
        self.table: TableInfo = SchemaFile.of(schema, 0, columns=self._shown).table_info()
        """The table as a schema file describes it."""

    def read(self, batches: Iterator[pa.RecordBatch], at_ts: int) -> Iterator[pa.RecordBatch]:
        """The rows that the changefeed has of these, in columns of `table`."""
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                yield from self._again(self._kept(batch.slice(start, _ROWS)), at_ts)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.select(self.reads)
        if self._filter is not None:
            rows = rows.filter(pa.array(self._filter.keeps(rows)))
        return rows.select(self._shown)

    def _again(self, rows: pa.RecordBatch, at_ts: int) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        changes = RowChanges(
            kinds=np.full(rows.num_rows, INSERT, np.int8),
            commit_ts=np.full(rows.num_rows, at_ts, np.int64),
            handles=pa.nulls(rows.num_rows, pa.binary()),
            known=np.ones(rows.num_rows, np.bool_),
            rows=rows,
            old=rows.slice(0, 0),
        )
        written = self._encoder.payload([self._encoder.encode(changes)])
        protocol = self._options.protocol
        if protocol == "parquet":
            written = parquet_file([written], {"compression": "none"})
        files = FileOptions(protocol=protocol, terminator=self._options.terminator, csv=self._options.csv)
        for each in decoded(pa.BufferReader(written), protocol, self.table, files):
            yield each.rows
