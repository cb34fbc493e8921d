"""A column that MODIFY COLUMN rewrites: its values are there before it is public, and are kept until then."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.changes import collect_changes, plan_changes
from penstock.changes.collect import open_range
from penstock.changes.columns import choose_columns
from penstock.changes.limits import ChangeCounts, ReadLimit
from penstock.errors import StaleRead
from penstock.eventstore.read.snapshot import read_snapshot, snapshot_schema
from penstock.follow.scans import change_options, scan_tail
from penstock.jobs.iteration.ordering import BatchProjection
from penstock.tables.alter import add_column
from penstock.tables.columns import SchemaState
from support.rewrites import RewritingWorld
from support.tableworld import TableWorld


@pytest.fixture
def world(tmp_path: Path):
    with RewritingWorld(tmp_path, ("w", "int")) as made:
        yield made


Step = Callable[[RewritingWorld], object]


def nothing(_: RewritingWorld) -> None:
    """Leave the rows where they are."""


def merge(world: RewritingWorld) -> None:
    world.flush()
    world.store.merge(1)


@pytest.mark.parametrize("before", [nothing, RewritingWorld.flush, merge])
@pytest.mark.parametrize("during", [nothing, RewritingWorld.flush, merge, RewritingWorld.crash])
@pytest.mark.parametrize("after", [nothing, RewritingWorld.flush, merge])
def test_rows_have_the_rewritten_values_once_the_column_is_public(
    world: RewritingWorld, before: Step, during: Step, after: Step
) -> None:
    world.commit({"id": 1, "v": 10, "w": 1}, {"id": 2, "v": 20, "w": 2})
    before(world)
    world.begin_rewrite()
    world.advance_rewrite()
    world.commit({"id": 3, "v": 30, "w": 3})
    world.advance_rewrite()
    world.commit({"id": 2, "v": 21, "w": 2})
    world.backfill()
    during(world)
    switched_ts = world.switch()
    world.commit({"id": 4, "v": "40", "w": 4})
    after(world)
    world.resolve()
    for ts in (switched_ts - 1, switched_ts, world.ts):
        assert world.snapshot(ts) == world.versions.at(ts)
    assert world.snapshot(world.ts)[1,] == {"id": 1, "v": "10", "w": 1}


def test_readers_do_not_see_a_column_that_is_not_public(world: RewritingWorld) -> None:
    world.commit({"id": 1, "v": 10, "w": 1})
    world.begin_rewrite()
    world.advance_rewrite()
    ts = world.commit({"id": 1, "v": 11, "w": 1})
    world.flush()
    world.commit({"id": 1, "v": 12, "w": 1})
    world.resolve()
    assert snapshot_schema(world.view(), world.ts).names == ["id", "v", "w", "_commit_ts"]
    found = [batch.schema.names for batch in read_snapshot(world.view(), world.ts)]
    assert set(map(tuple, found)) == {("id", "v", "w", "_commit_ts")}
    for from_ts, to_ts in ((ts - 1, ts), (ts, world.ts)):
        batches = world.changes(from_ts, to_ts, old_rows=True)
        assert batches
        for batch in batches:
            assert batch.data.schema.names == ["id", "v", "w", "_commit_ts"]
            assert [field.name for field in batch.tombstones.schema.field("_old").type] == ["id", "v", "w"]


def test_objects_name_a_column_that_is_not_public_by_its_id(world: RewritingWorld) -> None:
    world.begin_rewrite()
    world.advance_rewrite()
    world.commit({"id": 1, "v": 10, "w": 1})
    world.commit({"id": 1, "v": 11, "w": 1})
    world.flush()
    storage = world.storage.open()
    names = [name for name in storage.names("tables/1/") if name.endswith(".parquet")]
    assert world.hidden is not None
    hidden = f"_column_{world.hidden.id} "
    found = []
    for name in names:
        with storage.open(name) as source, pq.ParquetFile(source) as file:
            found.append([file.metadata.schema.column(at).path for at in range(file.metadata.num_columns)])
    assert sorted(next(path for path in paths if hidden in path) for paths in found) == [
        hidden,
        f"_old.{hidden}",
    ]


@pytest.mark.parametrize("step", [nothing, RewritingWorld.flush])
def test_rows_of_a_range_read_as_the_later_table_have_the_rewritten_values(
    world: RewritingWorld, step: Step
) -> None:
    """A reader that asks for the column that is not public yet gets its values, on both sides."""
    world.begin_rewrite()
    world.advance_rewrite()
    world.advance_rewrite()
    from_ts = world.commit({"id": 1, "v": 10, "w": 1})
    world.commit({"id": 1, "v": 11, "w": 1})
    world.resolve()
    step(world)
    assert world.hidden is not None
    hidden = f"_column_{world.hidden.id} "
    batches = world.changes(from_ts, world.ts, old_rows=True, columns=["id", hidden])
    (data,) = [row for batch in batches for row in batch.data.to_pylist()]
    (tombstone,) = [row for batch in batches for row in batch.tombstones.to_pylist()]
    assert data[hidden] == "11"
    assert tombstone["_old"] == {"id": 1, hidden: "10"}


def seen_changes(world: RewritingWorld, from_ts: int, to_ts: int) -> list[tuple[int, object]]:
    """Return what a reader of every change sees: the key, and the new value or None."""
    found = []
    for batch in world.changes(from_ts, to_ts, coalesce=False, old_rows=True):
        found += [(row["_commit_ts"], row["id"], None) for row in batch.tombstones.to_pylist()]
        found += [(row["_commit_ts"], row["id"], row["v"]) for row in batch.data.to_pylist()]
    return [(key, value) for _, key, value in sorted(found, key=lambda row: (*row[:2], row[2] is not None))]


@pytest.mark.parametrize("large_txn_bytes", [1 << 30, 1])
@pytest.mark.parametrize("step", [nothing, RewritingWorld.flush, merge])
def test_updates_that_only_backfill_are_no_changes(tmp_path: Path, step: Step, large_txn_bytes: int) -> None:
    with RewritingWorld(tmp_path, large_txn_bytes=large_txn_bytes) as world:
        from_ts = world.commit(*({"id": number, "v": number} for number in range(1, 6)))
        world.begin_rewrite()
        world.advance_rewrite()
        world.advance_rewrite()
        world.commit({"id": 2, "v": 22})
        world.backfill([(1,), (3,)])
        world.commit({"id": 1, "v": 11}, delete=[(4,)])
        world.backfill()
        world.resolve()
        step(world)
        assert seen_changes(world, from_ts, world.ts) == [
            *((2, None), (2, 22)),
            *((1, None), (1, 11), (4, None)),
        ]
        counted = ChangeCounts(open_range(world.view(), from_ts, world.ts), from_ts, world.ts)
        assert counted.weigh(world.ts)[0] == 5
        parts = plan_changes(world.view(), from_ts, world.ts, coalesce=False, partition_rows=1)
        with_rows = [batch for part in parts for batch in part.collect()]
        assert sum(batch.data.num_rows + batch.tombstones.num_rows for batch in with_rows) == 5
        world.switch()
        world.resolve()
        assert world.snapshot(world.ts) == world.versions.at(world.ts)


@pytest.mark.parametrize("step", [nothing, RewritingWorld.flush])
def test_an_update_that_writes_the_same_values_is_a_change_unless_a_column_is_rewritten(
    world: RewritingWorld, step: Step
) -> None:
    from_ts = world.commit({"id": 1, "v": 10, "w": None})
    world.commit({"id": 1, "v": 10, "w": None})
    world.resolve()
    step(world)
    assert seen_changes(world, from_ts, world.ts) == [(1, None), (1, 10)]


@pytest.mark.parametrize("step", [nothing, RewritingWorld.flush])
def test_a_range_across_the_rewrite_of_a_column_names_its_moment(world: RewritingWorld, step: Step) -> None:
    from_ts = world.commit({"id": 1, "v": 10, "w": 1})
    switched_ts = world.rewrite()
    world.commit({"id": 1, "v": "11", "w": 1})
    world.resolve()
    step(world)
    for start in (from_ts, switched_ts - 1):
        with pytest.raises(StaleRead) as raised:
            world.changes(start, world.ts)
        assert raised.value.oldest_ts == switched_ts
        assert raised.value.replaced
    assert seen_changes(world, from_ts, switched_ts - 1) == []
    assert seen_changes(world, switched_ts, world.ts) == [(1, None), (1, "11")]


@pytest.mark.parametrize("step", [nothing, RewritingWorld.flush, merge, RewritingWorld.crash])
@pytest.mark.parametrize("large_txn_bytes", [1 << 30, 1])
def test_values_that_the_cluster_does_not_send_are_read_at_the_switch(
    tmp_path: Path, step: Step, large_txn_bytes: int
) -> None:
    with RewritingWorld(tmp_path, delivers_backfill=False, large_txn_bytes=large_txn_bytes) as world:
        from_ts = world.commit(*({"id": number, "v": number} for number in range(1, 6)))
        step(world)
        switched_ts = world.rewrite()
        world.commit({"id": 2, "v": "two"}, delete=[(3,)], at=switched_ts, start=switched_ts - 1)
        world.commit({"id": 1, "v": "one"})
        TableWorld.resolve(world)
        assert world.store.readable_ts(1) == switched_ts - 1
        assert world.store.flush(1)
        assert world.manifest().flushed_ts == switched_ts - 1
        assert world.reread(3)
        world.crash()
        assert world.store.readable_ts(1) == switched_ts - 1
        world.resolve()
        assert world.store.readable_ts(1) == world.ts
        step(world)
        world.resolve()
        for ts in (switched_ts - 1, switched_ts, world.ts):
            assert world.snapshot(ts) == world.versions.at(ts)
        assert seen_changes(world, from_ts, switched_ts - 1) == []
        assert seen_changes(world, switched_ts, world.ts) == [(1, None), (1, "one")]


def test_a_merge_does_not_lose_what_was_backfilled(world: RewritingWorld) -> None:
    world.commit({"id": 1, "v": 10, "w": 1})
    world.flush()
    world.begin_rewrite()
    world.advance_rewrite()
    world.advance_rewrite()
    world.backfill()
    world.flush()
    world.store.merge(1)
    world.store.collect(1)
    world.switch()
    world.flush()
    world.store.merge(1)
    assert world.snapshot(world.ts) == {(1,): {"id": 1, "v": "10", "w": 1}}


@pytest.mark.parametrize("step", [nothing, RewritingWorld.flush])
def test_a_scan_across_the_states_of_an_added_column_has_its_values(
    world: RewritingWorld, step: Step
) -> None:
    """Writers write the new column before it is public; a scan of all columns projects rows of then."""
    from_ts = world.commit({"id": 1, "v": 1, "w": 1})
    added = add_column(world.versions.table, "x", "int default 5")
    last = added.columns[-1]
    world.alter(replace(added, columns=(*added.columns[:-1], replace(last, state=SchemaState.WRITE_ONLY))))
    world.commit({"id": 2, "v": 2, "w": 2})
    world.alter(added)
    world.commit({"id": 3, "v": 3, "w": 3, "x": 7})
    world.resolve()
    step(world)
    scan = scan_tail(world.view(), from_ts, world.ts, ReadLimit())
    projection = BatchProjection(scan.schema, choose_columns(scan.schema.table, None).names)
    with collect_changes(scan.view, from_ts, world.ts, **change_options(scan.view, scan, None)) as handle:
        rows = [row for batch in handle for row in projection.project(batch).inserts.to_pylist()]
    assert [(row["id"], row["x"]) for row in rows] == [(2, 5), (3, 7)]
