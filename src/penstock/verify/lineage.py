"""The tables of a changefeed's directory through all their versions, and rows of a source as its files have
them.

`Lineages` follows a table through changes of its columns and its name, and says which column of a version is
which column of the last one. A table ends when it is dropped, truncated, or gets a name that the changefeed
does not replicate. `SourceRows` encodes rows of a source and decodes them again, so that both sides of a
comparison have been files. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pyarrow as pa

from penstock.changefeeds.codecs.decoder import FileOptions, decode_stream
from penstock.changefeeds.codecs.encoder import encoder_of, output_columns
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.codecs.row_changes import INSERT, RowChanges
from penstock.changefeeds.codecs.row_filter import RowFilter
from penstock.changefeeds.directory.reader import Ddl, TableVersion
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_name
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import TableInfo

__all__ = ["Lineage", "Lineages", "SourceRows", "with_ids_of"]


_SEVERAL_CHANGES = 61  # TiDB's number of an ALTER TABLE with several parts
_RECOVER_TABLE = 25
_RECOVER_SCHEMA = 63
_CHANGES_OF_COLUMNS = frozenset({int(DdlAction.MODIFY_COLUMN), _SEVERAL_CHANGES})
_EXCHANGE_PARTITION = 42
_LOSES_ROWS = frozenset({20, 23, _EXCHANGE_PARTITION})  # 20, 23: DROP, TRUNCATE PARTITION, without deletes
_NOT_FROM_THE_BEGINNING = frozenset({int(DdlAction.RENAME_TABLE)})
_BEGINNINGS = frozenset(
    {int(DdlAction.CREATE_TABLE), int(DdlAction.TRUNCATE_TABLE), _RECOVER_TABLE, _RECOVER_SCHEMA}
)
"""A table that comes back begins with all of its rows in the directory."""


@dataclass(slots=True)
class Lineage:
    """A table from its first version in the directory to its last. Columns keep their ids all along."""

    number: int
    name: str
    born_ts: int
    whole: bool
    """Whether every row of the table was written into the directory."""
    columns: TableInfo | None = None
    """The newest version of the table."""
    loses_rows: bool = False
    """Whether rows went with a partition: the files do not say which."""


class Lineages:
    """Learns the schema files of a directory in their order. With `snapshot`, it begins with all rows."""

    def __init__(self, *, snapshot: bool) -> None:
        self._snapshot = snapshot
        self._now: dict[str, Lineage] = {}
        self._versions: dict[tuple[str, int], tuple[Lineage, TableInfo]] = {}
        self._exchanges: set[int] = set()  # versions at which a partition was exchanged
        self._without_ddl: dict[int, list[Lineage]] = {}  # tables with a file without a DDL, by its version
        self.born = 0
        """How many lineages there were ever; their numbers are smaller."""
        self._ids = count(1)

    def __iter__(self) -> Iterator[Lineage]:
        """Iterate over the tables that exist at the end."""
        return iter(self._now.values())

    def find(self, name: str) -> Lineage | None:
        """Return the table of that name at the end, whatever its case; None when there is none."""
        return self._now.get(name.lower())

    def at(self, of: TableVersion) -> tuple[Lineage, TableInfo] | None:
        """Return the table that had a version, and its columns then; None when there is no such version."""
        return self._versions.get((of.name.lower(), of.version))

    def learn(self, ddl: Ddl) -> None:
        """Apply a schema file that comes after all that were learned. Views have no rows and no lineage."""
        if ddl.of_view:
            return
        name = ddl.name.lower()
        if ddl.table is None:
            if ddl.type == DdlAction.DROP_SCHEMA:
                self._now = {
                    table: lineage for table, lineage in self._now.items() if not table.startswith(f"{name}.")
                }
        elif ddl.type == DdlAction.DROP_TABLE or self._leaves(ddl):
            self._now.pop(name, None)
        else:
            self._enter(ddl, ddl.table)

    def _leaves(self, ddl: Ddl) -> bool:
        """Return whether a table gets a name that is not replicated: its file has the old name then."""
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
            lineage.whole = True  # a file of the same version may have come first
        lineage.name = ddl.name
        lineage.columns = self._keep_ids(lineage.columns, table, ddl.type)
        self._note_lost_rows(lineage, ddl)
        self._now[name] = lineage
        self._versions[name, ddl.version] = lineage, lineage.columns

    def _note_lost_rows(self, lineage: Lineage, ddl: Ddl) -> None:
        """Mark tables that lose rows with a partition.

        An exchange concerns two tables. The partitioned one has the statement in its file; the file of the
        other has the same version and no statement, and may come first.
        """
        if ddl.type == _EXCHANGE_PARTITION:
            self._exchanges.add(ddl.version)
            for other in self._without_ddl.get(ddl.version, []):
                other.loses_rows = True
        if not ddl.query:
            self._without_ddl.setdefault(ddl.version, []).append(lineage)
        exchanged = not ddl.query and ddl.version in self._exchanges
        lineage.loses_rows |= exchanged or ddl.type in _LOSES_ROWS

    def _new(self, ddl: Ddl) -> Lineage:
        begins = ddl.type in _BEGINNINGS
        whole = begins or (self._snapshot and ddl.type not in _NOT_FROM_THE_BEGINNING)
        self.born += 1
        return Lineage(self.born - 1, ddl.name, ddl.version, whole)

    def _keep_ids(self, before: TableInfo | None, after: TableInfo, action: int) -> TableInfo:
        """Return the table with the ids that its columns had before; a new column gets a new id.

        A column with a new name keeps its id when the DDL may have renamed it: it has the place of one that
        is gone.
        """
        names = {column.name.lower() for column in after.columns}
        earlier = () if before is None else before.columns
        known = {column.name.lower(): column.id for column in earlier}
        changes = action in _CHANGES_OF_COLUMNS
        gone = {
            column.offset: column.id for column in earlier if changes and column.name.lower() not in names
        }
        columns = []
        for column in after.columns:
            found = known.get(column.name.lower()) or gone.get(column.offset) or next(self._ids)
            columns.append(replace(column, id=found))
        return replace(after, columns=tuple(columns))

    def give_ids(self, lineage: Lineage | None, table: TableInfo) -> TableInfo:
        """Return a table of the source with the ids of the lineage's columns; others get new ids."""
        earlier = () if lineage is None or lineage.columns is None else lineage.columns.columns
        known = {column.name.lower(): column.id for column in earlier}
        ids = (known.get(column.name.lower()) or next(self._ids) for column in table.columns)
        columns = (replace(column, id=given) for column, given in zip(table.columns, ids, strict=True))
        return replace(table, columns=tuple(columns))


def with_ids_of(table: TableInfo, like: TableInfo) -> TableInfo:
    """Return a table with the ids that columns of the same names have in `like`, which has all of them."""
    known = {column.name.lower(): column.id for column in like.columns}
    columns = tuple(replace(column, id=known[column.name.lower()]) for column in table.columns)
    return replace(table, columns=columns)


_ROWS = 16 * 1024  # that are encoded at once
_ONLY_KEYS: tuple[str, ...] = ()


class SourceRows:
    """Encodes rows as the changefeed does and decodes them: text loses types, so both sides must have been
    text.

    With `only_keys`, rows have the columns of the primary key alone, and the row filter is left out. Raises
    Invalid when the options do not fit the table.
    """

    def __init__(self, schema: SchemaVersion, options: SinkOptions, *, only_keys: bool = False) -> None:
        encoding = replace(options.encoder(schema), compression="none")
        if only_keys:
            encoding = replace(encoding, columns=_ONLY_KEYS, where="")
        self._options = options
        self._filter = RowFilter.of(schema, encoding.where)
        self.names = [column.name for column in output_columns(schema, encoding)]
        """The columns that the files have."""
        self._encoder = encoder_of(schema, encoding)
        filtered = () if self._filter is None else self._filter.columns
        needed = [
            column
            for column in schema.table.stored_columns
            if column.name in self.names or column.name in filtered
        ]
        self.reads = [arrow_name(column) for column in needed]
        """The columns that `read` needs, as Arrow has them: those of the files, and of the row filter."""
        self._needed = [column.name for column in needed]
        self.table: TableInfo = SchemaFile.of(schema, 0, columns=self.names).table_info()
        """The table as a schema file describes it."""

    def read(self, batches: Iterator[pa.RecordBatch], at_ts: int) -> Iterator[pa.RecordBatch]:
        """Yield those of the rows that the changefeed replicates, as columns of `table`."""
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                yield from self._encode_and_decode(self._filter_rows(batch.slice(start, _ROWS)), at_ts)

    def _filter_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.select(self.reads).rename_columns(self._needed)
        if self._filter is not None:
            rows = rows.filter(pa.array(self._filter.keeps(rows)))
        return rows.select(self.names)

    def _encode_and_decode(self, rows: pa.RecordBatch, at_ts: int) -> Iterator[pa.RecordBatch]:
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
        payload = self._encoder.payload([self._encoder.encode(changes)])
        protocol = self._options.protocol
        if protocol == "parquet":
            payload = parquet_file([payload], {"compression": "none"})
        files = FileOptions(protocol=protocol, terminator=self._options.terminator, csv=self._options.csv)
        for decoded in decode_stream(pa.BufferReader(payload), protocol, self.table, files):
            yield decoded.rows
