"""The sink with rows of an event store, the engine of this process, and files on a disk."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.filters import RowFilterRule
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.errors import Unavailable
from penstock.follow.ddl_events import DdlEvent, TableChange
from penstock.object_storage import StorageRef
from penstock.spark.errors import SessionEnded
from penstock.testing.clock import ManualClock
from support.enginefaults import EngineFaults, lose_everything
from support.rowcounts import RowCounts
from support.sinkparts import KeptInMemory, SinkWorld, Watched
from support.slices import slice_of
from support.tableworld import START, TableWorld

ROWS = 200


class World(SinkWorld):
    """A sink on a folder."""

    def __init__(self, folder: Path, table: TableWorld, **options: object) -> None:
        clock = ManualClock(wall_ms=1_700_000_000_000)
        super().__init__(clock=clock)
        self.clock = clock
        self.folder = folder
        self.table = table
        self.faults = EngineFaults(clock=clock)
        target = StorageRef(f"file://{folder}")
        given = {"file_size": 4096, "protocol": "canal-json", **options}
        self.options = SinkOptions(target=target, **given)
        self.local = LocalEngine(target, at=self.faults)
        self.progress = KeptInMemory()
        self.target_files = RemoteFiles(target.open(), self.options, clock=clock)
        self.sink = StorageSink(
            self.local, self.target_files, self.progress, self.options, changefeed="local", clock=clock
        )

    def send(self, from_ts: int, to_ts: int) -> Watched:
        piece = slice_of(self.table, from_ts, to_ts)
        event = Watched(replace(piece, nbytes=100 * piece.rows), self.told)
        self.sink.add_dml_event(event)
        return event

    def send_all(self) -> list[Watched]:
        """Everything that was committed, as several slices."""
        bounds = [START, START + 100, START + 180, START + 300, self.table.ts]
        return [self.send(low, high) for low, high in pairwise(bounds)]

    async def drain_table(self) -> None:
        """Return when everything that was sent is on the remote."""
        spec = slice_of(self.table, START, self.table.ts).dispatcher
        ddl = DdlEvent(commit_ts=self.table.ts + 1, type=0, query="", database="shop")
        await self.sink.pass_block_event(spec, ddl)

    def data_files(self) -> list[Path]:
        return sorted(self.folder.rglob("CDC*.json"))

    def names(self) -> list[str]:
        lines = b"".join(path.read_bytes() for path in self.data_files()).decode().splitlines()
        return [json.loads(line)["data"][0]["name"] for line in lines]


EXPECTED = [f"name {number}" for number in range(ROWS)]


async def test_rows_come_out_in_order_in_files_close_to_their_size(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path / "remote", table)
    counts = RowCounts("local")
    async with world:
        events = world.send_all()
        await world.drain_table()
        assert [each for each in world.told if "flushed" in each] == [f"{e.name} flushed" for e in events]
        assert world.names() == EXPECTED
        sizes = [path.stat().st_size for path in world.data_files()]
        assert len(sizes) > 3
        assert all(3686 <= size <= 4506 for size in sizes[:-1])
        (index,) = (tmp_path / "remote").rglob("CDC.index")
        assert index.read_text() == f"{world.data_files()[-1].name}\n"
        assert len(list((tmp_path / "remote").rglob("schema_*.json"))) == 1
        await world.until(lambda: world.local.segments == ())
        assert world.local.held_bytes == 0
    assert counts.new == {"read": ROWS, "encode": ROWS, "write": ROWS}


async def test_payloads_that_are_lost_are_encoded_again_the_same(tmp_path: Path, table: TableWorld) -> None:
    whole, losing = World(tmp_path / "whole", table), World(tmp_path / "losing", table)
    for world in (whole, losing):
        counts = RowCounts("local")
        async with world:
            world.send_all()
            await world.until(lambda: sum("woken" in each for each in world.told) == 4)  # noqa: B023 - awaited at once
            if world is losing:
                lose_everything(world.local)
                assert world.local.held_bytes == 0
            await world.drain_table()
        assert counts.new == {"read": ROWS, "encode": ROWS, "write": ROWS}
    assert [path.name for path in losing.data_files()] == [path.name for path in whole.data_files()]
    assert [path.read_bytes() for path in losing.data_files()] == [
        path.read_bytes() for path in whole.data_files()
    ]


async def test_a_ddl_is_on_the_remote_after_the_rows_before_it(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path / "remote", table)
    async with world:
        world.send_all()
        await world.drain_table()
        before = table.table.schemas[-1]
        ts = table.ts + 10
        after = replace(before, since_ts=ts, version=2)
        change = TableChange(before, after)
        ddl = DdlEvent(commit_ts=ts, type=5, query="ALTER TABLE", database=before.database, tables=(change,))
        assert world.names() == EXPECTED
        await world.sink.write_block_event(ddl)
        assert len(list((tmp_path / "remote").rglob(f"schema_{ts}_*.json"))) == 1


async def test_files_that_nobody_knows_of_yet_are_not_acknowledged(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path / "remote", table, file_size=1 << 20)
    world.faults.failures["written"] = SessionEnded("the driver died")
    running = world.run()
    await world.settle()
    world.send_all()
    drain = asyncio.ensure_future(world.drain_table())
    with pytest.raises(SessionEnded, match="the driver died"):
        await running
    with pytest.raises(SessionEnded, match="the driver died"):
        await drain
    assert world.names() == EXPECTED
    assert not [each for each in world.told if "flushed" in each]
    ((pending,),) = world.progress.pending.values()
    assert world.target_files.repair(pending) == pending.end
    await world.sink.close()


@pytest.mark.parametrize("arrives", ["never", "before", "after"])
async def test_a_file_that_was_begun_and_is_missing_is_written_again_with_the_same_changes(
    tmp_path: Path, table: TableWorld, arrives: str
) -> None:
    first = World(tmp_path / "remote", table, file_size=1 << 20)
    first.faults.failures["write"] = SessionEnded("the process was killed")
    running = first.run()
    await first.settle()
    first.send_all()
    drain = asyncio.ensure_future(first.drain_table())
    with pytest.raises(SessionEnded, match="killed"):
        await running
    await asyncio.wait([drain])
    assert isinstance(drain.exception(), SessionEnded)
    await first.sink.close()
    ((begun,),) = first.progress.pending.values()
    assert first.data_files() == []
    assert first.target_files.repair(begun) is None

    late = b"the same changes, as another process wrote them\r\n"
    changed = (RowFilterRule(("shop.*",), "name = 'nobody'"),)  # while it was stopped
    second = World(tmp_path / "remote", table, file_size=1 << 10, row_filters=changed)
    storage = second.options.target.open()
    if arrives == "before":
        assert storage.create(begun.data_path, late)
    whole = replace(slice_of(table, START, table.ts), start=begun.start, end=begun.end)
    await second.sink.write_again([(begun, [whole])])
    (path,) = second.data_files()
    assert path.relative_to(second.folder).as_posix() == begun.data_path
    if arrives == "after":
        assert not storage.create(begun.data_path, late)
    if arrives == "before":
        assert path.read_bytes() == late
    else:
        assert second.names() == EXPECTED, "with the filter that it was begun with"
    (again,) = second.progress.pending[begun.dispatcher_id]
    assert second.target_files.repair(again) == begun.end
    assert storage.read(begun.index_path) == f"{path.name}\n".encode()
    await second.sink.close()


@pytest.mark.parametrize("step", ["encode", "write", "release"])
async def test_a_step_that_fails_ends_the_sink(tmp_path: Path, table: TableWorld, step: str) -> None:
    world = World(tmp_path / "remote", table)
    world.faults.failures[step] = SessionEnded("an executor died")
    running = world.run()
    await world.settle()
    world.send_all()
    drain = asyncio.ensure_future(world.drain_table())
    with pytest.raises(SessionEnded, match="an executor died"):
        await running
    await asyncio.wait([drain])
    assert step == "release" or isinstance(drain.exception(), SessionEnded)
    await world.sink.close()
    assert world.local.segments == ()


async def test_a_write_that_hangs_is_given_up_with_the_sink(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path / "remote", table)
    world.faults.hanging = {"write"}
    running = world.run()
    await world.settle()
    world.send_all()
    await world.until(lambda: "write" in world.faults.reached)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await world.sink.close()
    assert world.data_files() == []


async def test_latency_passes_with_the_clock(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path / "remote", table, flush_interval_s=1000.0)
    world.faults.latency_s = {"write": 30.0}
    async with world:
        world.send_all()
        drain = asyncio.ensure_future(world.drain_table())
        await world.until(lambda: "write" in world.faults.reached)
        assert world.data_files() == []
        while not drain.done():
            world.clock.advance(30)
            await world.settle()
        await drain
    assert world.names() == EXPECTED


async def test_a_segment_that_was_released_cannot_be_written(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path / "remote", table)
    async with world:
        world.send_all()
        await world.until(lambda: sum("woken" in each for each in world.told) == 4)
        await world.local.close()
        world.local._threads = type(world.local._threads)(2, "again")
        drain = asyncio.ensure_future(world.drain_table())
        while not drain.done():  # it is tried again after pauses, and then given up
            world.clock.advance(30)
            await world.settle()
        with pytest.raises(Unavailable, match="was released"):
            await drain
        with pytest.raises(Unavailable, match="was released"):
            await world.run()
