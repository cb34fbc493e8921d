from dataclasses import replace

import pytest

from penstock.changefeeds.ddl_barrier import (
    AHEAD_MAX,
    BlockEvent,
    PendingDdls,
    ReplicatedTables,
    block_events,
    find_done,
)
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import DoneDdls
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position
from support.ddlevents import (
    alter_table,
    create_database,
    create_table,
    drop_database,
    rename_tables,
    table_schema,
    truncate_table,
)

A, B = table_schema(1), table_schema(2)
OTHER = table_schema(3, "other.t")


def blocked(*events: DdlEvent) -> list[BlockEvent]:
    return list(block_events(events, TableFilter()))


def test_ddls_of_one_commit_are_one_block() -> None:
    made = blocked(alter_table(5, A), alter_table(5, B), alter_table(6, A))
    assert [(each.commit_ts, len(each.events), each.table_ids) for each in made] == [
        (5, 2, {1, 2}),
        (6, 1, {1}),
    ]


def test_a_table_stops_at_the_first_ddl_of_its_own_or_of_its_database() -> None:
    pending = PendingDdls(DoneDdls(1))
    for block in blocked(alter_table(5, A), drop_database(7, "Shop", [A, B]), alter_table(9, OTHER)):
        pending.add(block)

    def first(table_id: int, database: str) -> int | None:
        block = pending.first_of(table_id, database)
        return None if block is None else block.commit_ts

    assert [first(1, "shop"), first(2, "shop"), first(99, "SHOP"), first(3, "other")] == [5, 7, 7, 9]
    pending.finish(pending.get(5))
    assert [first(1, "shop"), first(3, "other"), first(1, "elsewhere")] == [7, 9, 7]
    pending.finish(pending.get(7))
    assert [first(1, "shop"), first(99, "shop"), first(3, "other")] == [None, None, 9]
    pending.finish(pending.get(9))
    assert pending.head is None


def test_tables_follow_the_ddls() -> None:
    tables = ReplicatedTables([A, B, OTHER])
    (block,) = blocked(truncate_table(5, A, 7))
    after = tables.after(block)
    assert set(after.ids()) == {2, 3, 7}
    assert set(tables.ids()) == {1, 2, 3}
    assert block.begin_position(7) == Position(5)
    (block,) = blocked(drop_database(6, "shop", [B]))
    assert sorted(after.blocked_ids(block)) == [2, 7]


def test_partitions_that_change_places_go_on() -> None:
    left, right = table_schema(1, partitions=(11, 12)), table_schema(20)
    swapped = rename_tables(5, (left, "shop.t1"), (right, "shop.t20"))
    one, two = swapped.tables
    exchanged = DdlEvent(
        commit_ts=5,
        type=42,
        query="",
        database="shop",
        tables=(
            type(one)(left, table_schema(1, partitions=(11, 20))),
            type(two)(right, table_schema(12, "shop.t20")),
        ),
    )
    tables = ReplicatedTables([left, right])
    after = tables.after(*blocked(exchanged))
    assert set(after.ids()) == set(tables.ids()) == {11, 12, 20}
    assert after.schema(12).table.name == "t20"


def test_views_have_no_dispatchers() -> None:
    view = table_schema(5)
    object.__setattr__(view.table, "extra", {"view": {"x": 1}})
    (block,) = blocked(create_table(6, view))
    assert not ReplicatedTables([view]).ids()
    assert not ReplicatedTables(()).after(block).ids()


def startable(*events: DdlEvent) -> list[int]:
    pending = PendingDdls(DoneDdls(1))
    for block in blocked(*events):
        pending.add(block)
    return [block.commit_ts for block in pending.startable()]


def with_extra(schema: SchemaVersion, **extra: object) -> SchemaVersion:
    return replace(schema, table=replace(schema.table, extra={**schema.table.extra, **extra}))


CHILD = with_extra(
    table_schema(8), fk_info=[{"ref_schema": {"O": "shop"}, "ref_table": {"O": "t1"}, "fk_name": {"O": "f"}}]
)
VIEW = with_extra(table_schema(9, "other.v"), view={"x": 1})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([alter_table(5, A), alter_table(6, B)], [5, 6]),
        ([alter_table(5, A), alter_table(6, A)], [5]),
        ([alter_table(5, A), create_table(6, table_schema(7))], [5, 6]),
        ([rename_tables(5, (A, "shop.x")), create_table(6, table_schema(7, "SHOP.T1"))], [5]),
        ([rename_tables(5, (A, "shop.x")), create_table(6, table_schema(7, "shop.X"))], [5]),
        ([truncate_table(5, A, 7), alter_table(6, table_schema(7, "shop.t1"))], [5]),
        ([rename_tables(5, (A, "shop.x"), (B, "shop.y")), alter_table(6, B), alter_table(7, OTHER)], [5, 7]),
        ([alter_table(5, A), drop_database(6, "shop", [A, B]), alter_table(7, OTHER)], [5, 7]),
        ([create_database(5, "Shop"), create_table(6, A), create_database(7, "other")], [5, 7]),
        ([drop_database(5, "shop", [A]), create_database(6, "shop")], [5]),
        ([rename_tables(5, (A, "other.x")), create_database(6, "other")], [5]),
        ([alter_table(5, A), create_table(6, CHILD)], [5]),
        ([alter_table(5, A), create_table(6, VIEW), alter_table(7, B)], [5]),
        ([create_table(5, VIEW), alter_table(6, B)], [5]),
    ],
)
def test_a_ddl_waits_for_earlier_ones_of_its_scope(events: list[DdlEvent], expected: list[int]) -> None:
    assert startable(*events) == expected


def test_what_overlaps_with_a_finished_ddl_starts_when_it_is_released() -> None:
    pending = PendingDdls(DoneDdls(1))
    for block in blocked(alter_table(5, A), alter_table(6, A)):
        pending.add(block)
    first = pending.get(5)
    pending.finish(first)
    assert pending.startable() == []
    pending.release(first)
    assert pending.startable() == [pending.get(6)]


def test_only_so_many_ddls_are_ahead_of_one_that_is_not_done() -> None:
    pending = PendingDdls(DoneDdls(1))
    for block in blocked(*(alter_table(5 + n, table_schema(100 + n)) for n in range(2 * AHEAD_MAX))):
        pending.add(block)
    while len(ready := pending.startable()) > 1:
        for block in ready[1:]:
            pending.finish(block)
            pending.release(block)
    assert len(pending.done.later) == AHEAD_MAX - 1
    pending.finish(ready[0])
    assert pending.done == DoneDdls(5 + AHEAD_MAX - 1)


def test_a_ddl_that_was_found_late_counts_as_done_with_a_later_one_of_its_table() -> None:
    events = (alter_table(5, A), rename_tables(6, (A, "shop.x"), (B, "shop.y")), alter_table(7, B))
    blocks = blocked(*events, alter_table(8, OTHER), alter_table(9, B))
    done = find_done(blocks, DoneDdls(1, frozenset({7})))
    assert [block.commit_ts for block in done] == [5, 6, 7]


def test_done_ddls_merge_in_any_order() -> None:
    one, other = DoneDdls(10, frozenset({30, 50})), DoneDdls(30, frozenset({40}))
    assert one.merge(other) == other.merge(one) == DoneDdls(30, frozenset({40, 50}))
    assert (10 in one, 20 in one, 30 in one, one.last_ts) == (True, False, True, 50)
    assert one.add(20, 40) == DoneDdls(30, frozenset({50}))
    assert one.add(20, None) == DoneDdls(50)
