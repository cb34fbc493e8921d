"""The two sides of changes put together, whatever order they come in."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.row_changes import Pairing, key_columns
from penstock.changes import ChangeBatch, Hint
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.follow.slices import Phase, Position
from penstock.tables.columns import ColumnInfo
from penstock.tables.define import define_column, define_table
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo

MOVING = replace(
    define_table("items", [("id", "bigint"), ("name", "text")], primary_key=["id"], clustered=False), id=1
)
STAYING = replace(define_table("items", [("id", "bigint primary key"), ("name", "text")]), id=1)

FOLDING = replace(define_table("items", [("id", "varchar(9) primary key"), ("name", "text")]), id=1)
EXACT = define_table("items", [("id", "varchar(9) collate utf8mb4_0900_bin primary key"), ("name", "text")])
CUT = replace(  # PRIMARY KEY (id(2)) CLUSTERED: what is behind the first two characters may change
    EXACT,
    id=1,
    indexes=tuple(
        replace(index, columns=tuple(replace(part, length=2) for part in index.columns))
        for index in EXACT.indexes
    ),
)
RATIOS = replace(
    define_table("items", [("id", "double"), ("name", "text")], primary_key=["id"], clustered=False), id=1
)

START = Position(0)

Event = tuple[int, int, Any, Any]  # commit-ts, handle, id before, id after


def batch(table: TableInfo, *events: Event) -> ChangeBatch:
    ends, begins = [], []
    for ts, handle, before, after in events:
        system: dict[str, Any] = {"_handle": handle.to_bytes(8, "big"), "_commit_ts": ts, "_start_ts": ts - 1}
        system["_update"] = before is not None and after is not None
        if "key" in (column.name for column in table.columns):
            system["key"] = handle
        if before is not None:
            ends.append({**system, "id": before, "_old": {"id": before, "name": f"was {before}"}})
        if after is not None:
            begins.append({**system, "id": after, "name": f"is {after}"})
    sides = (
        pa.RecordBatch.from_pylist(rows, side_schema(table, side))
        for rows, side in ((begins, "data"), (ends, "tombstone"))
    )
    return ChangeBatch(*sides, Hint.TAIL_DONE, SchemaVersion(0, 1, table), 9)


def paired(
    table: TableInfo, *events: Event, after: Position = START, upto: Position | None = None
) -> list[tuple[int, str, Any, str]]:
    made = Pairing(table, ["id", "name"], ["id", "name"]).of([batch(table, *events)], after, upto)
    old = iter(made.old.to_pylist())
    return [
        (int(ts), "IUD"[kind], row["id"], row["name"] + (f", {next(old)['name']}" if kind == 1 else ""))
        for ts, kind, row in zip(made.commit_ts, made.kinds, made.rows.to_pylist(), strict=True)
    ]


def test_rows_that_exchange_their_keys_are_deleted_before_they_come_back() -> None:
    assert paired(MOVING, (5, 1, 10, 20), (5, 2, 20, 10), (5, 3, 30, 30), (6, 1, 20, None)) == [
        (5, "D", 10, "was 10"),
        (5, "D", 20, "was 20"),
        (5, "I", 20, "is 20"),
        (5, "I", 10, "is 10"),
        (5, "U", 30, "is 30, was 30"),
        (6, "D", 20, "was 20"),
    ]


UNIQUE = replace(
    define_table("items", [("key", "bigint primary key"), ("id", "bigint unique"), ("name", "text")]), id=1
)
"""Its handle is not what `id` has: events of this table change a unique key by which readers know no row."""


def test_an_update_of_a_unique_key_is_split_and_deletes_of_a_commit_come_first() -> None:
    events = (
        (5, 1, 10, 20),
        (5, 2, 20, 10),
        (5, 3, 30, 30),
        (5, 4, None, 40),
        (5, 5, 50, None),
        (6, 1, 20, 20),
    )
    assert paired(UNIQUE, *events) == [
        (5, "D", 10, "was 10"),
        (5, "D", 20, "was 20"),
        (5, "D", 50, "was 50"),
        (5, "I", 20, "is 20"),
        (5, "I", 10, "is 10"),
        (5, "U", 30, "is 30, was 30"),
        (5, "I", 40, "is 40"),
        (6, "U", 20, "is 20, was 20"),
    ]


def test_a_position_is_in_the_deletes_of_a_commit_or_in_the_rest_of_it() -> None:
    events = (5, 1, 10, 20), (5, 2, 20, 10), (5, 3, 30, 30), (5, 4, 40, None)
    every = [(5, "D", 10), (5, "D", 20), (5, "D", 40), (5, "I", 20), (5, "I", 10), (5, "U", 30)]
    ends = [(1, Phase.DELETES), (2, Phase.DELETES), (4, Phase.DELETES), (1, Phase.REST), (2, Phase.REST)]
    for count, (handle, phase) in enumerate(ends, 1):
        at = Position(5, handle.to_bytes(8, "big") + b"\0", phase)
        assert [each[:3] for each in paired(UNIQUE, *events, after=at)] == every[count:]
        assert [each[:3] for each in paired(UNIQUE, *events, upto=at)] == every[:count]


def hidden(name: str, *depends_on: str) -> ColumnInfo:
    """Return the column that TiDB makes for an expression in an index."""
    column = replace(define_column(name, "bigint", column_id=9)[0], generated_expr="x", hidden=True)
    return replace(column, extra={"dependences": dict.fromkeys(depends_on)})


@pytest.mark.parametrize(
    ("depends_on", "watched"),
    [(("NAME",), ("name",)), ((), ("id", "name", "code"))],
    ids=["known", "unknown"],
)
def test_a_unique_expression_changes_with_the_columns_that_it_depends_on(
    depends_on: tuple[str, ...], watched: tuple[str, ...]
) -> None:
    table = define_table("items", [("id", "bigint primary key"), ("name", "text"), ("code", "bigint")])
    index = IndexInfo(7, "e", (IndexColumn("_V$_e_0", 3),), unique=True)
    table = replace(table, columns=(*table.columns, hidden("_V$_e_0", *depends_on)), indexes=(index,))
    assert key_columns(table) == watched


@pytest.mark.parametrize(("table", "before", "after"), [(FOLDING, "a", "a "), (CUT, "abc", "abd")])
def test_a_key_that_changes_under_its_handle_is_deleted_and_inserted(
    table: TableInfo, before: str, after: str
) -> None:
    events = (5, 1, before, after), (5, 2, "b", "b"), (5, 3, None, "c"), (6, 1, after, after)
    assert paired(table, *events) == [
        (5, "D", before, f"was {before}"),
        (5, "I", after, f"is {after}"),
        (5, "U", "b", "is b, was b"),
        (5, "I", "c", "is c"),
        (6, "U", after, f"is {after}, was {after}"),
    ]


def test_keys_are_compared_as_they_are_written() -> None:
    """Files have `-0` and `0`, which are equal as numbers."""
    assert [each[1] for each in paired(RATIOS, (5, 1, 0.0, -0.0), (6, 1, -0.0, -0.0))] == ["D", "I", "U"]


def test_sides_come_together_in_the_order_of_commits_and_handles() -> None:
    assert paired(STAYING, (5, 3, 3, 3), (5, 1, None, 1), (5, 2, 2, None), (4, 9, 9, 9)) == [
        (4, "U", 9, "is 9, was 9"),
        (5, "I", 1, "is 1"),
        (5, "D", 2, "was 2"),
        (5, "U", 3, "is 3, was 3"),
    ]


def test_what_is_not_after_a_position_is_left_out() -> None:
    events = ((4, 9, 9, 9), (5, 1, None, 1), (5, 2, 2, None), (6, 1, 1, 1))
    handle = (2).to_bytes(8, "big")
    assert [each[:2] for each in paired(STAYING, *events, after=Position(5, handle))] == [(5, "D"), (6, "U")]
    assert [each[:2] for each in paired(STAYING, *events, after=Position(5, handle + b"\0"))] == [(6, "U")]
    assert [each[:2] for each in paired(STAYING, *events, after=Position(5))] == [(6, "U")]
    assert paired(STAYING, *events, after=Position(6)) == []
