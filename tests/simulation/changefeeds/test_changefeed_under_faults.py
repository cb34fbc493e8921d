"""A changefeed from a real event store to files, under everything that can go wrong; one seed, one run.

The remote is slow, fails before or after the effect, hangs for minutes, or loses answers; payloads of
executors are lost; the process is killed anywhere, and what it had sent may still arrive; it is paused; DDLs
come in storms, on tables that are divided among dispatchers. After each of these, and at the end, whoever
reads the directory has exactly the rows of the source at the checkpoint, and the directory keeps what
`check_files` looks at: order of versions, whole commits, every change once.

The seed is in the name of a test; PENSTOCK_SEED=<seed> runs it alone, PENSTOCK_SEEDS=<count> more of them,
and with PENSTOCK_ACTS=<count> they are longer.
"""

import asyncio
import contextlib
import os
import random  # noqa: TID251 - seeded
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock import eventloop
from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.reader import Ddl
from penstock.changefeeds.engines import files
from penstock.changefeeds.engines.local import LocalEngine, Step
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changefeeds.sinks.storage.layout import decode_checkpoint
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.changes.limits import ReadLimit
from penstock.errors import Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.follow import follower
from penstock.follow.follower import EventStoreAccess, SliceFollower
from penstock.follow.slices import Position
from penstock.kv.lease import LeaseRecord
from penstock.testing.directory import Replica
from penstock.verify.directory import FeedFacts, FeedVerifier, VerifyScope
from support.campaign import seeds
from support.feedworkload import FeedWorkload
from support.feedworld import FeedWorld
from support.shakyfeed import ShakyProgress, SimClock, WeighingEngine
from support.shakyremote import Killed, Process, Remote, Shaky, ShakyRef, Weather
from support.simloop import SimLoop, SimPool
from support.sinkdoubles import MemoryProgress
from support.worldtables import WorldTables

T = TypeVar("T")

KINDS = ["integer", "integer", "composite", "not clustered", "no key"]
ACTS = int(os.environ.get("PENSTOCK_ACTS", "30"))
SEEDS = seeds(4, 60)


@dataclass(frozen=True)
class Plan:
    """What a seed decides at the beginning."""

    options: SinkOptions
    slice_limit: ReadLimit
    split_rows: int
    snapshot: bool
    commit_rows_max: int
    cut_commits: bool
    reads_max: int
    paced: bool
    cores: int

    @property
    def kinds(self) -> list[str]:
        """Kinds of tables; an update of a row without a key says which row it was only with the old one."""
        tells_old = self.options.protocol != "csv" or self.options.csv.output_old_value
        return KINDS if tells_old else [kind for kind in KINDS if kind != "no key"]

    @classmethod
    def of(cls, mix: random.Random, target: ShakyRef) -> "Plan":
        cut_commits = mix.random() < 0.5
        protocol = mix.choice(["canal-json", "csv", "parquet", "debezium"])
        file_size = mix.choice([1024, 4096, 16384]) if cut_commits else 32768
        options = SinkOptions(
            target=target,
            protocol=protocol,
            compression=mix.choice(["none", "none", "gzip", "zstd"]),
            enable_tidb_extension=True,
            csv=CsvOptions(include_commit_ts=True, output_old_value=mix.random() < 0.5),
            worker_count=mix.choice([1, 2, 16]),
            flush_interval_s=mix.choice([0.5, 2.0, 5.0]),
            file_size=file_size,
            spool_disk_quota=max(file_size, 16384) * mix.choice([4, 16, 64]),
            use_table_id_as_path=mix.random() < 0.2,
            date_separator=mix.choice(["day", "none"]),
            enable_partition_separator=mix.random() < 0.7,
            enable_table_across_nodes=mix.random() < 0.2,
        )
        return cls(
            options=options,
            slice_limit=ReadLimit(rows=mix.choice([1, 3, 20, 1000]), nbytes=1 << 20),
            split_rows=mix.choice([0, 4, 10]),
            snapshot=mix.random() < 0.6,
            commit_rows_max=mix.choice([60, 200]) if cut_commits else 8,
            cut_commits=cut_commits,
            reads_max=mix.choice([1, 3, 16]),
            paced=mix.random() < 0.75,
            cores=mix.choice([1, 2]),
        )

    @property
    def file_options(self) -> FileOptions:
        return FileOptions(protocol=self.options.protocol, csv=self.options.csv)


class Simulation:
    """One run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.folder = folder
        self.mix = random.Random(seed)
        self.loop = SimLoop()
        self.clock = SimClock(self.loop, self.mix)
        self.remote = Remote()
        self.weather = Weather(self.mix)
        self.plan = Plan.of(self.mix, ShakyRef("memory:///remote", storage=self.remote))
        self.world = FeedWorld(folder, self.clock.wall_ms)
        self.workload = FeedWorkload(
            self.world,
            self.mix,
            kinds=self.plan.kinds,
            commit_rows_max=self.plan.commit_rows_max,
            # Where ids are paths, nothing tells readers of databases.
            drops_databases=not self.plan.options.use_table_id_as_path,
        )
        self.replica: Replica | None = None
        self.checkpoint_ts = 0
        self.process: Process | None = None
        self.running: asyncio.Task[None] | None = None
        self.engine: LocalEngine | None = None
        self.engines: list[WeighingEngine] = []

    def run(self) -> None:
        try:
            with self.world:
                self.loop.run_until_complete(self._run())
        finally:
            self.loop.close()

    async def _run(self) -> None:
        self.workload.set_up(rows=self.plan.snapshot)
        self.workload.capture(1.0)
        begin_ts = self.world.resolve_ddls()
        self.world.resolve()
        begin = Position(begin_ts, b"") if self.plan.snapshot else Position(begin_ts)
        self.progress = MemoryProgress(begin)
        self.begin = begin
        self._start()
        for _ in range(ACTS):
            await self.clock.sleep(self.mix.random() * self.mix.choice([0.05, 1.0, 4.0]))
            self.workload.act()
            await self._disturb()
        await self._finish()

    # What goes wrong

    async def _disturb(self) -> None:
        mix, weather = self.mix, self.weather
        what = mix.random()
        if what < 0.05:
            weather.fails_before = mix.choice([0.0, 0.02, 0.2])
            weather.fails_after = mix.choice([0.0, 0.02, 0.2])
            weather.loses_answer = mix.choice([0.0, 0.1])
            weather.late = mix.choice([0.0, 0.05, 0.3])
            weather.latency_s = mix.choice([0.01, 0.2, 2.0])
        elif what < 0.08:
            weather.outage_until = self.loop.time() + mix.choice([5.0, 60.0, 300.0])
        elif what < 0.2 and self.engine is not None and self.engine.segments:
            for each in self.engine.segments:
                if mix.random() < 0.7:
                    self.engine.lose(each)
        elif what < 0.26:
            assert self.process is not None
            if mix.random() < 0.7:
                self.process.fuse = mix.randint(1, 30)
            else:
                self.process.kill()
        elif what < 0.29:
            await self._pause()
        if self.process is not None and self.process.dead:
            await self._bury()
            self._check()
            await self.clock.sleep(mix.random() * 3)
            self._start()
        elif mix.random() < 0.1:
            self._check()

    def _start(self) -> None:
        mix = self.mix
        process = self.process = Process(self.loop, mix)
        storage = Shaky(self.remote, self.weather, process)
        options = replace(self.plan.options, target=ShakyRef("memory:///remote", storage=storage))
        progress = ShakyProgress(self.progress, self.weather, process, self.clock)
        files = RemoteFiles(storage, options, split=bool(self.plan.split_rows), clock=self.clock)
        access = EventStoreAccess(
            self.world.storage,
            partial(asyncio.to_thread, lambda: self.world.ts),
            lambda: [CaptureLease("capture", "here", LeaseRecord("data", 1, 0))],
            self.world.connect,
        )
        source = SliceFollower("feed", access, self.world.history, clock=self.clock)

        async def at(step: Step) -> None:
            if step != "release":
                await self.clock.sleep(mix.random() * 0.05)
            if process.dead:
                raise Killed
            if step != "release" and self.weather.strikes(f"engine {step}", 0.01):
                raise Unavailable("no executor is there")

        async def open_sink() -> StorageSink:
            quota, cores = options.spool_disk_quota, self.plan.cores
            self.engine = WeighingEngine(options.target, quota, at, cores=cores)
            self.engines.append(self.engine)
            return StorageSink(self.engine, files, progress, options, changefeed="feed", clock=self.clock)

        feed = Changefeed(
            "feed",
            ChangefeedOptions(
                begin=self.begin,
                split_rows=self.plan.split_rows,
                slice_limit=self.plan.slice_limit,
                reads_max=self.plan.reads_max,
                flush_interval_s=options.flush_interval_s if self.plan.paced else 0.0,
            ),
            source=source,
            open_sink=open_sink,
            files=files,
            progress=progress,
            clock=self.clock,
        )
        self.feed = feed
        self.running = self.loop.create_task(self._drive(feed, source))

    async def _drive(self, feed: Changefeed, source: SliceFollower) -> None:
        try:
            await feed.run()
        finally:
            await source.close()

    async def _bury(self) -> None:
        """End what is left of a process that was killed."""
        assert self.running is not None
        while not self.running.done():
            self.running.cancel()
            await asyncio.wait([self.running], timeout=0.001)
        with contextlib.suppress(Killed, asyncio.CancelledError):
            self.running.result()

    async def _pause(self) -> None:
        assert self.running is not None
        assert self.process is not None
        self.running.cancel()
        death = self.loop.create_task(self.process.died.wait())
        await asyncio.wait([self.running, death], return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if self.process.dead:
            return
        with contextlib.suppress(asyncio.CancelledError):
            self.running.result()
        self._check()
        self._start()

    # What must hold

    def _check(self, *, files: bool = False) -> None:
        data = self.remote.read("metadata")
        if data is None:
            return
        checkpoint_ts = decode_checkpoint(data)
        assert checkpoint_ts >= self.checkpoint_ts, "the checkpoint went back"
        self.checkpoint_ts = checkpoint_ts
        assert checkpoint_ts <= self.progress.checkpoints[-1], "consumers were told what was not kept"
        if self.replica is None or files:  # at the end somebody begins anew
            self.replica = Replica(
                self.remote,
                files=self.plan.file_options,
                layout=DirectoryLayout(
                    date_separator=self.plan.options.date_separator,
                    table_id_as_path=self.plan.options.use_table_id_as_path,
                ),
                cut_commits=self.plan.cut_commits,
                redo=self._redo,
            )
        self.replica.catch_up()
        self._compare(self.replica)
        if files:
            self.replica.check()
            self._verify()

    def _verify(self) -> None:
        """Who compares the directory with the source finds nothing."""
        facts = FeedFacts(name="feed", tables=("*.*",), start_ts=self.begin.ts, snapshot=self.plan.snapshot)
        source = WorldTables(self.world)
        report = FeedVerifier(facts, self.plan.options, source, self.folder, buffer_bytes=1024).verify()
        assert report.same, report
        for each in report.tables:
            keyed = bool(self.world.tables[each.table].info.primary_key)
            if "partitions of it were dropped" in each.note:
                continue
            assert each.scope is not VerifyScope.NOTHING or not keyed
            if self.plan.snapshot:
                assert each.source_rows == len(self.world.rows_at(report.at_ts)[each.table])

    def _redo(self, ddl: Ddl, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a DDL makes of the rows that a reader has: right before it, those of the source."""
        if (ddl.name, ddl.version) not in self.world.repartitioned:
            return rows
        before, after = (self.world.rows_at(ts).get(ddl.name, []) for ts in (ddl.version - 1, ddl.version))
        found, expected = sorted(map(_comparable, rows)), sorted(map(_comparable, before))
        assert found == expected, f"{ddl.name} before {ddl.version}: {_differences(found, expected)}"
        return after

    def _compare(self, replica: Replica) -> None:
        ts = replica.checkpoint_ts
        rows, columns = self.world.rows_at(ts), self.world.columns_at(ts)
        if ts < self.begin.ts:  # the snapshot is not there as a whole
            rows = {name: [] for name in rows}
        for name in {*rows, *replica.tables}:
            expected = sorted(map(_comparable, rows.get(name, [])))
            found = sorted(map(_comparable, replica.tables.get(name, {}).values()))
            assert name in rows, f"{name} is not there at {ts}"
            assert found == expected, f"{name} at {ts}: {_differences(found, expected)}"
            if name in replica.shapes:
                shape = [each.name for each in replica.shapes[name].stored_columns]
                assert shape == columns[name], f"{name} at {ts}"

    async def _finish(self) -> None:
        self.weather.calm()
        self.workload.capture(1.0)
        self.world.resolve_ddls()
        end_ts = self.world.resolve()
        end_ts = min(end_ts, self.world.history.resolved_ts())
        deadline = self.loop.time() + 1200
        assert self.running is not None
        assert self.process is not None
        while True:
            data = self.remote.read("metadata")
            if data is not None and decode_checkpoint(data) >= end_ts:
                break
            if self.running.done():
                self.running.result()
            assert self.loop.time() < deadline, (
                f"it never came to the end: {self.feed.state} {self.feed.error}"
            )
            await self.clock.sleep(1.0)
            if self.process.dead:
                await self._bury()
                self._start()
        self._check()
        self.running.cancel()
        await asyncio.wait([self.running])
        self._check(files=True)
        for engine in self.engines:
            assert not engine.excess, f"{engine.excess} bytes more than the spool may hold"


def _differences(found: list[str], expected: list[str]) -> str:
    missing = [row for row in expected if row not in found]
    surplus = [row for row in found if row not in expected]
    return f"{len(missing)} missing {missing[:3]}, {len(surplus)} too many {surplus[:3]}"


def _comparable(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_of_the_directory_has_what_the_source_had(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (follower, files, eventloop):
        monkeypatch.setattr(module, "ThreadPoolExecutor", SimPool)
    Simulation(seed, tmp_path).run()
