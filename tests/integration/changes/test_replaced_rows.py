"""DDLs that take or bring rows without a change of any: what a range says that has such a moment in it."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.changes import ChangeBatch, collect_changes, plan_changes
from penstock.errors import StaleRead
from penstock.eventstore.read.partition import TableView
from penstock.testing.versions import CopiedTable, Row
from support.feedworld import FeedWorld, WorldTable
from support.itemtables import item

NAME = "shop.items"
Ddl = Callable[[FeedWorld, WorldTable], object]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FeedWorld]:
    clock = count(1_700_000_000_000)
    with FeedWorld(tmp_path, lambda: next(clock)) as made:
        made.create_database("shop")
        yield made


def put(world: FeedWorld, table: WorldTable, *numbers: int, name: str = "a") -> None:
    for number in numbers:
        world.commit((table, [], [item("integer", number, name)]))


def known(world: FeedWorld, *, flush: bool) -> int:
    """Everything so far can be read; maybe out of objects alone."""
    ts = world.resolve_ddls()
    for each in sorted(world.uncaptured):
        world.capture(each)
    world.resolve()
    for each in sorted(world.store.tables()) if flush else ():
        world.flush(each)
    return ts


def led(rows: Iterable[Row], batches: Iterable[ChangeBatch], from_ts: int) -> dict[int, str]:
    """What changes make of some rows."""
    target = CopiedTable({(row["id"],): row for row in rows}, from_ts)
    target.take_all(batches)
    return {key[0]: row["name"] for key, row in target.rows.items()}


def collected(view: TableView, from_ts: int, to_ts: int) -> list[ChangeBatch]:
    with collect_changes(view, from_ts, to_ts) as handle:
        return list(handle)


def planned(view: TableView, from_ts: int, to_ts: int) -> list[ChangeBatch]:
    """The same in parts."""
    found: list[ChangeBatch] = []
    for part in plan_changes(view, from_ts, to_ts, partition_rows=2):
        with part.collect() as handle:
            found += handle
    return found


def check(world: FeedWorld, from_ts: int, to_ts: int, name: str = NAME) -> None:
    """Changes lead from the rows at the start to those at the end, whenever the view was opened."""
    before, after = (world.rows_at(ts).get(name, []) for ts in (from_ts, to_ts))
    expected = {row["id"]: row["name"] for row in after}
    for view in (world.find(name, to_ts), world.find(name)):
        assert led(before, collected(view, from_ts, to_ts), from_ts) == expected
        assert led(before, planned(view, from_ts, to_ts), from_ts) == expected
        assert led([], collected(view, 0, to_ts), 0) == expected


def replaced(view: TableView, from_ts: int, to_ts: int) -> int:
    """From where on a range can be told that cannot."""
    found = []
    for read in (collected, planned):
        with pytest.raises(StaleRead, match=r"a DDL replaced rows of shop\.items since") as caught:
            read(view, from_ts, to_ts)
        assert caught.value.replaced
        assert str(caught.value).endswith(": read a snapshot and go on from it")
        found.append(caught.value.oldest_ts)
    assert len(set(found)) == 1
    return found[0]


def renamed_over(world: FeedWorld, table: WorldTable) -> None:
    other = world.create_table("shop.other", "integer")
    put(world, other, 90)
    world.rename_table(table, "shop.old")
    world.rename_table(other, NAME)


def dropped_and_created(world: FeedWorld, table: WorldTable) -> None:
    world.drop_table(table)
    world.create_table(NAME, "integer")


def exchanged(world: FeedWorld, table: WorldTable) -> None:
    other = world.create_table("shop.other", "integer")
    put(world, other, 90)
    world.exchange_partition(table, 0, other)


DDLS: dict[str, Ddl] = {
    "truncate table": lambda world, table: world.truncate_table(table),
    "drop and create": dropped_and_created,
    "rename over": renamed_over,
    "drop partition": lambda world, table: world.drop_partition(table, 0),
    "truncate a partition": lambda world, table: world.truncate_partitions(table, 1),
    "truncate all partitions": lambda world, table: world.truncate_partitions(table, 0, 1),
    "exchange partition": exchanged,
}


OTHER_TABLE = {"truncate table", "drop and create", "rename over"}


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("ddl", DDLS)
def test_a_range_in_which_rows_were_replaced_names_the_last_moment_after_which_it_can_be_told(
    world: FeedWorld, ddl: str, flush: bool
) -> None:
    table = world.create_table(NAME, "integer", 2)
    put(world, table, 1, 2, 3, 4)
    from_ts = known(world, flush=flush)
    put(world, table, 5, 6)
    before_ts = known(world, flush=flush)
    early = world.find(NAME)
    DDLS[ddl](world, table)
    if ddl == "truncate table":
        put(world, table, 7)
        DDLS[ddl](world, table)
    last_ts = world.ts
    put(world, world.tables[NAME], 17, 18)
    to_ts = known(world, flush=flush)
    at_once = ddl not in {"drop and create", "rename over"}  # else the name was nobody's for a while
    for start in (from_ts, before_ts, *([last_ts - 1] if at_once else [])):
        assert replaced(world.find(NAME), start, to_ts) == last_ts
    check(world, last_ts, to_ts)
    earlier = collected(world.find(NAME, before_ts), from_ts, before_ts)
    assert led(world.rows_at(from_ts)[NAME], earlier, from_ts).keys() == {1, 2, 3, 4, 5, 6}
    if ddl in OTHER_TABLE:  # what the name means now has no such past
        assert replaced(world.find(NAME), from_ts, before_ts) == last_ts
    else:
        check(world, from_ts, before_ts)
    if ddl == "rename over":  # the view is of a table that has another name now
        assert led(world.rows_at(from_ts)[NAME], collected(early, from_ts, to_ts), from_ts).keys() == set(
            range(1, 7)
        )
    else:
        with pytest.raises(StaleRead):
            collected(early, from_ts, to_ts)


@pytest.mark.parametrize("flush", [False, True])
def test_a_partition_that_is_added_begins_empty_and_its_changes_are_told_whenever_the_view_was_opened(
    world: FeedWorld, flush: bool
) -> None:
    table = world.create_table(NAME, "integer", 2)
    put(world, table, 1, 2)
    from_ts = known(world, flush=flush)
    early = world.find(NAME)
    world.add_partition(table)
    put(world, table, 3, 4, 5, name="b")
    to_ts = known(world, flush=flush)
    check(world, from_ts, to_ts)
    for read in (collected, planned):
        assert led(world.rows_at(from_ts)[NAME], read(early, from_ts, to_ts), from_ts).keys() == {
            1,
            2,
            3,
            4,
            5,
        }
    world.drop_partition(table, 2)  # what it had came and went within the range
    gone_ts = known(world, flush=flush)
    check(world, from_ts, gone_ts)
    assert replaced(world.find(NAME), to_ts, gone_ts) < gone_ts


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_table_that_was_not_there_begins_empty_and_a_rename_changes_nothing(
    world: FeedWorld, partitions: int, flush: bool
) -> None:
    world.drop_table(world.create_table(NAME, "integer", partitions))  # one of the name was gone before
    from_ts = known(world, flush=flush)
    table = world.create_table(NAME, "integer", partitions)
    put(world, table, 1, 2)
    middle_ts = known(world, flush=flush)
    check(world, from_ts, middle_ts)
    world.rename_table(table, "shop.renamed")
    put(world, table, 3)
    to_ts = known(world, flush=flush)
    for view in (world.find("shop.renamed"), world.find(NAME, middle_ts)):
        for start in (from_ts, middle_ts):
            rows = world.rows_at(start).get(NAME, [])
            assert led(rows, collected(view, start, to_ts), start).keys() == {1, 2, 3}


def test_rows_that_an_exchange_brought_into_a_new_table_are_not_taken_for_nothing(world: FeedWorld) -> None:
    other = world.create_table("shop.other", "integer")
    put(world, other, 90)
    from_ts = known(world, flush=True)
    table = world.create_table(NAME, "integer", 2)
    put(world, table, 1)
    moved_ts = world.exchange_partition(table, 0, other)
    to_ts = known(world, flush=True)
    assert replaced(world.find(NAME), from_ts, to_ts) == moved_ts
    check(world, moved_ts, to_ts)


def test_a_table_that_is_dropped_is_not_read_beyond_that_before_its_end_is_in_its_manifest(
    world: FeedWorld,
) -> None:
    table = world.create_table(NAME, "integer")
    put(world, table, 1)
    from_ts = known(world, flush=True)
    world.truncate_table(table)
    to_ts = known(world, flush=False)
    early = world.find(NAME, from_ts)
    assert replaced(early, from_ts, to_ts) < to_ts
    (state,) = (each.state() for each in early.partitions)
    assert from_ts <= state.newest_ts == state.readable_ts < to_ts
