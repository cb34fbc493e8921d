"""A directory of changes applied to plain dicts, and the promises of whoever wrote it, checked.

A simulation compares `tables` with its source; every rule that the sink gives its readers is checked here.

What readers of a directory may rely on, file by file.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, OP_INSERT, DecodedChanges, row_dicts
from penstock.changefeeds.codecs.decoder import DataFiles, FileOptions
from penstock.changefeeds.directory.listing import Listing, Root, Stretch, Survey
from penstock.changefeeds.directory.reader import Ddl, DirectoryReader, TableChanges
from penstock.changefeeds.sinks.storage.layout import number_in_index
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile, check_named
from penstock.object_storage import ObjectStorage
from penstock.tables.columns import ColumnInfo
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.define import with_origin_default
from penstock.tables.records import origin_cell
from penstock.tables.schema import TableInfo
from penstock.tables.values import from_cell

__all__ = ["BrokenPromise", "Replica", "check_files"]


Change = tuple[object, ...]


class BrokenPromise(AssertionError):
    """A directory is not as its writer promises."""


def check_files(
    storage: ObjectStorage, files: FileOptions, survey: Survey, *, exactly_once: bool, cut_commits: bool
) -> None:
    """Check every data file that an index names.

    Commits do not go back within a file; a table's commit is in one file of a dispatcher, unless
    `cut_commits`; with `exactly_once` no change is in two files; changes are not older than their version,
    nor as new as the next one; files are numbered without holes; and no file of a version was written after
    something of a later version was.
    """
    listed = storage.listed("")
    listing = survey.of(each.path for each in listed)
    modified = {each.path: each.modified_ms for each in listed}
    schemas = {each.path: _schema(storage, each.path, survey) for each in listing.schemas}
    ddls = _Versions(
        {(each.root, each.version): schemas[each.path] for each in listing.schemas},
    )
    _check_order(listing, modified, schemas)
    reader = DataFiles(storage, files)
    seen: dict[tuple[Root, int], dict[Change, str]] = defaultdict(dict)
    for stretch in listing.stretches:
        commits: dict[int, str] = {}
        for path in _indexed(storage, stretch):
            changes = list(reader.changes(path, ddls.table(stretch)))
            stamps = [ts for each in changes for ts in each.commit_ts.to_pylist() if ts is not None]
            _check_stamps(path, stamps, ddls.bounds(stretch))
            if not cut_commits:
                _check_whole(path, stamps, commits)
            if exactly_once:
                _check_once(path, changes, ddls.table(stretch), seen[stretch.root, stretch.folder.partition])


@dataclass(frozen=True, slots=True)
class _Versions:
    """Schema files by table and version."""

    files: dict[tuple[Root, int], SchemaFile]

    def table(self, stretch: Stretch) -> TableInfo:
        """The columns of a stretch."""
        file = self.files.get((stretch.root, stretch.folder.version))
        if file is None:
            raise BrokenPromise(f"{stretch.index_path} has no schema file of its version")
        return file.table_info()

    def bounds(self, stretch: Stretch) -> tuple[int, int | None]:
        """The first commit that may be in a stretch, and the first after it that may not."""
        version = stretch.folder.version
        later = [
            each
            for (root, each), file in self.files.items()
            if root == stretch.root and file.query and each > version
        ]
        return version, min(later, default=None)


def _schema(storage: ObjectStorage, path: str, survey: Survey) -> SchemaFile:
    file = SchemaFile.from_json(storage.read(path) or b"")
    check_named(path, file, table_id_as_path=survey.table_id_as_path)
    return file


def _check_order(listing: Listing, modified: dict[str, int], schemas: dict[str, SchemaFile]) -> None:
    """By the clock of storage: of each table first all of a version, then anything of a later one."""
    written: dict[Root, list[tuple[int, int, str]]] = defaultdict(list)
    for schema in listing.schemas:
        if schemas[schema.path].query:
            written[schema.root].append((schema.version, modified[schema.path], schema.path))
    for stretch in listing.stretches:
        version = stretch.folder.version
        written[stretch.root] += [(version, modified[path], path) for path in stretch.files.values()]
    for found in written.values():
        newest_at, newest = 0, ""
        for version in sorted({version for version, *_ in found}):
            own = [(at, path) for other, at, path in found if other == version]
            first_at, first = min(own)
            if first_at < newest_at:
                raise BrokenPromise(f"{newest} was written after {first}, which is of a later version")
            newest_at, newest = max([*own, (newest_at, newest)])


def _indexed(storage: ObjectStorage, stretch: Stretch) -> Iterator[str]:
    last = number_in_index(storage.read(stretch.index_path), stretch.index_path)
    for number in range(1, last + 1):
        if number not in stretch.files:
            raise BrokenPromise(f"{stretch.index_path} names file {last}, but there is no file {number}")
        yield stretch.files[number]


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
    for each in changes if names else ():
        keys = [each.rows.column(name).to_pylist() for name in names]
        stamps = each.commit_ts.to_pylist()
        for change in zip(stamps, each.ops.to_pylist(), *keys, strict=True):
            if change[0] is not None and change in seen:
                raise BrokenPromise(f"a change of {change[0]} is in {seen[change]} and in {path}")
            seen[change] = path


Key = tuple[Any, ...]
Row = dict[str, Any]


class Replica:
    """The tables that a directory describes: `tables` is {database.table: {key: row}}.

    Keys are tuples of primary key values; the key of a row of a table without one is all its values and a
    number. With `exactly_once`, as Penstock's sink promises, an insert must meet no row, an update or delete
    must meet one, an update the row that it says, and no change may be in two files; TiCDC's directories may
    repeat. `cut_commits`: a commit may go on in the next file, as one does that is larger than a file.
    `redo` does to a table's rows what a DDL does that drops, truncates or exchanges a partition, as does a
    database that runs the statement: files do not tell which rows are in which partition.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        *,
        files: FileOptions | None = None,
        survey: Survey | None = None,
        exactly_once: bool = True,
        cut_commits: bool = False,
        redo: Callable[[Ddl, list[Row]], list[Row]] | None = None,
    ) -> None:
        self._redo = redo
        self._redone: set[tuple[str, int]] = set()  # a version may have several files
        self.tables: dict[str, dict[Key, Row]] = {}
        self.shapes: dict[str, TableInfo] = {}
        self._described: dict[str, int] = {}  # by files without a DDL: of which version; partitions have such
        self._storage = storage
        self._files = files or FileOptions()
        self._survey = survey or Survey()
        self._reader = DirectoryReader(storage, self._files, self._survey)
        self._exactly_once = exactly_once
        self._cut_commits = cut_commits

    @property
    def checkpoint_ts(self) -> int:
        """Up to where changes were applied."""
        return self._reader.progress.resolved_ts

    def catch_up(self) -> None:
        """Apply what is new up to the checkpoint; raise BrokenPromise for a change that does not fit."""
        for delivery in self._reader.round():
            if isinstance(delivery, TableChanges):
                self._change(delivery)
            elif delivery.table is None:
                self._database(delivery)
            else:
                self._table(delivery, delivery.table)

    def check(self) -> None:
        """Look at every file, whatever the checkpoint; raise BrokenPromise when a rule is broken."""
        check_files(
            self._storage,
            self._files,
            self._survey,
            exactly_once=self._exactly_once,
            cut_commits=self._cut_commits,
        )

    def _database(self, ddl: Ddl) -> None:
        if ddl.type == DdlAction.DROP_SCHEMA:
            for name in [name for name in self.tables if name.startswith(f"{ddl.database}.")]:
                del self.tables[name], self.shapes[name]

    def _table(self, ddl: Ddl, shape: TableInfo) -> None:
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
            raise BrokenPromise(f"{name} is created at {ddl.version}, but it is there already")
        rows = {} if ddl.type == DdlAction.TRUNCATE_TABLE else self.tables.get(name, {})
        if self._redo is not None and (name, ddl.version) not in self._redone:
            self._redone.add((name, ddl.version))
            rows = _keyed(shape, self._redo(ddl, list(rows.values())))
        self.tables[name] = _reshaped(rows, self.shapes.get(name, shape), shape)
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
            raise BrokenPromise(f"{place}: an update of {before} says another row before it than there was")

    def _change_without_key(
        self, rows: dict[Key, Row], op: str, row: Row, old: Row | None, place: str
    ) -> None:
        if op != OP_INSERT:
            gone = row if op == OP_DELETE else old
            if gone is None:
                raise BrokenPromise(f"{place}: an update of a row without a key does not tell the row before")
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
    """How often a row without a key is there."""
    number = 0
    while (*row.values(), number) in rows:
        number += 1
    return number


def _reshaped(rows: dict[Key, Row], old: TableInfo, new: TableInfo) -> dict[Key, Row]:
    """Rows from before a change of the columns, as they read after it."""
    known = {column.name for column in old.stored_columns}
    added = {column.name: _default(column) for column in new.stored_columns if column.name not in known}
    names = [column.name for column in new.stored_columns]
    if known == set(names):
        return rows
    shown = [{name: row[name] if name in row else added[name] for name in names} for row in rows.values()]
    return _keyed(new, shown)


def _keyed(table: TableInfo, rows: Iterable[Row]) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    for row in rows:
        found[_key(table, row) if table.primary_key else (*row.values(), _count(found, row))] = row
    return found


def _default(column: ColumnInfo) -> Any:
    return from_cell(column.type, origin_cell(with_origin_default(column)))
