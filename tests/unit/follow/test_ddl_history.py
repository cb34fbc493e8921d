"""DDLs from the versions of meta keys and from jobs, in whatever order and how often they come."""

import json
from dataclasses import replace

import pytest

from penstock.clock import compose_ts
from penstock.errors import Unavailable
from penstock.eventstore.schema_history import read_job
from penstock.follow.cluster_tables import KnownTables
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.ddl_history import DdlHistory
from penstock.tables.codec.ordered import encode_uint
from penstock.tables.columns import ColumnFlag, SchemaState
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.define import define_table
from penstock.tables.keys import meta_hash_key
from penstock.tables.meta import DATABASES, JOB_HISTORY, database_field, table_key
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo
from penstock.tables.statements import create_table
from penstock.tables.system_tables import TIDB_DATABASES
from support.metaevents import (
    a_table,
    finish_job,
    partitioned_table,
    put_account,
    put_database,
    put_owner,
    put_table,
    remove_database,
    remove_table,
)
from support.oddtables import tidb_meta_changes, with_type
from support.rawbatches import Change, put, raw

SHOP = put_database(1, 1, "shop")
OLD = put_database(1, 2, "old")
LATER = compose_ts(10**6)  # so late that nobody waits for the jobs of small timestamps any more


def history(*changes: Change, resolved_ts: int = LATER) -> DdlHistory:
    made = DdlHistory()
    if changes:
        assert not made.consume_kv_events(raw(changes), lambda: None)
    made.advance_resolved_ts(resolved_ts)
    return made


def shown(event: DdlEvent) -> tuple[int, int, list[tuple[str | None, str | None]]]:
    names = [(each.before and each.before.name, each.after and each.after.name) for each in event.tables]
    return event.commit_ts, event.type, names


def last(*changes: Change) -> DdlEvent:
    return history(SHOP, OLD, *changes).ddls(0, LATER)[-1]


def test_a_ddl_has_the_statement_of_its_job_and_the_time_of_its_rows() -> None:
    made = history(
        SHOP, put_table(10, a_table(7)), finish_job(10, 1, 3, 7, "CREATE TABLE t"),
        put_table(20, a_table(7, "a")), finish_job(20, 2, 5, 7, "ALTER TABLE t ADD a"),
        remove_table(30, 7), finish_job(30, 3, 4, 7, "DROP TABLE t"),
    )  # fmt: skip
    create, add, drop = made.ddls(1, 30)
    assert [each.query for each in (create, add, drop)] == [
        "CREATE TABLE t",
        "ALTER TABLE t ADD a",
        "DROP TABLE `shop`.`t`",
    ]
    assert shown(add) == (20, 5, [("shop.t", "shop.t")])
    (change,) = add.tables
    assert (change.before.since_ts, change.after.since_ts) == (10, 20)
    assert (change.before, change.after) == (create.tables[0].after, drop.tables[0].before)
    assert made.ddls(10, 29) == [add]
    assert {each.database for each in (create, add, drop)} == {"shop"}


TABLE, PARTS = a_table(7, "a"), partitioned_table(7, 71, 72)
WIDER = replace(define_table("t", [("id", "bigint primary key"), ("a", "bigint")]), id=7)
SAME = ["shop.t", "shop.t"]


def emptied(table: TableInfo, part_id: int, new_id: int, **members: int) -> TableInfo:
    """Return a table with another id of one of its partitions, and other members of its partitioning."""
    tree = table.extra["partition"]
    parts = [{**part, "id": new_id if part["id"] == part_id else part["id"]} for part in tree["definitions"]]
    return replace(table, extra={"partition": {**tree, "definitions": parts, **members}})


MOVED = ["shop.t", "old.t"]


@pytest.mark.parametrize(
    ("changes", "action", "names", "query"),
    [
        (
            [put_table(20, a_table(7, "a", "b"))], 5, SAME,
            "ALTER TABLE `t` ADD COLUMN `b` int(11) DEFAULT NULL",
        ),
        ([put_table(20, a_table(7))], 6, SAME, "ALTER TABLE `t` DROP COLUMN `a`"),
        ([put_table(20, WIDER)], 12, SAME, "ALTER TABLE `t` MODIFY COLUMN `a` bigint(20) DEFAULT NULL"),
        (
            [put_table(20, replace(TABLE, name="u"))], 14, ["shop.t", "shop.u"],
            "RENAME TABLE `shop`.`t` TO `shop`.`u`",
        ),
        ([remove_table(20, 7), put_table(20, TABLE, 2)], 14, MOVED, "RENAME TABLE `shop`.`t` TO `old`.`t`"),
        ([put_table(20, TABLE, 2), remove_table(20, 7)], 14, MOVED, "RENAME TABLE `shop`.`t` TO `old`.`t`"),
        ([remove_table(20, 7), put_table(20, replace(TABLE, id=8))], 11, SAME, "TRUNCATE TABLE `shop`.`t`"),
        ([remove_table(20, 7)], 4, ["shop.t", None], "DROP TABLE `shop`.`t`"),
        ([put_table(20, U := a_table(8, name="u"))], 3, [None, "shop.u"], create_table(U)),
    ],
)  # fmt: skip
def test_without_a_job_a_ddl_and_its_statement_are_known_by_what_it_changed(
    changes: list[Change], action: int, names: list[str | None], query: str
) -> None:
    event = last(put_table(10, TABLE), *changes)
    assert (*shown(event), event.query) == (20, action, [tuple(names)], query)
    assert not event.unknown


@pytest.mark.parametrize(
    ("later", "action", "ended", "begun", "query"),
    [
        (partitioned_table(7, 71, 72, 73), 19, set(), {73},
         "ADD PARTITION (PARTITION `p73` VALUES LESS THAN (73))"),
        (partitioned_table(7, 72), 20, {71}, set(), "DROP PARTITION `p71`"),
        (emptied(PARTS, 72, 73), 23, {72}, {73}, "TRUNCATE PARTITION `p72`"),
        (emptied(PARTS, 72, 73, ddl_action=64), 64, {72}, {73},
         "REORGANIZE PARTITION `p72` INTO (PARTITION `p72` VALUES LESS THAN (72))"),
        (partitioned_table(7, 71, 80, 81), 23, {72}, {80, 81},
         "REORGANIZE PARTITION `p72` INTO (PARTITION `p80` VALUES LESS THAN (80),"
         " PARTITION `p81` VALUES LESS THAN (81))"),
        (a_table(7), 23, {71, 72}, {7}, "REMOVE PARTITIONING"),
    ],
)  # fmt: skip
def test_partitions_come_and_go(
    later: TableInfo, action: int, ended: set[int], begun: set[int], query: str
) -> None:
    event = last(put_table(10, PARTS), put_table(20, later))
    (change,) = event.tables
    assert (event.type, change.ended_ids, change.begun_ids) == (action, ended, begun)
    assert event.query == f"ALTER TABLE `t` {query}"


def test_an_exchange_moves_physical_tables_crosswise() -> None:
    made = history(
        SHOP, put_table(10, partitioned_table(7, 71)), put_table(11, a_table(8, name="u")),
        put_table(20, partitioned_table(7, 8)), remove_table(20, 8), put_table(20, a_table(71, name="u")),
    )  # fmt: skip
    (event,) = made.ddls(11, LATER)
    assert shown(event) == (20, 42, [("shop.t", "shop.t"), ("shop.u", "shop.u")])
    assert [(each.ended_ids, each.begun_ids) for each in event.tables] == [({71}, {8}), ({8}, {71})]
    assert event.query == "ALTER TABLE `shop`.`t` EXCHANGE PARTITION `p8` WITH TABLE `shop`.`u`"
    assert made.schema_of(8, 19).name == "shop.u"
    assert made.schema_of(8, 20).name == "shop.t"
    assert made.schema_of(71, 20).name == "shop.u"
    assert made.schema_of(71, 5).name == "shop.t"


def test_several_renames_are_one_ddl() -> None:
    event = last(
        put_table(10, a_table(7, name="a")), put_table(11, a_table(8, name="b")),
        put_table(20, a_table(7, name="b")), put_table(20, a_table(8, name="c")),
        finish_job(20, 9, 47, 7, "RENAME TABLE b TO c, a TO b"),
    )  # fmt: skip
    assert shown(event) == (20, 47, [("shop.a", "shop.b"), ("shop.b", "shop.c")])


def test_tables_made_together_are_found_in_the_job_of_them_all() -> None:
    both = (a_table(7, name="a"), a_table(8, name="b"))
    jobs = finish_job(20, 9, 60, 0, "CREATE TABLE a, b", tables=both)
    event = last(*(put_table(20, each) for each in both), jobs)
    assert (event.type, event.query, len(event.tables)) == (60, "CREATE TABLE a, b", 2)


def test_databases_come_and_go_with_their_tables() -> None:
    made = history(
        SHOP, put_database(5, 3, "more"), finish_job(5, 1, 1, 0, "CREATE DATABASE more", database_id=3),
        put_table(10, a_table(7), 3), put_table(11, a_table(8), 1),
        put_database(20, 3, "more", charset="utf8"),
        put_database(25, 3, "more", state=SchemaState.DELETE_ONLY),
        remove_database(30, 3), remove_table(30, 7, 3),
        finish_job(30, 2, 2, 0, "DROP DATABASE more", database_id=3),
    )  # fmt: skip
    first, create, *_, drop = made.ddls(0, LATER)
    assert (first.database, first.type, first.scope) == ("shop", 1, DdlScope.DATABASE)
    assert (create.query, create.scope, create.tables) == ("CREATE DATABASE more", DdlScope.DATABASE, ())
    assert (drop.query, drop.scope, drop.commit_ts) == ("DROP DATABASE more", DdlScope.DATABASE, 30)
    assert [(each.before.name, each.after) for each in drop.tables] == [("more.t", None)]
    assert len(made.ddls(11, LATER)) == 1
    assert [each.name for each in made.tables(29)] == ["more.t", "shop.t"]
    assert [each.name for each in made.tables(30)] == ["shop.t"]


def in_state(table: TableInfo, state: SchemaState) -> TableInfo:
    *rest, column = table.columns
    return replace(table, columns=(*rest, replace(column, state=state)))


def test_an_online_change_shows_when_readers_see_it() -> None:
    added = a_table(7, "a")
    states = [SchemaState.DELETE_ONLY, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG, SchemaState.PUBLIC]
    steps = [put_table(20 + at, in_state(added, state)) for at, state in enumerate(states)]
    removed = [put_table(40 + at, in_state(added, state)) for at, state in enumerate(states[-2::-1])]
    made = history(
        SHOP, put_table(10, a_table(7)), finish_job(11, 1, 3, 7, "CREATE TABLE t", start_ts=9), *steps,
        finish_job(26, 2, 5, 7, "ADD a", start_ts=18), *removed, put_table(43, a_table(7)),
        finish_job(45, 3, 6, 7, "DROP a", start_ts=19),
    )  # fmt: skip
    assert [(each.commit_ts, each.query) for each in made.ddls(1, LATER)] == [
        (10, "CREATE TABLE t"),
        (23, "ADD a"),
        (40, "DROP a"),
    ]
    assert [each.since_ts for ts in (22, 24, 50) for each in made.tables(ts)] == [10, 23, 40]
    assert made.schema_of(7, 42).since_ts == 40


def test_an_index_is_nothing_that_readers_see() -> None:
    table = a_table(7, "a")
    *rest, column = table.columns
    flagged = replace(column.type, flag=column.type.flag | ColumnFlag.MULTIPLE_KEY)
    indexed = replace(table, columns=(*rest, replace(column, type=flagged)), max_index_id=1)
    assert [
        each.commit_ts for each in history(SHOP, put_table(10, table), put_table(20, indexed)).ddls(1, LATER)
    ] == [10]


def test_views_and_sequences_have_no_rows_and_no_ddls() -> None:
    view = a_table(7, extra={"view": {"view_select": "SELECT 1"}})
    made = history(SHOP, put_table(10, view), remove_table(20, 7))
    assert made.ddls(1, LATER) == []
    assert made.tables(15) == []


def test_a_ddl_waits_for_its_job_and_what_follows_waits_for_the_ddl() -> None:
    second, minute = compose_ts(1000), compose_ts(60_000)
    start = compose_ts(10**9)
    created, changed = start + 5, start + second
    made = DdlHistory()
    made.consume_kv_events(raw([SHOP, put_table(created, a_table(7))]), lambda: None)
    made.advance_resolved_ts(changed)
    assert made.resolved_ts() == created - 1
    with pytest.raises(Unavailable, match="known up to"):
        made.ddls(0, created)
    with pytest.raises(Unavailable, match="known up to"):
        made.tables(created)
    done = finish_job(changed + 9, 1, 3, 7, "CREATE TABLE t", start_ts=start)
    made.consume_kv_events(raw([done, put_table(changed + 12, a_table(7, "a"))]), lambda: None)
    made.advance_resolved_ts(changed + 8)
    assert made.resolved_ts() == created - 1  # a job that is here early may not be the first to come
    made.advance_resolved_ts(changed + 10)
    assert made.resolved_ts() == changed + 10
    assert [each.query for each in made.ddls(1, made.resolved_ts())] == ["CREATE TABLE t"]
    made.advance_resolved_ts(changed + minute - 1)
    assert made.resolved_ts() == changed + 11
    made.advance_resolved_ts(changed + 12 + minute)
    (event,) = made.ddls(created, made.resolved_ts())
    query = "ALTER TABLE `t` ADD COLUMN `a` int(11) DEFAULT NULL"
    assert (event.type, event.query) == (DdlAction.ADD_COLUMN, query)


def test_nobody_waits_for_jobs_of_the_tables_in_which_tidb_keeps_jobs() -> None:
    bootstrap = put_database(5, 3, "mysql"), put_table(6, a_table(0xFFFFFFFFFFFE, name="tidb_ddl_job"), 3)
    made = history(*bootstrap, resolved_ts=7)
    assert made.resolved_ts() == 7
    assert [shown(ddl) for ddl in made.ddls(0, 7)] == [(5, 1, []), (6, 3, [(None, "mysql.tidb_ddl_job")])]
    user = put_table(6, a_table(9, name="user"), 3)
    assert history(*bootstrap, user, resolved_ts=7).resolved_ts() == 7, "no changefeed has that database"


def test_jobs_that_were_cancelled_or_are_of_others_are_not_taken_for_it() -> None:
    made = history(
        SHOP,
        put_table(10, a_table(7)),
        put_table(20, a_table(7, "a")),
        finish_job(21, 1, 7, 7, "ADD INDEX that failed", start_ts=15, state=3),
        finish_job(22, 2, 5, 8, "of another table", start_ts=15),
        finish_job(23, 3, 6, 7, "that began later", start_ts=22),
        finish_job(24, 4, 5, 7, "the right one", start_ts=15),
    )
    assert [event.query for event in made.ddls(19, 20)] == ["the right one"]


@pytest.mark.parametrize("step", [1, -1, 5, 7])
def test_the_order_of_delivery_does_not_matter(step: int) -> None:
    changes = [
        SHOP, OLD, put_table(10, a_table(7)), finish_job(10, 1, 3, 7, "a"),
        remove_table(20, 7), put_table(20, a_table(7), 2), finish_job(20, 2, 14, 7, "b"),
        remove_table(30, 7, 2), put_table(30, a_table(8), 2), finish_job(31, 3, 11, 7, "c", start_ts=25),
        remove_table(40, 8, 2), finish_job(40, 4, 4, 8, "d"),
    ]  # fmt: skip
    expected = history(*changes)
    mixed = [each for at in range(abs(step)) for each in (changes * 2)[at :: abs(step)]][
        :: 1 if step > 0 else -1
    ]
    made = DdlHistory()
    for each in mixed:
        made.consume_kv_events(raw([each]), lambda: None)
    made.advance_resolved_ts(LATER)
    made.consume_kv_events(raw(mixed), lambda: None)  # a region that is pulled again
    made.advance_resolved_ts(LATER + 1)
    assert made.ddls(0, LATER + 1) == expected.ddls(0, LATER)
    assert [each.query for each in made.ddls(1, LATER)] == [
        "a",
        "RENAME TABLE `shop`.`t` TO `old`.`t`",
        "TRUNCATE TABLE `old`.`t`",
        "DROP TABLE `old`.`t`",
    ]
    made.advance_resolved_ts(5)
    assert made.resolved_ts() == LATER + 1


def test_a_physical_table_nobody_has_is_waited_for() -> None:
    with pytest.raises(Unavailable, match="no schema"):
        history(SHOP).schema_of(7, 5)


def unreadable(ts: int, table: TableInfo) -> Change:
    return put(ts, table_key(1, table.id), json.dumps(with_type(table.to_json(), "a")).encode())


def test_a_version_that_cannot_be_read_changes_nothing_until_one_follows_that_can() -> None:
    made = history(
        SHOP, put_table(10, a_table(7, "a")), put_table(10, a_table(8, name="u")),
        unreadable(20, a_table(7, "a")), finish_job(20, 1, 12, 7, "ALTER TABLE t MODIFY a"),
        put_table(25, a_table(8, "b", name="u")), put_table(30, a_table(7, "a", "b")),
    )  # fmt: skip
    assert [shown(each) for each in made.ddls(10, 30)] == [
        (25, 5, [("shop.u", "shop.u")]),
        (30, 5, [("shop.t", "shop.t")]),
    ]
    assert [each.name for each in made.tables(20)] == ["shop.t", "shop.u"]


@pytest.mark.parametrize("value", [b"{", b"[]"])
def test_damage_in_the_meta_keys_costs_nothing_but_its_table(value: bytes) -> None:
    made = history(
        SHOP, put_table(10, a_table(7)), put(11, table_key(1, 9), value),
        put(12, meta_hash_key(DATABASES, database_field(1)), value),
        put(13, meta_hash_key(DATABASES, database_field(5)), value),
        put(14, meta_hash_key(JOB_HISTORY, encode_uint(1)), value), put_table(20, a_table(7, "a")),
    )  # fmt: skip
    assert [shown(each) for each in made.ddls(1, 30)] == [
        (10, 3, [(None, "shop.t")]),
        (20, 5, [("shop.t", "shop.t")]),
    ]
    made.consume_kv_events(raw([put_database(LATER + 1, 5, "back")]), lambda: None)
    made.advance_resolved_ts(2 * LATER)
    assert [shown(each) for each in made.ddls(LATER, 2 * LATER)] == [(LATER + 1, 1, [])]


def test_the_whole_history_of_a_tidb_with_its_views_is_taken() -> None:
    changes = list(tidb_meta_changes())
    made = history(*changes, resolved_ts=changes[-1][0] + LATER)  # the bootstrap has no jobs to wait for
    events = made.ddls(0, changes[-1][0])
    assert "CREATE TABLE d1.types" in " ".join(event.query for event in events).replace("`", "")
    named = {schema.name for schema in made.tables(changes[-1][0])}
    assert "mysql.user" in named
    assert not {"mysql.tidb_mdl_view", "sys.schema_unused_indexes"} & named


def indexed(table: TableInfo, state: SchemaState, *, primary: bool = False, name: str = "i") -> TableInfo:
    part = IndexColumn(table.columns[-1].name, len(table.columns) - 1)
    return replace(table, indexes=(IndexInfo(1, name, (part,), primary=primary, state=state),))


def told(made: DdlHistory, from_ts: int = 11) -> list[tuple[int, int, str]]:
    return [(event.commit_ts, event.type, event.query) for event in made.ddls(from_ts, LATER)]


@pytest.mark.parametrize("primary", [False, True])
def test_an_index_is_told_once_when_queries_can_use_it_and_when_they_cannot_any_more(primary: bool) -> None:
    table = replace(a_table(7, "a"), pk_is_handle=not primary)
    states = [SchemaState.DELETE_ONLY, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG, SchemaState.PUBLIC]
    added = [put_table(20 + at, indexed(table, state, primary=primary)) for at, state in enumerate(states)]
    left = [SchemaState.WRITE_ONLY, SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG]
    dropped = [put_table(40 + at, indexed(table, state, primary=primary)) for at, state in enumerate(left)]
    made = history(
        SHOP, put_table(10, table), finish_job(11, 1, 3, 7, "CREATE TABLE t", start_ts=9), *added,
        finish_job(26, 2, 32 if primary else 7, 7, "ADD", start_ts=18), *dropped, put_table(43, table),
        finish_job(45, 3, 33 if primary else 8, 7, "DROP", start_ts=38),
    )  # fmt: skip
    assert [(ts, query) for ts, _, query in told(made)] == [(23, "ADD"), (40, "DROP")]
    assert bool(made.schema_of(7, 30).table.primary_index) is primary
    assert made.schema_of(7, 41).table.primary_index is None


def test_a_job_that_readers_see_nothing_of_is_told_when_it_is_recorded() -> None:
    table = a_table(7, "a")
    made = history(
        SHOP, put_table(10, table), finish_job(11, 1, 3, 7, "CREATE TABLE t", start_ts=9),
        put_table(20, replace(table, comment="x")), finish_job(22, 2, 17, 7, "COMMENT", start_ts=19),
        finish_job(30, 3, 57, 7, "ALTER TABLE t CACHE", start_ts=29),
        finish_job(31, 4, 17, 7, "did nothing", start_ts=29, schema_version=0),
        put_database(40, 1, "shop", charset="gbk"), finish_job(42, 5, 26, 0, "ALTER DATABASE", start_ts=39),
    )  # fmt: skip
    assert told(made) == [(22, 17, "COMMENT"), (42, 26, "ALTER DATABASE")]
    comment, database = made.ddls(11, LATER)
    assert shown(comment) == (22, 17, [("shop.t", "shop.t")])
    assert comment.tables[0].after.table.comment == "x"
    assert (database.database, database.scope, database.tables) == ("shop", DdlScope.DATABASE, ())
    assert made.schema_of(7, 22).since_ts == 22


def test_views_are_told_by_their_jobs_and_are_no_tables() -> None:
    view = a_table(9, name="v", extra={"view": {"view_select": "SELECT 1"}})
    made = history(
        SHOP, put_table(20, view), finish_job(21, 1, 21, 9, "CREATE VIEW v AS SELECT 1", table=view),
        remove_table(30, 9), finish_job(31, 2, 24, 9, "DROP VIEW v, w", table=view),
    )  # fmt: skip
    create, drop = made.ddls(1, LATER)
    assert (shown(create), create.query) == ((21, 21, [(None, "shop.v")]), "CREATE VIEW v AS SELECT 1")
    assert (shown(drop), drop.query) == ((31, 24, [("shop.v", None)]), "DROP VIEW `shop`.`v`")
    assert create.tables[0].begun_ids == frozenset() == drop.tables[0].ended_ids
    assert made.tables(25) == []


def test_a_change_of_partitioning_is_told_once_although_the_table_gets_another_id_later() -> None:
    made = history(
        SHOP, put_table(10, a_table(7, "a")), finish_job(11, 1, 3, 7, "CREATE TABLE t", start_ts=9),
        put_table(20, partitioned_table(7, 71, 72, columns=("a",))), remove_table(25, 7),
        put_table(25, partitioned_table(8, 71, 72, columns=("a",))),
        finish_job(27, 2, 71, 7, "PARTITION BY", start_ts=18),
    )  # fmt: skip
    assert [(event.commit_ts, event.query, event.further) for event in made.ddls(11, LATER)] == [
        (20, "PARTITION BY", False),
        (25, "", True),
    ]


def test_a_table_that_comes_back_is_created_by_its_description() -> None:
    table = a_table(7, "a", name="back")
    made = history(
        SHOP, put_table(10, table), finish_job(10, 1, 3, 7, "CREATE TABLE back", start_ts=9),
        remove_table(20, 7), finish_job(20, 2, 4, 7, "DROP TABLE back"),
        put_table(30, table), finish_job(31, 3, 25, 7, "RECOVER TABLE back", start_ts=29),
        remove_table(40, 7), remove_database(40, 1), finish_job(40, 4, 2, 0, "DROP DATABASE shop"),
        put_database(50, 1, "shop"), put_table(50, table),
        finish_job(51, 5, 63, 0, "FLASHBACK DATABASE shop", database_name="shop", start_ts=49),
    )  # fmt: skip
    recovered, dropped, flashed = made.ddls(20, LATER)
    assert (recovered.recovers, recovered.query) == (True, create_table(table))
    assert dropped.query == "DROP DATABASE shop"
    assert (shown(flashed), flashed.query) == ((50, 63, [(None, "shop.back")]), "CREATE DATABASE `shop`")
    assert (flashed.scope, flashed.recovers) == (DdlScope.DATABASE, True)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_database_that_comes_back_under_another_name_had_its_own_before(backwards: bool) -> None:
    table = a_table(7, "a", name="back")
    changes = [
        SHOP, put_table(10, table), finish_job(10, 1, 3, 7, "CREATE TABLE back", start_ts=9),
        remove_table(40, 7), remove_database(40, 1), finish_job(40, 4, 2, 0, "DROP DATABASE shop"),
        put_database(50, 1, "again"), put_table(50, table),
        finish_job(51, 5, 63, 0, "FLASHBACK DATABASE shop TO again", database_name="again", start_ts=49),
    ]  # fmt: skip
    made = history(*(reversed(changes) if backwards else changes))
    assert [schema.name for schema in made.tables(30)] == ["shop.back"]
    assert [schema.name for schema in made.tables(60)] == ["again.back"]
    dropped, flashed = made.ddls(30, LATER)
    assert (dropped.database, shown(dropped)) == ("shop", (40, 2, [("shop.back", None)]))
    assert (flashed.database, shown(flashed)) == ("again", (50, 63, [(None, "again.back")]))
    assert flashed.query == "CREATE DATABASE `again`"


MINUTE = compose_ts(60_000)
DROPS_A = "ALTER TABLE `t` DROP COLUMN `a`"


def fed(made: DdlHistory, upto_ts: int, *changes: Change) -> int:
    """Let the history know some changes; return up to when it knows all DDLs."""
    if changes:
        made.consume_kv_events(raw(changes), lambda: None)
    made.advance_resolved_ts(upto_ts)
    return made.resolved_ts()


def begun(*tables: TableInfo) -> DdlHistory:
    """Return a history with tables that were created at 10, and known up to 15."""
    made = DdlHistory()
    jobs = [finish_job(10, nth, 3, table.id, "CREATE TABLE") for nth, table in enumerate(tables, 1)]
    jobs.append(finish_job(1, 99, 1, 0, "CREATE DATABASE shop"))
    assert fed(made, 15, SHOP, *(put_table(10, table) for table in tables), *jobs) == 15
    return made


def test_a_job_that_is_recorded_too_late_has_the_statement_of_what_it_changed_once() -> None:
    made, table = begun(a_table(7, "a")), a_table(7, "a")
    for nth, state in enumerate([SchemaState.WRITE_ONLY, SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG]):
        fed(made, 20 + nth + MINUTE * nth, put_table(20 + MINUTE * nth, in_state(table, state)))
    late = 3 * MINUTE
    job = finish_job(late, 5, 6, 7, "ALTER TABLE t DROP COLUMN a", start_ts=18)
    assert fed(made, late, put_table(late - 1, a_table(7)), job) == late
    # This job was submitted while the first one ran, and is another DDL.
    later = finish_job(late + 6, 6, 5, 7, "ALTER TABLE t ADD b", start_ts=19)
    fed(made, LATER, put_table(late + 5, a_table(7, "b")), later)
    assert told(made) == [(20, 6, DROPS_A), (late + 5, 5, "ALTER TABLE t ADD b")]


def test_what_is_left_of_a_job_whose_first_part_came_without_it_is_a_ddl_of_its_own() -> None:
    table = a_table(7, "a", "b")
    made, late = begun(table), MINUTE + 100
    hidden = in_state(table, SchemaState.WRITE_ONLY)
    assert fed(made, late, put_table(20, hidden)) == late
    job = finish_job(late + 2, 5, 61, 7, "ALTER TABLE t DROP COLUMN b, DROP COLUMN a", start_ts=18)
    fed(made, LATER, put_table(late + 1, a_table(7)), job)
    assert told(made) == [(20, 6, "ALTER TABLE `t` DROP COLUMN `b`"), (late + 1, 6, DROPS_A)]


def test_a_ddl_that_descriptions_do_not_explain_waits_as_long_as_its_job_runs() -> None:
    table = a_table(7, "a", "b")
    made = begun(table, a_table(8, name="u"))
    odd = in_state(replace(table, comment="other"), SchemaState.WRITE_ONLY)
    assert fed(made, 100 * MINUTE, put_table(20, odd), put_table(25, a_table(8, "c", name="u"))) == 19
    end = 100 * MINUTE + 1
    assert fed(made, end + MINUTE - 2, put_table(end, replace(a_table(7, "a"), comment="other"))) == 19
    job = finish_job(end + MINUTE, 5, 61, 7, "ALTER TABLE t DROP b, COMMENT 'other'", start_ts=18)
    fed(made, end + MINUTE, job)
    assert told(made)[0] == (20, 61, "ALTER TABLE t DROP b, COMMENT 'other'")
    assert not any(event.unknown for event in made.ddls(11, made.resolved_ts()))


def test_a_ddl_that_nobody_explains_in_time_is_marked() -> None:
    made = begun(a_table(7, "a"))
    fed(made, LATER, put_table(20, a_table(7, comment="other")))
    (event,) = made.ddls(11, LATER)
    assert (event.commit_ts, event.query, event.unknown) == (20, "", True)


def test_a_column_that_may_have_another_name_now_is_not_taken_for_a_new_one() -> None:
    made, renamed = begun(a_table(7, "a")), a_table(7, "z")
    *rest, column = renamed.columns
    fed(made, LATER, put_table(20, replace(renamed, columns=(*rest, replace(column, id=9)))))
    (event,) = made.ddls(11, LATER)
    assert (event.query, event.unknown) == ("", True)


def test_the_statements_of_all_ddls_of_a_tidb_can_be_derived() -> None:
    changes = list(tidb_meta_changes())
    without = [change for change in changes if read_job(change[2], change[3]) is None]
    last_ts = changes[-1][0]

    def seen(made: DdlHistory) -> dict[int, DdlEvent]:
        events = made.ddls(0, last_ts)
        return {event.commit_ts: event for event in events if event.database not in TIDB_DATABASES}

    jobs, derived = (
        seen(history(*changes, resolved_ts=last_ts)),
        seen(history(*without, resolved_ts=last_ts + LATER)),
    )
    assert not any(event.unknown for event in derived.values())
    assert [ts for ts, event in derived.items() if event.further or not event.query] == [
        ts for ts, event in jobs.items() if event.further
    ]
    # Of the others there is nothing to see before their jobs are recorded.
    assert {jobs[ts].type for ts in jobs.keys() - derived.keys()} == {5, 17, 18, 21, 24, 26}
    changed = {ts: event for ts, event in derived.items() if event.type != jobs[ts].type}
    # Several changes are one statement of another type, the last step of REMOVE PARTITIONING has another, and
    # a default is changed by MODIFY COLUMN as well.
    assert {(jobs[ts].type, event.type) for ts, event in changed.items()} == {
        (61, 5), (61, 6), (61, 7), (61, 12), (15, 12), (47, 14), (72, 71),
    }  # fmt: skip
    queries = " ".join(event.query for event in derived.values())
    assert "CHANGE COLUMN `e` `e2` tinyint(3) unsigned" in queries
    assert "CHANGE COLUMN `bb` `b2` varchar(30) DEFAULT NULL AFTER `id`" in queries
    assert (
        "`alters` DROP COLUMN `g`, MODIFY COLUMN `e` varchar(40) DEFAULT NULL, ADD COLUMN `multi1`" in queries
    )


def test_every_finished_job_of_a_tidb_is_one_ddl_in_order() -> None:
    changes = list(tidb_meta_changes())
    made = history(*changes, resolved_ts=changes[-1][0])
    events = [
        event
        for event in made.ddls(0, changes[-1][0])
        if event.database not in TIDB_DATABASES and not event.further
    ]
    jobs = [job for change in changes if (job := read_job(change[2], change[3])) is not None]
    names = {job.database_id: job.database.name for job in jobs if job.database is not None}
    expected = [
        job.type
        for job in sorted(jobs, key=lambda job: job.schema_version)
        if (names.get(job.database_id) or job.database_name) not in {*TIDB_DATABASES, ""}
        and job.type not in {34, 36, 51, 57}  # sequences, placement policies and caches are TiDB's own
        and not (job.type == 3 and job.table is not None and job.table.kind == "temporary table")
    ]
    assert [event.type for event in events] == expected
    assert len(expected) == 113
    assert all(event.query for event in events)
    assert len({event.commit_ts for event in events}) == len(events)


@pytest.mark.parametrize("step", [1, 3, 10**9])
def test_followers_know_the_tables_of_a_tidb_however_its_history_arrives(step: int) -> None:
    changes = list(tidb_meta_changes())
    made, known, learned_ts = DdlHistory(job_wait_ms=0), KnownTables(), 0
    for first in range(0, len(changes), step):
        part = changes[first : first + step]
        made.consume_kv_events(raw(part), lambda: None)
        made.advance_resolved_ts(part[-1][0] - 1 if first + step < len(changes) else part[-1][0])
        for event in made.ddls(learned_ts, made.resolved_ts()):
            known.learn(event)
        learned_ts = made.resolved_ts()
    tables = made.tables(learned_ts)
    assert len(tables) > 50
    found = {table.name: known.now(table.table.id) for table in tables}
    assert {name: version and version.table.physical_ids for name, version in found.items()} == {
        table.name: table.table.physical_ids for table in tables
    }


def test_a_table_that_could_not_be_read_is_known_since_then_and_new_once_it_can_be() -> None:
    made = history(
        SHOP, unreadable(20, a_table(7, "a")), unreadable(25, a_table(7, "a", name="u")),
        put_table(30, a_table(7, "b", name="u")), finish_job(30, 1, 12, 7, "ALTER TABLE u MODIFY a"),
        put_table(40, a_table(8, "a", name="v")), put(50, table_key(1, 8), b"{"), remove_table(60, 8),
    )  # fmt: skip

    def seen(ts: int) -> dict[int, tuple[str, int]]:
        return {key: (schema.name, schema.since_ts) for key, schema in made.unreadable(ts).items()}

    assert [seen(ts) for ts in (19, 20, 25, 30, 49, 50, 60)] == [
        {}, {7: ("shop.t", 20)}, {7: ("shop.u", 20)}, {}, {}, {8: ("shop.v", 50)}, {},
    ]  # fmt: skip
    made_known, created, dropped = made.ddls(10, 70)
    assert shown(made_known) == (30, 3, [(None, "shop.u")])
    assert (made_known.query, made_known.tables[0].unread_ts) == ("", 20)
    assert (created.tables[0].unread_ts, dropped.tables[0].unread_ts) == (0, 0)
    made.forget(45)
    assert [seen(ts) for ts in (50, 60)] == [{8: ("shop.v", 50)}, {}]
    assert made.unreadable() == {}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_table_belongs_to_the_account_of_its_database_by_the_order_of_commits(backwards: bool) -> None:
    changes = [
        put_account(1, 5, "ann"), put_account(1, 6, "bob"),
        put_database(2, 1, "shop"), put_owner(2, 1, 5), put_table(3, a_table(7)),
        remove_database(4, 1), put_owner(4, 1, None), remove_table(4, 7),
        put_database(5, 2, "shop"), put_owner(5, 2, 6), put_table(6, a_table(8), database_id=2),
        put_owner(7, 2, 5), put_table(8, a_table(8, "more"), database_id=2),
    ]  # fmt: skip
    made = history(*(reversed(changes) if backwards else changes))
    found = {ts: [(schema.table.id, schema.account) for schema in made.tables(ts)] for ts in (3, 4, 6, 7, 8)}
    assert found == {3: [(7, "ann")], 4: [], 6: [(8, "bob")], 7: [(8, "ann")], 8: [(8, "ann")]}
    of_databases = [
        (event.commit_ts, event.account) for event in made.ddls(0, LATER) if event.scope is DdlScope.DATABASE
    ]
    assert of_databases == [(2, "ann"), (4, "ann"), (5, "bob")]
    given = next(event for event in made.ddls(6, 7))
    assert [change.only_owner for change in given.tables] == [True]
    assert made.tables(6)[0].since_ts == made.tables(7)[0].since_ts, "files go on under their version"

    known = KnownTables()
    for event in made.ddls(0, LATER):
        known.learn(event)
    assert known.accounts_since(8, 6) == {"ann", "bob"}
    assert known.accounts_since(8, 7) == {"ann"}
    known.forget(9)
    assert known.accounts_since(8, 6) == {"ann"}
