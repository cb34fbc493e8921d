"""Loading, reading, streaming, merging and sinking on a cluster, while executors die and captures move."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock import __version__, eventloop
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.encode import encode_part
from penstock.changefeeds.engines.engine import DirectFile, DirectResult, EncodeWork, FileWork
from penstock.changefeeds.engines.rounds import LARGE_BYTES
from penstock.changefeeds.engines.spark import SparkEngine
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.capture import tables
from penstock.eventstore.capture.capture import Capture
from penstock.follow.follower import SliceFollower
from penstock.follow.scans import scan_tail
from penstock.follow.slices import Position, TableSpan
from penstock.jobs.iteration.spark_frame import SparkFrames
from penstock.object_storage import STAGING_LOCK, StorageRef
from penstock.spark.bulk import load_snapshot, merge_table
from penstock.spark.errors import as_penstock_error, translate_spark_errors
from penstock.spark.tasks import run_on_executors
from penstock.verify.event_store import verify_table
from support.gate import Gate, GatedStorage
from support.itemtables import item, item_table
from support.loadedworld import DEADLINE_S, NAME, LoadedWorld, until
from support.servedworld import ServedWorld
from support.sparkcluster import SparkCluster, is_alive
from support.warmstore import WarmStore

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def world(cluster_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedWorld]:
    folder = tmp_path_factory.mktemp("reads")
    with WarmStore.start(folder / "store") as store:
        made = LoadedWorld(cluster_spark, folder, store.pd_addr)
        made.change()
        yield made
        made.close()


@pytest.fixture
def gate(cluster: SparkCluster, tmp_path: Path) -> Gate:
    """Closed, with two executors before it that are there to be killed."""
    until(lambda: len(cluster.executors()) == 2, "two executors did not start")
    (tmp_path / "gate").mkdir()
    return Gate(tmp_path / "gate")


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["id"], row.get("_change_type", "")))


@contextmanager
def killed(cluster: SparkCluster, gate: Gate, *, tasks: int) -> Iterator[ThreadPoolExecutor]:
    """Runs what is submitted; when `tasks` wait in it, kills all of them, and the executor of one."""
    with ThreadPoolExecutor(1) as pool:
        yield pool
        try:
            until(lambda: len(gate.waiting()) >= tasks, "the tasks do not come to the gate")
            workers = gate.waiting()
            kill(cluster.kill_executor(of=workers[0]))
            for worker in workers:
                kill(worker)
        finally:
            gate.open()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # a Python worker may end with its executor
        os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "the process lives on")


def test_the_package_is_shipped_to_executors_that_do_not_have_it(
    cluster: SparkCluster, cluster_spark: SparkSession
):
    bare = [str(cluster.python), "-c", "import pyarrow, penstock"]
    said = subprocess.run(bare, capture_output=True, text=True, timeout=60, check=False)
    assert "No module named 'penstock'" in said.stderr

    def found(batches):
        import pyarrow as pa

        import penstock
        from penstock.eventstore import manifest

        for _ in batches:
            yield pa.record_batch({"place": [manifest.__file__], "version": [penstock.__version__]})

    rows = cluster_spark.range(0, 2, 1, 2).mapInArrow(found, "place string, version string").collect()
    assert {row.version for row in rows} == {__version__}
    assert all(f"penstock-{__version__}-" in row.place and row.place.endswith(".pyc") for row in rows)


def test_reads_are_planned_with_the_package_that_is_shipped(cluster_spark: SparkSession):
    with pytest.raises(Invalid, match="unknown option 'tabel'; did you mean table"), translate_spark_errors():
        cluster_spark.read.format("penstock").option("tabel", "a.b").load()


def test_frames_of_jobs_are_read_by_executors_alone(cluster_spark: SparkSession, tmp_path: Path):
    with ServedWorld(tmp_path, item_table()) as served:
        start = served.commit(*(item("integer", each, "a") for each in range(20)))
        served.commit(item("integer", 1, "b"), delete=[(2,)])
        served.flush()
        served.commit(item("integer", 1, "c"))  # in another part: it is with the capture
        scan = scan_tail(served.view(served.flight_rows()), start, served.resolve(), ReadLimit())
        frame = SparkFrames(lambda: cluster_spark).open(scan, None)
        found = {row["id"]: (row["name"], row["_deleted"]) for row in frame.dataframe.collect()}
        assert found == {1: ("c", False), 2: (None, True)}
        frame.release()


def test_a_job_survives_the_death_of_an_executor(
    cluster: SparkCluster, cluster_spark: SparkSession, tmp_path: Path
):
    folder = str(tmp_path)

    def doubled(batches):
        import os
        from pathlib import Path

        import pyarrow as pa
        import pyarrow.compute as pc

        from penstock.clock import SYSTEM

        Path(folder, f"{os.getpid()}.started").touch()
        deadline = SYSTEM.monotonic() + 120
        while not Path(folder, "go").exists() and SYSTEM.monotonic() < deadline:
            SYSTEM.pause(0.05)
        for batch in batches:
            yield pa.record_batch({"id": pc.multiply(batch.column(0), 2)})

    def total() -> int:
        rows = cluster_spark.range(0, 100, 1, 2).mapInArrow(doubled, "id long").groupBy().sum("id").collect()
        return rows[0][0]

    until(lambda: len(cluster.executors()) == 2, "two executors did not start")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(total)
        until(lambda: len(list(tmp_path.glob("*.started"))) == 2, "the tasks did not start")
        victim = cluster.kill_executor()
        until(lambda: not is_alive(victim), "the executor lives on")
        (tmp_path / "go").touch()
        assert job.result(timeout=DEADLINE_S) == 9900


def test_executors_load_and_read_a_table_and_its_changes(world: LoadedWorld):
    assert (world.load.rows, world.load.ranges) == (200, 2)
    assert in_order(world.frame()) == world.rows()
    changes = in_order(world.feed().select("id", "customer", "_change_type"))
    assert [tuple(each.values()) for each in changes] == [
        (1, "changed", "update_postimage"),
        (1, "c1", "update_preimage"),
        (2, "c2", "delete"),
        (1000, "new", "insert"),
    ]


def test_a_read_is_the_same_when_an_executor_dies_in_the_middle(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate
):
    frame = world.frame(partitionBytes=1)
    with killed(cluster, gate, tasks=1) as pool:
        job = pool.submit(lambda: in_order(frame.mapInArrow(gate.batches, frame.schema)))
    assert job.result() == world.rows()


def test_a_load_has_every_row_once_when_tasks_die_before_and_after_a_range_is_done(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    table_id = world.create("shop.loaded")
    url = world.settings.capture.storage

    def gated(spark: SparkSession, tasks: Sequence[Any], **more: Any) -> Any:
        moments = ("write", "create")  # its objects are there; the file that says so is there too
        held = [
            replace(task, storage=GatedStorage(url, gate=gate, after=moments[task.number])) for task in tasks
        ]
        return run_on_executors(spark, held, **more)

    monkeypatch.setattr("penstock.spark.bulk.run_on_executors", gated)
    with killed(cluster, gate, tasks=2) as pool:
        job = pool.submit(load_snapshot, world.spark, world.settings, "shop.loaded")
    report = job.result()
    assert (report.ranges, report.objects, report.rows) == (2, 2, 200)
    assert len(world.list_stored(table_id)) == 3, (
        "the first try of one range was in vain, that of the other not"
    )
    verified = verify_table(world.spark, world.settings, "shop.loaded")
    assert (verified.same, verified.rows) == (True, 200)


class Sink:
    """Takes the batches of a query by their numbers; one that comes again must be the same."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[dict[str, Any]]] = {}

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        def take(batch: DataFrame, number: int) -> None:
            rows = in_order(batch)
            assert self.batches.setdefault(number, rows) == rows

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, frame: DataFrame) -> None:
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(DEADLINE_S), "the stream does not end"

    def changes(self) -> list[tuple[str, int, str]]:
        """What came, by batches."""
        return [
            (each["_change_type"], each["id"], each["customer"])
            for number in sorted(self.batches)
            for each in self.batches[number]
        ]


def test_a_stream_gives_the_rows_then_the_changes_whoever_dies_meanwhile(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, tmp_path: Path
):
    sink = Sink(tmp_path / "checkpoint")
    before = world.rows()
    frame = world.stream(partitionBytes=1)
    with killed(cluster, gate, tasks=1) as pool:
        job = pool.submit(sink.run, frame.mapInArrow(gate.batches, frame.schema))
    job.result()
    assert sink.changes() == [("insert", each["id"], each["customer"]) for each in before]

    sink.batches.clear()
    (tmp_path / "next").mkdir()
    following = Gate(tmp_path / "next")
    world.orders.update([{"id": 7, "customer": "streamed"}])
    world.orders.delete([8])
    world.catch_up()
    frame = world.stream()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(sink.run, frame.mapInArrow(following.batches, frame.schema))
        until(lambda: len(following.waiting()) == 1, "the changes are not read")
        kill(following.waiting()[0])
        following.open()
    job.result()
    assert sink.changes() == [
        ("update_postimage", 7, "streamed"),
        ("update_preimage", 7, "c7"),
        ("delete", 8, "c8"),
    ]


def test_a_merge_is_committed_once_when_the_executor_that_writes_it_dies(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    def gated(spark: SparkSession, tasks: Sequence[Any], **more: Any) -> Any:
        storage = GatedStorage(world.settings.capture.storage, gate=gate, after="write")
        return run_on_executors(spark, [replace(task, storage=storage) for task in tasks], **more)

    monkeypatch.setattr("penstock.eventstore.upkeep.merge_policy._FANOUT", 2)
    monkeypatch.setattr("penstock.spark.bulk.run_on_executors", gated)
    for number in range(3):
        world.orders.insert([{"id": 2000 + number, "customer": "more"}])
        world.orders.update([{"id": 3, "customer": f"more {number}"}])
        world.flush()
    before = world.state()
    changes = in_order(world.feed())
    with killed(cluster, gate, tasks=1) as pool:
        job = pool.submit(merge_table, world.spark, world.settings, NAME)
    report = job.result()
    after = world.state()
    assert (report.merges >= 1, report.overtaken) == (True, 0)
    made = after.objects.keys() - before.objects.keys()
    assert len(made) == report.objects_written
    assert len(world.list_stored(world.table_id)) > len(after.objects), "what was written first is nobody's"
    assert len(after.visible_objects("data", 1 << 62)) < len(before.visible_objects("data", 1 << 62))
    assert in_order(world.frame()) == world.rows()
    assert in_order(world.feed()) == changes


class SinkJobs:
    """The table's rows and changes on their way to files, as the sink's jobs carry them."""

    def __init__(self, world: LoadedWorld, target: StorageRef) -> None:
        self.world = world
        self.storage = target.open()
        self.engine = SparkEngine(world.spark, target)
        self.work = eventloop.run(self._slices(world.catch_up()))
        self.files: list[FileWork] = []

    async def _slices(self, ts: int) -> list[EncodeWork]:
        """A snapshot of the table, and what changed since."""
        source = await SliceFollower.connect(self.world.settings, "feed")
        whole, options = TableSpan.of("feed", self.world.table_id), EncoderOptions(chunk_bytes=2_000)
        starts = [Position(self.world.load.ts, b""), Position(self.world.load.ts)]
        try:
            while source.ddl_resolved_ts() < ts:
                await SYSTEM.sleep(0.05)
            await source.read_progress([whole.table_id])
            found = [
                await source.next_slice(whole, start, ts, ReadLimit(), begin=starts[0]) for start in starts
            ]
        finally:
            await source.close()
        return [EncodeWork(piece, options) for piece in found if piece is not None]

    def encode(self) -> None:
        """Encode it, for files of several chunks, one of them of both slices."""
        (first, _), (second, _) = eventloop.run(self.engine.encode(self.work))
        assert len(first) > 4
        middle = len(first) // 2
        for number, chunks in enumerate((first[:middle], [*first[middle:], *second])):
            name = f"CDC{number}"
            paths = {"data_path": f"{name}.json", "index_path": f"meta/{name}.index"}
            self.files.append(FileWork(dispatcher_id=name, chunks=tuple(chunks), **paths))

    def write(self) -> None:
        """Write the files; every one must be what one process would write, and named by its index."""
        written = eventloop.run(self.engine.write(self.files))
        assert [each.error for each in written] == ["", ""]
        payloads = [
            encoded.payload
            for work in self.work
            for number in range(len(work.slice.parts))
            for encoded in encode_part(work.slice, number, work.options)
        ]
        contents = [self.storage.read(each.data_path) for each in self.files]
        assert b"".join(contents) == b"".join(payloads)
        assert [len(each) for each in contents] == [result.nbytes for result in written]
        names = [name for name in self.storage.names("") if name != STAGING_LOCK]  # of the local directory
        assert names == ["CDC0.json", "CDC1.json", "meta/CDC0.index", "meta/CDC1.index"]
        assert self.storage.read("meta/CDC1.index") == b"CDC1.json\n"

    def learn_cores(self) -> None:
        """Make a file that nobody looks at: rounds know after their first job how many tasks run at once."""
        file = FileWork(dispatcher_id="0", chunks=(), data_path="first", index_path="first.index")
        made = eventloop.run(self.engine.make_file(DirectFile(file, tuple(self.work[1:]))))
        assert made.failure is None

    def make_train(self) -> None:
        """Make a file of each slice, one behind the other; they must be what one process would write."""

        async def make() -> list[DirectResult]:
            making, before = [], ""
            for number, work in enumerate(self.work):
                paths = {"data_path": f"CDC{number}.json", "index_path": "meta/CDC.index"}
                file = FileWork(dispatcher_id="1", chunks=(), after=before, **paths)
                making.append(self.engine.make_file(DirectFile(file, (work,), LARGE_BYTES)))
                before = file.data_path
            return await asyncio.gather(*making)

        made = eventloop.run(make())
        assert [result.failure for result in made] == [None] * len(self.work)
        for number, work in enumerate(self.work):
            payloads = [
                encoded.payload
                for part in range(len(work.slice.parts))
                for encoded in encode_part(work.slice, part, work.options)
            ]
            assert self.storage.read(f"CDC{number}.json") == b"".join(payloads)
        assert self.storage.read("meta/CDC.index") == f"CDC{len(self.work) - 1}.json\n".encode()

    def blocks(self) -> int:
        """How many blocks of the spool there are, on all executors."""
        infos = self.world.spark.sparkContext._jsc.sc().getRDDStorageInfo()
        return sum(int(each.numCachedPartitions()) for each in infos)

    def close(self) -> None:
        eventloop.run(self.engine.close())
        assert self.blocks() == 0


def test_blocks_of_the_spool_that_are_lost_with_their_executors_are_encoded_again(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, tmp_path: Path
):
    jobs = SinkJobs(world, StorageRef(f"file://{tmp_path}/remote"))
    jobs.encode()
    assert jobs.blocks() > 0
    world.orders.update([{"id": 9, "customer": "later"}])
    world.flush()  # rows that the capture had are in objects now: the same bytes come of both
    for executor in cluster.executors():
        kill(executor)
    until(lambda: jobs.blocks() == 0, "the blocks are not lost")
    jobs.write()
    jobs.close()


def test_a_file_is_there_once_when_the_executors_die_between_it_and_its_index(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "penstock.changefeeds.engines.spark._ONE_TASK_BYTES", -1
    )  # a task for each file, as with large ones
    jobs = SinkJobs(world, GatedStorage(f"file://{tmp_path}/remote", gate=gate, after="create"))
    jobs.encode()
    with killed(cluster, gate, tasks=2) as pool:
        job = pool.submit(jobs.write)
        until(lambda: len(gate.waiting()) >= 2, "the files are not written")
        assert jobs.storage.names("") == ["CDC0.json", "CDC1.json"], "data comes before the index"
    job.result()
    jobs.close()


def test_a_train_of_files_is_there_once_when_the_executors_die_behind_their_puts(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, tmp_path: Path
):
    jobs = SinkJobs(world, GatedStorage(f"file://{tmp_path}/remote", gate=gate, after="create"))
    gate.open()
    jobs.learn_cores()
    gate.close()
    with killed(cluster, gate, tasks=2) as pool:
        job = pool.submit(jobs.make_train)
        until(lambda: len(gate.waiting()) >= 2, "the files are not made side by side")
        names = [name for name in jobs.storage.names("") if name.startswith("CDC")]
        assert names == ["CDC0.json", "CDC1.json"]
        assert jobs.storage.read("meta/CDC.index") is None
    job.result()
    assert [name for name in jobs.storage.names("") if name.startswith("CDC")] == names
    jobs.close()


class Moving:
    """A stream of the table while its captures come and go, none of which flushes by itself. A context.

    A query that fails does so with one line, and is started again.
    """

    def __init__(self, world: LoadedWorld, sink: Sink) -> None:
        self.world = world
        self.sink = sink
        self.failures: list[str] = []
        self.written: list[tuple[str, int, str]] = []
        self.begin_ts = 0
        self._query: StreamingQuery | None = None
        self._captures: dict[str, Capture] = {}

    def __enter__(self) -> Self:
        eventloop.run(self.world.capture.stop())
        return self

    def __exit__(self, *_: object) -> None:
        if self._query is not None:
            self._query.stop()
        for capture in self._captures.values():
            eventloop.run(capture.stop(flush=False))

    def capture(self, name: str) -> Capture:
        """Start a capture, anew after a crash where it runs; it is the one that the table is to be with."""
        if name in self._captures:
            eventloop.run(self._captures[name].stop(flush=False))
        settings = self.world.settings_of(name, flush_interval_s=3600, idle_flush_interval_s=3600)
        self.world.capture = self._captures[name] = eventloop.run(Capture.start(settings))
        return self.world.capture

    def start(self) -> None:
        """Start the query, from now on or from where it was."""
        self.begin_ts = self.begin_ts or self.world.catch_up()
        self._query = self.sink.start(self.world.stream(startingVersion=self.begin_ts + 1))

    def insert(self, number: int) -> None:
        self.world.orders.insert([{"id": number, "customer": "moving"}])
        self.written.append(("insert", number, "moving"))

    def deliver(self) -> None:
        """Wait until the stream has given everything that was written."""

        def is_there() -> bool:
            assert self._query is not None
            if not self._query.isActive:
                failure = as_penstock_error(self._query.exception())
                assert isinstance(failure, Unavailable)
                assert "\n" not in str(failure)
                self.failures.append(str(failure))
                self.start()
            return len(self.sink.changes()) >= len(self.written)

        until(is_there, "the stream does not give what was written")


def test_a_stream_gives_every_change_once_while_captures_move(
    cluster: SparkCluster, world: LoadedWorld, gate: Gate, tmp_path: Path
):
    names = (f"capture-1-{number}" for number in count())
    stronger = next(name for name in names if tables.owner_of(world.table_id, ["capture-2", name]) == name)
    with Moving(world, Sink(tmp_path / "checkpoint")) as moving:
        first = moving.capture("capture-2")
        moving.start()
        moving.insert(5000)
        moving.deliver()

        moving.insert(5001)
        moving.capture(stronger)
        moving.insert(5002)
        world.catch_up()
        until(lambda: world.table_id not in first.tables, "the table does not move")
        moving.insert(5003)
        moving.deliver()

        with ThreadPoolExecutor(1) as pool:
            busy = world.spark.range(0, 2, 1, 2)
            job = pool.submit(lambda: busy.mapInArrow(gate.batches, busy.schema).count())
            try:
                until(lambda: len(gate.waiting()) == 2, "no executor is busy")
                moving.insert(5004)
                jobs = world.spark.sparkContext.statusTracker()
                until(lambda: len(jobs.getActiveJobsIds()) == 2, "the batch is not planned")
                moving.capture(stronger)
            finally:
                gate.open()
            assert job.result() == 2
        known = len(moving.failures)
        moving.deliver()
        assert len(moving.failures) > known, "the batch was planned with an address that is nobody's"
        moving.insert(5005)
        moving.deliver()
        assert moving.sink.changes() == moving.written
