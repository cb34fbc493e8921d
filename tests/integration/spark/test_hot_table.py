"""One hot table uses every core, also before its first flush: it need not be divided for that."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.engines.spark import SparkEngine
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.clock import SYSTEM
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.read.flight_client import FlightReader
from penstock.follow.follower import EventStoreAccess, SliceFollower
from penstock.follow.slices import Position
from penstock.kv.lease import LeaseRecord
from penstock.object_storage import StorageRef
from penstock.testing.directory import Replica
from support.feedworld import WorldTable
from support.gate import Gate, GatedStorage
from support.itemtables import item
from support.loadedworld import until
from support.servedworld import ServedDatabase
from support.sinkdoubles import MemoryProgress

FILE, CORES = 100_000, 2
COMMIT_ROWS = 100  # of about 600 bytes in canal-json


def write_commits(db: ServedDatabase, table: WorldTable, first: int, count: int) -> int:
    """Insert rows in so many transactions; return up to when they can be read."""
    for number in range(first, first + count):
        numbers = range(number * COMMIT_ROWS, (number + 1) * COMMIT_ROWS)
        db.commit((table, (), [item("integer", each, f"{each:06d}" * 33) for each in numbers]))
    return db.resolve_all()


async def test_a_hot_table_of_a_ddl_uses_every_core_before_its_first_flush_and_keeps_its_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.changefeeds.engines.rounds.LARGE_BYTES", FILE // 2)
    (tmp_path / "gate").mkdir()
    gate = Gate(tmp_path / "gate")
    remote = GatedStorage(f"file://{tmp_path}/remote", gate=gate, after="create")
    options = SinkOptions(target=remote, protocol="canal-json", enable_tidb_extension=True, file_size=FILE)
    with ServedDatabase(tmp_path) as db:
        begin = Position(db.resolve_all())
        progress = MemoryProgress(begin)
        # What the driver itself writes does not wait at the gate.
        files = RemoteFiles(StorageRef(remote.url).open(), options)

        async def now() -> int:
            return db.ts

        access = EventStoreAccess(
            db.storage,
            now,
            lambda: [CaptureLease("capture", db.flight.addr, LeaseRecord("data", 1, 0))],
            FlightReader,
        )
        source = SliceFollower("feed", access, db.history)

        async def open_sink() -> StorageSink:
            return StorageSink(SparkEngine(spark, remote), files, progress, options, changefeed="feed")

        feed = Changefeed(
            "feed",
            ChangefeedOptions(begin=begin, flush_interval_s=1.0),
            source=source,
            open_sink=open_sink,
            files=files,
            progress=progress,
            clock=SYSTEM,
        )
        gate.open()
        running = asyncio.create_task(feed.run())
        try:
            wait_until = partial(asyncio.to_thread, until)
            table = db.create_table("shop.hot", "integer")
            first_ts = write_commits(db, table, 0, 6)
            await wait_until(lambda: progress.checkpoints[-1] >= first_ts, "nothing is written")
            gate.close()
            last_ts = write_commits(db, table, 6, 20)
            await wait_until(lambda: len(gate.waiting()) == CORES, "its files are not made on every core")
            gate.open()
            await wait_until(lambda: progress.checkpoints[-1] >= last_ts, "it does not come to the end")
        finally:
            gate.open()
            running.cancel()
            await asyncio.wait([running])
            await source.close()
        replica = Replica(remote.open(), files=FileOptions())
        replica.catch_up()
        replica.check()  # order within files, numbers without holes, each change once
        rows = replica.tables["shop.hot"]
        assert len(rows) == 26 * COMMIT_ROWS
        names = [path.rpartition("/")[2] for path in remote.open().names("shop/hot") if "CDC" in path]
        data = [name for name in names if name.endswith(".json")]
        assert len(data) > 8
        assert all(name.startswith("CDC0") for name in data), "TiCDC's consumer reads files of this name"
        assert not [state for state in db.store.tables() if db.storage.open().names(f"tables/{state}/data")]
