"""The files on the remote that the driver handles: schema files, numbers, indexes, the checkpoint.

They are small and rare; the engine writes rows. Every call blocks.
"""

import gzip
import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.changefeeds.codecs.options import file_extension
from penstock.changefeeds.filters import selected_columns
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
from penstock.changefeeds.sinks.storage.schema_file import (
    SCHEMA_FILE_BYTES_MAX,
    SchemaFile,
    choose_version,
    ddl_files,
)
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, TableSpan
from penstock.object_storage import ADVANCED_BYTES_MAX, LocalStorage, ObjectStorage

_log = logging.getLogger(__name__)

_BLANK_TEXT_BYTES_MAX = 64  # a compressed empty text is smaller


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a dispatcher's files of one schema version go, without the date.

    `named`: several dispatchers write into the folder, so files have the dispatcher's id in their names.
    """

    dispatcher_id: str
    folder: Folder
    named: bool


@dataclass(frozen=True, slots=True)
class FilePaths:
    """The paths of a data file to be written and of the index that will name it."""

    data_path: str
    index_path: str
    number: int


@dataclass(slots=True)
class FileState:
    """What is known of a dispatcher's files. It can be forgotten at any time: the remote has it too."""

    used_at: float
    since_ts: int = 0
    target: FileTarget | None = None
    folder: Folder | None = None  # with the date; the numbers count in it
    number: int = 0  # that was given out last
    known: int = 0  # up to which files are certainly on the remote
    lock: threading.Lock = field(default_factory=threading.Lock)


def check_unused(storage: ObjectStorage) -> None:
    """Raise Invalid when the storage has files of a changefeed, which may be removed long since.

    Other files do not matter: no consumer reads them. `metadata` is looked for first, so that a directory
    that ever had a checkpoint need not be listed.
    """
    used = layout.METADATA_PATH if storage.exists(layout.METADATA_PATH) else None
    used = used or storage.find(layout.is_changefeed_path)
    if used is not None:
        raise Invalid(
            f"{storage.url} holds files of a changefeed already, such as {used}; a directory serves one, from"
            " its beginning: give another one by --sink-uri, or remove those files"
        )


class RemoteFiles:
    """The driver's files of one changefeed. It is thread-safe.

    Calls raise Unavailable when storage does not answer; repeating one is safe. A file number is given out
    again as long as no file has it, so numbers have no holes, unless the caller has files under way that
    follow each other. After a write whose outcome is not known, call `repair` first.
    """

    def __init__(
        self, storage: ObjectStorage, options: SinkOptions, *, split: bool = False, clock: Clock = SYSTEM
    ) -> None:
        self.location = str(location_of(options.target.url, options.target.options))
        self._storage = storage
        self._options = options
        self._split = split or options.enable_table_across_nodes
        self._clock = clock
        self._extension = file_extension(options.protocol, options.compression)
        self._states: OrderedDict[str, FileState] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def check_unused(self) -> None:
        """Raise Invalid when there are files of a changefeed already."""
        check_unused(self._storage)

    def place(self, dispatcher: TableSpan, schema: SchemaVersion) -> FileTarget | None:
        """Return where files of a version go, once its schema file is written; None when it is stale.

        The version's own schema file counts first, then the newest older one with the same columns; otherwise
        the file is written. A later one with the same columns makes the version stale: readers have gone on.
        """
        state = self._state_of(dispatcher.id)
        with state.lock:
            if state.target is not None and state.since_ts == schema.since_ts:
                return state.target
            version = self._settle_version(dispatcher, schema)
            if version is None:
                return None
            state.target = self._make_target(dispatcher, schema, version)
            state.since_ts = schema.since_ts
            return state.target

    def next_file(self, target: FileTarget, end_ts: int, *, following: bool = False) -> FilePaths:
        """Return paths with the next free number, for commits up to `end_ts`; look at the remote first.

        `following`: the file with the last number that was given out is under way and will be there.

        The folder's date is that of `end_ts`, in UTC, whatever the clock says: readers read folders by date,
        and so get a dispatcher's changes in the order of their commits. It is never before the date of a file
        that the dispatcher has.
        """
        state = self._state_of(target.dispatcher_id)
        date = layout.date_text(self._options.date_separator, physical_ms(end_ts))
        with state.lock:
            if state.folder is not None and replace(state.folder, date="") == target.folder:
                date = max(date, state.folder.date)
            else:
                date = self._latest_date(target, date)
            folder = replace(target.folder, date=date)
            if state.folder != folder:
                state.number = state.known = self._last_number(target, folder)
                state.folder = folder
            elif not following and state.known < state.number:
                state.number = state.known = last_number(state.known, self._finder(target, folder))
            state.number += 1
            return self._paths(target, folder, state.number)

    def confirm_written(self, target: FileTarget, paths: FilePaths) -> None:
        """Record that a file is on the remote, so that `next_file` need not look for it."""
        with self._lock:
            state = self._states.get(target.dispatcher_id)
        if state is None:
            return
        with state.lock:
            if state.folder is not None and self._paths(target, state.folder, paths.number) == paths:
                state.known = max(state.known, paths.number)

    def write_ddl(self, event: DdlEvent) -> None:
        """Write the schema files of a DDL, unless they are there; raise Corrupt when one is damaged.

        A file's name says the version and the columns, and consumers may have run its statement. So a file
        that is there stays, also with another text: a release may write a statement in another way, and a
        process that was taken over may come here late. Only a file without a statement gets one.
        """
        for path, file in ddl_files(event, self._options):
            self._check_database(file.schema)
            self._create_schema_file(path, file)

    def _create_schema_file(self, path: str, file: SchemaFile) -> None:
        content = file.to_json()
        if self._storage.create(path, content) or self._storage.holds(path, content):
            return
        found = self._storage.read(path, bytes_max=SCHEMA_FILE_BYTES_MAX)
        if found is None:
            raise Unavailable(
                f"schema file {path} at {self._storage.url} was removed just now; write it again"
            )
        try:
            there = SchemaFile.from_json(found)
        except Corrupt as error:
            raise Corrupt(
                f"schema file {path} at {self._storage.url} is damaged; remove it and resume the changefeed"
            ) from error
        if not file.query:
            return
        if not there.query and self._storage.swap(path, content, seen=found):
            return
        _log.warning(
            "a schema file was there already with another statement; it stays",
            extra={"path": path, "url": self._storage.url},
        )

    def repair(self, pending: PendingFile) -> Position | None:
        """Return where a dispatcher goes on whose last file may have been interrupted; repair its index.

        None: the file is missing. It may still arrive from a writer that cannot be stopped. So the name stays
        taken for its changes: the caller writes the same changes under it. A file without rows, as earlier
        releases left it in the place of a missing one, has none of the changes. Raises Corrupt when the index
        names no file, or the file is not the one that was to be written.
        """
        size = self._storage.size(pending.data_path)
        if size is None:
            return None
        void = self._is_blank(pending.data_path)
        if not void and pending.nbytes not in {0, size}:
            raise Corrupt(
                f"object {pending.data_path} at {self._storage.url} is not what this changefeed wrote there; "
                "make sure that nothing else writes to this place, remove the object and resume"
            )
        self._repair_index(pending)
        return pending.start if void and not pending.followed else pending.end

    def write_checkpoint(self, ts: int) -> None:
        """Publish a checkpoint: every change up to `ts` is on the remote. A later one that is there stays.

        A process that was taken over may come here late, after its successor has published more.
        """
        try:
            self._storage.advance(
                layout.METADATA_PATH, encode_checkpoint(ts), is_older=lambda data: _checkpoint_in(data) < ts
            )
        except Unavailable as error:
            raise Unavailable(
                f"the checkpoint cannot be written for consumers: {error}; make sure that the file may be"
                f" replaced, and that nothing else there is called {layout.METADATA_PATH}"
            ) from error

    def forget(self, dispatcher_id: str) -> None:
        """Forget the state of a dispatcher's files."""
        with self._lock:
            self._states.pop(dispatcher_id, None)

    def sweep(self, idle_s: float) -> int:
        """Forget the state of dispatchers that were idle for so long; return how many they are.

        It costs as much as it forgets: it looks at no other dispatcher.
        """
        before = self._clock.monotonic() - idle_s
        forgotten = 0
        with self._lock:
            while self._states and next(iter(self._states.values())).used_at <= before:
                self._states.popitem(last=False)
                forgotten += 1
            if forgotten > len(self._states):  # a dict does not shrink by itself: make a new one
                self._states = OrderedDict(self._states)
        return forgotten

    @property
    def kept_state_count(self) -> int:
        """How many dispatchers have a state here; tests see by it that the number is bounded."""
        return len(self._states)

    def _is_blank(self, data_path: str) -> bool:
        with self._storage.open(data_path) as file:
            return is_blank(_extension(data_path), file)

    def _repair_index(self, pending: PendingFile) -> None:
        content = self._storage.read(pending.index_path, bytes_max=ADVANCED_BYTES_MAX)
        name = pending.data_path.rpartition("/")[2].encode()
        number = number_in_index(name, pending.data_path)
        if number_in_index(content, pending.index_path) < number:
            _log.warning("a data file has no index yet; writing it", extra={"data_path": pending.data_path})
            self._storage.advance(
                pending.index_path,
                name + b"\n",
                is_older=lambda content: number_in_index(content, pending.index_path) < number,
            )

    def _state_of(self, dispatcher_id: str) -> FileState:
        now = self._clock.monotonic()
        with self._lock:
            state = self._states.get(dispatcher_id)
            if state is None:
                state = self._states[dispatcher_id] = FileState(now)
            state.used_at = now
            self._states.move_to_end(dispatcher_id)
            return state

    def _check_database(self, name: str) -> None:
        """Raise Invalid for a database whose folder would have the name of the checkpoint's file."""
        collides = name == layout.METADATA_PATH and not self._options.use_table_id_as_path
        if collides and isinstance(self._storage, LocalStorage):  # objects and folders may share a name
            raise Invalid(
                f"database {name} cannot be written to {self._storage.url}, where the checkpoint's file has"
                f' that name; exclude the database by the pattern "!{name}.*", or use object storage, or'
                " another directory with use-table-id-as-path=true"
            )

    def _settle_version(self, dispatcher: TableSpan, schema: SchemaVersion) -> int | None:
        self._check_database(schema.database)
        by_id = self._options.use_table_id_as_path
        file = SchemaFile.of(
            schema,
            schema.since_ts,
            columns=selected_columns(schema, self._options.column_selectors),
            with_ids=self._options.output_column_id,
            ticdc_elems=self._options.schema_files == "ticdc",
        )
        wanted = file.path_parts(dispatcher.table_id if by_id else 0)
        path = layout.schema_path(wanted)
        if self._storage.exists(path):
            return wanted.version
        found = self._storage.names(layout.meta_folder(wanted))
        choice = choose_version(found, wanted, table_id_as_path=by_id)
        if choice.stale:
            return None
        if choice.version is None:
            self._create_schema_file(path, file)
            return wanted.version
        return choice.version

    def _make_target(self, dispatcher: TableSpan, schema: SchemaVersion, version: int) -> FileTarget:
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

    def _latest_date(self, target: FileTarget, date: str) -> str:
        """Return a date, or the newest date under which the dispatcher has files of this version, if later.

        Files of releases that took the date from the clock may have a later one.
        """
        separator = self._options.date_separator
        if separator == "none":
            return date
        folders = self._storage.folders(target.folder.path)
        dates = [name for name in folders if layout.is_date(separator, name) and name > date]
        for later in sorted(dates, reverse=True):
            if self._storage.exists(self._index_path(target, replace(target.folder, date=later))):
                return later
        return date

    def _index_path(self, target: FileTarget, folder: Folder) -> str:
        return layout.index_path(folder, target.dispatcher_id if target.named else "")

    def _last_number(self, target: FileTarget, folder: Folder) -> int:
        index_path = self._index_path(target, folder)
        content = self._storage.read(index_path, bytes_max=ADVANCED_BYTES_MAX)
        indexed = number_in_index(content, index_path)
        last = last_number(indexed, self._finder(target, folder))
        if last != indexed:
            _log.warning("an index is behind its files", extra={"index_path": index_path, "last": last})
        return last

    def _finder(self, target: FileTarget, folder: Folder) -> Callable[[int], bool]:
        """Return what tells whether there is a file of a number."""
        return lambda number: self._storage.exists(self._paths(target, folder, number).data_path)

    def _paths(self, target: FileTarget, folder: Folder, number: int) -> FilePaths:
        owner = target.dispatcher_id if target.named else ""
        name = FileName(owner, number, self._extension)
        digits = self._options.file_index_digit
        return FilePaths(layout.data_path(folder, name, digits), layout.index_path(folder, owner), number)


def _checkpoint_in(metadata: bytes) -> int:
    """Return the checkpoint that is published; 0 when the file is damaged, so that it is replaced."""
    try:
        return layout.decode_checkpoint(metadata)
    except Corrupt:
        return 0


def _extension(data_path: str) -> str:
    name = layout.parse_file_name(data_path.rpartition("/")[2])
    assert name is not None, f"{data_path} is no path of a data file"
    return name.extension


def is_blank(extension: str, file: pa.NativeFile) -> bool:
    """Return whether a file has no rows. It does not compare bytes: they depend on the library's version.

    A damaged file is not blank.
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
        return not _decompress(extension, data)
    except (OSError, EOFError):  # what decompressors raise for damaged data
        return False


def _decompress(extension: str, data: bytes) -> bytes:
    if extension.endswith(".gz"):
        return gzip.decompress(data)
    if extension.endswith(".zst"):
        return bytes(pa.CompressedInputStream(io.BytesIO(data), "zstd").read())
    return data
