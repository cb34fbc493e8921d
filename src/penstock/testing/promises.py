"""What readers of a directory may rely on, file by file."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.eventstore.storage import Storage
from penstock.sink.consuming.changerows import ChangeRows
from penstock.sink.consuming.datafiles import DataFiles, FileOptions
from penstock.sink.consuming.listing import Listing, Root, Stretch, Survey
from penstock.sink.files.filenumbers import number_in_index
from penstock.sink.files.schemafile import SchemaFile, check_named
from penstock.tables.schema import TableInfo

__all__ = ["BrokenPromise", "check_files"]

Change = tuple[object, ...]


class BrokenPromise(AssertionError):
    """A directory is not as its writer promises."""


def check_files(
    storage: Storage, files: FileOptions, survey: Survey, *, exactly_once: bool, cut_commits: bool
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


def _schema(storage: Storage, path: str, survey: Survey) -> SchemaFile:
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


def _indexed(storage: Storage, stretch: Stretch) -> Iterator[str]:
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


def _check_once(path: str, changes: list[ChangeRows], table: TableInfo, seen: dict[Change, str]) -> None:
    names = [column.name for column in table.primary_key]
    for each in changes if names else ():
        keys = [each.rows.column(name).to_pylist() for name in names]
        stamps = each.commit_ts.to_pylist()
        for change in zip(stamps, each.ops.to_pylist(), *keys, strict=True):
            if change[0] is not None and change in seen:
                raise BrokenPromise(f"a change of {change[0]} is in {seen[change]} and in {path}")
            seen[change] = path
