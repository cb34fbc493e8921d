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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.changes.admission import Limit
from penstock.errors import Unavailable
from penstock.eventstore.leases import Lease
from penstock.eventstore.partition import StorageRef
from penstock.sink import eventsource, filewriting, underway
from penstock.sink.changefeed import Changefeed
from penstock.sink.consuming.datafiles import FileOptions
from penstock.sink.consuming.listing import Survey
from penstock.sink.engine import EncodeWork
from penstock.sink.eventsource import EventStoreSource
from penstock.sink.feedstore import KeptDispatcher, PendingFile
from penstock.sink.formats.options import CsvOptions
from penstock.sink.localengine import Hook, LocalEngine, Step
from penstock.sink.metadatafile import decode_checkpoint
from penstock.sink.options import SinkOptions
from penstock.sink.positions import Position
from penstock.sink.sink import StorageSink
from penstock.sink.startup import FeedOptions
from penstock.sink.targetfiles import TargetFiles
from penstock.sink.work import Chunk
from penstock.testing.feedworld import FeedWorld, WorldTable
from penstock.testing.replica import Replica
from penstock.testing.shakyremote import Killed, Process, Remote, Shaky, ShakyRef, Weather
from penstock.testing.simloop import SimLoop, SimPool
from penstock.testing.sinkdoubles import MemoryProgress

T = TypeVar("T")

MIDNIGHT_MS = 1_700_006_400_000
KINDS = ["integer", "integer", "composite", "not clustered", "no key"]
ACTS = int(os.environ.get("PENSTOCK_ACTS", "30"))
SEEDS = (
    [int(os.environ["PENSTOCK_SEED"])]
    if os.environ.get("PENSTOCK_SEED")
    else range(1, 1 + int(os.environ.get("PENSTOCK_SEEDS", "20")))
)


class SimClock:
    """The time of the loop; randomness of the seed."""

    def __init__(self, loop: SimLoop, mix: random.Random) -> None:
        self._loop = loop
        self._mix = mix
        self._start_ms = MIDNIGHT_MS - mix.randint(0, 100_000)

    def wall_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251 - of the simulated loop

    def pause(self, seconds: float) -> None:
        self._loop.pause(seconds)

    def random(self) -> float:
        return self._mix.random()

    def unique_id(self) -> str:
        return f"{self._mix.getrandbits(128):032x}"


@dataclass(frozen=True)
class Plan:
    """What a seed decides at the beginning."""

    options: SinkOptions
    slice_limit: Limit
    split_rows: int
    snapshot: bool
    commit_rows_max: int
    cut_commits: bool
    reads_max: int

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
            slice_limit=Limit(rows=mix.choice([1, 3, 20, 1000]), nbytes=1 << 20),
            split_rows=mix.choice([0, 4, 10]),
            snapshot=mix.random() < 0.6,
            commit_rows_max=mix.choice([60, 200]) if cut_commits else 8,
            cut_commits=cut_commits,
            reads_max=mix.choice([1, 3, 16]),
        )

    @property
    def file_options(self) -> FileOptions:
        return FileOptions(protocol=self.options.protocol, csv=self.options.csv)


class WeighingEngine(LocalEngine):
    """Notes the largest payload of a slice, and how much there was more than the quota allows.

    A single slice may always come, however large it is.
    """

    def __init__(self, target: StorageRef, quota: int, at: Hook) -> None:
        super().__init__(target, at=at)
        self._quota = quota
        self._largest = 0
        self.excess = 0

    async def encode(self, work: Sequence[EncodeWork]) -> list[list[Chunk]]:
        made = await super().encode(work)
        sizes = [sum(chunk.nbytes for chunk in chunks) for chunks in made]
        self._largest = max([self._largest, *sizes])
        self.excess = max(self.excess, self.held_bytes - self._quota - self._largest)
        return made


class ShakyProgress:
    """The database that keeps a changefeed's progress, as one process sees it."""

    def __init__(self, kept: MemoryProgress, weather: Weather, process: Process, clock: SimClock) -> None:
        self._kept = kept
        self._weather = weather
        self._process = process
        self._clock = clock

    async def checkpoint_ts(self) -> int:
        return await self._call(self._kept.checkpoint_ts)

    async def keep_checkpoint(self, ts: int) -> None:
        await self._call(lambda: self._kept.keep_checkpoint(ts))

    async def dispatchers(self) -> list[KeptDispatcher]:
        return await self._call(self._kept.dispatchers)

    async def change_dispatchers(
        self, added: Sequence[KeptDispatcher], removed: Any, *, ddl_ts: int | None = None
    ) -> None:
        await self._call(lambda: self._kept.change_dispatchers(added, list(removed), ddl_ts=ddl_ts))

    async def ddl_ts(self) -> int:
        return await self._call(self._kept.ddl_ts)

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        await self._call(lambda: self._kept.begin_files(files))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        mix = self._process.mix
        if self._process.dead:
            raise Killed
        await self._clock.sleep(mix.random() * 0.02)
        self._process.step()
        if self._weather.strikes("progress before", 0.01):
            raise Unavailable("the database does not answer")
        made = await call()
        self._process.step()
        await self._clock.sleep(mix.random() * 0.02)
        if self._weather.strikes("progress after", 0.01):
            raise Unavailable("the answer of the database is lost")
        return made


class Simulation:
    """One run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.mix = random.Random(seed)
        self.loop = SimLoop()
        self.clock = SimClock(self.loop, self.mix)
        self.remote = Remote()
        self.weather = Weather(self.mix)
        self.plan = Plan.of(self.mix, ShakyRef("memory:///remote", storage=self.remote))
        self.world = FeedWorld(folder, self.clock.wall_ms)
        self.replica: Replica | None = None
        self.checkpoint_ts = 0
        self.process: Process | None = None
        self.running: asyncio.Task[None] | None = None
        self.engine: LocalEngine | None = None
        self.engines: list[WeighingEngine] = []
        self.names = 0

    def run(self) -> None:
        try:
            with self.world:
                self.loop.run_until_complete(self._run())
        finally:
            self.loop.close()

    async def _run(self) -> None:
        self._set_up()
        self._capture(1.0)
        begin_ts = self.world.resolve_ddls()
        self.world.resolve()
        begin = Position(begin_ts, b"") if self.plan.snapshot else Position(begin_ts)
        self.progress = MemoryProgress(begin)
        self.begin = begin
        self._start()
        for _ in range(ACTS):
            await self.clock.sleep(self.mix.random() * self.mix.choice([0.05, 1.0, 4.0]))
            self._act()
            await self._disturb()
        await self._finish()

    def _set_up(self) -> None:
        world, mix = self.world, self.mix
        for name in ("shop", "shop2"):
            world.create_database(name)
        for number in range(mix.randint(2, 5)):
            world.create_table(f"shop.t{number}", mix.choice(self.plan.kinds), mix.choice([0, 0, 0, 2]))
        self._capture(1.0)
        self.names = 10
        if not self.plan.snapshot:
            return
        for table in list(world.tables.values()):
            for _ in range(mix.randint(0, 3)):
                self._change_rows(table, mix.randint(1, 15))
        world.resolve_ddls()
        world.resolve()
        for each in sorted(world.store.tables()):
            if mix.random() < 0.8:
                world.flush(each)

    # What happens in the database

    def _act(self) -> None:
        mix, world = self.mix, self.world
        what = mix.random()
        tables = list(world.tables.values())
        if what < 0.55 and tables:
            self._transaction(tables)
        elif what < 0.62 and tables:
            self._change_rows(mix.choice(tables), self.plan.commit_rows_max)
        elif what < 0.8:
            for _ in range(mix.choice([1, 1, 1, 4])):
                self._ddl()
                if mix.random() < 0.5 and world.tables:
                    self._transaction(list(world.tables.values()))
        if mix.random() < 0.7:
            world.resolve_ddls()
        self._capture(0.6)
        ids = sorted(world.store.tables())
        chosen = ids if mix.random() < 0.5 else mix.sample(ids, mix.randint(0, len(ids)))
        world.resolve(chosen)
        if chosen and mix.random() < 0.2:
            world.resolve_ddls()
            world.flush(mix.choice(chosen))

    def _capture(self, chance: float) -> None:
        """Captures find tables some time after they were made, and leave those that are gone."""
        there = self.world.physical_ids
        for each in sorted(self.world.uncaptured):
            if each in there and self.mix.random() < chance:
                self.world.capture(each)
        for each in sorted(self.world.store.tables()):
            if self.world.is_done(each) and self.mix.random() < chance / 2:
                self.world.give_up(each)

    def _transaction(self, tables: list[WorldTable]) -> None:
        chosen = self.mix.sample(tables, min(len(tables), self.mix.choice([1, 1, 2])))
        self.world.commit(*(self._changes(each, self.mix.randint(1, 6)) for each in chosen))

    def _change_rows(self, table: WorldTable, rows: int) -> None:
        self.world.commit(self._changes(table, rows))

    def _changes(self, table: WorldTable, rows: int) -> tuple[WorldTable, list[Any], list[dict[str, Any]]]:
        mix = self.mix
        there = list(table.rows)
        touched = mix.sample(there, min(len(there), rows * mix.choice([0, 1, 1, 2]) // 2))
        leaving, coming = [], []
        taken = {held.row["id"] for held in table.rows.values()}
        clustered = table.info.primary_key and table.info.handle_kind.name != "ROWID"
        free = (number for number in iter(lambda: mix.randint(1, 10**6), None) if number not in taken)
        if not clustered and len(touched) > 1 and mix.random() < 0.3:  # two rows change keys
            one, two, *touched = touched
            if one[0] == two[0]:
                ids = table.rows[one].row["id"], table.rows[two].row["id"]
                coming += [
                    {**table.rows[at].row, "id": number, "_at": at}
                    for at, number in zip((two, one), ids, strict=True)
                ]
        for at in touched:
            row = dict(table.rows[at].row)
            what = mix.random()
            if what < 0.3:
                leaving.append(at)
                if not clustered and mix.random() < 0.3:  # and comes again as another row
                    coming.append({**row, "name": "again"})
                continue
            row["name"] = "x" * mix.randint(0, 30) + str(mix.randint(0, 10**6))
            if what < 0.45:  # its key changes
                row["id"] = next(free)
                taken.add(row["id"])
                moved = table.place(row, at[1] if isinstance(at[1], int) else 0)
                if clustered or moved[0] != at[0]:
                    leaving.append(at)
                    coming.append({**row, "_at": moved})
                    continue
            coming.append({**row, "_at": at})
        for _ in range(rows - len(touched)):
            row = {column.name: self._value(column.name) for column in table.info.stored_columns}
            row["id"] = next(free)
            taken.add(row["id"])
            if "part" in row:
                row["part"] = f"p{row['id'] % 3}"
            coming.append(row)
        if not leaving and not coming:
            return self._changes(table, 1)
        return table, leaving, coming

    def _value(self, column: str) -> Any:
        if column == "name":
            return "n" * self.mix.randint(0, 40)
        return self.mix.choice([None, self.mix.randint(-5, 5)])

    def _ddl(self) -> None:
        mix, world = self.mix, self.world
        what = mix.random()
        tables = list(world.tables.values())
        self.names += 1
        if what < 0.15 or not tables:
            name = mix.choice([*world.databases, "shop"])
            if name not in world.databases:
                world.create_database(name)
            world.create_table(f"{name}.t{self.names}", mix.choice(self.plan.kinds), mix.choice([0, 0, 2]))
            return
        table = mix.choice(tables)
        extra = [each.name for each in table.info.stored_columns if each.name.startswith("c")]
        if what < 0.4:
            name = f"c{mix.randint(1, 3)}"
            if name not in extra:
                world.add_column(table, name, mix.choice(["int", "int default 7", "bigint"]))
        elif what < 0.5 and extra:
            world.drop_column(table, mix.choice(extra))
        elif what < 0.6:
            size = table.info.column("name").type.flen + 10
            world.modify_column(table, "name", f"varchar({size})")
        elif what < 0.7:
            world.truncate_table(table)
        elif what < 0.82:
            world.rename_table(table, f"{mix.choice(list(world.databases))}.t{self.names}")
        elif what < 0.87:
            world.drop_table(table)
        elif what < 0.95:
            name, kind = table.name, mix.choice(self.plan.kinds)
            world.drop_table(table)
            world.create_table(name, kind, mix.choice([0, 2]))
        elif len(world.databases) > 1 and not self.plan.options.use_table_id_as_path:
            # Where ids are paths, nothing tells readers of databases.
            name = mix.choice(list(world.databases))
            world.drop_database(name)
            if mix.random() < 0.5:
                world.create_database(name)
                world.create_table(f"{name}.t{self.names}", mix.choice(self.plan.kinds))

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
        files = TargetFiles(storage, options, split=bool(self.plan.split_rows), clock=self.clock)
        source = EventStoreSource(
            "feed",
            self.world.storage,
            now=lambda: self.world.ts,
            leases=lambda: [Lease("capture", "data", "here", 0)],
            connect=self.world.connect,
            history=self.world.history,
            clock=self.clock,
        )

        async def at(step: Step) -> None:
            if step != "release":
                await self.clock.sleep(mix.random() * 0.05)
            if process.dead:
                raise Killed
            if step != "release" and self.weather.strikes(f"engine {step}", 0.01):
                raise Unavailable("no executor is there")

        def open_sink() -> StorageSink:
            self.engine = WeighingEngine(options.target, options.spool_disk_quota, at)
            self.engines.append(self.engine)
            return StorageSink(self.engine, files, progress, options, changefeed="feed", clock=self.clock)

        feed = Changefeed(
            "feed",
            FeedOptions(
                begin=self.begin,
                split_rows=self.plan.split_rows,
                slice_limit=self.plan.slice_limit,
                reads_max=self.plan.reads_max,
            ),
            source=source,
            open_sink=open_sink,
            files=files,
            progress=progress,
            clock=self.clock,
        )
        self.feed = feed
        self.running = self.loop.create_task(self._drive(feed, source))

    async def _drive(self, feed: Changefeed, source: EventStoreSource) -> None:
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
                survey=Survey(
                    date_separator=self.plan.options.date_separator,
                    table_id_as_path=self.plan.options.use_table_id_as_path,
                ),
                cut_commits=self.plan.cut_commits,
            )
        self.replica.catch_up()
        self._compare(self.replica)
        if files:
            self.replica.check()

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
        self._capture(1.0)
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
            allowed = self.plan.options.spool_disk_quota  # how large rows become is estimated
            assert engine.excess <= allowed, f"{engine.excess} bytes more than the spool may hold"


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
    for module in (eventsource, filewriting, underway):
        monkeypatch.setattr(module, "ThreadPoolExecutor", SimPool)
    Simulation(seed, tmp_path).run()
