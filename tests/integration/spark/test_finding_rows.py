"""Who is asked for what when a read is planned: objects by their statistics, captures by their leases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.eventstore.flight import FlightService
from penstock.eventstore.leases import PREFIX, Lease
from penstock.kv.clusterref import ClusterRef
from penstock.settings import Settings
from penstock.spark.source import PenstockDataSource
from penstock.testing.itemtables import item, item_table
from penstock.testing.servedworld import ServedWorld
from penstock.testing.store import StoreProcess


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServedWorld]:
    """Objects with the rows 1 to 3, 101 to 103 and 201 to 203, and two rows that are not flushed."""
    with ServedWorld(tmp_path, item_table()) as made:
        for first in (1, 101, 201):
            made.commit(*(item("integer", first + each, "a") for each in range(3)))
            made.flush()
        made.commit(item("integer", 2, "b"), item("integer", 300, "b"))
        made.resolve()
        yield made


def planned(options: dict[str, str]) -> list[Any]:
    source = PenstockDataSource(options)
    return [each.part for each in source.reader(source.schema()).partitions()]


def found_ids(options: dict[str, str]) -> list[int]:
    source = PenstockDataSource({**options, "columns": "id"})
    reader = source.reader(source.schema())
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return sorted(number for batch in batches for number in batch.column("id").to_pylist())


def test_objects_outside_of_the_range_are_not_planned(world: ServedWorld):
    (part,) = planned(world.options(rangeFrom=100, rangeTo=200, columns="name"))
    assert len(part.pieces) == 1
    assert part.columns == ("name",)
    assert found_ids(world.options(rangeFrom=100, rangeTo=200)) == [101, 102, 103]
    assert found_ids(world.options(rangeFrom=2, rangeTo=103)) == [2, 3, 101, 102]


def test_changes_outside_of_the_range_of_rows_or_of_time_are_not_planned(world: ServedWorld):
    feed = {"readChangeFeed": "true", "startingVersion": 0}
    parts = planned(world.options(**feed, rangeFrom=100, rangeTo=200, partitionBytes=1))
    assert sum(len(each.snapshot.pieces) for each in parts) == 1
    assert found_ids(world.options(**feed, rangeFrom=100, rangeTo=301)) == [101, 102, 103, 201, 202, 203, 300]
    late = planned(world.options(readChangeFeed="true", startingVersion=world.manifest().flushed_ts + 1))
    assert [each.rows for each in late] == [0]


def test_nobody_is_asked_for_what_is_flushed(world: ServedWorld):
    flushed = world.options(versionAsOf=world.manifest().flushed_ts, flightAddr="127.0.0.1:1")
    assert len(found_ids(flushed)) == 9


def test_a_capture_is_found_by_its_lease_also_when_it_moves(world: ServedWorld, tmp_path: Path):
    with StoreProcess.start(tmp_path / "store", stores=1) as store:
        cluster = ClusterRef.of(Settings(pd_addrs=(store.pd_addr,)))

        def announce() -> None:
            lease = Lease("capture-1", "data", world.flight.addr, SYSTEM.wall_ms() + 10**7)
            with cluster.client().begin() as txn:
                txn.put(PREFIX + b"capture-1", lease.write())

        announce()
        options = world.options(flightAddr=None, pdAddrs=store.pd_addr)
        assert found_ids(options) == [1, 2, 3, 101, 102, 103, 201, 202, 203, 300]

        source = PenstockDataSource(options)
        declared = source.schema()
        world.flight.close()
        world.flight = FlightService("127.0.0.1:0", world.store, world.reader)
        announce()
        reader = source.reader(declared)
        rows = [batch.num_rows for each in reader.partitions() for batch in reader.read(each)]
        assert sum(rows) == 10
        cluster.close()
