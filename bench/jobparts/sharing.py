"""Eight copies of a table in one iteration, against one copy and against reading alone.

Rows are wide and each copy has two of their columns. Reading is most of the work where changes are still rows
in the memory of a capture, as those of the last minute are; from objects it is so cheap that writing eight
copies is what is seen. Both are shown.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from changes import Ints, handles, show
from jobparts.watching import WAIT_S, counted
from penstock import eventloop, metrics
from penstock.clock import SYSTEM
from penstock.consumers.lake.parquet import ParquetCopy, live_files
from penstock.jobs.consumer import Consumer, DataRetriever, iter_batches
from penstock.jobs.job import Job
from penstock.tables import keys, records
from penstock.tables.define import define_table
from penstock.tables.raw import RAW_SCHEMA, Op
from support.iterationbench import Bench
from support.jobdoubles import job_row
from support.jobsources import JobSourceWorld
from support.tableworld import START

T = TypeVar("T")

WIDE = [
    ("id", "bigint primary key"),
    ("stock", "bigint"),
    ("price", "double"),
    *((f"number{each}", "bigint") for each in range(6)),
    *((f"text{each}", "varchar(100)") for each in range(8)),
]
TAKEN = ["stock", "price"]
VALUES = 512  # rows that differ in more than their keys
BATCH = 10_000  # changes that the puller delivers at once
TRANSACTION = 10  # changes


class Drained(Consumer):
    """Takes changes and does nothing with them: what reading costs."""

    def consume(self, data: DataRetriever) -> None:
        for _ in iter_batches(data):
            pass


@dataclass
class WideTable:
    """A table in an event store, of which `shown` is what copies of it should be: the number of a value for
    each id, -1 where there is no row."""

    world: JobSourceWorld
    shown: Ints
    values: pa.Array = field(init=False)

    def __post_init__(self) -> None:
        table = self.world.versions.table
        rows = ({name: _cell(name, kind, each) for name, kind in WIDE} for each in range(VALUES))
        made = [records.value_of(table, records.to_record(table, row, start_ts=START)) for row in rows]
        self.values = pa.array(made, pa.binary())

    def put(self, ids: Ints, values: Ints) -> None:
        """Give rows other values, -1 takes them away; each row at most once."""
        before = self.shown[ids]
        for at in range(0, len(ids), BATCH):
            part = slice(at, at + BATCH)
            ts = self.world.ts + 2 + 2 * (np.arange(len(ids[part])) // TRANSACTION)
            self.world.ts = int(ts[-1])
            self._deliver(self._raw(ts, ids[part], values[part], before[part]))
        self.shown[ids] = values

    def _raw(self, ts: Ints, ids: Ints, values: Ints, before: Ints) -> pa.RecordBatch:
        prefix = keys.record_prefix(self.world.ids[0])
        columns = [
            pa.array(np.where(values < 0, Op.DELETE, Op.PUT).astype(np.uint8)),
            pa.array((ts - 1).astype(np.uint64)),
            pa.array(ts.astype(np.uint64)),
            pa.array([prefix + each for each in handles(ids).to_pylist()], pa.binary()),
            self.values.take(pa.array(values, mask=values < 0)),
            self.values.take(pa.array(before, mask=before < 0)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)

    def _deliver(self, batch: pa.RecordBatch) -> None:
        durable = threading.Event()
        assert self.world.store.open_table(self.world.ids[0]).consume_kv_events(batch, durable.set)
        assert durable.wait(WAIT_S)

    def copied(self) -> pa.Table:
        """What a copy has now."""
        ids = np.flatnonzero(self.shown >= 0)
        values = self.shown[ids]
        columns = {"id": ids, "stock": _numbers("stock", values), "price": _numbers("price", values) * 1.0}
        return pa.table(columns)


def _cell(name: str, kind: str, value: int) -> Any:
    return f"{name} {value} ".ljust(60, "x") if kind.startswith("varchar") else _numbers(name, value)


def _numbers(name: str, value: Any) -> Any:
    return value * (1 + len(name))


@dataclass
class Copies:
    """Copies of a table, made and brought up to date by real iterations."""

    bench: Bench
    made: int = 0

    def jobs(self, count: int, consumer: str) -> list[Job]:
        """New jobs, each with a target of its own."""
        found = []
        for _ in range(count):
            self.made += 1
            name = f"{consumer}{self.made}"
            options = {"uri": str(self.bench.folder / name)} if consumer == "parquet" else {}
            info = {"consumer": consumer, "columns": TAKEN, "options": options}
            table_id = self.bench.world.ids[0]
            found.append(job_row(name, table_id=table_id, detail={"consumer": info}))
        return found

    def iterate(self, jobs: Sequence[Job], to_ts: int, copied: pa.Table) -> tuple[float, list[Job]]:
        """How long one iteration of jobs takes, and the jobs after it; check that it read once."""
        before = counted(metrics.JOBS_SCANS_TOTAL, "_total")
        started = time.perf_counter()
        again = self.bench.run(*jobs, from_ts=jobs[0].watermark, to_ts=to_ts, last=True)
        took = time.perf_counter() - started
        scans = counted(metrics.JOBS_SCANS_TOTAL, "_total") - before
        ended = [self.bench.end(job.key.job_name) for job in jobs]
        assert scans == 1, f"{scans} scans for {len(jobs)} jobs"
        assert not again, "an iteration has to be repeated"
        assert all(job.watermark == to_ts for job in ended), "an iteration has not ended well"
        for job in ended:
            if job.spec.consumer == "parquet":
                _check_copy(job, copied)
        return took, ended


def _check_copy(job: Job, copied: pa.Table) -> None:
    ts, files = live_files(job.spec.detail.consumer.options["uri"])
    assert ts == job.watermark
    parts = [pq.read_table(each.removeprefix("file://"), partitioning=None) for each in files]
    found = pa.concat_tables(parts).select(copied.column_names).sort_by("id")
    assert found.equals(copied.cast(found.schema)), "a copy is not what its source is"


def measure_sharing(folder: Path, rows: int, consumers: int, runs: int) -> None:
    table = replace(define_table("items", WIDE), id=1)
    settings = {"wal_segment_bytes": 64 << 20, "memory_bytes": 1 << 30}
    with JobSourceWorld(folder / "sharing", table, **settings) as world:
        wide = WideTable(world, np.full(rows * 6 // 5, -1))
        wide.put(np.arange(rows), np.arange(rows) % VALUES)
        first_ts, first = world.flush(), wide.copied()
        _change(wide, rows)
        with entered(world.job_source(clock=SYSTEM)) as source:
            last_ts, last = world.resolve_all(), wide.copied()
            consumer_types = {"drained": Drained, "parquet": ParquetCopy}
            copies = Copies(Bench(world, source, folder / "copies", consumers=consumer_types))
            nbytes = len(wide.values[0].as_py())
            shape = f"{len(WIDE)} columns and {nbytes} bytes"
            print(
                f"sharing: {rows:,} rows of {shape}, then {rows:,} changes; a copy has {len(TAKEN)} columns"
            )
            for memory in (True, False):
                if not memory:
                    world.flush()
                moments = [(first_ts, first), (last_ts, last)]
                took = _timed(copies, moments, consumers, runs)
                _show_sharing(took, consumers, memory=memory)


def _change(wide: WideTable, rows: int) -> None:
    """As many changes as there are rows: 6 in 10 rows get other values, 2 go, and as many come."""
    drawn = np.random.default_rng(1).permutation(rows)
    updated, gone = drawn[: rows * 6 // 10], drawn[rows * 6 // 10 : rows * 8 // 10]
    come = np.arange(rows, rows * 6 // 5)
    ids = np.concatenate((updated, gone, come))
    values = np.concatenate(((wide.shown[updated] + 7) % VALUES, np.full(len(gone), -1), come % VALUES))
    order = np.random.default_rng(2).permutation(len(ids))
    wide.put(ids[order], values[order])


def _timed(
    copies: Copies, moments: Sequence[tuple[int, pa.Table]], consumers: int, runs: int
) -> dict[tuple[str, int], list[float]]:
    """The best time of each step, for reading alone, one copy and all of them, in turn."""
    best: dict[tuple[str, int], list[float]] = {}
    for _ in range(runs):
        for consumer, count in (("drained", 1), ("parquet", 1), ("parquet", consumers)):
            jobs = copies.jobs(count, consumer)
            steps = []
            for ts, copied in moments:
                took, jobs = copies.iterate(jobs, ts, copied)
                steps.append(took)
            known = best.setdefault((consumer, count), steps)
            best[consumer, count] = [min(pair) for pair in zip(known, steps, strict=True)]
    return best


def _show_sharing(took: dict[tuple[str, int], list[float]], consumers: int, *, memory: bool) -> None:
    steps = ["first copy", "changes in memory" if memory else "changes in objects"]
    for nth, name in enumerate(steps):
        if not memory and nth == 0:
            continue  # it is as it was
        scan, one, many = (
            took[each][nth] for each in (("drained", 1), ("parquet", 1), ("parquet", consumers))
        )
        target = "<= 2.00" if memory and nth else ""
        detail = (
            f"{many:.2f} s against {one:.2f} s, of which {scan:.2f} s are the one scan;"
            f" each alone would take {consumers * one / many:.1f} times as long"
        )
        show(f"{consumers} consumers / one, {name}", many / one, target, detail)


@contextmanager
def entered(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """An asynchronous context, for code that blocks."""
    found = eventloop.run(context.__aenter__())
    try:
        yield found
    finally:
        eventloop.run(context.__aexit__(None, None, None))
