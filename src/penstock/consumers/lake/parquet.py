"""A plain copy of a table as Parquet files on object storage, for readers that only know Parquet.

The manifest `_penstock.json` names the files that are the table, and its watermark. A reader reads the
manifest and then the files that it names: they are the table at its watermark, and stay for a while after a
later manifest does not name them any more. Other files do not belong to the table.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from penstock.clock import Clock
from penstock.consumers.lake.consumer import LakeConsumer
from penstock.consumers.lake.files import (
    STRAY_MS,
    DataFile,
    FileStore,
    WrittenFile,
    check_only_attempts,
    read_rows,
    remove_half_written,
)
from penstock.consumers.lake.table import LakeOptions, LakeWatermark, Overtaken, Version
from penstock.consumers.schema_evolution import (
    COLUMN_ID,
    KEY_PLACE,
    Dialect,
    column_id,
    key_columns,
    parquet_type,
)
from penstock.errors import Corrupt, Invalid, PenstockError
from penstock.jobs.consumer import JobContext
from penstock.jobs.spec import ConsumerInfo
from penstock.object_storage import ObjectStorage, StorageRef
from penstock.targets import Target

__all__ = ["MANIFEST", "CopyManifest", "ParquetCopy", "Retired", "live_files"]


MANIFEST = "_penstock.json"
_FORMAT = 1
_MANIFEST_BYTES_MAX = 256 * 1024 * 1024  # that of a copy with a million files

_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TYPES = {
    str(kind): kind
    for kind in (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.string(),
        pa.binary(),
        pa.list_(pa.field("element", pa.float32())),
    )
}


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that was part of the copy until some wall time."""

    path: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyManifest:
    """A copy at one commit. `commit` is different in each manifest."""

    marks: LakeWatermark
    schema: pa.Schema
    files: tuple[DataFile, ...]
    retired: tuple[Retired, ...] = field(default=(), repr=False)
    commit: str = ""

    def encode(self) -> bytes:
        """Return the JSON of the manifest."""
        keys = key_columns(self.schema)
        kind = self.schema.field(keys[0]).type
        tree = {
            "format": _FORMAT,
            "commit": self.commit,
            "job": self.marks.job,
            "owner": self.marks.owner,
            "watermark": self.marks.watermark,
            "column_id": self.marks.column_id,
            "keys": keys,
            "columns": [
                {"name": column.name, "type": str(column.type), "id": column_id(column)}
                for column in self.schema
            ],
            "files": [
                {
                    "path": file.path,
                    "rows": file.rows,
                    "bytes": file.nbytes,
                    "lowest": _encode_bound(file.lowest, kind),
                    "highest": _encode_bound(file.highest, kind),
                    "nulls": file.nulls,
                }
                for file in self.files
            ],
            "retired": [{"path": file.path, "at_ms": file.at_ms} for file in self.retired],
        }
        return json.dumps(tree, indent=1, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes, *, place: str) -> Self:
        """Read a manifest; raise Corrupt when it is damaged."""
        try:
            tree = json.loads(data)
            if tree["format"] != _FORMAT:
                raise Corrupt(
                    f"{MANIFEST} at {place} has format {tree['format']}, too new for this version; upgrade"
                )
            schema = pa.schema([_field(column, tree["keys"]) for column in tree["columns"]])
            kind = schema.field(tree["keys"][0]).type
            return cls(
                marks=LakeWatermark(
                    owner=tree["owner"],
                    job=tree["job"],
                    watermark=int(tree["watermark"]),
                    column_id=int(tree["column_id"]),
                ),
                schema=schema,
                files=tuple(_file(file, kind) for file in tree["files"]),
                retired=tuple(Retired(file["path"], file["at_ms"]) for file in tree["retired"]),
                commit=tree["commit"],
            )
        except (KeyError, TypeError, ValueError, RecursionError, pa.ArrowInvalid):
            raise Corrupt(f"{MANIFEST} at {place} is damaged; make another copy at another place") from None


def _field(tree: dict[str, Any], keys: Sequence[str]) -> pa.Field:
    name, kind = tree["name"], tree["type"]
    metadata = {COLUMN_ID: str(tree["id"])}
    if name in keys:
        metadata[KEY_PLACE] = str(keys.index(name))
    decimal = _DECIMAL.fullmatch(kind)
    found = pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _TYPES[kind]
    return pa.field(name, found, metadata=metadata)


def _file(tree: dict[str, Any], kind: pa.DataType) -> DataFile:
    return DataFile(
        tree["path"],
        tree["rows"],
        tree["bytes"],
        _decode_bound(tree["lowest"], kind),
        _decode_bound(tree["highest"], kind),
        tree["nulls"],
    )


def _encode_bound(value: Any, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    return value.hex() if pa.types.is_binary(kind) else pa.scalar(value, kind).cast(pa.string()).as_py()  # type: ignore[no-any-return] # Arrow has no types


def _decode_bound(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    return (
        bytes.fromhex(text) if pa.types.is_binary(kind) else pa.scalar(text, pa.string()).cast(kind).as_py()
    )


_log = logging.getLogger(__name__)


class ParquetCopy(LakeConsumer):
    """Keeps a copy as Parquet files and a manifest. Options: uri, storage.*, history."""

    options_type = LakeOptions

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...]:
        """Return where the copy is."""
        return (LakeOptions.parse(info).target,)

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        self.options = LakeOptions.parse(job.info)

    def open_table(self) -> "ParquetTable":
        """Return the directory at the job's URI."""
        return ParquetTable(self.options.place, self.options.history, self.job.clock)


def live_files(uri: str, storage: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """Return the watermark of a copy, and the URLs of the files that are the table at it.

    Raises Invalid when there is no copy. The files stay for the job's `history` at least.
    """
    place = LakeOptions.model_validate({"uri": uri, "storage": storage or {}}).place
    data = place.open().read(MANIFEST, bytes_max=_MANIFEST_BYTES_MAX)
    if data is None:
        raise Invalid(f"there is no copy at {place.url}; use the uri of its job")
    manifest = CopyManifest.decode(data, place=place.url)
    return manifest.marks.watermark, [f"{place.url}/{file.path}" for file in manifest.files]


class ParquetTable:
    """A LakeTable that is a directory with a manifest."""

    dialect = Dialect(
        parquet_type, adds=False
    )  # all files have the same columns, because readers take them from one
    folder = "data"

    def __init__(self, ref: StorageRef, history_s: float, clock: Clock) -> None:
        self.place = ref.url
        self._ref = ref
        self._history_ms = int(history_s * 1000)
        self._clock = clock

    @cached_property
    def _storage(self) -> ObjectStorage:
        return self._ref.open()

    def latest(self) -> Version | None:
        """Return the newest version; None when there is no manifest. Raises Invalid for files of others."""
        data = self._storage.read(MANIFEST, bytes_max=_MANIFEST_BYTES_MAX)
        if data is None:
            check_only_attempts(self._storage, self.folder, self.place)
            return None
        manifest = CopyManifest.decode(data, place=self.place)
        return Version(marks=manifest.marks, schema=manifest.schema, origin=(manifest, data))

    def files(self, version: Version) -> list[DataFile]:
        """Return the files that the manifest names."""
        manifest: CopyManifest = version.origin[0]
        return list(manifest.files)

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in the version's columns."""
        return read_rows(self._storage, file.path, version.schema)

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> "ParquetStaging":
        """Prepare a commit."""
        return ParquetStaging(self, base, schema, whole=whole)

    @property
    def open_store(self) -> Callable[[], FileStore]:
        """Opens the directory."""
        return self._ref.open

    def commit(
        self, marks: LakeWatermark, schema: pa.Schema, base: Version | None, files: Sequence[DataFile]
    ) -> None:
        """Replace the manifest that was seen; raise Overtaken when there is another one by now."""
        before: tuple[CopyManifest | None, bytes | None] = base.origin if base else (None, None)
        now_ms = self._clock.wall_ms()
        kept, due = _retire(before[0], files, now_ms, self._history_ms)
        manifest = CopyManifest(
            marks=marks,
            schema=schema,
            files=tuple(files),
            retired=tuple(kept),
            commit=self._clock.unique_id(),
        )
        if not self._storage.swap(MANIFEST, manifest.encode(), seen=before[1]):
            raise Overtaken(f"{MANIFEST} at {self.place} is another one by now")
        self._remove([file.path for file in due])

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def maintain(self) -> None:
        """Remove old files that no manifest names; files that a manifest retired are removed by commits."""
        version = self.latest()
        if version is None:
            return
        manifest: CopyManifest = version.origin[0]
        known = {file.path for file in manifest.files} | {file.path for file in manifest.retired}
        old_ms = self._clock.wall_ms() - self._history_ms - STRAY_MS
        listed = self._storage.list_objects(f"{self.folder}/")
        self._remove([file.path for file in listed if file.path not in known and file.modified_ms < old_ms])
        remove_half_written(self._storage, self._clock.wall_ms())

    def _remove(self, paths: Sequence[str]) -> None:
        try:
            for path in paths:
                self._storage.delete(path)
        except PenstockError as error:
            _log.warning("files that are not needed any more are left at %s: %s", self.place, error)


def _retire(
    before: CopyManifest | None, files: Sequence[DataFile], now_ms: int, history_ms: int
) -> tuple[list[Retired], list[Retired]]:
    """Return the retired files that are still kept, and those that are due for removal."""
    if before is None:
        return [], []
    live = {file.path for file in files}
    left = [Retired(file.path, now_ms) for file in before.files if file.path not in live]
    everything = [*before.retired, *left]
    due = [file for file in everything if file.at_ms + history_ms <= now_ms]
    return [file for file in everything if file not in due], due


class ParquetStaging:
    """A prepared commit of a directory."""

    def __init__(self, table: ParquetTable, base: Version | None, schema: pa.Schema, *, whole: bool) -> None:
        self.file_schema = schema.remove_metadata()
        self.open_store = table.open_store
        self._table = table
        self._base = base
        self._schema = schema
        self._whole = whole

    def commit(
        self, marks: LakeWatermark, written: Sequence[WrittenFile], removed: Sequence[DataFile]
    ) -> None:
        """Write the manifest of the new files; raise Overtaken when there is another one by now."""
        key = key_columns(self._schema)[0]
        stay = self._table.files(self._base) if self._base and not self._whole else []
        gone = {file.path for file in removed}
        files = [file for file in stay if file.path not in gone]
        self._table.commit(marks, self._schema, self._base, [*files, *(file.file(key) for file in written)])
