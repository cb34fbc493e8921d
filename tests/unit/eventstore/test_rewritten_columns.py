"""A column that MODIFY COLUMN rewrites: its values are there before it is public, and are kept until then."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.eventstore.read.snapshot import read_snapshot, snapshot_schema
from support.rewrites import RewritingWorld


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
