"""What is known of tables by their ids. Pure."""

from dataclasses import replace

from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.cluster_tables import KnownTables
from penstock.follow.ddl_events import DdlEvent, TableChange
from support.ddlevents import (
    alter_table,
    create_table,
    drop_table,
    rename_tables,
    table_schema,
    truncate_table,
)


def learned(*events: DdlEvent) -> KnownTables:
    tables = KnownTables()
    for event in events:
        tables.learn(event)
    return tables


def test_a_table_is_known_as_it_is_and_as_it_was() -> None:
    first = table_schema(7)
    tables = learned(create_table(10, first), alter_table(20, replace(first, since_ts=10)))
    assert tables.now(7).since_ts == 20
    assert [tables.at(7, ts).since_ts for ts in (5, 10, 19, 20, 99)] == [10, 10, 10, 20, 20]
    assert tables.now(8) is None
    assert tables.at(8, 50) is None
    assert tables.fate(7) is None


def test_what_became_of_a_table_is_told_with_the_remedy() -> None:
    tables = learned(
        create_table(10, table_schema(7)),
        create_table(11, table_schema(8)),
        truncate_table(20, table_schema(7), 70),
        drop_table(21, table_schema(8)),
    )
    assert "shop.t7 was truncated or replaced: it has the id 70, not 7" in tables.fate(7)
    assert "repair --rebuild" in tables.fate(7)
    assert "shop.t8 was dropped; unregister" in tables.fate(8)
    assert tables.now(70) is not None
    assert tables.now(7) is None


def test_a_table_that_is_renamed_stays_the_same() -> None:
    before = table_schema(7)
    tables = learned(create_table(10, before), rename_tables(20, (before, "archive.other")))
    assert tables.now(7).name == "archive.other"
    assert tables.fate(7) is None


def test_a_dropped_table_may_come_back() -> None:
    schema = table_schema(7)
    tables = learned(create_table(10, schema), drop_table(20, schema), create_table(30, schema))
    assert tables.fate(7) is None
    assert tables.now(7).since_ts == 30


def test_what_nobody_needs_is_forgotten_but_for_what_is_in_force() -> None:
    schema = table_schema(7, partitions=(1, 2))
    more = table_schema(7, partitions=(1, 2, 3))
    tables = learned(
        create_table(10, schema),
        DdlEvent(
            commit_ts=20, type=0, query="", database="shop", tables=(TableChange(schema, at(20, more)),)
        ),
    )
    assert tables.ids_since(7, 15) == {1, 2, 3}
    tables.forget(19)
    assert tables.at(7, 19).since_ts == 10
    tables.forget(20)
    assert tables.at(7, 19).since_ts == 20


def at(ts: int, schema: SchemaVersion) -> SchemaVersion:
    return replace(schema, since_ts=ts, version=ts)
