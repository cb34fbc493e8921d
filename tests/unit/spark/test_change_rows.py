"""Rows of the change feed out of batches of changes."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changes import ChangeBatch, Hint
from penstock.clock import compose_ts
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.spark.change_rows import FEED_BATCH_ROWS, ChangeRows
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from support.itemtables import item, item_table
from support.tableworld import TableWorld

ITEMS = item_table()
RENAMED = replace(define_table("items", [("id", "bigint primary key"), ("title", "varchar(200)")]), id=1)
LATER = add_column(RENAMED, "stock", "int default 7")  # of the same columns: ids are given in order


def feed(world: TableWorld, from_ts: int, to_ts: int, columns: list[str] | None = None) -> list[Any]:
    rows = ChangeRows(world.versions.table, columns)
    reads = rows.reads([version.table for version in world.table.schemas])
    batches = world.changes(
        from_ts, to_ts, columns=reads, coalesce=False, old_rows=True, batch_rows=FEED_BATCH_ROWS
    )
    return pa.Table.from_batches(map(rows.of, batches), rows.schema).to_pylist()


def kinds(rows: list[Any], *names: str) -> list[tuple[Any, ...]]:
    return [(row["_change_type"], *(row[name] for name in names)) for row in rows]


def test_every_change_is_told_with_its_type_in_the_order_of_commits(tmp_path: Path):
    with TableWorld(tmp_path, ITEMS) as world:
        start = world.ts
        world.commit(item("integer", 1, "a"), item("integer", 2, "b"))
        middle = world.commit(item("integer", 1, "c"), delete=[(2,)])
        world.commit(item("integer", 2, "d"))
        rows = feed(world, start, world.resolve())
    assert kinds(rows, "id", "name") == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("update_preimage", 1, "a"),
        ("delete", 2, "b"),
        ("update_postimage", 1, "c"),
        ("insert", 2, "d"),
    ]
    assert [row["_commit_version"] for row in rows[2:5]] == [middle] * 3


def test_the_timestamp_is_the_physical_part_of_the_version(tmp_path: Path):
    at = compose_ts(1_750_000_000_123, 77)
    with TableWorld(tmp_path, ITEMS) as world:
        start = world.ts
        world.commit(item("integer", 1, "a"), at=at)
        world.ts = at
        (row,) = feed(world, start, world.resolve())
    assert row["_commit_timestamp"] == datetime.fromtimestamp(1_750_000_000.123, UTC)


def test_rows_of_older_schemas_have_the_columns_of_the_newest(tmp_path: Path):
    with TableWorld(tmp_path, ITEMS) as world:
        start = world.ts
        world.commit(item("integer", 1, "a"))
        world.alter(LATER)
        world.commit({"id": 1, "title": "b", "stock": 2})
        world.commit(delete=[(1,)])
        rows = feed(world, start, world.resolve())
    assert kinds(rows, "id", "title", "stock") == [
        ("insert", 1, "a", 7),
        ("update_preimage", 1, "a", 7),
        ("update_postimage", 1, "b", 2),
        ("delete", 1, "b", 2),
    ]


def test_chosen_columns_come_in_their_order_with_those_of_the_feed(tmp_path: Path):
    with TableWorld(tmp_path, item_table("no key")) as world:
        start = world.ts
        world.commit(item("no key", 5, "a"))
        rows = feed(world, start, world.resolve(), ["_handle", "NAME", "_commit_version"])
    names = ["_handle", "name", "_change_type", "_commit_version", "_commit_timestamp"]
    assert [list(row) for row in rows] == [names]
    assert len(rows[0]["_handle"]) == 8


def unknown_old(table: TableInfo, *, keys: dict[str, Any]) -> ChangeBatch:
    """A delete of a row of which only the key is known."""
    tombstone = {"_commit_ts": 9, "_start_ts": 8, "_update": False, "_old": None, **keys}
    names = [*keys, "_commit_ts", "_start_ts", "_update", "_old"]
    schema = pa.schema([side_schema(table, "tombstone").field(name) for name in names])
    nothing = pa.RecordBatch.from_pylist([], side_schema(table, "data"))
    ended = pa.RecordBatch.from_pylist([tombstone], schema)
    return ChangeBatch(nothing, ended, Hint.TAIL_DONE, SchemaVersion(0, 1, table, "shop"), 9)


def test_of_a_row_that_was_never_seen_only_the_key_is_told():
    row = ChangeRows(ITEMS).of(unknown_old(ITEMS, keys={"id": 4})).to_pylist()[0]
    assert (row["id"], row["name"], row["_change_type"]) == (4, None, "delete")


def test_a_row_that_was_never_seen_has_no_defaults_of_later_columns():
    row = ChangeRows(LATER).of(unknown_old(ITEMS, keys={"id": 4})).to_pylist()[0]
    assert (row["id"], row["title"], row["stock"]) == (4, None, None)


def test_it_travels():
    rows = ChangeRows(LATER, ["stock"])
    again = pickle.loads(pickle.dumps(rows))
    assert again.schema == rows.schema
    assert again.reads([ITEMS]) == rows.reads([ITEMS])


@pytest.mark.parametrize("name", ["nam", "_old", "_commit_ts"])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(name: str):
    with pytest.raises(Invalid, match=f"no column '{name}'; it has id, name"):
        ChangeRows(ITEMS, [name])


def test_a_column_named_like_one_of_the_feed_is_refused_unless_others_are_chosen():
    table = replace(define_table("items", [("id", "bigint primary key"), ("_change_type", "int")]), id=1)
    with pytest.raises(Invalid, match="as the change feed has"):
        ChangeRows(table)
    assert ChangeRows(table, ["id"]).schema.names[0] == "id"
