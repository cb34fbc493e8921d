"""Replays the text scenarios of the sink's decisions: commands, a line of dashes, what was told."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.changefeeds.sinks.storage.buffers import FileTask
from penstock.changefeeds.sinks.storage.ledger import EncodeBatch, Ledger
from penstock.changefeeds.sinks.storage.metrics import SinkMetrics
from penstock.follow.slices import Position
from penstock.testing.clock import ManualClock
from support.sinkparts import SCHEMA, Watched, dispatcher, sink_options, slice_of

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))


class Script:
    """Files of 100 bytes after 5 s, a spool of 1000. Each line is a command."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        options = sink_options(protocol="parquet", file_size=100, spool_disk_quota=1000, flush_interval_s=5.0)
        self.told: list[str] = []
        self.ledger = Ledger(options, SinkMetrics("scenario"), self._freed, self.clock)
        self.ts = 0
        self.segment = 0
        self.version = 1
        self.sizes: dict[str, list[int]] = {}
        self.markers: dict[str, DrainMarker] = {}
        self.jobs: list[list[EncodeBatch]] = []
        self.files: dict[str, FileTask] = {}

    def _freed(self, segment: int) -> None:
        self.told.append(f"segment {segment} freed")

    def run(self, line: str) -> None:
        verb, *rest = line.split()
        getattr(self, verb)(*rest)
        for name, marker in list(self.markers.items()):
            if marker.ended:
                del self.markers[name]
                self.told.append(f"{name} drained")

    def send(self, number: str, *sizes: str) -> None:
        """An event of a dispatcher, of chunks of these sizes."""
        self.ts += 1
        chosen = [int(size) for size in sizes]
        schema = replace(SCHEMA, since_ts=self.version, version=self.version)
        piece = slice_of(int(number), self.ts, sum(chosen), rows=len(chosen), schema=schema)
        event = Watched(piece, self.told)
        self.sizes[event.name] = chosen
        self.ledger.add(event)

    def drain(self, number: str) -> None:
        """A marker of a dispatcher."""
        marker = DrainMarker(dispatcher(int(number)), self.ts, at=self.clock.monotonic())
        self.markers[f"d{number}"] = marker
        self.ledger.add(marker)

    def alter(self) -> None:
        """Events from now on have another schema version."""
        self.version += 1

    def begin(self) -> None:
        """Begin to encode what fits."""
        batches = self.ledger.collect()
        if batches:
            self.jobs.append(batches)
            names = [
                f"d{event.slice.dispatcher.id}@{event.slice.end.ts}"
                for batch in batches
                for event in batch.events
            ]
            self.told.append(f"encoding {' '.join(names)}")

    def encode(self) -> None:
        """Begin to encode, and end all encode jobs."""
        self.begin()
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            self.segment += 1
            for batch in job:
                self.ledger.finish_encode(batch, [self._chunks(event) for event in batch.events])

    def _chunks(self, event: DmlEvent) -> list[Chunk]:
        end = event.slice.end
        return [
            Chunk(self.segment, number, Position(end.ts - 1), end, 1, size)
            for number, size in enumerate(self.sizes[f"d{event.slice.dispatcher.id}@{end.ts}"])
        ]

    def wait(self, seconds: str) -> None:
        self.clock.advance(float(seconds))
        self.ledger.buffers.tick(self.clock.monotonic())

    def take(self) -> None:
        """Begin to write all files that are due."""
        for task in self.ledger.buffers.take(1000, 1 << 40):
            self.ledger.buffers.finish_begin(task.dispatcher.id)
            sizes = "+".join(str(chunk.nbytes) for chunk in task.chunks)
            self.told.append(f"file d{task.dispatcher.id} {sizes} {task.reason.value}")
            self.files[task.dispatcher.id] = task

    def written(self, number: str) -> None:
        """The file of a dispatcher is on the remote."""
        task = self.files.pop(number)
        self.ledger.finish_file(task, task.nbytes)

    def close(self) -> None:
        self.ledger.buffers.flush()

    def spool(self) -> None:
        spool = self.ledger.spool
        self.told.append(f"spool {spool.nbytes} in {spool.items}, {spool.held_wakes} held")


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_scenario_is_told_as_it_is_written(path: Path) -> None:
    script = Script()
    for step in path.read_text().split("\n\n"):
        asked, _, answered = step.partition("----")
        for line in asked.splitlines():
            if line and not line.startswith("#"):
                script.run(line)
        assert script.told == [line for line in answered.splitlines() if line], step
        script.told.clear()
