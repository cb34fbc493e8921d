"""Reads a directory of changes in rounds: each delivers what is new up to the checkpoint, in order.

`plan_round` decides what a round delivers, and in which order. Versions are the timestamps of DDLs, and the
checkpoint is read before the directory is listed. So for a schema file up to the checkpoint the listing has
everything that is older, and the order of versions is right for every table and every database. What is above
the checkpoint waits for a later round.

`RepeatFilter` leaves out what a directory repeats: after a restart TiCDC writes again from its checkpoint.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.codecs.decoder import DataFiles, FileOptions
from penstock.changefeeds.directory.listing import (
    DirectoryLayout,
    FileSequence,
    Listing,
    Name,
    Root,
    SchemaEntry,
    name_root,
    old_name,
)
from penstock.changefeeds.directory.merge import FileRun, merge_streams
from penstock.changefeeds.directory.progress import DirectoryProgress, FilePosition
from penstock.changefeeds.sinks.storage import layout
from penstock.changefeeds.sinks.storage.layout import decode_checkpoint
from penstock.changefeeds.sinks.storage.schema_file import SCHEMA_FILE_BYTES_MAX, SchemaFile, check_path
from penstock.errors import Corrupt, Invalid
from penstock.follow.ddl_events import OtherAction
from penstock.object_storage import ADVANCED_BYTES_MAX, ObjectStorage
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.impossible_dates import to_pylist
from penstock.tables.schema import TableInfo

__all__ = ["Contents", "Damage", "Ddl", "Delivery", "DirectoryReader", "TableChanges", "TableVersion"]


_KEYS_MAX = 100_000
_RENAMES = frozenset({int(DdlAction.RENAME_TABLE), int(OtherAction.RENAME_TABLES)})


Streams = tuple[tuple[FileSequence, ...], ...]
_MERGED_MAX = 256  # streams with an open file each


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """A schema file to deliver: a DDL, or only the columns of the files that follow."""

    schema: SchemaEntry


@dataclass(frozen=True, slots=True)
class DataStep:
    """Files of one version of a table, which are merged by commit.

    A key over all partitions may go from a row of one partition to a row of another, so these are merged too.
    """

    schema: SchemaEntry
    streams: Streams
    """The sequences of each dispatcher and partition, in order."""


Step = SchemaStep | DataStep


def plan_round(listing: Listing, checkpoint_ts: int, progress: DirectoryProgress) -> list[Step]:
    """Return the steps of a round; raise Corrupt when data has no schema file.

    The caller leaves out the sequences without new files.
    """
    steps: list[tuple[tuple[int, int, str], Step]] = [
        ((schema.version, 0, schema.root), SchemaStep(schema))
        for schema in listing.schemas
        if progress.seen.get(schema.root, -1) < schema.version <= checkpoint_ts
    ]
    schemas = {(schema.root, schema.version): schema for schema in listing.schemas}
    for (root, version), sequences in _group_by_version(listing.sequences).items():
        if version > checkpoint_ts or progress.is_late(root, version):
            continue
        schema = schemas.get((root, version))
        if schema is None:
            raise Corrupt(
                f"{root} has data of version {version} but no schema file of it; keep the directory"
            )
        order = version, 1, root
        steps += [(order, DataStep(schema, streams)) for streams in _merged_streams(sequences)]
    return [step for _, step in sorted(steps, key=itemgetter(0))]


def _group_by_version(sequences: Iterable[FileSequence]) -> dict[tuple[Root, int], list[FileSequence]]:
    groups: dict[tuple[Root, int], list[FileSequence]] = defaultdict(list)
    for sequence in sequences:
        groups[sequence.root, sequence.folder.version].append(sequence)
    return groups


def _merged_streams(sequences: Iterable[FileSequence]) -> Iterator[Streams]:
    """Yield what is merged by commit: all of a table, or so much of it that not too many files are open."""
    streams: dict[tuple[int, str], list[FileSequence]] = defaultdict(list)
    for sequence in sorted(sequences, key=lambda sequence: (*_stream(sequence), sequence.folder.date)):
        streams[_stream(sequence)].append(sequence)
    every = tuple(map(tuple, streams.values()))
    for begin in range(0, len(every), _MERGED_MAX):
        yield every[begin : begin + _MERGED_MAX]


def _stream(sequence: FileSequence) -> tuple[int, str]:
    return sequence.folder.partition, sequence.dispatcher_id


class RepeatFilter:
    """Knows what was delivered of one dispatcher's changes, whose files are in the order of their commits.

    A change is a repetition in three cases: its commit is at most `resolved_ts`; its commit is before the
    newest one delivered; or it is of the newest commit, and its key was delivered for that commit. Changes
    without a commit-ts all pass.
    """

    def __init__(self, table: TableInfo, resolved_ts: int) -> None:
        self._key_names = [column.name for column in table.primary_key]
        self._newest_ts = resolved_ts + 1  # a commit of which nothing was delivered
        self._newest_keys: set[tuple[Any, ...]] | None = set()

    def drop_repeats(self, changes: DecodedChanges) -> DecodedChanges:
        """Return the changes that are no repetitions; they count as delivered from now on."""
        if not len(changes) or changes.commit_ts.null_count:
            return changes
        newest = pa.scalar(self._newest_ts, pa.uint64())
        again = pc.less(changes.commit_ts, newest)
        same = pc.indices_nonzero(pc.equal(changes.commit_ts, newest)).to_pylist()
        fresh = changes
        if pc.any(again).as_py():
            fresh = changes.filter(pc.invert(again))
            same = [place - (len(changes) - len(fresh)) for place in same]
        if same and self._newest_keys and self._key_names:
            keys = self._keys(fresh.slice(same[0], len(same)))
            repeated = [place for place, key in zip(same, keys, strict=True) if key in self._newest_keys]
            places = pa.array(range(len(fresh)), pa.int64())
            fresh = fresh.filter(pc.invert(pc.is_in(places, pa.array(repeated, pa.int64()))))
        self._note_delivered(fresh)
        return fresh

    def _note_delivered(self, fresh: DecodedChanges) -> None:
        last_ts = fresh.last_ts
        if last_ts is None:
            return
        if last_ts > self._newest_ts:
            self._newest_ts, self._newest_keys = last_ts, set()
        if self._newest_keys is None or not self._key_names:
            return
        tail = fresh.filter(pc.equal(fresh.commit_ts, pa.scalar(last_ts, pa.uint64())))
        if len(self._newest_keys) + len(tail) > _KEYS_MAX:
            self._newest_keys = None  # so large a commit is delivered again rather than remembered
        else:
            self._newest_keys.update(self._keys(tail))

    def _keys(self, changes: DecodedChanges) -> list[tuple[Any, ...]]:
        columns = [to_pylist(changes.rows.column(name)) for name in self._key_names]
        return list(zip(changes.ops.to_pylist(), *columns, strict=True))


@dataclass(frozen=True, slots=True)
class Ddl:
    """A delivered schema file. Without a query it only says which columns a table has.

    `table` is None for a database; `renamed_from` is set for a RENAME whose statement has the old name.
    """

    database: str
    table: TableInfo | None
    version: int
    type: int
    query: str
    renamed_from: Name | None = None

    @property
    def name(self) -> str:
        """The name of the table, with its database, or of the database."""
        return f"{self.database}.{self.table.name}" if self.table else self.database

    @property
    def of_view(self) -> bool:
        """Whether it creates or drops a view, which has no rows."""
        return self.type in {OtherAction.CREATE_VIEW, OtherAction.DROP_VIEW}


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Delivered changes of a table's rows under one version of its schema."""

    database: str
    table: TableInfo
    version: int
    changes: DecodedChanges

    @property
    def name(self) -> str:
        """The name of the table, with its database."""
        return f"{self.database}.{self.table.name}"


Delivery = Ddl | TableChanges


class TableVersion(NamedTuple):
    """A version of a table: the name that it had, with its database."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a directory holds, and the checkpoint up to which it can be read."""

    checkpoint_ts: int
    listing: Listing


class Damage(Protocol):
    """Receives damage in a version of a table that a reader would otherwise raise; the reader goes on."""

    def unreadable(self, of: TableVersion, what: str) -> None:
        """Note that a data file is missing or damaged: some changes up to its end are not delivered."""

    def again(self, of: TableVersion, changes: int) -> None:
        """Note that the directory repeats changes, which are not delivered again."""


class DirectoryReader:
    """Delivers everything in a directory once: of each table in the order of its changes and DDLs.

    Delivery is at least once over restarts: `progress` moves past a delivery when the next one is requested.
    Within `progress` each change comes once, also where TiCDC repeats it, if the files have commit-ts. With
    `damage`, unreadable files are reported to it and not raised. Calls block. They raise Unavailable while
    storage does not answer: begin the round again.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        files: FileOptions,
        directory_layout: DirectoryLayout,
        progress: DirectoryProgress | None = None,
        *,
        damage: Damage | None = None,
    ) -> None:
        self.progress = progress or DirectoryProgress()
        self._storage = storage
        self._files = DataFiles(storage, files)
        self._layout = directory_layout
        self._damage = damage
        self._schemas: dict[str, SchemaFile] = {}
        self._tables: dict[str, TableInfo] = {}

    def contents(self) -> Contents:
        """Return what the directory holds now.

        Raises Invalid when it is no directory of a sink, or not the one of `progress`.
        """
        checkpoint_ts = self.checkpoint()  # before listing, so that everything up to it is listed
        return Contents(checkpoint_ts, self._layout.sort_paths(self._storage.names("")))

    def outline(self, contents: Contents) -> Iterator[Ddl]:
        """Yield the schema files that a round would deliver, in order; `progress` does not move."""
        for step in plan_round(contents.listing, contents.checkpoint_ts, self.progress):
            if isinstance(step, SchemaStep):
                yield self._ddl(step.schema)

    def round(self, contents: Contents | None = None) -> Iterator[Delivery]:
        """Deliver what is new in these contents, by default in the current ones.

        Raises Invalid when this is no directory of a sink, or not the one of `progress`, and Corrupt when a
        file is missing or damaged.
        """
        current = contents or self.contents()
        checkpoint_ts, listing = current.checkpoint_ts, current.listing
        new = tuple(sequence for sequence in listing.sequences if self._has_new_files(sequence))
        for step in plan_round(Listing(listing.schemas, new), checkpoint_ts, self.progress):
            if isinstance(step, SchemaStep):
                yield from self._deliver_schema(step.schema, listing)
            else:
                yield from self._deliver_data(step, checkpoint_ts)
        self.progress.finish(checkpoint_ts, (sequence.index_path for sequence in listing.sequences))

    def checkpoint(self) -> int:
        """Return the directory's checkpoint; raise Invalid when it has none, or it went back."""
        data = self._storage.read(layout.METADATA_PATH, bytes_max=ADVANCED_BYTES_MAX)
        if data is None:
            raise Invalid(
                f"{self._storage.url} has no metadata file: it is no changefeed's directory, or nothing was"
                " written yet; check the URI, or wait for the first checkpoint"
            )
        checkpoint_ts = decode_checkpoint(data)
        if checkpoint_ts < self.progress.resolved_ts:
            raise Invalid(
                f"the checkpoint of {self._storage.url} is before {self.progress.resolved_ts}, which"
                " was read: the directory was written again from the start; begin without the state"
            )
        return checkpoint_ts

    def _has_new_files(self, sequence: FileSequence) -> bool:
        newest = max(sequence.files, default=0)
        return self._damage is not None or newest > self.progress.mark(sequence.index_path).number

    def _deliver_schema(self, found: SchemaEntry, listing: Listing) -> Iterator[Delivery]:
        file, ddl = self._schema(found), self._ddl(found)
        renamed = ddl.renamed_from
        yield ddl
        self.progress.pass_schema(found.root, found.version)
        if not file.query:
            return
        self.progress.raise_watermark(found.root, found.version)
        if renamed is not None and not self._layout.table_id_as_path:
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
        streams = [self._read_runs(sequences, step, table, checkpoint_ts) for sequences in step.streams]
        for batch in merge_streams(streams):
            if batch.changes is not None and len(batch.changes):
                yield TableChanges(file.schema, table, file.version, batch.changes)
            self.progress.marks.update(batch.marks)

    def _read_runs(
        self, sequences: tuple[FileSequence, ...], step: DataStep, table: TableInfo, checkpoint_ts: int
    ) -> Iterator[FileRun]:
        """Yield one dispatcher's changes up to the checkpoint; later ones stay for a later round."""
        file = self._schema(step.schema)
        of = TableVersion(f"{file.schema}.{table.name}", file.version)
        repeats = RepeatFilter(table, self.progress.resolved_ts)
        for sequence in sequences:
            mark = self.progress.mark(sequence.index_path)
            for number, path in self._new_files(sequence, mark.number, of):
                at = 0
                begin = mark.rows if number == mark.number + 1 else 0
                for changes in self._changes(path, table, of, share=len(step.streams)):
                    rest = changes.slice(min(max(begin - at, 0), len(changes)))
                    count = rest.count_upto(checkpoint_ts)
                    at += len(changes)
                    done = FilePosition(number - 1, at - len(rest) + count)
                    fresh = repeats.drop_repeats(rest.slice(0, count))
                    if len(fresh) < count and self._damage is not None:
                        self._damage.again(of, count - len(fresh))
                    yield FileRun(fresh, sequence.index_path, done)
                    if count < len(rest):
                        return
                yield FileRun(None, sequence.index_path, FilePosition(number))

    def _changes(
        self, path: str, table: TableInfo, of: TableVersion, *, share: int
    ) -> Iterator[DecodedChanges]:
        try:
            yield from self._files.changes(path, table, share=share)
        except (Corrupt, Invalid) as error:
            self._refuse(of, error)

    def _new_files(self, sequence: FileSequence, after: int, of: TableVersion) -> Iterator[tuple[int, str]]:
        """Yield the files after a number up to the newest that the index names: these are complete.

        The index may be newer than the listing, and name files that came after it.
        """
        index = self._storage.read(sequence.index_path, bytes_max=ADVANCED_BYTES_MAX) or b""
        named = index.decode(errors="replace").strip()
        newest, digits = layout.parse_file_name(named), layout.number_digits(named)
        if newest is None:
            self._refuse(
                of, Corrupt(f"index file {sequence.index_path} names no data file; keep the directory")
            )
            return
        folder = sequence.index_path.rpartition("/meta/")[0]
        for number in range(after + 1, newest.number + 1):
            path = sequence.files.get(number) or f"{folder}/{replace(newest, number=number).text(digits)}"
            if number in sequence.files or self._storage.exists(path):
                yield number, path
            else:
                self._refuse(
                    of,
                    Corrupt(
                        f"file {number} is missing though {sequence.index_path} names a later one;"
                        " restore it, or begin with a state that is past it"
                    ),
                )

    def _refuse(self, of: TableVersion, error: Corrupt | Invalid) -> None:
        """Report what is wrong with a data file to `damage`, or raise it."""
        if self._damage is None:
            raise error
        self._damage.unreadable(of, str(error))

    def _schema(self, found: SchemaEntry) -> SchemaFile:
        known = self._schemas.get(found.path)
        if known is None:
            data = self._storage.read(found.path, bytes_max=SCHEMA_FILE_BYTES_MAX)
            if data is None:
                raise Corrupt(f"schema file {found.path} was removed while it was needed; keep the directory")
            known = _parse_schema(found.path, data)
            check_path(found.path, known, table_id_as_path=self._layout.table_id_as_path)
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
