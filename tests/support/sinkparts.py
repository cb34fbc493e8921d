"""Doubles of what surrounds a storage sink: engine without rows, files without remote, progress in memory."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Self, cast

from penstock.changefeeds.engines.engine import (
    Chunk,
    DirectFile,
    DirectResult,
    EncodedSlice,
    EncodeWork,
    FileWork,
    WriteResult,
)
from penstock.changefeeds.model import DispatcherRecord, DoneDdls, LeftOutTable, PendingFile
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.layout import Folder
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, FileTarget, RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.clock import SYSTEM, Clock
from penstock.errors import Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, Slice, TableSpan
from penstock.object_storage import StorageRef
from penstock.tables.schema import TableInfo
from penstock.testing.clock import ManualClock

SCHEMA = SchemaVersion(1, 1, TableInfo(1, "items", ()), "shop")


def sink_options(**changes: object) -> SinkOptions:
    """Small options: files of 1000 bytes, a spool of 10,000."""
    given = {
        "protocol": "canal-json",
        "file_size": 1000,
        "spool_disk_quota": 10_000,
        "worker_count": 4,
        **changes,
    }
    return SinkOptions(target=StorageRef("memory://"), **given)  # type: ignore[arg-type] # by name


def dispatcher(number: int) -> TableSpan:
    """Return one of many."""
    return TableSpan(str(number), number)


def slice_of(
    number: int, ts: int, nbytes: int = 100, *, rows: int = 1, schema: SchemaVersion = SCHEMA
) -> Slice:
    """Return the changes of dispatcher `number` in (ts - 1, ts]; without rows it is encoded into nothing."""
    return Slice(
        dispatcher=dispatcher(number),
        schema=schema,
        start=Position(ts - 1),
        end=Position(ts),
        parts=(),
        rows=rows,
        nbytes=nbytes,
    )


class Watched(DmlEvent):
    """An event that writes down what it is told, after its name: `d1@5 woken`, `d1@5 flushed`."""

    def __init__(self, piece: Slice, told: list[str], *, flush: bool = False) -> None:
        super().__init__(piece, flush=flush)
        self.name = f"d{piece.dispatcher.id}@{piece.end.ts}"
        self.add_post_enqueue(lambda: told.append(f"{self.name} woken"))
        self.add_post_flush(lambda: told.append(f"{self.name} flushed"))


class Gate:
    """Holds calls while it is shut, and fails them when told to."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.error: Exception | None = None
        self.waiting = 0

    def shut(self) -> None:
        """Hold calls from now on."""
        self._open.clear()

    def open(self) -> None:
        """Let them through."""
        self._open.set()

    async def enter(self) -> None:
        """Go through, or wait, or fail."""
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error


class RowlessEngine:
    """Encodes a slice into chunks of sizes that are chosen, and writes files that are only counted.

    Checks what every engine relies on: a dispatcher has two files at once only if the second names the first,
    and chunks are written once, in order, of segments that are still there.
    """

    def __init__(
        self,
        *,
        sizes: Callable[[Slice], Sequence[int]] = lambda piece: [piece.nbytes] if piece.rows else [],
        file_ratio: float = 1.0,
        clock: Clock | None = None,
        latency_s: float = 0.0,
        cores: int = 1,
    ) -> None:
        self.cores = cores
        self.made_at_once = 0  # files of one dispatcher, at most
        self._sizes = sizes
        self._file_ratio = file_ratio
        self._clock = clock
        self._latency_s = latency_s
        self.pace = clock or SYSTEM  # by which it says how long a slice took
        self.encoding = Gate()
        self.encoding_of: dict[str, Gate] = {}  # of single dispatchers, besides
        self.writing = Gate()
        self.failing: set[str] = set()  # dispatchers whose files fail
        self.final: set[str] = set()  # those of them for good
        self.refused: Counter[str] = Counter()
        self.slow: set[str] = set()  # dispatchers whose files that are made of slices do not end
        self.tried: dict[str, list[EncodeWork]] = {}  # of files that are made of slices, by dispatcher
        self.encode_jobs: list[list[Slice]] = []
        self.files: list[FileWork] = []
        self.written: set[str] = set()  # paths
        self.made: list[str] = []  # the paths of those that were made of slices
        self.segments: set[int] = set()
        self.closed = False
        self._ends: dict[str, Position] = {}
        self._under_way: Counter[str] = Counter()

    async def encode(self, work: Sequence[EncodeWork]) -> list[EncodedSlice]:
        self.encode_jobs.append([task.slice for task in work])
        segment = len(self.encode_jobs)
        await self.encoding.enter()
        encoded = []
        for task in work:
            began_at = self.pace.monotonic()
            if task.slice.dispatcher.id in self.encoding_of:
                await self.encoding_of[task.slice.dispatcher.id].enter()
            chunks = self._chunks(segment, task.slice)
            encoded.append(EncodedSlice(chunks, self.pace.monotonic() - began_at))
        if any(slice_.chunks for slice_ in encoded):
            self.segments.add(segment)
        return encoded

    def _chunks(self, segment: int, piece: Slice) -> list[Chunk]:
        sizes = self._sizes(piece)
        marks = [Position(piece.end.ts, b"%06d" % number) for number in range(1, len(sizes))]
        bounds = [piece.start, *marks, piece.end]
        return [
            Chunk(segment, number, bounds[number], bounds[number + 1], max(piece.rows // len(sizes), 1), size)
            for number, size in enumerate(sizes)
        ]

    async def write(self, files: Sequence[FileWork]) -> list[WriteResult]:
        for file in files:
            assert all(chunk.segment in self.segments for chunk in file.chunks), "a segment is gone"
        await self._wait_for_remote(files)
        return [self._write(file) for file in files]

    async def _wait_for_remote(self, files: Sequence[FileWork]) -> None:
        dispatcher_ids = [file.dispatcher_id for file in files]
        for file in files:
            self._under_way[file.dispatcher_id] += 1
            at_once = self._under_way[file.dispatcher_id]
            assert at_once == 1 or file.after, "a dispatcher has two files at once"
            self.made_at_once = max(self.made_at_once, at_once)
        try:
            await self.writing.enter()
            if self._clock is not None:
                await self._clock.sleep(self._latency_s)
        finally:
            self._under_way.subtract(dispatcher_ids)

    async def make_file(self, file: DirectFile) -> DirectResult:
        await self.encoding.enter()
        self.tried.setdefault(file.file.dispatcher_id, []).extend(file.work)
        chunks = tuple(chunk for work in file.work for chunk in self._chunks(0, work.slice))
        await self._wait_for_remote([file.file])
        while file.file.after and file.file.after not in self.written:
            if file.file.dispatcher_id in self.failing:
                return DirectResult(failure=Unavailable(f"{file.file.after} was not written"))
            await SYSTEM.sleep(0.001)
        while file.file.dispatcher_id in self.slow:
            await SYSTEM.sleep(0.001)
        if not chunks and not file.file.blank:
            return DirectResult()
        written = self._write(replace(file.file, chunks=chunks))
        if written.error:
            return DirectResult(failure=Unavailable(written.error))
        self.made.append(written.data_path)
        rows, nbytes = sum(chunk.rows for chunk in chunks), sum(chunk.nbytes for chunk in chunks)
        return DirectResult(rows, nbytes, written.nbytes)

    def _write(self, file: FileWork) -> WriteResult:
        if file.dispatcher_id in self.failing:
            self.refused[file.dispatcher_id] += 1
            final = file.dispatcher_id in self.final
            return WriteResult(file.data_path, 0, "the remote refused it", final=final)
        for chunk in file.chunks:
            assert chunk.start >= self._ends.get(file.dispatcher_id, chunk.start), "written out of order"
            self._ends[file.dispatcher_id] = chunk.end
        self.files.append(file)
        self.written.add(file.data_path)
        raw = sum(chunk.nbytes for chunk in file.chunks)
        return WriteResult(file.data_path, int(raw * self._file_ratio))

    async def release(self, segment: int) -> None:
        self.segments.remove(segment)

    async def close(self) -> None:
        self.segments.clear()
        self.closed = True

    def forget_files(self) -> None:
        """Remember nothing of what was written."""
        self.files.clear()
        self.encode_jobs = [[] for _ in self.encode_jobs]
        self._ends.clear()
        self._under_way.clear()


class PlainFiles:
    """Gives out paths and writes down what it is asked to write."""

    def __init__(self, told: list[str] | None = None) -> None:
        self.told = told if told is not None else []
        self.stale: set[str] = set()
        self.silent: dict[str, threading.Event] = {}  # dispatchers that are placed when it is set
        self.failing: dict[str, Exception] = {}  # why dispatchers get no place
        self.error: Exception | None = None
        self.checkpoints: list[int] = []
        self.numbers: Counter[str] = Counter()
        self.known: Counter[str] = Counter()  # up to which they are on the remote
        self.ends: list[int] = []
        self.swept: list[float] = []

    def place(self, spec: TableSpan, schema: SchemaVersion) -> FileTarget | None:
        if self.error is not None:
            raise self.error
        if spec.id in self.silent:
            assert self.silent[spec.id].wait(60)
        if spec.id in self.failing:
            raise self.failing[spec.id]
        if spec.id in self.stale:
            return None
        return FileTarget(
            spec.id, Folder(schema="shop", table=f"t{spec.id}", version=schema.since_ts), named=False
        )

    def next_file(self, place: FileTarget, end_ts: int, *, following: bool = False) -> FilePaths:
        self.ends.append(end_ts)
        if not following:
            self.numbers[place.dispatcher_id] = self.known[place.dispatcher_id]
        self.numbers[place.dispatcher_id] += 1
        number = self.numbers[place.dispatcher_id]
        folder = place.folder.path
        return FilePaths(f"{folder}/CDC{number:06d}.json", f"{folder}/meta/CDC.index", number)

    def confirm_written(self, place: FileTarget, paths: FilePaths) -> None:
        assert paths.number <= self.numbers[place.dispatcher_id], "a file that was given out"
        self.known[place.dispatcher_id] = max(self.known[place.dispatcher_id], paths.number)

    def write_ddl(self, event: DdlEvent) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(f"ddl {event.commit_ts}")

    def write_checkpoint(self, ts: int) -> None:
        if self.error is not None:
            raise self.error
        self.checkpoints.append(ts)

    def forget(self, dispatcher_id: str) -> None:
        self.numbers.pop(dispatcher_id, None)
        self.known.pop(dispatcher_id, None)

    def begin_folder(self, dispatcher_id: str) -> None:
        """Number a dispatcher's files from 1 again, as on another day."""
        self.forget(dispatcher_id)

    def sweep(self, idle_s: float) -> int:
        self.swept.append(idle_s)
        return 0


class KeptInMemory:
    """The progress of a changefeed for as long as the object lives."""

    def __init__(self) -> None:
        self.checkpoint = 0
        self.done = DoneDdls(0)
        self.kept: dict[str, DispatcherRecord] = {}
        self.out: tuple[LeftOutTable, ...] = ()
        self.pending: dict[str, tuple[PendingFile, ...]] = {}
        self.begun: list[list[PendingFile]] = []
        self.error: Exception | None = None

    async def location(self) -> str | None:
        return None

    async def begin_at(self, location: str, *, is_new: bool) -> None:
        pass

    async def checkpoint_ts(self) -> int:
        return self.checkpoint

    async def keep_checkpoint(self, ts: int) -> None:
        self.checkpoint = ts

    async def dispatchers(self) -> list[DispatcherRecord]:
        return list(self.kept.values())

    async def left_out(self) -> tuple[LeftOutTable, ...]:
        return self.out

    async def change_dispatchers(
        self,
        added: Sequence[DispatcherRecord],
        removed: Iterable[str],
        *,
        done: DoneDdls | None = None,
        left_out: Sequence[LeftOutTable] | None = None,
    ) -> None:
        for record in added:
            self.kept[record.span.id] = record
        for dispatcher_id in removed:
            del self.kept[dispatcher_id]
        self.done = self.done if done is None else self.done.merge(done)
        self.out = self.out if left_out is None else tuple(left_out)

    async def done_ddls(self) -> DoneDdls:
        return self.done

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        if self.error is not None:
            raise self.error
        self.begun.append(list(files))
        for dispatcher_id, group in groupby(files, key=lambda file: file.dispatcher_id):
            self.pending[dispatcher_id] = tuple(group)


class SinkWorld:
    """A sink between doubles. `told` has in order what events were told and which DDLs were written."""

    def __init__(
        self, *, engine: RowlessEngine | None = None, clock: Clock = SYSTEM, **options: object
    ) -> None:
        self._clock = clock
        self.told: list[str] = []
        self.engine = engine or RowlessEngine()
        self.engine.pace = clock
        self.files = PlainFiles(self.told)
        self.progress = KeptInMemory()
        self.options = sink_options(**options)
        files = cast("RemoteFiles", self.files)
        self.sink = StorageSink(
            self.engine, files, self.progress, self.options, changefeed="test", clock=clock
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.run()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self.sink.close()
        if self._running is not None and not self._running.done():
            await self._running

    def run(self) -> "asyncio.Task[None]":
        """Start the sink once; return its task."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self.sink.run())
        return self._running

    def add(self, number: int, ts: int, nbytes: int = 100, *, flush: bool = False, **more: Any) -> Watched:
        """Send an event of a dispatcher."""
        event = Watched(slice_of(number, ts, nbytes, **more), self.told, flush=flush)
        self.sink.add_dml_event(event)
        return event

    def span(self, number: int) -> TableSpan:
        """Return a dispatcher."""
        return dispatcher(number)

    def drain(self, number: int, ts: int) -> "asyncio.Task[None]":
        """Send a marker of a dispatcher."""
        ddl = DdlEvent(commit_ts=ts, type=0, query="", database="shop")
        return asyncio.get_running_loop().create_task(self.sink.pass_block_event(dispatcher(number), ddl))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let everything else run until a condition holds, and what follows at once; fail after a while.

        Who moves the clock then moves it for those who begin to wait because of it.
        """
        for _ in range(5000):
            if holds():
                await self.turns()
                return
            await SYSTEM.sleep(0.001)
        raise AssertionError(f"it did not come to that; told: {self.told[-20:]}")

    async def until_after(self, seconds: float, holds: Callable[[], bool]) -> None:
        """Let so much time pass, again and again until a condition holds: who waits may not have begun to."""
        moved = self._clock
        assert isinstance(moved, ManualClock)

        def later() -> bool:
            if holds():
                return True
            moved.advance(seconds)
            return False

        await self.until(later)

    async def turns(self) -> None:
        """Let everything run that is ready, and what follows from it at once."""
        for _ in range(10):
            await SYSTEM.sleep(0)

    async def settle(self) -> None:
        """Let everything run that can run without time."""
        for _ in range(20):
            await SYSTEM.sleep(0.001)


def remote_silent() -> Unavailable:
    """Return the error of a remote that does not answer."""
    return Unavailable("the remote does not answer")
