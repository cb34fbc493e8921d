"""The statement that consumers run for a DDL: its own tables by their full names, whatever the text names."""

from dataclasses import replace

import pytest

from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import TableChange
from penstock.follow.ddl_statements import ddl_statement, rename_statement
from penstock.tables.ddl_jobs import DdlJob
from penstock.tables.portable_sql import portable_statement
from penstock.tables.schema import DatabaseInfo
from penstock.tables.statements import create_table
from support.metaevents import a_table, partitioned_table


def table(name: str, table_id: int = 7, *parts: int) -> SchemaVersion:
    database, _, name = name.partition(".")
    made = partitioned_table(table_id, *parts, name=name) if parts else a_table(table_id, "a", name=name)
    return SchemaVersion(5, 5, made, database)


def job(action: int, query: str, **rest: object) -> DdlJob:
    given = {"id": 1, "database_id": 1, "table_id": 7, "database_name": "shop", "table_name": "t"}
    return DdlJob(type=action, query=query, start_ts=1, schema_version=2, **{**given, **rest})  # type: ignore[arg-type]


T, U = table("shop.t"), table("old.u`v")


@pytest.mark.parametrize(
    ("action", "query", "changes", "statement"),
    [
        (4, "DROP TABLE t, u", [TableChange(U, None)], "DROP TABLE `old`.`u``v`"),
        (11, "TRUNCATE t", [TableChange(T, table("shop.t", 8))], "TRUNCATE TABLE `shop`.`t`"),
        (14, "ALTER TABLE t RENAME u", [TableChange(T, U)], "RENAME TABLE `shop`.`t` TO `old`.`u``v`"),
        (12, "ALTER TABLE t MODIFY a BIGINT;", [TableChange(T, T)], "ALTER TABLE t MODIFY a BIGINT"),
        (
            3,
            "CREATE TABLE t (a INT)",
            [TableChange(None, T)],
            "CREATE TABLE t (a INT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
        ),
        (3, "CREATE TABLE t LIKE other.x", [TableChange(None, T)], create_table(T.table)),
        (3, "create table if not exists t (like x)", [TableChange(None, T)], create_table(T.table)),
        (3, "", [TableChange(None, T)], create_table(T.table)),
        (25, "FLASHBACK TABLE x TO t", [TableChange(None, T)], create_table(T.table)),
        (
            42,
            "ALTER TABLE p exchange partition `P``0` with table t WITHOUT VALIDATION",
            [TableChange(T, T), TableChange(table("shop.p", 20, 21), table("shop.p", 20, 21))],
            "ALTER TABLE `shop`.`p` EXCHANGE PARTITION `P``0` WITH TABLE `shop`.`t`"
            " /*!80000 WITHOUT VALIDATION */ /*M!110401 WITHOUT VALIDATION */",
        ),
    ],
)
def test_a_statement_names_what_its_job_changed(
    action: int, query: str, changes: list[TableChange], statement: str
) -> None:
    assert ddl_statement(job(action, query), changes) == statement


def test_a_database_has_the_character_set_that_it_was_made_with() -> None:
    info = DatabaseInfo(1, "shop", charset="gbk", collate="gbk_chinese_ci")
    assert ddl_statement(job(1, "CREATE DATABASE shop", database=info), ()) == (
        "CREATE DATABASE shop CHARSET=gbk COLLATE=gbk_chinese_ci"
    )


def test_a_statement_is_read_in_the_mode_in_which_it_was_typed() -> None:
    typed = job(12, 'ALTER TABLE "t" MODIFY "a" BIGINT', extra={"sql_mode": 4})
    assert ddl_statement(typed, [TableChange(T, T)]) == "ALTER TABLE `t` MODIFY `a` BIGINT"


def test_names_that_go_round_in_a_circle_pass_over_a_spare_one() -> None:
    a, b, c = table("d.a", 1), table("d.b", 2), table("d.c", 3)
    assert rename_statement([TableChange(a, b), TableChange(b, c)]) == (
        "RENAME TABLE `d`.`b` TO `d`.`c`, `d`.`a` TO `d`.`b`"
    )
    assert rename_statement([TableChange(a, b), TableChange(b, a)]) == (
        "RENAME TABLE `d`.`a` TO `d`.`_penstock_renamed_0`, `d`.`b` TO `d`.`a`,"
        " `d`.`_penstock_renamed_0` TO `d`.`b`"
    )


def test_a_portable_statement_stays_as_it_is() -> None:
    whole = replace(T.table, comment="it's", extra={"ShardRowIDBits": 4, "auto_id_cache": 1})
    assert portable_statement(create_table(whole)) == create_table(whole)
