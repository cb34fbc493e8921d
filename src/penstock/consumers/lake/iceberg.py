"""A copy of a table as an Iceberg table: rows and watermark in one commit of its catalog.

The watermark is a property of the table, and always set together with a snapshot whose parent is the one that
was read: the catalog refuses a writer that comes second. The cost of a commit does not grow with the number
of earlier ones.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pydantic import Field, field_validator
from pyiceberg.catalog import Catalog, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.utils.config import Config

from penstock.clock import Clock
from penstock.consumers.lake.consumer import LakeConsumer
from penstock.consumers.lake.files import DataFile, WrittenFile, damage_errors
from penstock.consumers.lake.iceberg_metadata import (
    SNAPSHOTS_MAX,
    bounds_of,
    copy_columns,
    entry_of,
    expire,
    file_schema,
    follow,
    new_schema,
    numbering,
    promotes,
    stored_type,
)
from penstock.consumers.lake.table import LakeWatermark, Overtaken, Version
from penstock.consumers.options import ConsumerOptions, Properties, Seconds, absolute_place, reveal_secrets
from penstock.consumers.schema_evolution import Dialect, key_columns, shape_rows
from penstock.errors import Corrupt, Invalid, PenstockError, Unavailable
from penstock.jobs.consumer import JobContext
from penstock.jobs.custom_code import check_code

__all__ = ["Iceberg", "IcebergFiles", "Overwrite", "strict_transaction"]


_MANIFEST_BYTES = 8 << 20
_MANIFESTS_MAX = 50
_NO_RETRIES = {"commit.retry.num-retries": "0"}


class Overwrite(_OverwriteFiles):
    """A snapshot that adds and removes files. The library's own also reads manifests without files."""

    @classmethod
    def begin(cls, transaction: Transaction, io: FileIO, summary: dict[str, str]) -> "Overwrite":
        """Return a snapshot that is staged when the context ends."""
        first = transaction.table_metadata.current_snapshot() is None
        operation = Operation.APPEND if first else Operation.OVERWRITE
        return cls(operation, transaction, io, snapshot_properties=summary)

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        used = [
            manifest
            for manifest in manifests
            if manifest.added_snapshot_id == self._snapshot_id
            or manifest.has_added_files()
            or manifest.has_existing_files()
        ]
        data = [manifest for manifest in used if manifest.content == ManifestContent.DATA]
        deletes = [manifest for manifest in used if manifest.content != ManifestContent.DATA]
        merging = _ManifestMergeManager(
            target_size_bytes=_MANIFEST_BYTES,
            min_count_to_merge=_MANIFESTS_MAX,
            merge_enabled=True,
            snapshot_producer=self,
        )
        return [*merging.merge_manifests(data), *deletes]


def strict_transaction(table: Table) -> Transaction:
    """Return a transaction that is committed on top of the table's very snapshot or not at all.

    The library would put a second commit on top of the first, and copies all metadata of a table again and
    again. The changed properties exist only in this object: commits contain what they change.
    """
    current = table.current_snapshot()
    metadata = table.metadata.model_copy(
        update={
            "properties": {**table.metadata.properties, **_NO_RETRIES},
            "snapshots": [] if current is None else [current],
            "snapshot_log": [],
        }
    )
    lean = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, dict(table.config))
    return lean.transaction()


class IcebergFiles:
    """The files below a table's location. Paths are relative to it; absolute ones are used as they are."""

    def __init__(self, properties: Mapping[str, str], location: str) -> None:
        self.io = PyArrowFileIO(dict(properties))
        self._root = location.rstrip("/")

    def relative(self, location: str) -> str:
        """Return the path of a file by its location."""
        return location.removeprefix(f"{self._root}/")

    def absolute(self, path: str) -> str:
        """Return the location of a file by its path."""
        return path if "://" in path or path.startswith("/") else f"{self._root}/{path}"

    def write(self, path: str, data: bytes) -> None:
        """Write a file; raise Unavailable when storage fails."""
        with (
            self._failures("write", path),
            self.io.new_output(self.absolute(path)).create(overwrite=True) as file,
        ):
            file.write(data)

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading by range; raise Unavailable when storage fails."""
        with self._failures("open", path):
            return cast("pa.NativeFile", self.io.new_input(self.absolute(path)).open())

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder."""
        scheme, netloc, root = PyArrowFileIO.parse_location(self._root, self.io.properties)
        with self._failures("list", folder):
            system = self.io.fs_by_scheme(scheme, netloc)
            below = FileSelector(f"{root}/{folder.rstrip('/')}", recursive=True, allow_not_found=True)
            found = system.get_file_info(below)
        return sorted(info.path.removeprefix(f"{root}/") for info in found if info.type is FileType.File)

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        with self._failures("delete", path):
            try:
                self.io.delete(self.absolute(path))
            except FileNotFoundError:
                return

    @contextmanager
    def _failures(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).partition("\n")[0][:200]
            raise Unavailable(f"cannot {what} {path} at {self._root} ({reason}); try again") from error


_OWNER, _JOB, _WATERMARK = "penstock.owner", "penstock.job", "penstock.watermark"
_COLUMN_ID, _NUMBERING = "penstock.column-id", "penstock.columns"
_NEW_TABLE = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}

_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)([^/:].*)")
"""A file of SQLite by a relative path: an absolute one has a fourth slash."""
_WITH_FOLDERS = frozenset({"in-memory", "postgresql", "sql", "sqlite"})
"""Types of catalogs, and schemes of their URIs, whose warehouse is a place of storage."""

_log = logging.getLogger(__name__)


class IcebergOptions(ConsumerOptions):
    """The table, and its catalog."""

    table: str
    """The table, as namespace.table."""
    catalog: Properties = Field({}, repr=False)
    """Options of pyiceberg: catalog.type, catalog.uri, catalog.warehouse, catalog.s3.endpoint, ..."""
    history: Seconds = Field(86_400, ge=0)
    """How long old snapshots stay, as long as there are not more than some hundred."""

    @classmethod
    def absolute_options(cls, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options with absolute paths of a SQLite catalog and of a warehouse that is a folder.

        Catalogs that are not databases may know a warehouse by a name, which stays as it is.
        """
        found = dict(options)
        uri, warehouse = (found.get(f"catalog.{name}", "") for name in ("uri", "warehouse"))
        in_database = found.get("catalog.type", uri.partition(":")[0].partition("+")[0]) in _WITH_FOLDERS
        if warehouse and (in_database or warehouse.lower().startswith("file://")):
            found["catalog.warehouse"] = absolute_place(warehouse)
        if file := _SQLITE.fullmatch(uri):
            found["catalog.uri"] = f"{file[1]}{Path(file[2]).absolute()}"
        return found

    @field_validator("table")
    @classmethod
    def _has_a_namespace(cls, table: str) -> str:
        if not all(table.split(".")) or "." not in table:
            raise ValueError("write namespace.table")
        return table


class Iceberg(LakeConsumer):
    """Keeps a copy as an Iceberg table. Options: table, catalog.*, history."""

    options_type = IcebergOptions

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        self.options = IcebergOptions.parse(job.info)
        for name, value in reveal_secrets(self.options.catalog).items():
            check_classes({name: value}, self._allowed, f"option catalog.{name} = {value}")

    @property
    def _allowed(self) -> Sequence[str]:
        return self.job.settings.jobs.allowed_code

    def open_table(self) -> "IcebergCopy":
        """Return the Iceberg table that the options name."""
        return IcebergCopy(self.options, self.job.clock, allowed=self._allowed)


_OF_JAVA = frozenset(
    {"catalog-impl", "io-impl", "metrics-reporter-impl", "rest-metrics-reporter-impl"}
    | {"write.location-provider.impl", "client.factory-impl", "lock-impl"}
)
"""Properties with names of classes of Java, which pyiceberg does not look at."""


def check_classes(properties: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
    """Raise Invalid when properties name a class that the settings do not allow: pyiceberg imports it."""
    for name, value in properties.items():
        if isinstance(value, Mapping):
            check_classes(value, allowed, what)
        elif str(name).endswith("impl") and name not in _OF_JAVA:
            check_code(str(value).rpartition(".")[0][:200], allowed, what)


class _CheckedRest(RestCatalog):
    """A REST catalog whose server names no class: its answer would be followed before anybody sees it."""

    allowed: Sequence[str] = ()

    def _fetch_config(self) -> None:
        super()._fetch_config()
        check_classes(self.properties, self.allowed, f"a property that the server of catalog {self.name} set")


def _is_rest(name: str, properties: Mapping[str, Any]) -> bool:
    if "uri" not in properties or "py-catalog-impl" in properties:
        return False
    kind = properties.get("type") or infer_catalog_type(name, dict(properties))
    return bool(kind == CatalogType.REST.value)


def open_catalog(name: str, properties: Mapping[str, str], allowed: Sequence[str]) -> Catalog:
    """Return a catalog that imports no class which the metadata of a table or its server names.

    Every catalog of the library opens the files of a table by `_load_file_io`, with the properties that it
    found, before anything else is done with the table.
    """
    given = {**(Config().get_catalog_config(name) or {}), **properties}
    if _is_rest(name, given):
        kind = type("CheckedRest", (_CheckedRest,), {"allowed": tuple(allowed)})
        catalog: Catalog = kind(name, **given)
    else:
        catalog = load_catalog(name, **properties)
    load = catalog._load_file_io

    def load_checked(
        properties: Mapping[str, Any] = MappingProxyType({}), location: str | None = None
    ) -> FileIO:
        check_classes(properties, allowed, f"a property of the metadata of a table of catalog {name}")
        return load(dict(properties), location)

    catalog._load_file_io = load_checked  # type: ignore[method-assign] # there is no public seam
    return catalog


class IcebergCopy:
    """A LakeTable in Iceberg's format."""

    dialect = Dialect(stored_type, widens=promotes, renames=True)
    folder = "data"

    def __init__(self, options: IcebergOptions, clock: Clock, *, allowed: Sequence[str] = ()) -> None:
        self._allowed = allowed
        self.name = options.table
        self.place = f"Iceberg table {options.table}"
        self._options = options
        self._clock = clock
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """The catalog that the options describe.

        It is opened over the network. It is not a cached_property, because all copies share the lock of one.
        """
        if self._catalog is None:
            self._catalog = self._open_catalog()
        return self._catalog

    def _open_catalog(self) -> Catalog:
        properties = reveal_secrets(self._options.catalog)
        name = properties.pop("name", "penstock")
        try:
            return open_catalog(name, properties, self._allowed)
        except (ValueError, ImportError) as error:
            raise Invalid(f"the catalog of {self.place} cannot be opened; check catalog.*") from error

    def close(self) -> None:
        """Close the catalog."""
        if self._catalog is not None:
            self._catalog.close()

    def latest(self) -> Version | None:
        """Return the newest version; None when there is no table. Raises Invalid if it is not Penstock's."""
        try:
            catalog = self.catalog
            with damage_errors(f"the metadata of {self.place}"):
                table = catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except ValidationError as error:
            raise Corrupt(f"the metadata of {self.place} is damaged; keep it for inspection") from error
        with damage_errors(f"the metadata of {self.place}"):
            return self._version_of(table)

    def _version_of(self, table: Table) -> Version:
        found = table.properties
        if _OWNER not in found or _NUMBERING not in found:
            raise Invalid(f"{self.place} is not Penstock's; give the job a table of its own")
        if not table.spec().is_unpartitioned():
            raise Invalid(
                f"another program partitioned {self.place}, which a copy cannot be; drop it, and rebuild it"
                " with `penstock job repair --rebuild`"
            )
        marks = LakeWatermark(
            owner=found[_OWNER],
            job=found[_JOB],
            watermark=int(found[_WATERMARK]),
            column_id=int(found[_COLUMN_ID]),
        )
        schema = copy_columns(table.schema(), found[_NUMBERING])
        crowded = len(table.snapshots()) > SNAPSHOTS_MAX
        return Version(marks=marks, schema=schema, origin=table, crowded=crowded)

    def files(self, version: Version) -> list[DataFile]:
        """Return the files of a version, with the bounds that its manifests have."""
        table: Table = version.origin
        key = key_columns(version.schema)[0]
        field = table.schema().find_field(key)
        kind = version.schema.field(key).type
        store = _files_of(table)
        with damage_errors(f"a manifest of {self.place}"):
            tasks = list(table.scan().plan_files())
        return [
            DataFile(
                store.relative(task.file.file_path),
                task.file.record_count,
                task.file.file_size_in_bytes,
                *bounds_of(task.file, field, kind),
                task,
            )
            for task in tasks
        ]

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; they are in memory all at once."""
        table: Table = version.origin
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        with damage_errors(file.path):
            for batch in scan.to_record_batches([file.origin]):
                yield shape_rows(batch, version.schema)

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> "IcebergStaging":
        """Prepare a commit; raise Overtaken when another writer has created the table."""
        if base is not None:
            table: Table = base.origin
            transaction = strict_transaction(table)
            if not schema.equals(base.schema, check_metadata=True):
                follow(transaction, base.schema, schema)
            return IcebergStaging(self, transaction, table.io.properties, base, schema, whole=whole)
        self.catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        try:
            creation = self.catalog.create_table_transaction(
                self.name, new_schema(schema), properties=_NEW_TABLE
            )
        except TableAlreadyExistsError as error:
            raise Overtaken(f"{self.place} has just been made") from error
        properties = (
            creation._table.io.properties
        )  # with the credentials that the catalog lends for this table
        return IcebergStaging(self, creation, properties, None, schema, whole=True)

    def maintain(self) -> None:
        """Expire old snapshots, and delete the files that only they needed."""
        table = self.catalog.load_table(self.name)
        before_ms = self._clock.wall_ms() - int(self._options.history * 1000)
        store = _files_of(table)
        try:
            for location in expire(table, before_ms):
                store.delete(location)
        except (CommitFailedException, PenstockError) as error:
            _log.warning("old snapshots of %s stay for now: %s", self.place, type(error).__name__)


class IcebergStaging:
    """A prepared commit of an Iceberg table."""

    def __init__(
        self,
        copy: IcebergCopy,
        transaction: Transaction,
        properties: Mapping[str, str],
        base: Version | None,
        schema: pa.Schema,
        *,
        whole: bool,
    ) -> None:
        metadata = transaction.table_metadata
        self.file_schema = file_schema(metadata.schema(), schema)
        self.open_store: Callable[[], IcebergFiles] = partial(
            IcebergFiles, dict(properties), metadata.location
        )
        self._copy = copy
        self._transaction = transaction
        self._base = base
        self._schema = schema
        self._whole = whole

    def commit(
        self, marks: LakeWatermark, written: Sequence[WrittenFile], removed: Sequence[DataFile]
    ) -> None:
        """Commit a snapshot with the watermark; raise Overtaken when the table has a newer one."""
        gone = self._copy.files(self._base) if self._base and self._whole else removed
        metadata = self._transaction.table_metadata
        store = self.open_store()
        summary = {_JOB: marks.job, _WATERMARK: str(marks.watermark)}
        try:
            with Overwrite.begin(self._transaction, store.io, summary) as snapshot:
                for file in gone:
                    snapshot.delete_data_file(file.origin.file)
                for new in written:
                    snapshot.append_data_file(entry_of(new, store.absolute(new.path), metadata))
            self._transaction.set_properties(
                {
                    **summary,
                    _OWNER: marks.owner,
                    _COLUMN_ID: str(marks.column_id),
                    _NUMBERING: numbering(metadata.schema(), self._schema),
                }
            )
            self._transaction.commit_transaction()
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            raise Overtaken(f"{self._copy.place} has a newer snapshot") from error


def _files_of(table: Table) -> IcebergFiles:
    return IcebergFiles(table.io.properties, table.location())
