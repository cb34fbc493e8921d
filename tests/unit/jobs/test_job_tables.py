"""What is known of tables by their ids, and how far changes of partitions can be told. Pure."""

from dataclasses import replace

import pytest

from penstock.errors import StaleRead
from penstock.eventstore.schemaversion import SchemaVersion
from penstock.jobs.reading.jobtables import JobTables
from penstock.jobs.reading.partitionsets import partition_range
from penstock.sink.dispatch.blockevents import DdlEvent, TableChange
from penstock.testing.ddlevents import (
    alter_table,
    create_table,
    drop_table,
    rename_tables,
    table_schema,
    truncate_table,
)


def learned(*events: DdlEvent) -> JobTables:
    tables = JobTables()
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


def parts(ts: int, *ids: int) -> SchemaVersion:
    return at(ts, table_schema(7, partitions=ids))


@pytest.mark.parametrize(
    ("versions", "from_ts", "to_ts", "end", "ids"),
    [
        ([parts(5, 1, 2)], 10, 50, 50, (1, 2)),
        ([parts(5, 1, 2), parts(20, 1, 2)], 10, 50, 50, (1, 2)),  # a column was added
        ([parts(5, 1, 2), parts(20, 1, 2, 3)], 10, 50, 19, (1, 2)),
        ([parts(5, 1, 2), parts(20, 1, 2, 3)], 19, 50, 50, (1, 2, 3)),
        ([parts(5, 1, 2), parts(20, 1, 2, 3)], 20, 50, 50, (1, 2, 3)),
        ([parts(5, 1, 2), parts(20, 1, 2, 3)], 10, 19, 19, (1, 2)),
        ([parts(5, 1), parts(20, 1, 2), parts(30, 1, 2, 3)], 19, 50, 29, (1, 2)),
        ([parts(5, 1), parts(20, 1, 2), parts(30, 1, 2, 3)], 10, 50, 19, (1,)),
        ([parts(5, 1, 2), parts(60, 1)], 10, 50, 50, (1, 2)),  # dropped later
        ([parts(5, 1, 2), parts(10, 2)], 10, 50, 50, (2,)),  # dropped before
    ],
)
def test_a_range_has_one_set_of_partitions(
    versions: list[SchemaVersion], from_ts: int, to_ts: int, end: int, ids: tuple[int, ...]
) -> None:
    assert partition_range("shop.t7", versions, from_ts, to_ts) == (end, ids)


@pytest.mark.parametrize(
    "versions",
    [
        [parts(5, 1, 2), parts(20, 1)],
        [parts(5, 1, 2), parts(11, 2)],  # right after the start
        [parts(5, 1, 2), parts(20, 1, 3)],  # truncated
        [parts(5, 1, 2), parts(20, 1, 2, 3), parts(30, 1, 3)],
        [parts(20, 3, 4)],  # all of them were replaced
    ],
)
def test_rows_that_went_with_their_partition_need_a_snapshot(versions: list[SchemaVersion]) -> None:
    with pytest.raises(StaleRead):
        partition_range("shop.t7", versions, 10, 50)
