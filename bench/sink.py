"""The storage sink, against Spark's own writers and against itself: `python bench/sink.py [changes]`.

One run measures, on one session: the changes of some tables to files in each format, against
`DataFrame.write` of the same changes; how many wakes and flushes tables keep when another one takes three
seconds more to encode, or to write; and a thousand dispatchers before a remote that takes 200 ms for every
request, with dispatchers that go on when their events are in the spool, against such that wait until they are
on the remote. There rows are encoded beforehand, so that the remote is what everybody waits for.
"""

import argparse
import asyncio
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from itertools import count, cycle
from pathlib import Path

from obstore.store import LocalStore
from pyspark.sql import DataFrame, SparkSession

from changes import MIXED, START, a_table, seconds, show, write_mixed
from changes import Written as Source
from penstock import eventloop
from penstock.changefeeds.engines.engine import (
    Chunk,
    DirectFile,
    DirectResult,
    EncodedSlice,
    EncodeWork,
    FileWork,
    SinkEngine,
    WriteResult,
)
from penstock.changefeeds.engines.spark import SparkEngine
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.changes.limits import ReadLimit
from penstock.eventstore.read.partition import Partition, TableView
from penstock.follow.slices import Position, Slice, SliceRange, TableSpan, plan_slice
from penstock.object_storage import ObjectStorage, StorageRef
from penstock.settings import Settings, SparkSettings
from penstock.spark.session import build_session
from spark import load, named
from support.gate import LateStorage
from support.sinkparts import KeptInMemory

SLICE = ReadLimit(nbytes=64 * 1024 * 1024)
DISPATCHERS = 1000
REQUEST_S = 0.2
FILE_BYTES = 256 * 1024
EVENT_BYTES = 16 * 1024
WARM_S = 8.0
PACED_TABLES = 8
PACED_CHANGES = 20_000
PIECE_BYTES = 64 * 1024
SPOOL_FILE_BYTES = 1024 * 1024
SLOW_S = 3.0
WRITERS = 128  # requests that the executors of a small cluster have on their way
LINE = b'{"id":0,"database":"shop","table":"orders","type":"INSERT","data":[{"id":"%012d"}]}\r\n'


class Feeding:
    """A sink with dispatchers that send slices one after the other."""

    def __init__(self, engine: SinkEngine, options: SinkOptions, target: ObjectStorage) -> None:
        self.files = RemoteFiles(target, options, split=True)
        self.sink = StorageSink(engine, self.files, KeptInMemory(), options, changefeed="bench")
        self.flushed_bytes = 0

    async def send(self, piece: Slice, *, wait_for_flush: bool = False) -> None:
        """Return when the dispatcher may go on."""
        woken = asyncio.Event()
        event = DmlEvent(piece)
        (event.add_post_flush if wait_for_flush else event.add_post_enqueue)(woken.set)
        event.add_post_flush(lambda: self._finish(piece))
        self.sink.add_dml_event(event)
        await woken.wait()

    def _finish(self, piece: Slice) -> None:
        self.flushed_bytes += piece.nbytes


def _write_plainly(feed: DataFrame, kind: str, folder: Path) -> int:
    feed.write.format(kind).save(str(folder))
    return 0


def to_files(spark: SparkSession, tables: Sequence[Source], to_ts: int, uri: str) -> int:
    """All changes of the tables through the sink, a dispatcher each; returns the bytes of the files."""

    async def dispatch(feeding: Feeding, table: Source) -> None:
        table_id = table.schema.table.id
        view = TableView(table.schema.name, (Partition(table.storage, table_id),))
        dispatcher = TableSpan.of("bench", table_id)
        position = Position(START)
        while position.ts < to_ts:
            size = feeding.sink.slice_size(dispatcher)
            limit = SLICE.up_to(size.file_bytes)
            wanted = SliceRange(dispatcher, position, to_ts, limit, snapshot=False, size=size)
            piece = await asyncio.to_thread(plan_slice, view, table.schema, wanted)
            if piece is None:
                return
            await feeding.send(piece)
            position = piece.end

    async def run() -> None:
        options = parse_sink_uri(uri)
        feeding = Feeding(SparkEngine(spark, options.target), options, options.target.open())
        serving = asyncio.create_task(feeding.sink.run())
        await asyncio.gather(*(dispatch(feeding, table) for table in tables))
        await feeding.sink.close()
        await serving

    eventloop.run(run())
    return size_of(Path(uri.removeprefix("file://").partition("?")[0]))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_formats(spark: SparkSession, folder: Path, changes: int, table_count: int) -> None:
    storage = StorageRef(f"file://{folder}/objects")
    tables = [named(storage, MIXED + number, f"mixed{number}", folder) for number in range(table_count)]
    for table in tables:
        to_ts = write_mixed(table, changes // table_count)
        table.commit(to_ts)
    feeds = [
        load(spark, storage, f"mixed{number}", readChangeFeed="true", startingVersion=START)
        for number in range(table_count)
    ]
    feed = reduce(lambda one, other: one.unionAll(other), feeds)
    for protocol, plain, target in (
        ("canal-json", "json", ">= 0.80"),
        ("csv", "csv", ">= 1.00"),
        ("parquet", "parquet", ">= 1.00"),
    ):
        ours_s, plain_s, nbytes = [], [], 0
        for attempt in range(4):
            out, theirs = folder / f"{protocol}-{attempt}", folder / f"plain-{plain}-{attempt}"
            uri = f"file://{out}?protocol={protocol}"
            took, nbytes = seconds(partial(to_files, spark, tables, to_ts, uri))
            ours_s.append(took)
            took, _ = seconds(partial(_write_plainly, feed, plain, theirs))
            plain_s.append(took)
            shutil.rmtree(out)
            shutil.rmtree(theirs)
        detail = f"{changes / min(ours_s):12,.0f} changes/s, {nbytes / min(ours_s) / 1e6:7.1f} MB/s to files"
        name = f"{protocol} / DataFrame.write.{plain}, tables: {table_count}"
        show(name, min(plain_s) / min(ours_s), target, detail)


class SlowStorage(ObjectStorage):
    """Takes a while for every request."""

    def create(self, path: str, data: bytes) -> bool:
        time.sleep(REQUEST_S)
        return super().create(path, data)

    def write(self, path: str, data: bytes | Path) -> None:
        time.sleep(REQUEST_S)
        super().write(path, data)

    def read(self, path: str, *, bytes_max: int | None = None) -> bytes | None:
        time.sleep(REQUEST_S)
        return super().read(path, bytes_max=bytes_max)

    def exists(self, path: str) -> bool:
        time.sleep(REQUEST_S)
        return super().exists(path)

    def names(self, folder: str, *, after: str = "") -> list[str]:
        time.sleep(REQUEST_S)
        return super().names(folder, after=after)


def _chunk(segment: int, number: int, piece: Slice) -> Chunk:
    return Chunk(segment, number, piece.start, piece.end, piece.rows, piece.nbytes)


class PreparedEngine:
    """Hands out payloads that were encoded before, and writes them to a slow remote; implements Engine."""

    cores = 1

    def __init__(self, target: ObjectStorage) -> None:
        self._target = target
        self._lines = b"".join(LINE % number for number in range(EVENT_BYTES // len(LINE % 0)))
        self._segments = count(1)
        self._threads = ThreadPoolExecutor(WRITERS)
        self.sizes: list[int] = []

    @property
    def event_bytes(self) -> int:
        return len(self._lines)

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        segment = next(self._segments)
        return [EncodedSlice([_chunk(segment, number, item.slice)]) for number, item in enumerate(work)]

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._write, file) for file in files)
        )

    async def make_file(self, file: DirectFile) -> DirectResult:
        chunks = [chunk for encoded in await self.encode(file.work) for chunk in encoded.chunks]
        (result,) = await self.write([replace(file.file, chunks=tuple(chunks))])
        return DirectResult(len(chunks), sum(chunk.nbytes for chunk in chunks), result.nbytes)

    def _write(self, file: FileWork) -> WriteResult:
        data = self._lines * len(file.chunks)
        self._target.create(file.data_path, data)
        self._target.write(file.index_path, file.data_path.encode())
        self.sizes.append(len(data))
        return WriteResult(file.data_path, len(data))

    async def release(self, segment: int) -> None:
        """Nothing is held."""

    async def close(self) -> None:
        self._threads.shutdown()


def throughput(folder: Path, run_s: float, *, wait_for_flush: bool) -> tuple[float, list[int]]:
    """Bytes a second that come to the remote in a while, and the sizes of the files."""

    async def run() -> tuple[float, list[int]]:
        options = parse_sink_uri(
            f"file://{folder}?protocol=canal-json&file-size={FILE_BYTES}&spool-disk-quota={2 << 30}"
        )
        remote = SlowStorage(options.target.url, LocalStore(folder, mkdir=True))
        engine = PreparedEngine(remote)
        feeding = Feeding(engine, options, remote)
        serving = asyncio.create_task(feeding.sink.run())

        async def dispatch(number: int) -> None:
            version = a_table(number)
            dispatcher = TableSpan.of("bench", number)
            for ts in count(1):
                piece = Slice(
                    dispatcher=dispatcher,
                    schema=replace(version, since_ts=1, database="bench"),
                    start=Position(ts),
                    end=Position(ts + 1),
                    parts=(),
                    rows=1,
                    nbytes=engine.event_bytes,
                )
                await feeding.send(piece, wait_for_flush=wait_for_flush)

        sending = [asyncio.create_task(dispatch(number)) for number in range(1, DISPATCHERS + 1)]
        await asyncio.sleep(WARM_S)  # schema files and the first numbers
        before, began_at, files = feeding.flushed_bytes, time.perf_counter(), len(engine.sizes)
        await asyncio.sleep(run_s)
        rate = (feeding.flushed_bytes - before) / (time.perf_counter() - began_at)
        sizes = engine.sizes[files:]
        for task in (*sending, serving):
            task.cancel()
        await asyncio.gather(*sending, serving, return_exceptions=True)
        await feeding.sink.close()
        return rate, sizes

    return eventloop.run(run())


def measure_slow_remote(folder: Path, run_s: float) -> None:
    late, _ = throughput(folder / "late", run_s, wait_for_flush=True)
    early, sizes = throughput(folder / "early", run_s, wait_for_flush=False)
    detail = f"{early / 1e6:7.1f} MB/s against {late / 1e6:7.1f}"
    show(f"{DISPATCHERS} dispatchers: early wake / wake on flush", early / late, ">= 5.00", detail)
    close = sum(abs(size - FILE_BYTES) <= FILE_BYTES / 10 for size in sizes)
    detail = f"{len(sizes)} files of {sum(sizes) / max(1, len(sizes)) / 1024:.0f} KiB on average"
    show("files within 10% of file-size, under load", close / max(1, len(sizes)), ">= 0.90", detail)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:,.0f} MiB")


def pieces_of(table: Source, to_ts: int) -> list[Slice]:
    """The changes of a table in small slices."""
    table_id = table.schema.table.id
    view = TableView(table.schema.name, (Partition(table.storage, table_id),))
    dispatcher, position = TableSpan.of("bench", table_id), Position(START)
    pieces: list[Slice] = []
    while position.ts < to_ts:
        wanted = SliceRange(dispatcher, position, to_ts, ReadLimit(nbytes=PIECE_BYTES), snapshot=False)
        piece = plan_slice(view, table.schema, wanted)
        if piece is None:
            break
        pieces.append(piece)
        position = piece.end
    return pieces


def delay_reads(piece: Slice, storage: LateStorage) -> Slice:
    """Return a slice whose parts are read from a storage that is late."""
    parts = tuple(
        replace(
            part,
            table=replace(
                part.table,
                partitions=tuple(replace(each, storage=storage) for each in part.table.partitions),
            ),
        )
        for part in piece.parts
    )
    return replace(piece, parts=parts)


def events_of_others(
    spark: SparkSession, pieces: Sequence[Sequence[Slice]], target: StorageRef, run_s: float, *, flush: bool
) -> tuple[float, float]:
    """Wakes and flushes a second of all tables but the first, each sending as soon as it may go on."""
    counted = Counter[str]()

    async def dispatch(number: int, sink: StorageSink) -> None:
        for piece in cycle(pieces[number]):
            woken = asyncio.Event()
            event = DmlEvent(piece, flush=flush)
            (event.add_post_flush if flush else event.add_post_enqueue)(woken.set)
            if number:
                event.add_post_enqueue(lambda: counted.update(["wake"]))
                event.add_post_flush(lambda: counted.update(["flush"]))
            sink.add_dml_event(event)
            await woken.wait()

    async def run() -> tuple[float, float]:
        uri = f"{target.url}?protocol=canal-json&file-size={SPOOL_FILE_BYTES}&flush-interval=2s"
        options = replace(parse_sink_uri(uri), target=target)
        feeding = Feeding(SparkEngine(spark, target), options, target.open())
        serving = asyncio.create_task(feeding.sink.run())
        sending = [asyncio.create_task(dispatch(number, feeding.sink)) for number in range(len(pieces))]
        await asyncio.sleep(WARM_S)
        before, began_at = counted.copy(), time.perf_counter()
        await asyncio.sleep(run_s)
        took_s = time.perf_counter() - began_at
        for task in (*sending, serving):
            task.cancel()
        await asyncio.gather(*sending, serving, return_exceptions=True)
        await feeding.sink.close()
        wakes, flushes = (counted[what] - before[what] for what in ("wake", "flush"))
        return wakes / took_s, flushes / took_s

    return eventloop.run(run())


def measure_slow_table(spark: SparkSession, folder: Path, run_s: float) -> None:
    storage = StorageRef(f"file://{folder}/objects")
    tables = [named(storage, MIXED + number, f"paced{number}", folder) for number in range(PACED_TABLES)]
    for table in tables:
        to_ts = write_mixed(table, PACED_CHANGES)
        table.commit(to_ts)
    pieces = [pieces_of(table, to_ts) for table in tables]
    late = LateStorage(storage.url, storage.options, open_s=SLOW_S)
    slow_reads = [[delay_reads(piece, late) for piece in pieces[0]], *pieces[1:]]
    for flush, what in ((False, "through the spool"), (True, "in one stage")):
        runs = {
            "without": (pieces, 0.0),
            "encode": (slow_reads, 0.0),
            "write": (pieces, SLOW_S),
        }
        found = {}
        for name, (sent, create_s) in runs.items():
            out = f"file://{folder}/{name}-{flush}"
            target = LateStorage(out, create_s=create_s, part="/paced0/")
            found[name] = events_of_others(spark, sent, target, run_s, flush=flush)
        for stage in ("encode", "write"):
            for place, event in enumerate(("wakes", "flushes")):
                ours, plain = found[stage][place], found["without"][place]
                detail = f"{ours:6.1f}/s against {plain:6.1f}, {what}"
                ratio = ours / plain if plain else float("nan")  # it was not measured for long enough
                show(f"one table {SLOW_S:.0f} s slower in {stage}: {event}", ratio, ">= 0.90", detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changes", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run before the slow remote")
    parser.add_argument("--only", choices=("formats", "remote", "pace"))
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 4], help="of which the changes are")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        if arguments.only in {None, "remote"}:  # first, so that peak memory is its own
            measure_slow_remote(Path(scratch), arguments.seconds)
        if arguments.only != "remote":
            settings = Settings(spark=SparkSettings(driver_memory="2g"))
            spark = build_session(settings, app_name="bench-sink")
            try:
                if arguments.only != "formats":
                    folder = Path(scratch) / "pace"
                    folder.mkdir()
                    measure_slow_table(spark, folder, arguments.seconds)
                for table_count in arguments.tables if arguments.only != "pace" else ():
                    folder = Path(scratch) / f"tables-{table_count}"
                    folder.mkdir()
                    measure_formats(spark, folder, arguments.changes, table_count)
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
