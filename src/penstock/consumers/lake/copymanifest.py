"""The manifest of a Parquet copy: which files are the table, and up to when. JSON in `_penstock.json`. Pure.

Whoever reads the copy reads the manifest and then the files that it names: they are the table at its
watermark, and stay for a while after a later manifest does not name them any more. Others are none of it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from penstock.consumers.lake.files import DataFile
from penstock.consumers.lake.table import LakeWatermark
from penstock.consumers.lakeschema import COLUMN_ID, KEY_PLACE, column_id, key_columns
from penstock.errors import Corrupt

__all__ = ["MANIFEST", "CopyManifest", "Retired"]

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
