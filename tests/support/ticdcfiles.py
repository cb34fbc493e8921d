"""A directory as TiCDC's storage sink lays it out, written by hand: for tests of whoever reads one."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.object_storage import ObjectStorage

__all__ = ["TicdcDirectory", "canal_line", "column"]

Column = Mapping[str, Any]


def column(name: str, type: str, **members: Any) -> dict[str, Any]:  # noqa: A002 - as the file calls it
    """Return a column of a schema file; `pk=True` marks the primary key; others are members by name."""
    key = {"ColumnNullable": "false", "ColumnIsPk": "true"} if members.pop("pk", False) else {}
    elems = {"ColumnElems": members.pop("ColumnElems")} if "ColumnElems" in members else {}
    return {"ColumnName": name, "ColumnType": type, **members, **key, **elems}


class TicdcDirectory:
    """Writes files one by one, each where TiCDC would have it."""

    def __init__(self, storage: ObjectStorage, *, date: str = "2026-02-04") -> None:
        self.storage = storage
        self.date = date

    def checkpoint(self, ts: int) -> None:
        """Write the metadata file."""
        self.storage.write("metadata", json.dumps({"checkpoint-ts": ts}).encode())

    def schema(
        self,
        root: str,
        version: int,
        columns: Sequence[Column],
        *,
        query: str = "",
        type: int = 0,  # noqa: A002 - as the file calls it
        name: tuple[str, str] | None = None,
        checksum: int | None = None,
    ) -> str:
        """Write a schema file of `schema/table`, of `schema`, or, with its name, of a table id."""
        database, _, table = root.partition("/")
        if name is not None:
            database, table = name
        covered = {
            "Table": table,
            "Schema": database,
            "Version": 0,
            "TableColumns": sorted(columns, key=lambda each: str(each["ColumnName"])),
            "TableColumnsTotal": len(columns),
        }
        found = zlib.crc32(json.dumps(covered, indent=4).encode()) if checksum is None else checksum
        content = {
            **covered,
            "Version": 1,
            "TableVersion": version,
            "Query": query,
            "Type": type,
            "TableColumns": list(columns) or None,
        }
        path = f"{root}/meta/schema_{version}_{found:010d}.json"
        self.storage.write(path, json.dumps(content, indent=4).encode())
        return path

    def data(
        self,
        place: str,
        number: int,
        content: bytes,
        *,
        dispatcher: str = "",
        extension: str = ".json",
        date: str | None = None,
        indexed: bool = True,
    ) -> str:
        """Write a data file into `schema/table/version[/partition]`, then the index; return its path."""
        wanted = self.date if date is None else date
        folder = f"{place}/{wanted}" if wanted else place
        owner = f"_{dispatcher}_" if dispatcher else ""
        name = f"CDC{owner}{number:020d}{extension}"
        self.storage.write(f"{folder}/{name}", content)
        if indexed:
            index = f"CDC_{dispatcher}.index" if dispatcher else "CDC.index"
            self.storage.write(f"{folder}/meta/{index}", f"{name}\n".encode())
        return f"{folder}/{name}"


def canal_line(
    kind: str,
    data: Mapping[str, str | None],
    *,
    old: Mapping[str, str | None] | None = None,
    commit_ts: int | None = None,
    name: tuple[str, str] = ("shop", "orders"),
) -> bytes:
    """Return one change as a line of canal-json, with TiDB's extension when it tells its commit."""
    line: dict[str, Any] = {
        "id": 0,
        "database": name[0],
        "table": name[1],
        "pkNames": ["id"],
        "isDdl": False,
        "type": kind,
        "es": (commit_ts or 0) >> 18,
        "ts": 1_700_000_000_000,
        "sql": "",
        "sqlType": dict.fromkeys(data, 12),
        "mysqlType": dict.fromkeys(data, "varchar"),
        "old": None if old is None else [dict(old)],
        "data": [dict(data)],
    }
    if commit_ts is not None:
        line["_tidb"] = {"commitTs": commit_ts}
    return json.dumps(line).encode() + b"\r\n"
