from penstock.changefeeds.ddl_barrier import BlockEvent, PendingDdls, ReplicatedTables, block_events
from penstock.changefeeds.filters import TableFilter
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position
from support.ddlevents import (
    alter_table,
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
    pending = PendingDdls()
    for block in blocked(alter_table(5, A), drop_database(7, "Shop", [A, B]), alter_table(9, OTHER)):
        pending.add(block)

    def first(table_id: int, database: str) -> int | None:
        block = pending.first_of(table_id, database)
        return None if block is None else block.commit_ts

    assert [first(1, "shop"), first(2, "shop"), first(99, "SHOP"), first(3, "other")] == [5, 7, 7, 9]
    pending.pop()
    assert [first(1, "shop"), first(3, "other"), first(1, "elsewhere")] == [7, 9, 7]
    pending.pop()
    assert [first(1, "shop"), first(99, "shop"), first(3, "other")] == [None, None, 9]
    pending.pop()
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
