"""Applies a directory of changes to plain dicts, and checks the promises of its writer.

A test compares `Replica.tables` with its source. `check_files` checks, file by file, every rule that readers
of a directory may rely on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, OP_INSERT, DecodedChanges, row_dicts
from penstock.changefeeds.codecs.decoder import DataFiles, FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout, FileSequence, Listing, Root
from penstock.changefeeds.directory.reader import Ddl, DirectoryReader, TableChanges
from penstock.changefeeds.sinks.storage.layout import number_in_index
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile, check_path
from penstock.object_storage import ObjectStorage
from penstock.tables.columns import ColumnInfo
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.define import with_origin_default
from penstock.tables.impossible_dates import to_pylist
from penstock.tables.schema import TableInfo

__all__ = ["BrokenPromise", "Replica", "check_files"]


Change = tuple[object, ...]


class BrokenPromise(AssertionError):
    """A directory breaks a promise of its writer."""


def check_files(
    storage: ObjectStorage,
    files: FileOptions,
    layout: DirectoryLayout,
    *,
    exactly_once: bool,
    cut_commits: bool,
) -> None:
    """Check every data file that an index names; raise BrokenPromise when a rule is broken.

    Commit timestamps do not decrease within a file. A table's commit is in one file of a dispatcher, unless
    `cut_commits`. With `exactly_once` no change is in two files. Changes are at or after the DDL of their
    version and before that of the next version. Files are numbered without gaps. No file of a version was
    written after a file of a later version.
    """
    objects = storage.list_objects("")
    listing = layout.sort_paths(stored.path for stored in objects)
    modified = {stored.path: stored.modified_ms for stored in objects}
    schemas = {file.path: _schema(storage, file.path, layout) for file in listing.schemas}
    ddls = _RowVersions(
        {(file.root, file.version): schemas[file.path] for file in listing.schemas},
    )
    _check_order(listing, modified, schemas)
    reader = DataFiles(storage, files)
    seen: dict[tuple[Root, int], dict[Change, str]] = defaultdict(dict)
    for sequence in listing.sequences:
        commits: dict[int, str] = {}
        for path in _indexed_files(storage, sequence):
            changes = list(reader.changes(path, ddls.table(sequence)))
            stamps = [ts for decoded in changes for ts in decoded.commit_ts.to_pylist() if ts is not None]
            _check_stamps(path, stamps, ddls.bounds(sequence))
            if not cut_commits:
                _check_whole(path, stamps, commits)
            if exactly_once:
                _check_once(
                    path, changes, ddls.table(sequence), seen[sequence.root, sequence.folder.partition]
                )


@dataclass(frozen=True, slots=True)
class _RowVersions:
    """Schema files by table and version."""

    files: dict[tuple[Root, int], SchemaFile]

    def table(self, sequence: FileSequence) -> TableInfo:
        """Return the columns of a sequence."""
        file = self.files.get((sequence.root, sequence.folder.version))
        if file is None:
            raise BrokenPromise(f"{sequence.index_path} has no schema file of its version")
        return file.table_info()

    def bounds(self, sequence: FileSequence) -> tuple[int, int | None]:
        """Return the first commit timestamp that a sequence may have, and the first that it may not."""
        version = sequence.folder.version
        later = [
            later
            for (root, later), file in self.files.items()
            if root == sequence.root and file.query and later > version
        ]
        return version, min(later, default=None)


def _schema(storage: ObjectStorage, path: str, layout: DirectoryLayout) -> SchemaFile:
    file = SchemaFile.from_json(storage.read(path) or b"")
    check_path(path, file, table_id_as_path=layout.table_id_as_path)
    return file


def _check_order(listing: Listing, modified: dict[str, int], schemas: dict[str, SchemaFile]) -> None:
    """Check, by the clock of storage, that all files of a version were written before a later version's."""
    written: dict[Root, list[tuple[int, int, str]]] = defaultdict(list)
    for schema in listing.schemas:
        if schemas[schema.path].query:
            written[schema.root].append((schema.version, modified[schema.path], schema.path))
    for sequence in listing.sequences:
        version = sequence.folder.version
        written[sequence.root] += [(version, modified[path], path) for path in sequence.files.values()]
    for files in written.values():
        newest_at, newest = 0, ""
        for version in sorted({version for version, *_ in files}):
            own = [(at, path) for other, at, path in files if other == version]
            first_at, first = min(own)
            if first_at < newest_at:
                raise BrokenPromise(f"{newest} was written after {first}, which is of a later version")
            newest_at, newest = max([*own, (newest_at, newest)])


def _indexed_files(storage: ObjectStorage, sequence: FileSequence) -> Iterator[str]:
    last = number_in_index(storage.read(sequence.index_path), sequence.index_path)
    for number in range(1, last + 1):
        if number not in sequence.files:
            raise BrokenPromise(f"{sequence.index_path} names file {last}, but there is no file {number}")
        yield sequence.files[number]


def _check_stamps(path: str, stamps: list[int], bounds: tuple[int, int | None]) -> None:
    first, after = bounds
    if stamps != sorted(stamps):
        raise BrokenPromise(f"commits go back within {path}")
    if stamps and stamps[0] < first:
        raise BrokenPromise(f"{path} has a commit of {stamps[0]}, before its version")
    if stamps and after is not None and stamps[-1] >= after:
        raise BrokenPromise(f"{path} has a commit of {stamps[-1]}, but version {after} begins before that")


def _check_whole(path: str, stamps: list[int], commits: dict[int, str]) -> None:
    for ts in sorted(set(stamps)):
        if commits.setdefault(ts, path) != path:
            raise BrokenPromise(f"the commit of {ts} is in {commits[ts]} and in {path}")


def _check_once(path: str, changes: list[DecodedChanges], table: TableInfo, seen: dict[Change, str]) -> None:
    names = [column.name for column in table.primary_key]
    for decoded in changes if names else ():
        keys = [to_pylist(decoded.rows.column(name)) for name in names]
        stamps = decoded.commit_ts.to_pylist()
        for change in zip(stamps, decoded.ops.to_pylist(), *keys, strict=True):
            if change[0] is not None and change in seen:
                raise BrokenPromise(f"a change of {change[0]} is in {seen[change]} and in {path}")
            seen[change] = path


Key = tuple[Any, ...]
Row = dict[str, Any]


class Replica:
    """The tables of a directory: `tables` is {database.table: {key: row}}.

    Keys are tuples of primary key values. In a table without a primary key, the key of a row is all its
    values and a number. With `exactly_once`, as Penstock's sink promises, an insert must meet no row, an
    update or delete must meet a row, an update must meet its old row, and no change may be in two files;
    TiCDC's directories may repeat changes. `cut_commits`: a commit may continue in the next file, because it
    is larger than a file. `redo` applies a DDL that drops, truncates or exchanges a partition to a table's
    rows, as a database would that runs the statement: files do not say which rows are in which partition.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        *,
        files: FileOptions | None = None,
        layout: DirectoryLayout | None = None,
        exactly_once: bool = True,
        cut_commits: bool = False,
        redo: Callable[[Ddl, list[Row]], list[Row]] | None = None,
    ) -> None:
        self._redo = redo
        self._redone: set[tuple[str, int]] = set()
        """Tables and versions whose `redo` ran; a version may have several files."""
        self.tables: dict[str, dict[Key, Row]] = {}
        self.shapes: dict[str, TableInfo] = {}
        self._described: dict[str, int] = {}
        """Versions of tables whose schema file has no DDL, as those of partitions have none."""
        self._storage = storage
        self._files = files or FileOptions()
        self._layout = layout or DirectoryLayout()
        self._reader = DirectoryReader(storage, self._files, self._layout)
        self._exactly_once = exactly_once
        self._cut_commits = cut_commits

    @property
    def checkpoint_ts(self) -> int:
        """The timestamp up to which changes were applied."""
        return self._reader.progress.resolved_ts

    def catch_up(self) -> None:
        """Apply new changes up to the checkpoint; raise BrokenPromise for a change that does not fit."""
        for delivery in self._reader.round():
            if isinstance(delivery, TableChanges):
                self._change(delivery)
            elif delivery.table is None:
                self._database(delivery)
            else:
                self._table(delivery, delivery.table)

    def check(self) -> None:
        """Check every file, also beyond the checkpoint; raise BrokenPromise when a rule is broken."""
        check_files(
            self._storage,
            self._files,
            self._layout,
            exactly_once=self._exactly_once,
            cut_commits=self._cut_commits,
        )

    def _database(self, ddl: Ddl) -> None:
        if ddl.type == DdlAction.DROP_SCHEMA:
            for name in [name for name in self.tables if name.startswith(f"{ddl.database}.")]:
                del self.tables[name], self.shapes[name]

    def _table(self, ddl: Ddl, shape: TableInfo) -> None:
        if ddl.of_view:
            return
        name = ddl.name
        if ddl.type == DdlAction.DROP_TABLE:
            self.tables.pop(name, None)
            self.shapes.pop(name, None)
            return
        if ddl.renamed_from is not None:
            old = ".".join(ddl.renamed_from)
            self.tables[name] = self.tables.pop(old, {})
            self.shapes[name] = self.shapes.pop(old, shape)
        if not ddl.query:
            self._described[name] = ddl.version
        known = name in self.tables and self._described.get(name) != ddl.version
        if ddl.type == DdlAction.CREATE_TABLE and self._exactly_once and known:
            raise BrokenPromise(f"{name} is created at {ddl.version}, but it already exists")
        rows = {} if ddl.type == DdlAction.TRUNCATE_TABLE else self.tables.get(name, {})
        if self._redo is not None and (name, ddl.version) not in self._redone:
            self._redone.add((name, ddl.version))
            rows = _by_key(shape, self._redo(ddl, list(rows.values())))
        self.tables[name] = _reshape(rows, self.shapes.get(name, shape), shape)
        self.shapes[name] = shape

    def _change(self, delivery: TableChanges) -> None:
        rows = self.tables[delivery.name]
        for op, ts, row, old in _rows(delivery):
            place = f"{delivery.name} at {ts}"
            if not delivery.table.primary_key:
                self._change_without_key(rows, op, row, old, place)
                continue
            key = _key(delivery.table, row)
            before = key if old is None else _key(delivery.table, old)
            if self._exactly_once:
                self._check_change(rows, op, before, old, place)
            if op != OP_INSERT:
                rows.pop(before, None)
            if op != OP_DELETE:
                rows[key] = row

    def _check_change(self, rows: dict[Key, Row], op: str, before: Key, old: Row | None, place: str) -> None:
        if (op == OP_INSERT) == (before in rows):
            raise BrokenPromise(
                f"{place}: {op} of {before}, which is {'' if before in rows else 'not '}there"
            )
        if old is not None and rows[before] != old:
            differ = [name for name, value in old.items() if rows[before].get(name, "") != value]
            raise BrokenPromise(
                f"{place}: an update of {before} has another old row than the table, in {differ}"
            )

    def _change_without_key(
        self, rows: dict[Key, Row], op: str, row: Row, old: Row | None, place: str
    ) -> None:
        if op != OP_INSERT:
            gone = row if op == OP_DELETE else old
            if gone is None:
                raise BrokenPromise(f"{place}: an update of a row without a key does not have the old row")
            if (last := _count(rows, gone) - 1) < 0:
                raise BrokenPromise(f"{place}: {op} of a row that is not there")
            del rows[(*gone.values(), last)]
        if op != OP_DELETE:
            rows[(*row.values(), _count(rows, row))] = row


def _rows(delivery: TableChanges) -> Iterator[tuple[str, int | None, Row, Row | None]]:
    changes = delivery.changes
    held = zip(
        changes.ops.to_pylist(),
        changes.commit_ts.to_pylist(),
        row_dicts(changes.rows),
        row_dicts(changes.old),
        strict=True,
    )
    for op, ts, row, old in held:
        assert row is not None, "every change has a row"
        yield op, ts, row, old


def _key(table: TableInfo, row: Row) -> Key:
    return tuple(row[column.name] for column in table.primary_key)


def _count(rows: dict[Key, Row], row: Row) -> int:
    """Return how often a row without a key occurs."""
    number = 0
    while (*row.values(), number) in rows:
        number += 1
    return number


def _reshape(rows: dict[Key, Row], old: TableInfo, new: TableInfo) -> dict[Key, Row]:
    """Return the rows of an old schema as they read in a new one."""
    kept = {column.name for column in old.stored_columns}
    names = [column.name for column in new.stored_columns]
    if kept == set(names):
        return rows
    filled = set[str]().union(*rows.values())  # `redo` may have values of a new column, such as the time
    added = {
        column.name: _default(column)
        for column in new.stored_columns
        if rows and column.name not in kept | filled
    }
    reshaped = [{name: row[name] if name in row else added[name] for name in names} for row in rows.values()]
    return _by_key(new, reshaped)


def _by_key(table: TableInfo, rows: Iterable[Row]) -> dict[Key, Row]:
    by_key: dict[Key, Row] = {}
    for row in rows:
        by_key[_key(table, row) if table.primary_key else (*row.values(), _count(by_key, row))] = row
    return by_key


def _default(column: ColumnInfo) -> Any:
    """Return the value of an added column in older rows, as files show it."""
    return to_pylist(pa.repeat(origin_scalar(with_origin_default(column)), 1))[0]
