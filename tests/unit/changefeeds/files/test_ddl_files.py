"""Which schema files a DDL leads to."""

from dataclasses import replace

import pytest

from penstock.changefeeds.filters import ColumnSelector
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.changefeeds.sinks.storage.schema_file import ddl_files
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.tables.define import define_table
from penstock.tables.statements import create_table

URI = "memory:///?protocol=canal-json"
OPTIONS = parse_sink_uri(URI)


def table(
    name: str, table_id: int, *, since_ts: int = 5, database: str = "db", partitions: int = 0
) -> SchemaVersion:
    info = replace(define_table(name, [("id", "bigint primary key"), ("a", "int")]), id=table_id)
    if partitions:
        parts = [
            {"id": table_id + 1 + at, "name": {"O": f"p{at}", "L": f"p{at}"}} for at in range(partitions)
        ]
        info = replace(info, extra={"partition": {"enable": True, "definitions": parts}})
    return SchemaVersion(since_ts, 1, info, database)


def files(event: DdlEvent, options: SinkOptions = OPTIONS) -> list[tuple[str, str, int]]:
    found = ddl_files(event, options)
    assert all(file.version == event.commit_ts for _, file in found)
    return [(path.rpartition("/meta/")[0], file.query, file.type) for path, file in found]


def ddl(query: str, kind: int, *tables: TableChange, scope: DdlScope = DdlScope.TABLES) -> DdlEvent:
    return DdlEvent(commit_ts=10, type=kind, query=query, database="db", tables=tables, scope=scope)


def test_a_table_has_one_file_as_it_is_after_the_ddl() -> None:
    after = table("t", 1, since_ts=10)
    event = ddl("ALTER TABLE t ADD a INT", 5, TableChange(table("t", 1), after))
    assert files(event) == [("db/t", "ALTER TABLE t ADD a INT", 5)]


def test_a_dropped_table_has_its_last_columns() -> None:
    event = ddl("DROP TABLE t", 4, TableChange(table("t", 1), None))
    [(path, file)] = ddl_files(event, OPTIONS)
    assert path.startswith("db/t/meta/schema_10_")
    assert [column.name for column in file.columns] == ["id", "a"]
    assert (file.query, file.type) == ("DROP TABLE t", 4)


def test_a_rename_is_written_under_the_new_name() -> None:
    event = ddl(
        "RENAME TABLE t TO u", 14, TableChange(table("t", 1), table("u", 1, since_ts=10, database="other"))
    )
    assert files(event) == [("other/u", "RENAME TABLE t TO u", 14)]


@pytest.mark.parametrize("query", ["CREATE DATABASE db", "DROP DATABASE db"])
def test_a_database_has_a_file_of_its_own(query: str) -> None:
    event = ddl(query, 2, TableChange(table("t", 1), None), scope=DdlScope.DATABASE)
    [(path, file)] = ddl_files(event, OPTIONS)
    assert path.startswith("db/meta/schema_10_")
    assert (file.table, file.columns, file.query, file.type) == ("", (), query, 2)
    assert ddl_files(replace(event, tables=()), OPTIONS) == [(path, file)]


def test_a_database_has_no_file_where_ids_are_paths() -> None:
    options = replace(OPTIONS, use_table_id_as_path=True)
    assert ddl_files(ddl("CREATE DATABASE db", 1, scope=DdlScope.DATABASE), options) == []
    event = ddl("TRUNCATE TABLE t", 11, TableChange(table("t", 1), table("t", 2, since_ts=10)))
    assert files(event, options) == [("2", "TRUNCATE TABLE t", 11)]


def test_renames_of_several_tables_are_divided() -> None:
    event = ddl(
        "RENAME TABLE a TO b, c TO `x``y`",
        55,
        TableChange(table("a", 1), table("b", 1, since_ts=10)),
        TableChange(table("c", 2), table("x`y", 2, since_ts=10)),
    )
    assert files(event) == [
        ("db/b", "RENAME TABLE `db`.`a` TO `db`.`b`", 14),
        ("db/x`y", "RENAME TABLE `db`.`c` TO `db`.`x``y`", 14),
    ]


def test_a_table_that_is_renamed_into_the_patterns_is_created() -> None:
    came = table("t", 1, since_ts=10)
    event = ddl("RENAME TABLE `other`.`x` TO `db`.`t`", 14, TableChange(None, came))
    assert files(event) == [("db/t", create_table(came.table), 14)]
    renamed = TableChange(table("a", 2), table("b", 2))
    mixed = ddl("RENAME ...", 47, TableChange(None, came), renamed, TableChange(table("gone", 3), None))
    assert files(mixed) == [
        ("db/t", create_table(came.table), 14),
        ("db/b", "RENAME TABLE `db`.`a` TO `db`.`b`", 14),
        ("db/gone", "DROP TABLE `db`.`gone`", 4),
    ]


def test_a_rename_whose_statement_names_tables_of_another_account_is_written_without_them() -> None:
    ours = TableChange(table("a", 1), table("b", 1, since_ts=10))
    assert files(ddl("", 47, ours)) == [("db/b", "RENAME TABLE `db`.`a` TO `db`.`b`", 14)]
    back = TableChange(table("b", 2), table("a", 2, since_ts=10))
    (_, circle, kind), (_, *other) = files(ddl("", 47, ours, back))
    assert (circle.count(" TO "), kind, other) == (3, 14, ["", 0])


def test_an_exchange_with_a_table_of_another_account_is_no_statement() -> None:
    change = TableChange(table("t", 1, partitions=2), table("t", 1, since_ts=10, partitions=2))
    assert files(ddl("", 42, change)) == [("db/t", "", 0)]


def test_tables_that_swap_names_do_so_in_one_statement() -> None:
    event = ddl(
        "RENAME TABLE a TO x, b TO a, x TO b",
        55,
        TableChange(table("a", 1), table("b", 1, since_ts=10)),
        TableChange(table("b", 2), table("a", 2, since_ts=10)),
    )
    assert files(event) == [("db/b", event.query, 55), ("db/a", "", 0)]


def test_an_exchange_of_a_partition_is_told_by_the_partitioned_table() -> None:
    whole, parts = table("t", 1, since_ts=10), table("p", 20, since_ts=10, partitions=2)
    event = ddl(
        "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE t",
        42,
        TableChange(whole, whole),
        TableChange(parts, parts),
    )
    assert files(event) == [("db/p", event.query, 42), ("db/t", "", 0)]


def test_several_new_tables_have_a_statement_each() -> None:
    tables = [table("a", 1), table("b", 2)]
    event = ddl("CREATE TABLE a; CREATE TABLE b", 60, *(TableChange(None, each) for each in tables))
    assert files(event) == [
        ("db/a", create_table(tables[0].table), 3),
        ("db/b", create_table(tables[1].table), 3),
    ]


def test_a_database_that_comes_back_creates_itself_and_its_tables() -> None:
    came = table("t", 1)
    event = ddl("CREATE DATABASE `db`", 63, TableChange(None, came), scope=DdlScope.DATABASE)
    assert files(event) == [("db", event.query, 1), ("db/t", create_table(came.table), 25)]


def test_ids_and_selected_columns_are_as_the_options_say() -> None:
    options = replace(OPTIONS, output_column_id=True, column_selectors=(ColumnSelector(("*.*",), ("!a",)),))
    [(_, file)] = ddl_files(ddl("ALTER", 5, TableChange(None, table("t", 1))), options)
    assert [(column.name, column.id) for column in file.columns] == [("id", "1")]
