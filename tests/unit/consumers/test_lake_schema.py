"""How the columns of a copy follow those of the source."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from penstock.changes.columns import choose_columns, key_names
from penstock.consumers.lake.iceberg_metadata import promotes, stored_type
from penstock.consumers.schema_evolution import (
    ArrowColumns,
    ArrowEvolution,
    Dialect,
    column_id,
    key_columns,
    parquet_type,
    plan_arrow_evolution,
    shape_rows,
)
from penstock.jobs.error_codes import SchemaRefused
from penstock.tables.alter import add_column, drop_column, modify_column
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo

PLAIN = Dialect(parquet_type)
RICH = Dialect(stored_type, widens=promotes, renames=True)
TABLE = define_table("items", [("id", "bigint primary key"), ("small", "tinyint"), ("name", "varchar(9)")])


def columns(table: TableInfo, dialect: Dialect = PLAIN, chosen: list[str] | None = None) -> ArrowColumns:
    return ArrowColumns(choose_columns(table, chosen), key_names(table), table, dialect)


def evolution(after: TableInfo, dialect: Dialect = PLAIN, before: TableInfo = TABLE) -> ArrowEvolution:
    there = columns(before, dialect)
    return plan_arrow_evolution(there.schema, there.last_id, columns(after, dialect))


def renamed(table: TableInfo, old: str, new: str) -> TableInfo:
    return table.with_columns(
        [replace(each, name=new) if each.name == old else each for each in table.columns]
    )


def same(how: ArrowEvolution, dialect: Dialect = PLAIN) -> bool:
    return bool(how.schema.equals(columns(TABLE, dialect).schema, check_metadata=True))


def carried(how: ArrowEvolution) -> dict[str, object]:
    kinds = columns(TABLE).schema if how.schema.field("id").type == pa.int64() else how.schema
    rows = pa.RecordBatch.from_pylist([{"id": 1, "small": 2, "name": "x"}], kinds)
    found: dict[str, object] = how.convert(rows).to_pylist()[0]
    return found


def test_nothing_changes_while_the_source_stays() -> None:
    how = evolution(TABLE)
    assert same(how)
    assert not how.rewrites


def test_an_added_column_without_a_default_needs_no_rewriting() -> None:
    how = evolution(add_column(TABLE, "more", "int"))
    assert not how.rewrites
    assert how.schema.names == ["id", "small", "name", "more"]


def test_an_added_column_is_written_to_all_files_where_readers_look_at_one() -> None:
    assert evolution(add_column(TABLE, "more", "int"), Dialect(parquet_type, adds=False)).rewrites


def test_an_added_column_with_a_default_has_it_in_rows_that_are_there() -> None:
    how = evolution(add_column(TABLE, "more", "int not null default 7"))
    assert how.rewrites
    assert carried(how) == {"id": 1, "small": 2, "name": "x", "more": 7}


def test_a_dropped_column_stays_and_is_null_in_rows_that_come() -> None:
    after = drop_column(TABLE, "small")
    how = evolution(after)
    assert same(how)
    assert not how.rewrites
    coming = pa.RecordBatch.from_pylist([{"id": 5, "name": "new"}], choose_columns(after, None))
    assert shape_rows(coming, how.schema).to_pylist() == [{"id": 5, "small": None, "name": "new"}]


def test_a_column_of_a_dropped_ones_name_begins_anew() -> None:
    after = add_column(drop_column(TABLE, "small"), "SMALL", "varchar(3) default 'z'")
    how = evolution(after)
    assert how.rewrites
    assert how.schema.names == ["id", "name", "SMALL"]
    assert carried(how) == {"id": 1, "name": "x", "SMALL": "z"}


@pytest.mark.parametrize(("dialect", "rewrites"), [(PLAIN, True), (RICH, False)])
def test_a_renamed_column_keeps_its_values(dialect: Dialect, rewrites: bool) -> None:
    how = evolution(renamed(TABLE, "name", "title"), dialect)
    assert how.rewrites is rewrites
    assert how.schema.names == ["id", "small", "title"]
    assert how.sources == ("id", "small", "name")


def test_two_columns_can_change_their_names() -> None:
    table = add_column(TABLE, "other", "varchar(9)")
    swapped = renamed(renamed(renamed(table, "name", "_"), "other", "name"), "_", "other")
    how = evolution(swapped, before=table)
    assert how.schema.names == ["id", "small", "other", "name"]
    assert how.sources == ("id", "small", "name", "other")


@pytest.mark.parametrize(("dialect", "rewrites"), [(PLAIN, True), (RICH, False)])
def test_a_wider_type_is_taken(dialect: Dialect, rewrites: bool) -> None:
    how = evolution(modify_column(TABLE, "small", "bigint"), dialect)
    assert how.rewrites is rewrites
    assert how.schema.field("small").type == pa.int64()


def test_types_below_32_bits_are_one_in_iceberg() -> None:
    assert same(evolution(modify_column(TABLE, "small", "int"), RICH), RICH)


def test_an_unsigned_number_that_outgrows_64_bits_becomes_a_decimal() -> None:
    before = define_table("items", [("id", "bigint primary key"), ("n", "int unsigned")])
    how = evolution(modify_column(before, "n", "bigint unsigned"), before=before)
    assert how.rewrites
    assert how.schema.field("n").type == pa.decimal128(20, 0)


def test_a_type_that_does_not_fit_is_refused_with_the_remedy() -> None:
    other = define_table("items", [("id", "bigint primary key"), ("small", "date"), ("name", "varchar(9)")])
    with pytest.raises(SchemaRefused, match=r"column small is date32.*repair --rebuild"):
        evolution(other)


def test_another_key_is_refused() -> None:
    before = define_table("items", [("a", "int"), ("b", "int")], primary_key=["a"])
    after = define_table("items", [("a", "int"), ("b", "int")], primary_key=["a", "b"])
    with pytest.raises(SchemaRefused, match="primary key"):
        evolution(after, before=before)


def test_a_column_that_was_there_but_not_chosen_is_refused() -> None:
    there = columns(TABLE, chosen=["name"])
    with pytest.raises(SchemaRefused, match="column small was not copied before"):
        plan_arrow_evolution(there.schema, there.last_id, columns(TABLE))


def test_times_are_microseconds_and_keys_are_known_by_their_places() -> None:
    table = define_table("items", [("a", "int"), ("t", "time"), ("v", "int")], primary_key=["t", "a"])
    wanted = columns(table)
    assert key_columns(wanted.schema) == ("t", "a")
    assert [column_id(each) for each in wanted.schema] == [2, 1, 3]
    row = {"t": timedelta(hours=-2), "a": 1, "v": 3}
    rows = pa.RecordBatch.from_pylist([row], choose_columns(table, None))
    assert shape_rows(rows, wanted.schema).to_pylist() == [{"t": -7_200_000_000, "a": 1, "v": 3}]


def test_columns_of_others_stay() -> None:
    there = columns(TABLE)
    theirs = pa.field("theirs", pa.string(), metadata={b"penstock.column": "-4"})
    how = plan_arrow_evolution(there.schema.append(theirs), there.last_id, columns(TABLE))
    assert not how.rewrites
    assert how.schema.names == ["id", "small", "name", "theirs"]
