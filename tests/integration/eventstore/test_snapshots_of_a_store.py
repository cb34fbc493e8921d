"""Snapshots of a running event store: in its process, over Flight, and in parts that travel."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.snapshot import plan_snapshot, read_snapshot
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from penstock.testing.versions import Snapshot, visible
from support.tableworld import TableWorld

ITEMS = replace(define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)")]), id=1)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Snapshot:
    found = [visible(row) for batch in batches for row in batch.to_pylist()]
    made = {(row["id"],): row for row in found}
    assert len(made) == len(found), "a row is there twice"
    return made


@pytest.mark.parametrize("large_txn_bytes", [200, 1 << 30])
def test_every_snapshot_is_what_was_committed(tmp_path: Path, large_txn_bytes: int) -> None:
    with TableWorld(tmp_path, ITEMS, large_txn_bytes=large_txn_bytes) as world:
        world.commit(*({"id": number, "name": f"first {number}"} for number in range(20)))
        world.flush()
        for number in range(3, 9):
            world.commit({"id": number, "name": "second"}, delete=[(number + 8,)])
        world.flush()
        world.alter(add_column(ITEMS, "more", "varchar(9) not null default 'none'"))
        world.commit({"id": 1, "name": "third", "more": "1"}, {"id": 30, "name": "third", "more": "2"})
        assert world.store.merge(1) > 0
        world.commit(delete=[(2,)])
        world.flush()
        world.commit({"id": 30, "name": "not flushed", "more": "3"}, delete=[(0,)])
        world.commit({"id": 0, "name": "back", "more": "4"})
        world.resolve()
        service = FlightService("127.0.0.1:0", world.store, world.reader)
        try:
            view = world.view(FlightReader(service.addr))
            for ts in world.moments():
                expected = world.versions.at(ts)
                assert rows_of(read_snapshot(world.view(), ts)) == expected
                plan = pickle.loads(pickle.dumps(plan_snapshot(view, ts, partition_bytes=1)))
                assert rows_of(batch for part in plan for batch in part.read()) == expected
        finally:
            service.close()
