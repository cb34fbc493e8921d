"""Reads a directory of changes in rounds: each delivers what is new up to the checkpoint, in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import Corrupt, Invalid
from penstock.eventstore.storage import Storage
from penstock.sink.consuming.changerows import ChangeRows
from penstock.sink.consuming.datafiles import DataFiles, FileOptions
from penstock.sink.consuming.listing import Listing, SchemaFound, Stretch, Survey, name_root
from penstock.sink.consuming.merging import Piece, merged
from penstock.sink.consuming.planning import DataStep, SchemaStep, plan
from penstock.sink.consuming.progress import Mark, Progress
from penstock.sink.consuming.renames import Name, old_name
from penstock.sink.consuming.repetition import Repetition
from penstock.sink.files import layout
from penstock.sink.files.metadatafile import decode_checkpoint
from penstock.sink.files.schemafile import SchemaFile, check_named
from penstock.tables.jobs import Action
from penstock.tables.schema import TableInfo

__all__ = ["Ddl", "Delivery", "DirectoryReader", "TableChanges"]

_RENAMES = frozenset({int(Action.RENAME_TABLE), 25})  # 25: several tables in one statement


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
    changes: ChangeRows

    @property
    def name(self) -> str:
        """The table."""
        return f"{self.database}.{self.table.name}"


Delivery = Ddl | TableChanges


class DirectoryReader:
    """Everything in a directory, once: per table in the order of its changes and DDLs.

    Delivery is at least once over restarts: `progress` moves past a delivery when the next one is asked for.
    Within `progress` each change comes once, also where TiCDC repeats it, provided that files tell commits.
    Blocks; raises Unavailable, which passes: begin the round again.
    """

    def __init__(
        self, storage: Storage, files: FileOptions, survey: Survey, progress: Progress | None = None
    ) -> None:
        self.progress = progress or Progress()
        self._storage = storage
        self._files = DataFiles(storage, files)
        self._survey = survey
        self._schemas: dict[str, SchemaFile] = {}
        self._tables: dict[str, TableInfo] = {}

    def round(self) -> Iterator[Delivery]:
        """Deliver what is new.

        Invalid when this is no directory of a sink, or not the one that `progress` is of; Corrupt when a
        file is missing or damaged.
        """
        checkpoint_ts = self._checkpoint()  # before listing: everything up to it is listed then
        listing = self._survey.of(self._storage.names(""))
        new = tuple(stretch for stretch in listing.stretches if self._has_new(stretch))
        for step in plan(Listing(listing.schemas, new), checkpoint_ts, self.progress):
            if isinstance(step, SchemaStep):
                yield from self._deliver_schema(step.schema, listing)
            else:
                yield from self._deliver_data(step, checkpoint_ts)
        self.progress.finish(checkpoint_ts, (stretch.index_path for stretch in listing.stretches))

    def _checkpoint(self) -> int:
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

    def _has_new(self, stretch: Stretch) -> bool:
        return max(stretch.files, default=0) > self.progress.mark(stretch.index_path).number

    def _deliver_schema(self, found: SchemaFound, listing: Listing) -> Iterator[Delivery]:
        file = self._schema(found)
        renamed = old_name(file.query, file.schema, file.table) if file.type in _RENAMES else None
        table = self._table(found) if file.table else None
        yield Ddl(file.schema, table, file.version, file.type, file.query, renamed)
        self.progress.pass_schema(found.root, found.version)
        if not file.query:
            return
        self.progress.raise_watermark(found.root, found.version)
        if renamed is not None and not self._survey.table_id_as_path:
            self.progress.raise_watermark(name_root(*renamed), found.version)
        if file.type == Action.DROP_SCHEMA:
            roots = {schema.root for schema in listing.schemas}
            self.progress.end_database(found.root, found.version, roots)

    def _deliver_data(self, step: DataStep, checkpoint_ts: int) -> Iterator[Delivery]:
        file, table = self._schema(step.schema), self._table(step.schema)
        streams = [self._pieces(each, step, table, checkpoint_ts) for each in step.dispatchers]
        for delivered in merged(streams):
            if delivered.changes is not None and len(delivered.changes):
                yield TableChanges(file.schema, table, file.version, delivered.changes)
            self.progress.marks.update(delivered.marks)

    def _pieces(
        self, stretches: tuple[Stretch, ...], step: DataStep, table: TableInfo, checkpoint_ts: int
    ) -> Iterator[Piece]:
        """One dispatcher's changes up to the checkpoint; what is after it stays for a later round."""
        share = len(step.dispatchers)
        repetition = Repetition(table, self.progress.resolved_ts)
        for stretch in stretches:
            mark = self.progress.mark(stretch.index_path)
            for number in range(mark.number + 1, self._newest(stretch) + 1):
                at = 0
                begin = mark.rows if number == mark.number + 1 else 0
                for changes in self._files.changes(_path(stretch, number), table, share=share):
                    rest = changes.slice(min(max(begin - at, 0), len(changes)))
                    count = rest.count_upto(checkpoint_ts)
                    at += len(changes)
                    done = Mark(number - 1, at - len(rest) + count)
                    yield Piece(repetition.new(rest.slice(0, count)), stretch.index_path, done)
                    if count < len(rest):
                        return
                yield Piece(None, stretch.index_path, Mark(number))

    def _newest(self, stretch: Stretch) -> int:
        """The number of the newest file that the index names: only up to it files are there as a whole."""
        data = self._storage.read(stretch.index_path)
        name = layout.parse_file_name((data or b"").decode(errors="replace").strip())
        if name is None:
            raise Corrupt(f"index file {stretch.index_path} names no data file; keep the directory")
        return name.number

    def _schema(self, found: SchemaFound) -> SchemaFile:
        known = self._schemas.get(found.path)
        if known is None:
            data = self._storage.read(found.path)
            if data is None:
                raise Corrupt(f"schema file {found.path} was removed while it was needed; keep the directory")
            known = _parsed(found.path, data)
            check_named(found.path, known, table_id_as_path=self._survey.table_id_as_path)
            self._schemas[found.path] = known
        return known

    def _table(self, found: SchemaFound) -> TableInfo:
        if found.path not in self._tables:
            self._tables[found.path] = self._schema(found).table_info()
        return self._tables[found.path]


def _parsed(path: str, data: bytes) -> SchemaFile:
    try:
        return SchemaFile.from_json(data)
    except Corrupt as error:
        raise Corrupt(f"schema file {path}: {error}") from error


def _path(stretch: Stretch, number: int) -> str:
    path = stretch.files.get(number)
    if path is None:
        raise Corrupt(
            f"file {number} is missing though {stretch.index_path} names a later one; restore it, or begin"
            " with a state that is past it"
        )
    return path
