"""Tables that are dropped, truncated and recovered, as readers find them by name meanwhile."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.changes import collect_changes
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.testing.versions import CopiedTable
from support.itemtables import item, item_table
from support.tableworld import NAME, TableWorld

NTH = count()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    """A table with a row in an object and one that is not flushed."""
    with TableWorld(tmp_path, item_table(), url=f"memory:///ends-{next(NTH)}") as made:
        made.commit(item("integer", 1, "flushed"))
        made.flush()
        made.commit(item("integer", 2, "not flushed"))
        made.resolve()
        yield made


def read(world: TableWorld, ts: int, name: str = NAME) -> list[int]:
    view = world.find(name, ts)
    return sorted(row["id"] for batch in read_snapshot(view, ts) for row in batch.to_pylist())


def test_a_dropped_table_is_not_read_beyond_its_drop_before_objects_say_so(world: TableWorld) -> None:
    ts = world.drop(world.table)
    world.tick()
    world.resolve()
    with pytest.raises(Unavailable, match="can be read up to"):
        read(world, ts)
    assert read(world, ts - 1) == [1, 2]
    world.flush()
    with pytest.raises(Invalid, match="no table"):
        read(world, ts)
    assert read(world, ts - 1) == [1, 2]


def test_rows_from_before_a_truncation_are_not_read_as_rows_after_it(world: TableWorld) -> None:
    before = world.table
    made = world.truncate(before)
    world.tick()
    ts = world.resolve()
    with pytest.raises(Unavailable):
        read(world, ts)
    world.share()
    world.commit(item("integer", 3, "after"))
    world.resolve()
    assert (read(world, made.names[0][0] - 1), read(world, ts), read(world, world.ts)) == ([1, 2], [], [3])


def test_a_table_dropped_and_recovered_between_two_flushes_was_gone_meanwhile(world: TableWorld) -> None:
    dropped_ts = world.drop(world.table)
    recovered_ts = world.recover(world.table)
    world.commit(item("integer", 3, "after"))
    world.flush()
    with pytest.raises(Invalid, match="no table"):
        read(world, dropped_ts)
    assert (read(world, dropped_ts - 1), read(world, recovered_ts), read(world, world.ts)) == (
        [1, 2], [1, 2], [1, 2, 3],
    )  # fmt: skip


def test_a_table_that_the_cluster_forgot_before_its_recovery_is_read_through_it(world: TableWorld) -> None:
    """The schema from before the drop is in the manifest alone; nothing was flushed since."""
    from_ts = world.flush()
    world.drop(world.table)
    world.flush()
    world.collect_source()
    world.recover(world.table)
    world.commit(item("integer", 3, "after"))
    world.crash()
    to_ts = world.resolve()
    target = CopiedTable(world.versions.at(from_ts), from_ts)
    with collect_changes(world.view(), from_ts, to_ts) as handle:
        target.take_all(handle)
    assert target.rows == world.versions.at(to_ts)


def test_a_table_whose_beginning_was_collected_is_read_before_its_first_flush(world: TableWorld) -> None:
    other = world.create("shop.other", item_table())
    world.commit(item("integer", 1, "from before"), table=other)
    world.flush()
    world.collect_source()
    world.share()  # it is captured for the first time
    world.deliver()
    ts = world.resolve()
    assert world.manifest(other.ids[0]).flushed_ts == 0 < world.manifest(other.ids[0]).oldest_ts
    assert read(world, ts, "shop.other") == [1]


def test_a_table_is_found_by_a_name_that_it_had_for_a_moment_before_it_was_dropped(world: TableWorld) -> None:
    renamed_ts = world.rename((world.table, "shop.old"))
    world.drop(world.table)
    world.flush()
    world.share()
    assert read(world, renamed_ts, "shop.old") == [1, 2]
