"""Snapshots and changes of the event store through the data source, held against the model and the handle."""

import random  # noqa: TID251 - seeded, so that every run is the same
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.tables.alter import add_column
from penstock.testing.itemtables import item, item_table
from penstock.testing.servedworld import ServedWorld
from penstock.testing.tableworld import gathered


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    """A table with flushed rows, deleted ones, a column that was added, and rows that are not flushed."""
    with ServedWorld(tmp_path_factory.mktemp("world"), item_table()) as made:
        made.commit(*(item("integer", number, f"a{number}") for number in range(1, 9)))
        made.flush()
        made.commit(item("integer", 2, "b2"), delete=[(3,)])
        made.flush()
        made.alter(add_column(made.versions.table, "extra", "varchar(20) default 'none'"))
        made.commit(item("integer", 9, "c9", extra="more"), delete=[(1,)])
        made.flush()
        made.commit(item("integer", 4, "d4", extra="new"), item("integer", 10, "d10", extra=None))
        made.commit(delete=[(5,)])
        made.tick()
        made.resolve()
        yield made


def test_a_snapshot_is_the_newest_that_can_be_read(spark: SparkSession, world: ServedWorld):
    found = gathered(world.load(spark).toArrow().to_batches(), world.versions.table)
    assert found == world.versions.at(world.ts)
