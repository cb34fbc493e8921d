"""The files of a target that the driver looks after: schema files, file numbers, indexes, the checkpoint.

All of it is small and rare; rows are written by the engine. Every call blocks.

Data files without rows. Pure.

Which schema files a DDL leads to. Pure.
"""

import gzip
import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.changefeeds.codecs.parquet import ParquetRows, parquet_file
from penstock.changefeeds.filters import sent_columns
from penstock.changefeeds.model import PendingFile
from penstock.changefeeds.sink_uri import location_of
from penstock.changefeeds.sinks.storage import layout
from penstock.changefeeds.sinks.storage.layout import (
    FileName,
    Folder,
    encode_checkpoint,
    last_number,
    number_in_index,
)
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile, choose_version
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.follow.slices import Position, TableSpan
from penstock.object_storage import LocalStorage, ObjectStorage
from penstock.tables.ddl_jobs import DdlAction

_BLANK_TEXT_BYTES_MAX = 64  # any compressor says "nothing" in less


def blank_file(extension: str, schema: SchemaFile | None) -> bytes:
    """A file with this extension that whoever reads the table finds nothing in.

    Only Parquet needs the schema; without one the file has no columns of the table.
    """
    if extension == ".parquet":
        return _blank_parquet(schema or SchemaFile(schema="", version=0))
    if extension.endswith(".gz"):
        return gzip.compress(b"", mtime=0)
    if extension.endswith(".zst"):
        return bytes(pa.Codec("zstd").compress(b"", asbytes=True))
    return b""


def is_blank(extension: str, file: pa.NativeFile) -> bool:
    """Whether a file has no rows; not by its bytes, because another version of a library makes others.

    A file that is damaged is not blank.
    """
    if extension == ".parquet":
        try:
            return bool(pq.ParquetFile(file).metadata.num_rows == 0)
        except pa.ArrowInvalid:
            return False
    if file.size() > _BLANK_TEXT_BYTES_MAX:
        return False
    data = file.read()
    try:
        return not _text(extension, data)
    except (OSError, EOFError):  # what decompressors say
        return False


def _text(extension: str, data: bytes) -> bytes:
    if extension.endswith(".gz"):
        return gzip.decompress(data)
    if extension.endswith(".zst"):
        return bytes(pa.CompressedInputStream(io.BytesIO(data), "zstd").read())
    return data


def _blank_parquet(schema: SchemaFile) -> bytes:
    table = schema.table_info()
    rows = ParquetRows(SchemaVersion(schema.version, 0, table, schema.schema), table.columns)
    nothing = pa.RecordBatch.from_pylist([], schema=rows.schema)
    return parquet_file([rows.payload([nothing])], {})


_EXCHANGE_PARTITION = 42  # TiDB's number


def ddl_files(event: DdlEvent, options: SinkOptions) -> list[tuple[str, SchemaFile]]:
    """The files with their paths: one per table as it is after the DDL, or as it was before its end.

    A database has one file, or none where table ids are the paths. A statement that is for several tables is
    in the first file only, unless it divides into one for each of them: a consumer runs every statement once.
    """
    if event.scope is DdlScope.DATABASE or not event.tables:
        file = SchemaFile(schema=event.database, version=event.commit_ts, query=event.query, type=event.type)
        return [] if options.use_table_id_as_path else [(file.path(), file)]
    tables = _subject_first(event)
    statements = _statements(event, tables)
    files: list[tuple[str, SchemaFile]] = []
    for change, (query, kind) in zip(tables, statements, strict=True):
        schema = change.after or change.before
        assert schema is not None, "a DDL is for a table that is there before or after it"
        file = SchemaFile.of(
            schema,
            event.commit_ts,
            columns=sent_columns(schema, options.column_selectors),
            with_ids=options.output_column_id,
            query=query,
            type=kind,
        )
        files.append((file.path(schema.table.id if options.use_table_id_as_path else 0), file))
    return files


def _subject_first(event: DdlEvent) -> list[TableChange]:
    """The tables, of an exchange the partitioned one first: the statement alters that one."""
    if event.type != _EXCHANGE_PARTITION:
        return list(event.tables)
    return sorted(event.tables, key=lambda change: not _is_partitioned(change.after or change.before))


def _is_partitioned(schema: SchemaVersion | None) -> bool:
    return schema is not None and schema.table.physical_ids != (schema.table.id,)


def _statements(event: DdlEvent, tables: Sequence[TableChange]) -> list[tuple[str, int]]:
    if len(tables) > 1 and _renames_apart(tables):
        return [(_rename(change), DdlAction.RENAME_TABLE) for change in tables]
    return [(event.query, event.type), *[("", 0)] * (len(tables) - 1)]


def _renames_apart(tables: Sequence[TableChange]) -> bool:
    """Whether all that happens is that tables get names that none of them had."""
    if any(change.before is None or change.after is None for change in tables):
        return False
    pairs = [(change.before.name, change.after.name) for change in tables if change.before and change.after]
    return {old for old, _ in pairs}.isdisjoint(new for _, new in pairs)


def _rename(change: TableChange) -> str:
    assert change.before is not None, "a rename has a table before it"
    assert change.after is not None, "a rename has a table after it"
    return f"RENAME TABLE {_quoted(change.before)} TO {_quoted(change.after)}"


def _quoted(schema: SchemaVersion) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in (schema.database, schema.table.name))


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a dispatcher's files of one schema version go, but for the date.

    `named`: several dispatchers write there, so that files have the dispatcher's id in their names.
    """

    dispatcher_id: str
    folder: Folder
    named: bool


@dataclass(frozen=True, slots=True)
class FilePaths:
    """A data file to be written, and the index that is to name it then."""

    data_path: str
    index_path: str
    number: int


@dataclass(slots=True)
class _Kept:
    """What is known of a dispatcher. It can be forgotten at any time: the target knows it too."""

    used_at: float
    since_ts: int = 0
    place: FileTarget | None = None
    folder: Folder | None = None  # with the date; `number` counts in it
    number: int = 0
    written: bool = True  # whether a file of that number is surely there
    lock: threading.Lock = field(default_factory=threading.Lock)


def check_unused(target: ObjectStorage) -> None:
    """Raise Invalid when there are files of a changefeed at a target, above all of one that is gone.

    What else is there does not matter: nobody reads it. `metadata` is looked for first, so that a directory
    which was ever complete up to a checkpoint does not have to be listed.
    """
    used = layout.METADATA_PATH if target.exists(layout.METADATA_PATH) else None
    used = used or target.find(layout.is_of_a_changefeed)
    if used is not None:
        raise Invalid(
            f"{target.url} holds files of a changefeed already, such as {used}; a directory serves one, from"
            " its beginning: give another one by --sink-uri, or remove those files"
        )


class RemoteFiles:
    """Thread-safe. Calls raise Unavailable when storage does not answer; repeating one is safe.

    A file number is given out again as long as no file has it, so that numbers have no holes: a dispatcher
    has at most one file on its way. After a write whose end is not known, `repair` comes first.
    """

    def __init__(
        self, target: ObjectStorage, options: SinkOptions, *, split: bool = False, clock: Clock = SYSTEM
    ) -> None:
        self.location = str(location_of(options.target.url, options.target.options))
        self._target = target
        self._options = options
        self._split = split or options.enable_table_across_nodes
        self._clock = clock
        self._extension = layout.extension(options.protocol, options.compression)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def check_unused(self) -> None:
        """Raise Invalid when there are files of a changefeed already."""
        check_unused(self._target)

    def place(self, dispatcher: TableSpan, schema: SchemaVersion) -> FileTarget | None:
        """Where files of a version go, after its schema file is there; None when what is there is later.

        The version's own file counts first, then the newest older one that says the same; else the file is
        written. A later one that says the same makes the version stale: its readers have gone on.
        """
        kept = self._of(dispatcher.id)
        with kept.lock:
            if kept.place is not None and kept.since_ts == schema.since_ts:
                return kept.place
            version = self._settled_version(dispatcher, schema)
            if version is None:
                return None
            kept.place = self._placed(dispatcher, schema, version)
            kept.since_ts = schema.since_ts
            return kept.place

    def next_file(self, place: FileTarget, end_ts: int) -> FilePaths:
        """The next free number for a file of commits up to `end_ts`; the first use looks at the target.

        The folder's date is that of `end_ts`, in UTC, whatever the clock says: readers take folders by their
        dates, and so get a dispatcher's changes in the order of their commits. It is never before the date of
        a file that the dispatcher has.
        """
        kept = self._of(place.dispatcher_id)
        date = layout.date_text(self._options.date_separator, physical_ms(end_ts))
        with kept.lock:
            if kept.folder is not None and replace(kept.folder, date="") == place.folder:
                date = max(date, kept.folder.date)
            else:
                date = self._not_before(place, date)
            folder = replace(place.folder, date=date)
            if kept.folder != folder:
                kept.number = self._last_number(place, folder)
                kept.folder = folder
                kept.number += 1
            elif kept.written or self._target.exists(self._paths(place, folder, kept.number).data_path):
                kept.number += 1
            kept.written = False
            return self._paths(place, folder, kept.number)

    def wrote(self, place: FileTarget, paths: FilePaths) -> None:
        """A file is on the remote: spares the next call of `next_file` a look at it."""
        with self._lock:
            kept = self._kept.get(place.dispatcher_id)
        if kept is None:
            return
        with kept.lock:
            if kept.folder is not None and self._paths(place, kept.folder, kept.number) == paths:
                kept.written = True

    def write_ddl(self, event: DdlEvent) -> None:
        """Write the schema files of a DDL. Writing them again changes nothing."""
        for path, file in ddl_files(event, self._options):
            self._check_database(file.schema)
            self._target.write(path, file.to_json())

    def repair(self, pending: PendingFile) -> Position:
        """Where a dispatcher goes on whose last file may have been interrupted. Its index is mended.

        A file that is not there may still be on its way, from a writer that nobody can stop: a file without
        rows takes its place, so that it can never arrive. Raises Corrupt when the index names no file, or the
        file is not the one that was to be written.
        """
        size = self._target.size(pending.data_path)
        if size is None and not self._target.create(pending.data_path, self._blank(pending.data_path)):
            size = self._target.size(pending.data_path)
        void = size is None or self._is_blank(pending.data_path)
        if not void and pending.nbytes not in {0, size}:
            raise Corrupt(
                f"object {pending.data_path} at {self._target.url} is not what this changefeed wrote there; "
                "see that nobody else writes to this place, remove the object and resume"
            )
        self._mend_index(pending)
        return pending.start if void else pending.end

    def write_checkpoint(self, ts: int) -> None:
        """Say that every change up to `ts` is here."""
        try:
            self._target.write(layout.METADATA_PATH, encode_checkpoint(ts))
        except Unavailable as error:
            raise Unavailable(
                f"consumers cannot be told the checkpoint: {error}; see that it may be replaced, and that"
                f" nothing else there is called {layout.METADATA_PATH}"
            ) from error

    def forget(self, dispatcher_id: str) -> None:
        """Give back what is kept of a dispatcher."""
        with self._lock:
            self._kept.pop(dispatcher_id, None)

    def sweep(self, idle_s: float) -> int:
        """Give back what is kept of dispatchers that were not used for so long; return how many they are.

        Costs as much as it gives back: nothing else is looked at.
        """
        before = self._clock.monotonic() - idle_s
        given_back = 0
        with self._lock:
            while self._kept and next(iter(self._kept.values())).used_at <= before:
                self._kept.popitem(last=False)
                given_back += 1
            if given_back > len(self._kept):  # a table of names does not shrink by itself
                self._kept = OrderedDict(self._kept)
        return given_back

    @property
    def kept_state_count(self) -> int:
        """Dispatchers of which something is kept."""
        return len(self._kept)

    def _blank(self, data_path: str) -> bytes:
        """A file without rows that fits the path, whatever the options were when it was given out."""
        extension = _extension(data_path)
        return blank_file(extension, self._schema_of(data_path) if extension == ".parquet" else None)

    def _is_blank(self, data_path: str) -> bool:
        with self._target.open(data_path) as file:
            return is_blank(_extension(data_path), file)

    def _schema_of(self, data_path: str) -> SchemaFile | None:
        """What a schema file says of the version of a data file."""
        by_id = self._options.use_table_id_as_path
        separator = self._options.date_separator
        data = layout.parse_data_path(data_path, date_separator=separator, table_id_as_path=by_id)
        paths = self._target.names(layout.meta_folder(data.folder)) if data else []
        for path in paths:
            named = layout.parse_schema_path(path, table_id_as_path=by_id)
            if data and named and named.version == data.folder.version:
                return SchemaFile.from_json(self._target.read(path) or b"")
        return None

    def _mend_index(self, pending: PendingFile) -> None:
        content = self._target.read(pending.index_path)
        name = pending.data_path.rpartition("/")[2]
        if number_in_index(content, pending.index_path) < number_in_index(name.encode(), pending.data_path):
            _log.warning("a data file has no index yet; writing it", extra={"data_path": pending.data_path})
            self._target.write(pending.index_path, f"{name}\n".encode())

    def _of(self, dispatcher_id: str) -> _Kept:
        now = self._clock.monotonic()
        with self._lock:
            kept = self._kept.get(dispatcher_id)
            if kept is None:
                kept = self._kept[dispatcher_id] = _Kept(now)
            kept.used_at = now
            self._kept.move_to_end(dispatcher_id)
            return kept

    def _check_database(self, name: str) -> None:
        """Raise Invalid for a database whose folder would take the place of the checkpoint's file."""
        collides = name == layout.METADATA_PATH and not self._options.use_table_id_as_path
        if collides and isinstance(self._target, LocalStorage):  # objects and folders may share a name
            raise Invalid(
                f"database {name} cannot be written to {self._target.url}, where a file of that name tells"
                f' the checkpoint; leave it out by the pattern "!{name}.*", or take object storage, or'
                " another directory with use-table-id-as-path=true"
            )

    def _settled_version(self, dispatcher: TableSpan, schema: SchemaVersion) -> int | None:
        self._check_database(schema.database)
        by_id = self._options.use_table_id_as_path
        file = SchemaFile.of(
            schema,
            schema.since_ts,
            columns=sent_columns(schema, self._options.column_selectors),
            with_ids=self._options.output_column_id,
        )
        wanted = file.place(dispatcher.table_id if by_id else 0)
        path = layout.schema_path(wanted)
        if self._target.exists(path):
            return wanted.version
        found = self._target.names(layout.meta_folder(wanted))
        choice = choose_version(found, wanted, table_id_as_path=by_id)
        if choice.stale:
            return None
        if choice.version is None:
            self._target.write(path, file.to_json())
            return wanted.version
        return choice.version

    def _placed(self, dispatcher: TableSpan, schema: SchemaVersion, version: int) -> FileTarget:
        partitioned = schema.table.physical_ids != (schema.table.id,)
        if self._options.use_table_id_as_path:
            folder, shared = Folder(table_id=dispatcher.table_id, version=version), False
        else:
            apart = partitioned and self._options.enable_partition_separator
            folder = Folder(
                schema=schema.database,
                table=schema.table.name,
                version=version,
                partition=dispatcher.table_id if apart else 0,
            )
            shared = partitioned and not apart
        return FileTarget(dispatcher.id, folder, self._split or shared or not dispatcher.whole)

    def _not_before(self, place: FileTarget, date: str) -> str:
        """A date, or the newest one under which the dispatcher has files of this version if that is later.

        A fence file may be, and so are files of releases that took the date from the clock.
        """
        separator = self._options.date_separator
        if separator == "none":
            return date
        dates = [each for each in self._target.folders(place.folder.path) if layout.is_date(separator, each)]
        for later in sorted((each for each in dates if each > date), reverse=True):
            if self._target.exists(self._index_path(place, replace(place.folder, date=later))):
                return later
        return date

    def _index_path(self, place: FileTarget, folder: Folder) -> str:
        return layout.index_path(folder, place.dispatcher_id if place.named else "")

    def _last_number(self, place: FileTarget, folder: Folder) -> int:
        index_path = self._index_path(place, folder)
        indexed = number_in_index(self._target.read(index_path), index_path)
        last = last_number(
            indexed, lambda number: self._target.exists(self._paths(place, folder, number).data_path)
        )
        if last != indexed:
            _log.warning("an index is behind its files", extra={"index_path": index_path, "last": last})
        return last

    def _paths(self, place: FileTarget, folder: Folder, number: int) -> FilePaths:
        owner = place.dispatcher_id if place.named else ""
        name = FileName(owner, number, self._extension)
        digits = self._options.file_index_digit
        return FilePaths(layout.data_path(folder, name, digits), layout.index_path(folder, owner), number)


def _extension(data_path: str) -> str:
    name = layout.parse_file_name(data_path.rpartition("/")[2])
    assert name is not None, f"{data_path} is no path of ours"
    return name.extension
