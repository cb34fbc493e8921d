"""Who is asked for what when a read is planned: objects by their statistics, captures by their leases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.eventstore.read.partition import TableView
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.lease import LeaseRecord
from penstock.settings import Settings
from penstock.spark import tables
from penstock.spark.source import PenstockDataSource
from support.itemtables import item, item_table
from support.servedworld import ServedWorld
from support.spark import latest_offset
from support.warmstore import WarmStore


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
    assert len(part.tasks) == 1
    assert part.columns == ("name",)
    assert found_ids(world.options(rangeFrom=100, rangeTo=200)) == [101, 102, 103]
    assert found_ids(world.options(rangeFrom=2, rangeTo=103)) == [2, 3, 101, 102]


def test_changes_outside_of_the_range_of_rows_or_of_time_are_not_planned(world: ServedWorld):
    feed = {"readChangeFeed": "true", "startingVersion": 0}
    parts = planned(world.options(**feed, rangeFrom=100, rangeTo=200, partitionBytes=1))
    assert sum(len(each.snapshot.tasks) for each in parts) == 1
    assert found_ids(world.options(**feed, rangeFrom=100, rangeTo=301)) == [101, 102, 103, 201, 202, 203, 300]
    late = planned(world.options(readChangeFeed="true", startingVersion=world.manifest().flushed_ts + 1))
    assert [each.rows for each in late] == [0]


def test_nobody_is_asked_for_what_is_flushed(world: ServedWorld):
    flushed = world.options(versionAsOf=world.manifest().flushed_ts, flightAddr="127.0.0.1:1")
    assert len(found_ids(flushed)) == 9


class Announced:
    """The world's capture, with a lease that says where it is. A context."""

    def __init__(self, world: ServedWorld, folder: Path) -> None:
        self.world = world
        self._store = WarmStore.start(folder / "store", stores=1)
        self._cluster = ClusterRef.of(Settings(pd_addrs=(self._store.pd_addr,)))
        self._announce()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()
        self._store.kill()

    def _announce(self) -> None:
        record = LeaseRecord("data", 1, SYSTEM.wall_ms() + 10**7)
        lease = CaptureLease("capture-1", self.world.flight.addr, record)
        with self._cluster.client().begin() as txn:
            txn.put(PREFIX + b"capture-1", lease.write())

    def move(self) -> None:
        """To another address."""
        self.world.flight.close()
        self.world.flight = FlightService("127.0.0.1:0", self.world.store, self.world.reader)
        self._announce()

    def options(self, **more: Any) -> dict[str, str]:
        return self.world.options(flightAddr=None, pdAddrs=self._store.pd_addr, **more)


def test_a_capture_is_found_by_its_lease_also_when_it_moves(world: ServedWorld, tmp_path: Path):
    with Announced(world, tmp_path) as capture:
        assert found_ids(capture.options()) == [1, 2, 3, 101, 102, 103, 201, 202, 203, 300]
        source = PenstockDataSource(capture.options())
        declared = source.schema()
        capture.move()
        reader = source.reader(declared)
        rows = [batch.num_rows for each in reader.partitions() for batch in reader.read(each)]
        assert sum(rows) == 10


def test_a_stream_goes_on_when_its_capture_moves_between_two_questions(
    world: ServedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = tables.open_table
    with Announced(world, tmp_path) as capture:
        stays = iter([False, True, False, True])

        def opened_before_it_moves(*given: Any, **more: Any) -> TableView:
            view = opened(*given, **more)
            if not next(stays):
                capture.move()
            return view

        source = PenstockDataSource(capture.options(readChangeFeed="true"))
        reader = source.streamReader(source.schema())
        monkeypatch.setattr(tables, "open_table", opened_before_it_moves)
        start = reader.initialOffset()
        end = latest_offset(reader, start)
        assert end == {"ts": world.ts, "ids": [1]}
        parts = reader.partitions(start, end)
        assert sum(batch.num_rows for each in parts for batch in reader.read(each)) == 10
        capture.move()
        with pytest.raises(Unavailable, match="start the query again: it goes on from its checkpoint"):
            [*map(list, map(reader.read, parts))]


def test_a_stream_waits_for_a_capture_that_crashed_and_goes_on_where_it_comes_back(
    world: ServedWorld, tmp_path: Path
):
    def next_end(start: dict[str, Any], **options: Any) -> dict[str, Any]:
        source = PenstockDataSource({**capture.options(readChangeFeed="true"), **options})
        reader = source.streamReader(declared)
        return latest_offset(reader, start)

    with Announced(world, tmp_path) as capture:
        declared = PenstockDataSource(capture.options(readChangeFeed="true")).schema()
        end = next_end({"ts": 0})
        world.commit(item("integer", 301, "c"))
        world.resolve()
        addr = world.flight.addr
        world.flight.close()
        assert next_end(end) == end
        with pytest.raises(Unavailable, match=f"capture at {addr}.*: it goes on from its checkpoint"):
            next_end(end, flightAddr=addr)
        capture.move()
        assert next_end(end) == {"ts": world.ts, "ids": [1]}
