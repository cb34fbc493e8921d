"""Rows of one schema version as rows of a later one: as the row decoder reads the stored rows then."""

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import Corrupt
from penstock.eventstore.schema_version import Projection
from penstock.tables import records
from penstock.tables.alter import add_column, drop_column, modify_column
from penstock.tables.decoding.decoder import decode_rows
from penstock.tables.define import define_table
from penstock.tables.keys import record_key
from penstock.tables.schema import TableInfo


def a_table(definition: str) -> TableInfo:
    return replace(define_table("items", [("id", "bigint primary key"), ("v", definition)]), id=1)


def decoded(rows: list[dict[str, Any]], written: TableInfo, read: TableInfo) -> pa.RecordBatch:
    """Rows written under one schema and read under another."""
    values = [records.value_of(written, records.to_record(written, row, start_ts=1 << 58)) for row in rows]
    keys = [record_key(1, row["id"]) for row in rows]
    return decode_rows(read, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


def renamed(table: TableInfo, old: str, new: str) -> TableInfo:
    return table.with_columns(
        [replace(each, name=new) if each.name == old else each for each in table.columns]
    )


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("tinyint", "bigint", [-128, 127]),
        ("tinyint unsigned", "smallint unsigned", [0, 255]),
        ("int unsigned", "bigint unsigned", [0, (1 << 32) - 1]),
        ("float", "double", [0.1, -2.5]),
        ("decimal(10,2)", "decimal(14,5)", [Decimal("-12345678.91"), Decimal("0.01")]),
        ("decimal(10,8)", "decimal(50,10)", [Decimal("0.00000001"), Decimal("-12.5")]),
        ("decimal(40,2)", "decimal(60,20)", [Decimal(10) ** 37 + Decimal("0.25"), Decimal(0)]),
        ("varchar(4)", "varchar(400)", ["", "été"]),
        ("tinytext", "longtext", ["a", "b"]),
        ("bit(5)", "bit(64)", [0, 31]),
        ("datetime", "datetime(6)", [datetime(2024, 2, 29, 12, 30), datetime(1, 1, 1)]),
        ("enum('a','b')", "enum('a','b','c')", ["a", "b"]),
    ],
)
def test_a_widened_column_reads_as_its_stored_rows_do(old: str, new: str, values: list[Any]) -> None:
    before = a_table(old)
    after = modify_column(before, "v", new)
    rows = [{"id": at, "v": value} for at, value in enumerate([*values, None])]
    found = Projection(before, after, ["id", "v"]).apply(decoded(rows, before, before))
    assert found.equals(decoded(rows, before, after))


@pytest.mark.parametrize(
    "definition",
    [
        "int",
        "int not null",
        "int not null default 7",
        "bigint unsigned default 18446744073709551615",
        "varchar(20) default 'none'",
        "varchar(20) not null",
        "varbinary(20) default 'none'",
        "decimal(9,3) not null default 1.5",
        "double default -0.5",
        "date default '2024-02-29'",
        "datetime(3) not null default '2024-02-29 01:02:03.004'",
        "timestamp default '2024-02-29 01:02:03'",
        "time default '-12:30:00'",
        "year default 2024",
        "enum('a','b') not null",
        "set('a','b') default 'a,b'",
        "bit(5) default 3",
        "json",
    ],
)
def test_an_added_column_reads_as_it_does_in_rows_written_before(definition: str) -> None:
    before = a_table("int")
    after = add_column(before, "more", definition, after="id")
    rows = [{"id": at, "v": at} for at in range(3)]
    found = Projection(before, after, ["id", "more", "v"]).apply(decoded(rows, before, before))
    assert found.equals(decoded(rows, before, after))


def test_columns_are_found_by_their_ids_not_by_their_names() -> None:
    before = define_table("items", [("id", "bigint primary key"), ("a", "int"), ("b", "int"), ("c", "int")])
    dropped = drop_column(before, "c")
    after = add_column(renamed(renamed(renamed(dropped, "a", "x"), "b", "a"), "x", "b"), "c", "int default 9")
    batch = pa.record_batch(
        {"id": pa.array([1]), "a": pa.array([10], pa.int32()), "b": pa.array([20], pa.int32())}
    )
    whole = batch.append_column("c", pa.array([30], pa.int32()))
    assert Projection(before, after, ["c", "b", "a"]).apply(whole).to_pylist() == [{"c": 9, "b": 10, "a": 20}]
    assert Projection(before, after, ["c", "b", "a"]).reads == ("a", "b")


def test_what_did_not_change_is_not_copied_and_system_columns_stay() -> None:
    table = a_table("varchar(20)")
    batch = pa.record_batch({"_commit_ts": [5], "v": ["x"], "id": [1], "_handle": [b"h"]})
    found = Projection(table, table, ["v", "_commit_ts", "_handle"]).apply(batch)
    assert found.schema.names == ["v", "_commit_ts", "_handle"]
    assert found.column("v").buffers()[2].address == batch.column("v").buffers()[2].address


def test_no_columns_still_count_the_rows() -> None:
    table = a_table("int")
    assert Projection(table, table, []).apply(pa.record_batch({"id": [1, 2, 3]})).num_rows == 3


def test_a_value_that_is_none_of_the_later_type_is_corrupt() -> None:
    before, after = a_table("bigint"), a_table("tinyint")
    with pytest.raises(Corrupt, match="column v is not of type int8"):
        Projection(before, after, ["v"]).apply(pa.record_batch({"id": [1], "v": [1 << 40]}))
