"""Spool and buffers against a plain list of what each dispatcher sent."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.changefeeds.sinks.storage.buffers import FileTask, FlushReason
from penstock.changefeeds.sinks.storage.ledger import EncodeBatch, Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.follow.slices import Position
from penstock.testing.clock import ManualClock
from support.campaign import examples
from support.sinkparts import SCHEMA, Watched, dispatcher, sink_options, slice_of

FILE, QUOTA, INTERVAL = 1000, 10_000, 5.0
DISPATCHERS = st.integers(0, 5)


@dataclass
class Sent:
    """An event or a marker as the model knows it."""

    name: str
    sizes: list[int] = field(default_factory=list)
    version: int = 1
    sent_at: float = 0.0
    marker: DrainMarker | None = None


class DirectLedger(Ledger):
    """Notes the events that go into files without the spool."""

    def __init__(
        self,
        options: SinkOptions,
        direct: dict[str, int],
        on_free: Callable[[int], None],
        clock: ManualClock,
        cores: int,
    ) -> None:
        super().__init__(options, SinkMetrics("property"), on_free, clock, cores=cores)
        self._direct = direct

    def _enqueue_direct(self, event: DmlEvent, nbytes: int, *, several: bool) -> None:
        assert isinstance(event, Watched)
        self._direct[event.name] = nbytes
        super()._enqueue_direct(event, nbytes, several=several)


class SinkModel(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 3), cores=st.integers(1, 2))
    def begin(self, workers: int, cores: int) -> None:
        self.clock = ManualClock()
        self.freed: list[int] = []
        options = sink_options(
            file_size=FILE, spool_disk_quota=QUOTA, worker_count=workers, flush_interval_s=INTERVAL
        )
        self.cores = cores
        self.direct: dict[str, int] = {}  # expected bytes of the events that go into files without the spool
        self.ledger = DirectLedger(options, self.direct, self.freed.append, self.clock, cores)
        self.beginning: set[str] = set()  # dispatchers whose last files are not stored yet
        self.told: list[str] = []
        self.sent: dict[int, list[Sent]] = {}
        self.sizes: dict[str, list[int]] = {}
        self.jobs: list[EncodeBatch] = []
        self.files: list[FileTask] = []
        self.segments: dict[int, int] = {}  # unwritten bytes
        self.ts = 1
        self.version = 1
        self.encoded: list[Sent] = []

    @rule(number=DISPATCHERS, sizes=st.lists(st.integers(1, 1500), max_size=4), flush=st.booleans())
    def send(self, number: int, sizes: list[int], flush: bool) -> None:
        self.ts += 1
        schema = replace(SCHEMA, since_ts=self.version, version=self.version)
        piece = slice_of(number, self.ts, sum(sizes), rows=len(sizes), schema=schema)
        event = Watched(piece, self.told, flush=flush)
        self.sizes[event.name] = sizes
        sent = Sent(event.name, sizes, self.version, self.clock.monotonic())
        self.sent.setdefault(number, []).append(sent)
        self.ledger.add(event)

    @rule(number=DISPATCHERS)
    def mark(self, number: int) -> None:
        self.ts += 1
        marker = DrainMarker(dispatcher(number), self.ts, at=self.clock.monotonic())
        self.sent.setdefault(number, []).append(Sent(f"d{number}@{self.ts} marker", marker=marker))
        self.ledger.add(marker)

    @rule()
    def change_the_schema(self) -> None:
        self.version += 1

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.ledger.buffers.tick(self.clock.monotonic())

    @rule()
    def begin_to_encode(self) -> None:
        spool = self.ledger.spool
        empty, room = spool.empty, spool.room
        before = self.ledger.spool.nbytes
        batches = self.ledger.collect()
        expected = sum(batch.expected_bytes for batch in batches) + self.ledger.spool.nbytes - before
        alone = len(batches) == 1 and len(batches[0].events) == 1
        assert expected <= room or (empty and (alone or not batches))
        under_way = [batch.dispatcher_id for batch in [*self.jobs, *batches]]
        assert len(set(under_way)) == len(under_way)
        self.jobs += batches

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 9))
    def end_an_encode_job(self, which: int) -> None:
        job = self.jobs.pop(which % len(self.jobs))
        segment = len(self.segments) + 1
        chunks: list[list[Chunk]] = []
        number = 0
        for event in job.events:
            sizes = self.sizes[event.name]
            chunks.append([])
            for size in sizes:
                end = event.slice.end
                chunks[-1].append(Chunk(segment, number, Position(end.ts - 1), end, 1, size))
                number += 1
        self.segments[segment] = sum(chunk.nbytes for each in chunks for chunk in each)
        self.ledger.finish_encode(job, chunks)

    @rule()
    def begin_to_write(self) -> None:
        tasks = self.ledger.buffers.take(3, 1 << 40)
        for task in tasks:
            assert task.dispatcher.id not in self.beginning, "files of a dispatcher are stored in order"
            self._check(task)
            before = [file for file in self.files if file.dispatcher.id == task.dispatcher.id]
            assert not before or (task.slices and before[-1].followed and self.cores > 1)
            assert len(before) < 4 * self.cores
            self.files.append(task)
        self.beginning.update(task.dispatcher.id for task in tasks)

    @rule()
    def store_what_files_hold(self) -> None:
        for dispatcher_id in self.beginning:
            self.ledger.buffers.finish_begin(dispatcher_id)
        self.beginning.clear()

    def _check(self, task: FileTask) -> None:
        assert bool(task.chunks) != bool(task.slices), "a file is of the spool or of slices"
        if task.slices:
            return
        size, last = task.nbytes, task.chunks[-1].nbytes
        if task.reason is FlushReason.SIZE:
            assert size >= FILE or size > 0
            assert len(task.chunks) == 1 or size - FILE <= FILE - (size - last)
        else:
            assert size < FILE + last
        if task.reason is FlushReason.INTERVAL:
            queue = self.sent[int(task.dispatcher.id)]
            oldest = next(each for each in queue if each.sizes)
            follower = any(each.name in self.direct for each in queue)
            assert follower or self.clock.monotonic() // INTERVAL > oldest.sent_at // INTERVAL

    @precondition(lambda self: any(file.dispatcher.id not in self.beginning for file in self.files))
    @rule(which=st.integers(0, 9))
    def end_a_file(self, which: int) -> None:
        """End a file, also before one of its dispatcher that is before it: then nobody is told yet."""
        begun = [file for file in self.files if file.dispatcher.id not in self.beginning and not file.done]
        if not begun:
            return
        task = begun[which % len(begun)]
        nbytes = sum(sum(self.sizes[name]) for name in _names(task)) if task.slices else task.nbytes
        mine = [file for file in self.files if file.dispatcher.id == task.dispatcher.id]
        first_open = next((number for number, file in enumerate(mine) if not (file.done or file is task)), 99)
        for ended in mine[:first_open]:
            self.files.remove(ended)
            self._settle_model(ended)
        if task.slices:
            self.ledger.finish_direct(task, nbytes, nbytes)
        else:
            self.ledger.finish_file(task, nbytes)

    def _settle_slices(self, task: FileTask) -> None:
        """The slices of a file are the first events of its dispatcher, of one version."""
        queue = self.sent[int(task.dispatcher.id)]
        names = _names(task)
        while names:
            head = queue.pop(0)
            if head.name == names[0]:
                assert head.version == task.schema.version
                del self.direct[names.pop(0)]
            else:
                assert not head.sizes, "a file leaves nothing out"

    def _settle_model(self, task: FileTask) -> None:
        """The chunks of a file are the first ones of its dispatcher, of one version."""
        if task.slices:
            self._settle_slices(task)
            return
        for chunk in task.chunks:
            self.segments[chunk.segment] -= chunk.nbytes
        queue = self.sent[int(task.dispatcher.id)]
        sizes = [chunk.nbytes for chunk in task.chunks]
        versions = set()
        while sizes:
            head = queue[0]
            if not head.sizes:
                queue.pop(0)
                continue
            assert head.marker is None
            versions.add(head.version)
            assert head.sizes[0] == sizes.pop(0)
            head.sizes = head.sizes[1:]
            if not head.sizes:
                queue.pop(0)
        assert len(versions) == 1

    @rule()
    def wake_everybody_without_time(self) -> None:
        """A dispatcher never waits for the interval of another's file."""
        for _ in range(2000):
            self.begin_to_encode()
            while self.jobs:
                self.end_an_encode_job(0)
            self.begin_to_write()
            self.store_what_files_hold()
            if not self.files and not len(self.ledger.shards):
                break
            while self.files:
                self.end_a_file(0)
        assert self.ledger.shards.idle
        assert self.ledger.spool.held_wakes == 0
        assert all(self.told.count(f"{name} woken") == 1 for name in self.sizes)

    @rule()
    def let_everything_end(self) -> None:
        for _ in range(2000):
            self.begin_to_encode()
            while self.jobs:
                self.end_an_encode_job(0)
            self.begin_to_write()
            self.store_what_files_hold()
            while self.files:
                self.end_a_file(0)
            if not len(self.ledger.shards) and not self.ledger.buffers.active:
                break
            self.clock.advance(1.0)
            self.ledger.buffers.tick(self.clock.monotonic())
        assert self.ledger.shards.idle
        assert self.ledger.buffers.active == 0
        assert (self.ledger.spool.nbytes, self.ledger.spool.items, self.ledger.spool.retained_bytes) == (
            0,
            0,
            0,
        )
        assert self.ledger.spool.held_wakes == 0
        assert self.ledger.oldest_age_s == 0
        assert not self.ledger._markers
        assert all(self.told.count(f"{name} woken") == 1 for name in self.sizes)
        assert all(self.told.count(f"{name} flushed") == 1 for name in self.sizes)
        for queue in self.sent.values():
            assert all(each.marker.ended for each in queue if each.marker)
        self.sent.clear()
        self.sizes.clear()
        self.told.clear()

    @invariant()
    def bytes_are_what_is_not_written(self) -> None:
        if hasattr(self, "ledger"):
            assert self.ledger.spool.nbytes == sum(self.segments.values()) + sum(self.direct.values())
            spool = self.ledger.spool
            assert spool.paused or not spool.held_wakes
            assert not (spool.nbytes > spool.high_bytes and not spool.paused)
            assert not (spool.nbytes <= spool.low_bytes and spool.paused)

    @invariant()
    def acknowledgements_keep_the_order_of_their_dispatcher(self) -> None:
        if hasattr(self, "told"):
            last: dict[str, int] = {}
            for each in self.told:
                name, what = each.split()
                if what == "flushed":
                    owner, ts = name.split("@")
                    assert last.get(owner, 0) < int(ts)
                    last[owner] = int(ts)

    @invariant()
    def a_marker_ends_only_when_nothing_is_before_it(self) -> None:
        for queue in getattr(self, "sent", {}).values():
            rows_before = False
            for each in queue:
                rows_before |= bool(each.sizes)
                assert not (rows_before and each.marker is not None and each.marker.ended)


def _names(task: FileTask) -> list[str]:
    """The events of a file that is made of slices."""
    return [f"d{task.dispatcher.id}@{piece.end.ts}" for piece in task.slices]


SinkModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
TestSinkModel = SinkModel.TestCase
