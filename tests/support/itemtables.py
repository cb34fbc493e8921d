"""Tables that differ in what identifies their rows."""

from dataclasses import replace
from typing import Any

from penstock.tables.define import define_table
from penstock.tables.schema import ROWID_COLUMN, TableInfo
from penstock.testing.versions import Row

_ID, _TEXT = ("id", "bigint"), ("name", "varchar(200)")

TABLES: dict[str, TableInfo] = {
    "integer": define_table("items", [("id", "bigint primary key"), _TEXT]),
    "composite": define_table("items", [_ID, ("part", "varchar(8)"), _TEXT], primary_key=["part", "id"]),
    "not clustered": define_table("items", [_ID, _TEXT], primary_key=["id"], clustered=False),
    "no key": define_table("items", [_ID, _TEXT]),
    "unique": define_table("items", [("id", "bigint primary key"), _TEXT, ("code", "bigint unique")]),
}
"""By kind of key; every one has a number `id` and a text `name`."""


def item_table(kind: str = "integer", *, table_id: int = 1, partitions: tuple[int, ...] = ()) -> TableInfo:
    """Return a table of some kind; with partitions, those are the physical tables."""
    extra: dict[str, Any] = {}
    if partitions:
        extra = {
            "partition": {"enable": True, "definitions": [{"id": partition} for partition in partitions]}
        }
    return replace(TABLES[kind], id=table_id, extra=extra)


def item(kind: str, number: int, name: str, *, rowid: int = 0, **more: Any) -> Row:
    """Return the row of a number; `rowid` (by default the number) is its handle where its key is not."""
    row: Row = {"id": number, "name": name}
    if kind == "composite":
        row["part"] = f"p{number % 3}"
    elif kind in {"not clustered", "no key"}:
        row[ROWID_COLUMN] = rowid or number
    return {**row, **more}
