"""Reads a directory of changes in rounds: each delivers what is new up to the checkpoint, in order.

What a round delivers, and in which order. Pure.

Versions are the timestamps of DDLs, and the checkpoint is read before the directory is listed: so a schema
file up to the checkpoint finds everything older than itself in the listing, and the order of versions is
right for every table and every database. What is above the checkpoint waits for a later round.

Leaving out what a directory repeats: after a restart TiCDC writes again from its checkpoint. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.codecs.decoder import DataFiles, FileOptions
from penstock.changefeeds.directory.listing import (
    Listing,
    Name,
    Root,
    SchemaEntry,
    FileSequence,
    DirectoryLayout,
    name_root,
    old_name,
)
from penstock.changefeeds.directory.merge import FileRun, merge_streams
from penstock.changefeeds.directory.progress import DirectoryProgress, FilePosition
from penstock.changefeeds.sinks.storage import layout
from penstock.changefeeds.sinks.storage.layout import decode_checkpoint
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile, check_path
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import ObjectStorage
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import TableInfo

__all__ = ["Contents", "Damage", "Ddl", "Delivery", "DirectoryReader", "TableChanges", "TableVersion"]


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """A schema file to deliver: a DDL, or only the columns of the files that follow."""

    schema: SchemaEntry


@dataclass(frozen=True, slots=True)
class DataStep:
    """Files of one version of a physical table: the stretches of each dispatcher, in order."""

    schema: SchemaEntry
    dispatchers: tuple[tuple[FileSequence, ...], ...]


Step = SchemaStep | DataStep


def plan_round(listing: Listing, checkpoint_ts: int, progress: DirectoryProgress) -> list[Step]:
    """The steps of a round; raise Corrupt when data has no schema file.

    Stretches are as listed; those without new files should be left out before.
    """
    steps: list[tuple[tuple[int, int, str, int], Step]] = [
        ((schema.version, 0, schema.root, -1), SchemaStep(schema))
        for schema in listing.schemas
        if progress.seen.get(schema.root, -1) < schema.version <= checkpoint_ts
    ]
    schemas = {(schema.root, schema.version): schema for schema in listing.schemas}
    for (root, version, partition), stretches in _group_by_version(listing.stretches).items():
        if version > checkpoint_ts or progress.is_late(root, version):
            continue
        schema = schemas.get((root, version))
        if schema is None:
            raise Corrupt(
                f"{root} has data of version {version} but no schema file of it; keep the directory"
            )
        order = version, 1, root, partition
        steps.append((order, DataStep(schema, _by_dispatcher(stretches))))
    return [step for _, step in sorted(steps, key=lambda each: each[0])]


def _group_by_version(stretches: Iterable[FileSequence]) -> dict[tuple[Root, int, int], list[FileSequence]]:
    found: dict[tuple[Root, int, int], list[FileSequence]] = defaultdict(list)
    for each in stretches:
        found[each.root, each.folder.version, each.folder.partition].append(each)
    return found


def _by_dispatcher(stretches: Iterable[FileSequence]) -> tuple[tuple[FileSequence, ...], ...]:
    found: dict[str, list[FileSequence]] = defaultdict(list)
    for each in sorted(stretches, key=lambda each: (each.dispatcher_id, each.folder.date)):
        found[each.dispatcher_id].append(each)
    return tuple(map(tuple, found.values()))


_KEYS_MAX = 100_000


class RepeatFilter:
    """Knows what was delivered of one dispatcher's changes, whose files are in the order of their commits.

    A change is a repetition when its commit is at most `resolved_ts`, or before the newest one delivered, or
    the newest one itself and its key is among those delivered of it. Changes without a commit-ts all pass.
    """

    def __init__(self, table: TableInfo, resolved_ts: int) -> None:
        self._keys_of = [column.name for column in table.primary_key]
        self._newest_ts = resolved_ts + 1  # a commit that nothing was delivered of
        self._newest_keys: set[tuple[Any, ...]] | None = set()

    def new(self, changes: DecodedChanges) -> DecodedChanges:
        """Those that are none; they count as delivered from now on."""
        if not len(changes) or changes.commit_ts.null_count:
            return changes
        newest = pa.scalar(self._newest_ts, pa.uint64())
        again = pc.less(changes.commit_ts, newest)
        same = pc.indices_nonzero(pc.equal(changes.commit_ts, newest)).to_pylist()
        fresh = changes
        if pc.any(again).as_py():
            fresh = changes.filter(pc.invert(again))
            same = [place - (len(changes) - len(fresh)) for place in same]
        if same and self._newest_keys and self._keys_of:
            known = self._keys(fresh.slice(same[0], len(same)))
            repeated = [place for place, key in zip(same, known, strict=True) if key in self._newest_keys]
            places = pa.array(range(len(fresh)), pa.int64())
            fresh = fresh.filter(pc.invert(pc.is_in(places, pa.array(repeated, pa.int64()))))
        self._deliver(fresh)
        return fresh

    def _deliver(self, fresh: DecodedChanges) -> None:
        last_ts = fresh.last_ts
        if last_ts is None:
            return
        if last_ts > self._newest_ts:
            self._newest_ts, self._newest_keys = last_ts, set()
        if self._newest_keys is None or not self._keys_of:
            return
        tail = fresh.filter(pc.equal(fresh.commit_ts, pa.scalar(last_ts, pa.uint64())))
        if len(self._newest_keys) + len(tail) > _KEYS_MAX:
            self._newest_keys = None  # so large a commit is delivered again rather than kept in mind
        else:
            self._newest_keys.update(self._keys(tail))

    def _keys(self, changes: DecodedChanges) -> list[tuple[Any, ...]]:
        columns = [changes.rows.column(name).to_pylist() for name in self._keys_of]
        return list(zip(changes.ops.to_pylist(), *columns, strict=True))


_RENAMES = frozenset({int(DdlAction.RENAME_TABLE), 25})  # 25: several tables in one statement


@dataclass(frozen=True, slots=True)
class Ddl:
    """A schema file. Without a query it only says which columns a table has.

    `table` is None for a database; `renamed_from` is set for a RENAME whose statement tells it.
    """

    database: str
    table: TableInfo | None
    version: int
    type: int
    query: str
    renamed_from: Name | None = None

    @property
    def name(self) -> str:
        """What it is of."""
        return f"{self.database}.{self.table.name}" if self.table else self.database


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of a table's rows under one version of its schema."""

    database: str
    table: TableInfo
    version: int
    changes: DecodedChanges

    @property
    def name(self) -> str:
        """The table."""
        return f"{self.database}.{self.table.name}"


Delivery = Ddl | TableChanges


class TableVersion(NamedTuple):
    """A version of a table: its name then, with its database."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a directory holds, and up to where it can be read."""

    checkpoint_ts: int
    listing: Listing


class Damage(Protocol):
    """Hears of what a reader would refuse, of a version of a table; the reader goes on."""

    def unreadable(self, of: TableVersion, what: str) -> None:
        """A data file is missing or damaged: changes from somewhere in it up to its end are not delivered."""

    def again(self, of: TableVersion, changes: int) -> None:
        """Changes are there again, and are not delivered again."""


class DirectoryReader:
    """Everything in a directory, once: per table in the order of its changes and DDLs.

    Delivery is at least once over restarts: `progress` moves past a delivery when the next one is asked for.
    Within `progress` each change comes once, also where TiCDC repeats it, provided that files tell commits.
    With `damage`, files that cannot be read are told to it instead of being raised. Blocks; raises
    Unavailable, which passes: begin the round again.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        files: FileOptions,
        survey: DirectoryLayout,
        progress: DirectoryProgress | None = None,
        *,
        damage: Damage | None = None,
    ) -> None:
        self.progress = progress or DirectoryProgress()
        self._storage = storage
        self._files = DataFiles(storage, files)
        self._survey = survey
        self._damage = damage
        self._schemas: dict[str, SchemaFile] = {}
        self._tables: dict[str, TableInfo] = {}

    def contents(self) -> Contents:
        """What there is now. Invalid when this is no directory of a sink, or not the one of `progress`."""
        checkpoint_ts = self.checkpoint()  # before listing: everything up to it is listed then
        return Contents(checkpoint_ts, self._survey.of(self._storage.names("")))

    def outline(self, contents: Contents) -> Iterator[Ddl]:
        """The schema files that a round would deliver, in order; `progress` does not move."""
        for step in plan_round(contents.listing, contents.checkpoint_ts, self.progress):
            if isinstance(step, SchemaStep):
                yield self._ddl(step.schema)

    def round(self, contents: Contents | None = None) -> Iterator[Delivery]:
        """Deliver what is new, by default of what there is now.

        Invalid when this is no directory of a sink, or not the one that `progress` is of; Corrupt when a
        file is missing or damaged.
        """
        held = contents or self.contents()
        checkpoint_ts, listing = held.checkpoint_ts, held.listing
        new = tuple(stretch for stretch in listing.stretches if self._has_new(stretch))
        for step in plan_round(Listing(listing.schemas, new), checkpoint_ts, self.progress):
            if isinstance(step, SchemaStep):
                yield from self._deliver_schema(step.schema, listing)
            else:
                yield from self._deliver_data(step, checkpoint_ts)
        self.progress.finish(checkpoint_ts, (stretch.index_path for stretch in listing.stretches))

    def checkpoint(self) -> int:
        """Up to where the directory is complete; Invalid when it does not say, or goes back."""
        data = self._storage.read(layout.METADATA_PATH)
        if data is None:
            raise Invalid(
                f"{self._storage.url} has no metadata file: it is no changefeed's directory, or nothing was"
                " written yet; check the URI, or wait for the first checkpoint"
            )
        checkpoint_ts = decode_checkpoint(data)
        if checkpoint_ts < self.progress.resolved_ts:
            raise Invalid(
                f"the checkpoint of {self._storage.url} is before {self.progress.resolved_ts}, which"
                " was read: the directory was written anew; begin without the state"
            )
        return checkpoint_ts

    def _has_new(self, stretch: FileSequence) -> bool:
        newest = max(stretch.files, default=0)
        return self._damage is not None or newest > self.progress.mark(stretch.index_path).number

    def _deliver_schema(self, found: SchemaEntry, listing: Listing) -> Iterator[Delivery]:
        file, ddl = self._schema(found), self._ddl(found)
        renamed = ddl.renamed_from
        yield ddl
        self.progress.pass_schema(found.root, found.version)
        if not file.query:
            return
        self.progress.raise_watermark(found.root, found.version)
        if renamed is not None and not self._survey.table_id_as_path:
            self.progress.raise_watermark(name_root(*renamed), found.version)
        if file.type == DdlAction.DROP_SCHEMA:
            roots = {schema.root for schema in listing.schemas}
            self.progress.end_database(found.root, found.version, roots)

    def _ddl(self, found: SchemaEntry) -> Ddl:
        file = self._schema(found)
        renamed = old_name(file.query, file.schema, file.table) if file.type in _RENAMES else None
        table = self._table(found) if file.table else None
        return Ddl(file.schema, table, file.version, file.type, file.query, renamed)

    def _deliver_data(self, step: DataStep, checkpoint_ts: int) -> Iterator[Delivery]:
        file, table = self._schema(step.schema), self._table(step.schema)
        streams = [self._pieces(each, step, table, checkpoint_ts) for each in step.dispatchers]
        for delivered in merge_streams(streams):
            if delivered.changes is not None and len(delivered.changes):
                yield TableChanges(file.schema, table, file.version, delivered.changes)
            self.progress.marks.update(delivered.marks)

    def _pieces(
        self, stretches: tuple[FileSequence, ...], step: DataStep, table: TableInfo, checkpoint_ts: int
    ) -> Iterator[FileRun]:
        """One dispatcher's changes up to the checkpoint; what is after it stays for a later round."""
        file = self._schema(step.schema)
        of = TableVersion(f"{file.schema}.{table.name}", file.version)
        repetition = RepeatFilter(table, self.progress.resolved_ts)
        for stretch in stretches:
            mark = self.progress.mark(stretch.index_path)
            for number, path in self._numbered(stretch, mark.number, of):
                at = 0
                begin = mark.rows if number == mark.number + 1 else 0
                for changes in self._changes(path, table, of, share=len(step.dispatchers)):
                    rest = changes.slice(min(max(begin - at, 0), len(changes)))
                    count = rest.count_upto(checkpoint_ts)
                    at += len(changes)
                    done = FilePosition(number - 1, at - len(rest) + count)
                    fresh = repetition.new(rest.slice(0, count))
                    if len(fresh) < count and self._damage is not None:
                        self._damage.again(of, count - len(fresh))
                    yield FileRun(fresh, stretch.index_path, done)
                    if count < len(rest):
                        return
                yield FileRun(None, stretch.index_path, FilePosition(number))

    def _changes(
        self, path: str, table: TableInfo, of: TableVersion, *, share: int
    ) -> Iterator[DecodedChanges]:
        try:
            yield from self._files.changes(path, table, share=share)
        except (Corrupt, Invalid) as error:
            self._refuse(of, error)

    def _numbered(self, stretch: FileSequence, after: int, of: TableVersion) -> Iterator[tuple[int, str]]:
        """The files after a number up to the newest that the index names: so far they are there as a whole.

        The index may be newer than the listing, and name files that came after it.
        """
        named = (self._storage.read(stretch.index_path) or b"").decode(errors="replace").strip()
        newest, digits = layout.parse_file_name(named), layout.number_digits(named)
        if newest is None:
            self._refuse(
                of, Corrupt(f"index file {stretch.index_path} names no data file; keep the directory")
            )
            return
        folder = stretch.index_path.rpartition("/meta/")[0]
        for number in range(after + 1, newest.number + 1):
            path = stretch.files.get(number) or f"{folder}/{replace(newest, number=number).text(digits)}"
            if number in stretch.files or self._storage.exists(path):
                yield number, path
            else:
                self._refuse(
                    of,
                    Corrupt(
                        f"file {number} is missing though {stretch.index_path} names a later one; restore it,"
                        " or begin with a state that is past it"
                    ),
                )

    def _refuse(self, of: TableVersion, error: Corrupt | Invalid) -> None:
        """Raise what is wrong with a data file, unless somebody wants to hear of it instead."""
        if self._damage is None:
            raise error
        self._damage.unreadable(of, str(error))

    def _schema(self, found: SchemaEntry) -> SchemaFile:
        known = self._schemas.get(found.path)
        if known is None:
            data = self._storage.read(found.path)
            if data is None:
                raise Corrupt(f"schema file {found.path} was removed while it was needed; keep the directory")
            known = _parse_schema(found.path, data)
            check_path(found.path, known, table_id_as_path=self._survey.table_id_as_path)
            self._schemas[found.path] = known
        return known

    def _table(self, found: SchemaEntry) -> TableInfo:
        if found.path not in self._tables:
            self._tables[found.path] = self._schema(found).table_info()
        return self._tables[found.path]


def _parse_schema(path: str, data: bytes) -> SchemaFile:
    try:
        return SchemaFile.from_json(data)
    except Corrupt as error:
        raise Corrupt(f"schema file {path}: {error}") from error
