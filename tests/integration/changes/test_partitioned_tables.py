"""Tables of several partitions: one order over all of them."""

from collections.abc import Callable

import pytest

from penstock.changes import Hint, plan_changes
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.tables.alter import drop_column
from penstock.testing.versions import CopiedTable
from support.itemtables import item
from support.tableworld import NAME, START, TableWorld

MakeWorld = Callable[..., TableWorld]
PARTS = (11, 12, 13)


@pytest.fixture
def world(make_world: MakeWorld) -> TableWorld:
    return make_world("no key", partitions=PARTS)


def row(number: int, name: str = "x") -> dict[str, object]:
    return item("no key", number, name)


@pytest.mark.parametrize("flushed", [False, True])
def test_changes_of_all_partitions_come_in_one_order(world: TableWorld, flushed: bool) -> None:
    for number in range(1, 40):
        world.commit(row(number), into=number % 3)
    from_ts = world.commit(row(40), into=0)
    for number in range(1, 20):
        world.commit(row(number, "changed"), into=number % 3)
    to_ts = world.flush() if flushed else world.resolve()
    batches = world.changes(START, to_ts, coalesce=False)
    told = [ts for batch in batches for ts in batch.data.column("_commit_ts").to_pylist()]
    assert told == sorted(told)
    assert len(told) == 59
    target = CopiedTable(world.versions.at(from_ts), from_ts)
    target.take_all(world.changes(from_ts, to_ts))
    assert target.rows == world.versions.at(to_ts)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_that_moves_between_partitions_ends_and_begins_in_one_batch(
    world: TableWorld, flushed: bool
) -> None:
    from_ts = world.commit(row(1), row(2), into=0)
    to_ts = world.commit(row(1, "moved"), into=2)
    if flushed:
        world.flush()
    world.resolve()
    for coalesce in (True, False):
        (batch,) = world.changes(from_ts, to_ts, coalesce=coalesce)
        assert batch.hint is Hint.TAIL_DONE
        assert batch.data.column("name").to_pylist() == ["moved"]
        assert batch.tombstones.column("_commit_ts").to_pylist() == [to_ts]
        assert batch.data.column("_handle").equals(batch.tombstones.column("_handle"))
    assert world.snapshot(to_ts) == world.versions.at(to_ts)


def test_a_row_that_moves_there_and_back_is_one_update(world: TableWorld) -> None:
    from_ts = world.commit(row(1), into=0)
    world.commit(row(1, "there"), into=1)
    to_ts = world.commit(row(1, "and back"), into=0)
    world.flush()
    (batch,) = world.changes(from_ts, to_ts)
    assert (batch.data.num_rows, batch.tombstones.num_rows) == (1, 1)
    assert batch.data.column("name").to_pylist() == ["and back"]


def test_a_transaction_over_partitions_is_never_divided_by_a_done(make_world: MakeWorld) -> None:
    world = make_world("no key", partitions=PARTS, large_txn_bytes=1 << 16)
    ts = world.tick()
    for into in range(3):
        numbers = range(into * 1000 + 1, (into + 1) * 1000)
        world.commit(*(row(number, "n" * 80) for number in numbers), into=into, at=ts)
    world.flush()
    batches = world.changes(START, ts, batch_rows=300)
    assert len(batches) > 2
    assert [batch.hint for batch in batches] == [Hint.TAIL_WIP] * (len(batches) - 1) + [Hint.TAIL_DONE]
    assert sum(batch.data.num_rows for batch in batches) == 3 * 999


def test_batches_are_bounded_whatever_the_number_of_partitions(world: TableWorld) -> None:
    for first in range(1, 3000, 100):
        world.commit(*(row(number) for number in range(first, first + 100)), into=first // 100 % 3)
    to_ts = world.flush()
    sizes = [batch.data.num_rows for batch in world.changes(START, to_ts, batch_rows=200)]
    assert sum(sizes) == 3000
    assert min(sizes[:-1]) >= 200
    assert max(sizes) <= 600
    assert max(batch.num_rows for batch in read_snapshot(world.view(), to_ts, batch_rows=200)) <= 200
    assert max(batch.data.num_rows for batch in world.changes(0, to_ts, batch_rows=200)) <= 400


def twin(number: int, name: str, rowid: int = 5) -> dict[str, object]:
    return item("not clustered", number, name, rowid=rowid)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("replay", [False, True])
def test_rows_of_two_partitions_that_have_the_same_handle_are_two_rows(
    make_world: MakeWorld, flushed: bool, replay: bool
) -> None:
    """EXCHANGE PARTITION leaves such rows: tables give out their `_tidb_rowid`s independently."""
    world = make_world("not clustered", partitions=(11, 12))
    world.commit(twin(1, "a"), into=0)
    started = world.commit(twin(2, "b"), into=1)
    world.commit(twin(3, "c", 7), into=0)
    inserted = world.commit(twin(4, "d", 7), into=1)
    world.commit(twin(1, "a2"), into=0)
    updated = world.commit(twin(2, "b2"), into=1)
    deleted = world.commit(delete=[(1,), (4,)])
    world.flush() if flushed else world.resolve()
    moments = (START, started, inserted, updated, deleted)
    for from_ts in moments:
        for to_ts in moments[moments.index(from_ts) + 1 :]:
            rows = world.versions.at(from_ts)
            target = CopiedTable(rows, from_ts, again=replay, in_order=replay, coalesced=not replay)
            target.take_all(world.changes(from_ts, to_ts, replay=replay))
            assert target.rows == world.versions.at(to_ts), (from_ts, to_ts)
    assert world.snapshot(deleted) == world.versions.at(deleted)


@pytest.mark.parametrize("flushed", [False, True])
def test_parts_that_end_before_a_partition_is_added_have_their_own_changes_only(
    make_world: MakeWorld, flushed: bool
) -> None:
    world = make_world(partitions=(11, 12))
    world.share()
    from_ts = world.commit(item("integer", 1, "before"))
    for number in range(2, 8):
        world.commit(item("integer", number, "x"), into=number % 2)
    world.alter(drop_column(world.versions.table, "name"))
    world.add_partition(world.table)
    world.share()
    world.commit({"id": 8}, into=2)
    to_ts = world.flush() if flushed else world.resolve()
    told: list[int] = []
    for part in plan_changes(world.find(NAME), from_ts, to_ts, partition_rows=1, coalesce=False):
        with part.collect() as handle:
            told += [number for batch in handle for number in batch.data.column("id").to_pylist()]
    assert told == list(range(2, 9))


@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_whose_key_is_its_handle_stays_one_row_in_another_partition(
    make_world: MakeWorld, flushed: bool
) -> None:
    world = make_world(partitions=(11, 12))
    from_ts = world.commit(item("integer", 1, "here"), into=0)
    for turn in range(3):
        world.commit(item("integer", 1, "there"), into=1)
        world.commit(item("integer", 1, f"back {turn}"), into=0)
    to_ts = world.commit(delete=[(1,)])
    world.flush() if flushed else world.resolve()
    (batch,) = world.changes(from_ts, to_ts, replay=True)
    assert (batch.data.num_rows, batch.tombstones.num_rows) == (0, 1)
