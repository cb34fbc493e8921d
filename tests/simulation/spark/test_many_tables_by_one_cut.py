"""A stream over many tables against the plain dicts that its tables must be at every offset.

Tables come, go, move and change while rows do; captures find them late and give them up; the stream's process
ends at any moment and its last batch is planned again.
"""

import random  # noqa: TID251 - its seed is a parameter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import VariantVal

from penstock.errors import Unavailable
from penstock.eventstore.capture.flight_service import FlightService
from penstock.spark.many_tables import ManyTablesRead
from penstock.spark.options import parse_options
from penstock.spark.tasks import Parallelism
from support.campaign import seeds
from support.feedworkload import FeedWorkload
from support.feedworld import FeedWorld
from support.itemtables import item
from support.spark import latest_offset

KINDS = ("integer", "composite", "not clustered")
PATTERN = "shop.*"
ACTS = 40
SEEDS = seeds(3, 24, first=0)
Row = dict[str, Any]
Key = tuple[Any, ...]


class Follower:
    """Applies batches as a consumer does: by table and key."""

    def __init__(self, world: FeedWorld, addr: str, **more: str) -> None:
        options = {"tables": PATTERN, "storage": world.storage.url, "flightAddr": addr, **more}
        self._read = ManyTablesRead(parse_options(options), parallelism=Parallelism(2))
        self.world = world
        self.offset: dict[str, Any] = {"ts": 0}
        self.last: tuple[dict[str, Any], list[Row]] | None = None
        self.tables: dict[str, dict[Key, str]] = {}
        self.batches = 0
        self.restart()

    def restart(self) -> None:
        """A new process, which plans the last batch again."""
        self.reader = self._read.stream_reader(self._read.schema())
        if self.last is not None:
            start, rows = self.last
            assert in_order(self._rows(start, self.offset)) == in_order(rows), "a replay differs"

    def take_all(self) -> None:
        """Take batches until there are none."""
        while self._take():
            self._check()

    def _take(self) -> bool:
        end = latest_offset(self.reader, self.offset)
        if end == self.offset:
            return False
        rows = self._rows(self.offset, end)
        self.last, self.offset = (self.offset, rows), end
        self.batches += 1
        self._apply(rows)
        return True

    def _rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        parts = self.reader.partitions(start, end)
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def _apply(self, rows: list[Row]) -> None:
        schemas = {(row["_table"], row["_schema"], row["_schema_version"]) for row in rows}
        assert len(schemas) == len({name for name, _, _ in schemas}), "a batch goes across a DDL"
        ends = {"truncate", "drop", "delete", "update_preimage"}
        for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_change_type"] not in ends)):
            if row["_change_type"] in {"truncate", "drop"}:
                assert row["payload"] is None
                self.tables.pop(row["_table"], None)
                continue
            values = VariantVal(**row["payload"]).toPython()
            keys = self.tables.setdefault(row["_table"], {})
            key = values["id"], values.get("part")
            if row["_change_type"] in ends:
                assert keys.pop(key) == values["name"], "the row before is another"
            else:
                assert key not in keys, "a row comes twice"
                keys[key] = values["name"]

    def _check(self) -> None:
        there = self.world.rows_at(self.offset["ts"])
        expected = {
            name: {(row["id"], row.get("part")): row["name"] for row in rows}
            for name, rows in there.items()
            if name.startswith("shop.") and rows
        }
        found = {name: rows for name, rows in self.tables.items() if rows}
        assert found == expected, f"at {self.offset}"


def in_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[FeedWorld, str]]:
    clock = count(1_700_000_000_000)
    with FeedWorld(tmp_path / "capture", lambda: next(clock), url=f"file://{tmp_path}/events") as world:
        flight = FlightService("127.0.0.1:0", world.store, world.reader)
        try:
            yield world, flight.addr
        finally:
            flight.close()


def test_a_batch_is_planned_again_only_when_all_its_tables_can_be_read(
    served: tuple[FeedWorld, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.spark.stream._POLL_S", 0.0)
    world, addr = served
    world.create_database("shop")
    one, two = (world.create_table(name, "integer") for name in ("shop.one", "shop.two"))
    gone = world.create_table("shop.gone", "integer")
    world.commit(*((table, [], [item("integer", 1, "a")]) for table in (one, two, gone)))
    world.resolve_ddls()
    world.resolve()
    follower = Follower(world, addr)
    follower.take_all()
    world.drop_table(gone)
    world.commit(*((table, [], [item("integer", 2, "b")]) for table in (one, two)))
    world.resolve_ddls()
    world.resolve()
    follower.take_all()
    assert {name: len(rows) for name, rows in follower.tables.items()} == {"shop.one": 2, "shop.two": 2}
    world.store.close_table(gone.info.id, flush=False)
    follower.restart()  # a table that is gone by then does not matter
    world.store.close_table(two.info.id, flush=False)
    with pytest.raises(Unavailable, match=r"table shop\.two can be read up to .* wait for its capture"):
        follower.restart()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_offset_is_one_cut_through_all_tables(
    served: tuple[FeedWorld, str], seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.spark.stream._POLL_S", 0.0)
    world, addr = served
    mix = random.Random(seed)
    work = FeedWorkload(world, mix, kinds=KINDS, commit_rows_max=60, drops_databases=False)
    work.set_up(rows=True)
    world.resolve_ddls()
    world.resolve()
    limit = {"maxRowsPerTrigger": "20"} if seed % 2 else {}
    follower = Follower(world, addr, **limit)
    for _ in range(ACTS):
        work.act()
        if mix.random() < 0.5:
            follower.take_all()
        if mix.random() < 0.2:
            follower.restart()
    for table_id in sorted(world.uncaptured):
        world.capture(table_id)
    world.resolve_ddls()
    world.resolve()
    world.resolve_ddls()
    follower.take_all()
    assert follower.batches > ACTS // 4
    assert {name: len(rows) for name, rows in follower.tables.items() if rows} == {
        name: len(rows) for name, rows in world.rows_at(world.ts).items() if name.startswith("shop.") and rows
    }
