"""A plain copy of a table as Parquet files on object storage, for readers that know nothing but Parquet.

`_penstock.json` names the files that are the table, and its watermark; see lake/copymanifest.py.

The manifest of a Parquet copy: which files are the table, and up to when. JSON in `_penstock.json`. Pure.

Whoever reads the copy reads the manifest and then the files that it names: they are the table at its
watermark, and stay for a while after a later manifest does not name them any more. Others are none of it.
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
from penstock.object_storage import ObjectStorage, StorageRef

__all__ = ["MANIFEST", "CopyManifest", "ParquetCopy", "Retired", "live_files"]


MANIFEST = "_penstock.json"
_FORMAT = 1

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
    """A copy at one commit. `commit` is another one in each manifest."""

    marks: LakeWatermark
    schema: pa.Schema
    files: tuple[DataFile, ...]
    retired: tuple[Retired, ...] = field(default=(), repr=False)
    commit: str = ""

    def encoded(self) -> bytes:
        """As it is stored."""
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
                {"name": each.name, "type": str(each.type), "id": column_id(each)} for each in self.schema
            ],
            "files": [
                {
                    "path": each.path,
                    "rows": each.rows,
                    "bytes": each.nbytes,
                    "lowest": _bound_text(each.lowest, kind),
                    "highest": _bound_text(each.highest, kind),
                    "nulls": each.nulls,
                }
                for each in self.files
            ],
            "retired": [{"path": each.path, "at_ms": each.at_ms} for each in self.retired],
        }
        return json.dumps(tree, indent=1, ensure_ascii=False).encode()

    @classmethod
    def decoded(cls, data: bytes, *, place: str) -> Self:
        """Read it; raise Corrupt when it is no manifest."""
        try:
            tree = json.loads(data)
            if tree["format"] != _FORMAT:
                raise Corrupt(
                    f"{MANIFEST} at {place} has format {tree['format']}, too new for this version; upgrade"
                )
            schema = pa.schema([_field(each, tree["keys"]) for each in tree["columns"]])
            kind = schema.field(tree["keys"][0]).type
            return cls(
                marks=LakeWatermark(
                    owner=tree["owner"],
                    job=tree["job"],
                    watermark=int(tree["watermark"]),
                    column_id=int(tree["column_id"]),
                ),
                schema=schema,
                files=tuple(_file(each, kind) for each in tree["files"]),
                retired=tuple(Retired(each["path"], each["at_ms"]) for each in tree["retired"]),
                commit=tree["commit"],
            )
        except (KeyError, TypeError, ValueError, pa.ArrowInvalid):
            raise Corrupt(f"{MANIFEST} at {place} is damaged; make the copy anew at another place") from None


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
        _bound(tree["lowest"], kind),
        _bound(tree["highest"], kind),
        tree["nulls"],
    )


def _bound_text(value: Any, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    return value.hex() if pa.types.is_binary(kind) else pa.scalar(value, kind).cast(pa.string()).as_py()  # type: ignore[no-any-return] # Arrow has no types


def _bound(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    return (
        bytes.fromhex(text) if pa.types.is_binary(kind) else pa.scalar(text, pa.string()).cast(kind).as_py()
    )


_log = logging.getLogger(__name__)


class ParquetCopy(LakeConsumer):
    """Keeps a copy as Parquet files and a manifest. Options: uri, storage.*, history."""

    options_type = LakeOptions

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        self.options = LakeOptions.parse(job.info)

    def open_table(self) -> "ParquetTable":
        """See LakeConsumer."""
        return ParquetTable(self.options.place, self.options.history, self.job.clock)


def live_files(uri: str, storage: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """The watermark of a copy, and the URLs of the files that are the table then.

    Raises Invalid when there is no copy. The files stay for the job's `history` at least.
    """
    place = LakeOptions.model_validate({"uri": uri, "storage": storage or {}}).place
    data = place.open().read(MANIFEST)
    if data is None:
        raise Invalid(f"there is no copy at {place.url}; look at the uri of its job")
    manifest = CopyManifest.decoded(data, place=place.url)
    return manifest.marks.watermark, [f"{place.url}/{each.path}" for each in manifest.files]


class ParquetTable:
    """A directory with a manifest. Implements LakeTable."""

    dialect = Dialect(parquet_type, adds=False)  # all files have the same columns: readers look at one
    folder = "data"

    def __init__(self, ref: StorageRef, history_s: float, clock: Clock) -> None:
        self.place = ref.url
        self._ref = ref
        self._history_ms = int(history_s * 1000)
        self._clock = clock

    @cached_property
    def _storage(self) -> ObjectStorage:
        return self._ref.open()

    def look(self) -> Version | None:
        """See LakeTable."""
        data = self._storage.read(MANIFEST)
        if data is None:
            check_only_attempts(self._storage, self.folder, self.place)
            return None
        manifest = CopyManifest.decoded(data, place=self.place)
        return Version(marks=manifest.marks, schema=manifest.schema, origin=(manifest, data))

    def files(self, version: Version) -> list[DataFile]:
        """See LakeTable."""
        manifest: CopyManifest = version.origin[0]
        return list(manifest.files)

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """See LakeTable."""
        return read_rows(self._storage, file.path, version.schema)

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> "ParquetStaging":
        """See LakeTable."""
        return ParquetStaging(self, base, schema, whole=whole)

    @property
    def open_store(self) -> Callable[[], FileStore]:
        """Opens the directory."""
        return self._ref.open

    def commit(
        self, marks: LakeWatermark, schema: pa.Schema, base: Version | None, files: Sequence[DataFile]
    ) -> None:
        """Put a manifest in place of the one that was seen."""
        before: tuple[CopyManifest | None, bytes | None] = base.origin if base else (None, None)
        now_ms = self._clock.wall_ms()
        kept, due = _retired(before[0], files, now_ms, self._history_ms)
        manifest = CopyManifest(
            marks=marks,
            schema=schema,
            files=tuple(files),
            retired=tuple(kept),
            commit=self._clock.unique_id(),
        )
        if not self._storage.swap(MANIFEST, manifest.encoded(), seen=before[1]):
            raise Overtaken(f"{MANIFEST} at {self.place} is another one by now")
        self._remove([each.path for each in due])

    def close(self) -> None:
        """See LakeTable."""

    def maintain(self) -> None:
        """See LakeTable. Files that a manifest retired go with the commits; here go those of nobody."""
        version = self.look()
        if version is None:
            return
        manifest: CopyManifest = version.origin[0]
        known = {each.path for each in manifest.files} | {each.path for each in manifest.retired}
        old_ms = self._clock.wall_ms() - self._history_ms - STRAY_MS
        listed = self._storage.list_objects(f"{self.folder}/")
        self._remove([each.path for each in listed if each.path not in known and each.modified_ms < old_ms])
        remove_half_written(self._storage, self._clock.wall_ms())

    def _remove(self, paths: Sequence[str]) -> None:
        try:
            for path in paths:
                self._storage.delete(path)
        except PenstockError as error:
            _log.warning("files that are not needed any more are left at %s: %s", self.place, error)


def _retired(
    before: CopyManifest | None, files: Sequence[DataFile], now_ms: int, history_ms: int
) -> tuple[list[Retired], list[Retired]]:
    """What is still kept of files that are not live any more, and what is due to go."""
    if before is None:
        return [], []
    live = {each.path for each in files}
    left = [Retired(each.path, now_ms) for each in before.files if each.path not in live]
    everything = [*before.retired, *left]
    due = [each for each in everything if each.at_ms + history_ms <= now_ms]
    return [each for each in everything if each not in due], due


class ParquetStaging:
    """See Staging."""

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
        """See Staging."""
        key = key_columns(self._schema)[0]
        stay = self._table.files(self._base) if self._base and not self._whole else []
        gone = {each.path for each in removed}
        files = [each for each in stay if each.path not in gone]
        self._table.commit(marks, self._schema, self._base, [*files, *(each.file(key) for each in written)])
