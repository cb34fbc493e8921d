"""Which physical tables hold a range, and which ranges cannot be told: decided by the versions of tables."""

from dataclasses import replace

import pytest

from penstock.clock import TS_MAX
from penstock.errors import StaleRead
from penstock.eventstore.read.partition_sets import (
    AskedTable,
    Life,
    first_set,
    life_at,
    lives_of,
    merge_lives,
    partition_sets,
)
from penstock.eventstore.schema_version import SchemaVersion
from support.itemtables import item_table

BY_ID = AskedTable("shop.t7", 7, named=False)
BY_NAME = AskedTable("shop.t7", 7)


def version(ts: int, table_id: int, ids: tuple[int, ...], name: str = "t7") -> SchemaVersion:
    table = replace(item_table(table_id=table_id, partitions=ids), name=name)
    return SchemaVersion(ts, ts, table, "shop")


def parts(ts: int, *ids: int) -> SchemaVersion:
    return version(ts, 7, ids)


def alone(ts: int, table_id: int, name: str = "t7") -> SchemaVersion:
    return version(ts, table_id, (), name)


def lives(*versions: SchemaVersion, dropped: dict[int, list[int]] | None = None) -> list[Life]:
    """What the manifests of all physical tables say together."""
    ids = {each for known in versions for each in known.table.physical_ids}
    known = (
        lives_of(each, [v for v in versions if each in v.table.physical_ids], (dropped or {}).get(each, []))
        for each in ids
    )
    return merge_lives(life for mine in known for life in mine)


@pytest.mark.parametrize("asked", [BY_ID, BY_NAME])
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
    asked: AskedTable,
    versions: list[SchemaVersion],
    from_ts: int,
    to_ts: int,
    end: int,
    ids: tuple[int, ...],
) -> None:
    sets = partition_sets(asked, lives(*versions), from_ts, to_ts)
    assert first_set(sets, to_ts) == (end, ids)


@pytest.mark.parametrize(
    ("known", "last_ts"),
    [
        (lives(parts(5, 1, 2), parts(20, 1)), 20),
        (lives(parts(5, 1, 2), parts(11, 2)), 11),  # right after the start
        (lives(parts(5, 1, 2), parts(20, 1, 3)), 20),  # truncated
        (lives(parts(5, 1, 2), parts(20, 1, 2, 3), parts(30, 1, 3)), 30),
        (lives(parts(5, 1, 2), parts(20, 1, 3), parts(30, 1, 4), parts(40, 1, 4, 5)), 30),
        (lives(parts(5, 1, 2), parts(20, 3, 4)), 20),  # all of them were replaced
        (lives(parts(5, 1, 2), alone(6, 8, "x"), parts(20, 8, 2), version(20, 1, (), "x")), 20),  # exchanged
        (lives(parts(5, 1, 2), dropped={1: [20], 2: [20]}), 20),  # gone
    ],
)
def test_a_range_in_which_an_id_went_can_be_told_after_the_last_one_that_did(
    known: list[Life], last_ts: int
) -> None:
    for asked in (BY_ID, BY_NAME):
        with pytest.raises(StaleRead, match=r"rows of shop\.t7 since 10") as caught:
            partition_sets(asked, known, 10, 50)
        assert (caught.value.oldest_ts, caught.value.replaced) == (last_ts, True)
    if life_at(known, 7, 50) is not None:
        assert partition_sets(BY_NAME, known, last_ts, 50)


def test_a_table_followed_by_its_id_was_there_so_that_unknown_partitions_were_replaced() -> None:
    with pytest.raises(StaleRead):
        partition_sets(BY_ID, lives(parts(20, 3, 4)), 10, 50)
    assert partition_sets(BY_NAME, lives(parts(20, 3, 4)), 10, 50)[-1].ids == (3, 4)
    assert partition_sets(BY_ID, lives(alone(20, 7)), 10, 50)[-1].ids == (7,)


@pytest.mark.parametrize(
    ("known", "last_ts"),
    [
        (lives(alone(5, 6), alone(20, 7), dropped={6: [20]}), 20),  # truncated
        (lives(alone(5, 6), alone(30, 7), dropped={6: [20]}), 30),  # dropped and made again
        (lives(alone(5, 6), alone(30, 7)), 30),  # the drop is not told yet
        (lives(alone(5, 6), alone(20, 6, "old"), alone(7, 7, "new"), alone(20, 7)), 20),  # renamed over
        (lives(alone(5, 6), alone(20, 7), alone(60, 7, "later")), 20),
    ],
)
def test_another_table_that_had_the_name_breaks_a_range_for_those_who_ask_by_name(
    known: list[Life], last_ts: int
) -> None:
    with pytest.raises(StaleRead) as caught:
        partition_sets(BY_NAME, known, 10, 50)
    assert caught.value.oldest_ts == last_ts
    assert partition_sets(BY_ID, known, 10, 50)[-1].ids == (7,)
    assert partition_sets(BY_NAME, known, last_ts, 50)[-1].ids == (7,)


@pytest.mark.parametrize(
    "known",
    [
        lives(alone(20, 7)),
        lives(alone(2, 6), alone(20, 7), dropped={6: [8]}),  # another one was gone before
        lives(alone(15, 6), alone(20, 7), dropped={6: [18]}),  # another one came and went in the range
        lives(alone(5, 7, "old"), alone(20, 7)),  # renamed
        lives(alone(5, 7), alone(20, 7, "new")),
        lives(alone(5, 7), alone(30, 7), dropped={7: [20]}),  # dropped and recovered
        lives(alone(5, 7), alone(60, 8), dropped={7: [60]}),  # truncated later
    ],
)
def test_a_range_is_told_from_a_table_that_begins_empty_or_keeps_its_id(known: list[Life]) -> None:
    assert {each.ids for each in partition_sets(BY_NAME, known, 10, 50)} == {(7,)}


def test_rows_that_come_back_with_a_recovered_table_are_not_taken_for_nothing() -> None:
    known = lives(alone(5, 7), alone(30, 7), dropped={7: [8]})
    with pytest.raises(StaleRead) as caught:
        partition_sets(BY_NAME, known, 10, 50)
    assert caught.value.oldest_ts == 30
    assert partition_sets(BY_NAME, known, 8, 20) == []  # there was no table


def test_a_physical_table_ends_with_its_next_version_in_any_table_or_when_it_is_dropped() -> None:
    first, second = alone(5, 1, "x"), parts(20, 1, 2)
    assert lives_of(1, [second, first], []) == [Life(first, 20), Life(second, TS_MAX)]
    assert lives_of(1, [second, first], [40]) == [Life(first, 20), Life(second, 40)]
    assert lives_of(2, [second, first], [3]) == [Life(second, TS_MAX)]
