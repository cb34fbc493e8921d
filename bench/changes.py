"""Collecting changes and reading snapshots, against plain reads: `python bench/changes.py [changes]`.

Baselines measured in the same run: the same columns of the same rows read as plain Parquet, the same streams
merged one row at a time, and the memory of a range a tenth as long.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import process
from penstock.changes import collect_changes
from penstock.eventstore import paths
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.manifest import ObjectInfo, ObjectKind, Removal
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.objects.object_file import ObjectWriter
from penstock.eventstore.paths import Side
from penstock.eventstore.read.partition import Partition, TableView
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.eventstore.read.streams import ChangeStream, merge_streams, open_streams
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.eventstore.upkeep.merge import plan_merge, write_merge
from penstock.eventstore.upkeep.merge_policy import MergePolicy
from penstock.object_storage import StorageRef
from penstock.settings import CaptureSettings
from penstock.tables import keys, records
from penstock.tables.arrow import arrow_schema
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from penstock.tables.raw import RAW_SCHEMA
from support.events import FixedSchemas

COLUMNS = [
    ("id", "bigint primary key"),
    ("customer", "bigint"),
    ("amount", "double"),
    ("state", "varchar(10)"),
    ("note", "varchar(100)"),
]
MIXED, DELETED, SPLIT = 1, 2, (31, 32, 33)  # tables: of all kinds of objects, a tenth deleted, partitioned
START = 1 << 58
CHUNK = 250_000  # changes of one flush
TRANSACTION = 10  # rows
FLUSH_TICKS = 4 * CHUNK // TRANSACTION  # from one flush to the next
SLICE_ROWS = 16_384
SAMPLE = 100_000  # rows merged one by one

Ints = npt.NDArray[np.int64]


def a_table(table_id: int) -> SchemaVersion:
    return SchemaVersion(0, 1, replace(define_table("orders", COLUMNS), id=table_id))


def handles(ids: Ints) -> pa.Array:
    """Integer handles of many rows at once."""
    content = (ids.astype(np.uint64) ^ np.uint64(1 << 63)).astype(">u8").tobytes()
    offsets = np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(content)])


class Notes:
    """Texts that compress as texts do."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(7).integers(97, 123, (50_000, 60), np.uint8)
        self._texts = pa.array([bytes(row).decode() for row in drawn])
        self._states = pa.array(["new", "paid", "sent", "returned"])

    def rows(self, ids: Ints, version: int) -> list[pa.Array]:
        """The user columns of some rows."""
        return [
            pa.array(ids),
            pa.array(ids % 10_007),
            pa.array((ids + version) * 0.01),
            self._states.take(pa.array((ids + version) % 4)),
            self._texts.take(pa.array((ids * 31 + version) % len(self._texts))),
        ]


@dataclass
class Written:
    """A table's objects in the making: whole objects, straight from vectors."""

    storage: StorageRef
    schema: SchemaVersion
    scratch: Path
    notes: Notes = field(default_factory=Notes)
    objects: list[ObjectInfo] = field(default_factory=list)

    def data(self, kind: ObjectKind, ids: Ints, ts: Ints, update: npt.NDArray[np.bool_], version: int) -> str:
        columns = [*self.notes.rows(ids, version), handles(ids), *_times(ts), pa.array(update)]
        return self._write("data", kind, columns, create_ts=int(ts[0]))

    def tombstones(
        self, ids: Ints, ts: Ints, update: npt.NDArray[np.bool_], target: str, offsets: Ints
    ) -> None:
        order = np.lexsort((ts, offsets))
        ids, ts, update, offsets = ids[order], ts[order], update[order], offsets[order]
        fields = list(arrow_schema(self.schema.table))
        old = pa.StructArray.from_arrays(self.notes.rows(ids, 0), fields=fields)
        row_ids = [pa.array([target] * len(ids)), pa.array(offsets)]
        columns = [pa.array(ids), handles(ids), *_times(ts), pa.array(update), *row_ids, old]
        self._write("tombstone", "appendable", columns, create_ts=int(ts.min()))

    def _write(self, side: Side, kind: ObjectKind, columns: list[pa.Array], *, create_ts: int) -> str:
        table = self.schema.table
        schema = side_schema(table, side)
        rows = pa.RecordBatch.from_arrays(
            [column.cast(each.type) for column, each in zip(columns, schema, strict=True)], schema=schema
        )
        with ObjectWriter(
            self.storage.open(),
            paths.table_root(table.id),
            side,
            kind=kind,
            schema_version=self.schema.version,
            schema=schema,
            scratch=self.scratch,
            create_ts=create_ts,
        ) as writer:
            for at in range(0, rows.num_rows, 1 << 15):
                writer.write(rows.slice(at, 1 << 15))
            info = writer.finish()
        assert info is not None
        self.objects.append(info)
        return info.id

    def commit(self, flushed_ts: int) -> ManifestLog:
        log = ManifestLog.open(self.storage.open(), paths.table_root(self.schema.table.id), writer="bench")
        log.commit(add=self.objects, flushed_ts=flushed_ts, facts=[self.schema.as_fact()])
        return log

    def merge_some(self, log: ManifestLog) -> None:
        """Merge about a quarter of the table; what was merged is still what reports the changes."""
        target = sum(each.size_bytes for each in self.objects if each.side == "data") // 4
        plan = plan_merge(self.schema.table.id, log.state, MergePolicy(target), now_ms=0)
        if plan is None:  # a short run has too few objects
            return
        output = write_merge(plan, self.storage.open(), self.scratch)
        taken = (*plan.data, *plan.tombstones, *plan.gone)
        log.commit(add=output.objects, remove=[Removal(id=each.id, delete_ts=plan.ts) for each in taken])


def _times(ts: Ints) -> list[pa.Array]:
    return [pa.array(ts), pa.array(ts - 1)]


def write_mixed(table: Written, changes: int) -> int:
    """Flushes of inserts, updates and deletes, with a large transaction within every fourth."""
    rng = np.random.default_rng(1)
    ts, first = START, 0
    before: tuple[str, Ints, Ints] | None = None  # the last object, with ids that were inserted and where
    left = changes
    chunk = 0
    while left > 0:
        count = min(CHUNK, left)
        left -= count
        chunk += 1
        if chunk % 4 == 0:
            ids = first + np.arange(count)
            times = np.full(count, ts + CHUNK // TRANSACTION + 1)  # between two commits of the next flush
            table.data("direct", ids, times, np.zeros(count, np.bool_), 0)
            first += count
            continue
        begun, ts = ts, ts + FLUSH_TICKS
        before, first = _flush(table, rng, count, begun, first, before)
    return ts


def _flush(
    table: Written,
    rng: np.random.Generator,
    count: int,
    ts: int,
    first: int,
    before: tuple[str, Ints, Ints] | None,
) -> tuple[tuple[str, Ints, Ints], int]:
    """One flush: 60% inserts, 25% updates and 15% deletes of rows that the flush before inserted."""
    known = before[1] if before is not None else np.empty(0, np.int64)
    updates, deletes = min(count // 4, len(known) // 3), min(count * 15 // 100, len(known) // 3)
    inserts = count - updates - deletes
    chosen = rng.permutation(len(known))[: updates + deletes]
    ids = np.concatenate((first + np.arange(inserts), known[chosen]))
    kind = np.repeat([0, 1, 2], [inserts, updates, deletes])
    place = np.concatenate((np.full(inserts, -1), before[2][chosen] if before is not None else []))
    when = rng.permutation(count)
    times = ts + 2 + 2 * (when // TRANSACTION)
    order = np.lexsort((ids, times))
    ids, kind, place, times = ids[order], kind[order], place[order].astype(np.int64), times[order]
    begins, ends = kind < 2, kind > 0
    name = table.data("appendable", ids[begins], times[begins], kind[begins] == 1, 1)
    if before is not None and ends.any():
        table.tombstones(ids[ends], times[ends], kind[ends] == 1, before[0], place[ends])
    inserted = np.flatnonzero(kind[begins] == 0)
    return (name, ids[begins][inserted], inserted), first + inserts


def write_deleted(table: Written, rows: int) -> int:
    """Objects of which a tenth of the rows is deleted."""
    rng = np.random.default_rng(2)
    ts = START
    for first in range(0, rows, 4 * CHUNK):
        ids = np.arange(first, min(rows, first + 4 * CHUNK))
        name = table.data("appendable", ids, ts + ids, np.zeros(len(ids), np.bool_), 0)
        gone = np.sort(rng.choice(len(ids), len(ids) // 10, replace=False))
        times = START + rows + first + gone
        table.tombstones(ids[gone], times, np.zeros(len(gone), np.bool_), name, gone)
    return START + 2 * rows


def write_split(storage: StorageRef, scratch: Path, rows: int) -> int:
    """Three partitions whose transactions take turns: the finest interleaving there is."""
    ids = np.arange(rows)
    ts = START + ids // TRANSACTION
    for nth, physical_id in enumerate(SPLIT):
        mine = ids[(ts - START) % len(SPLIT) == nth]
        written = Written(storage, a_table(physical_id), scratch)
        written.data("appendable", mine, ts[mine], np.zeros(len(mine), np.bool_), 0)
        written.commit(int(ts[-1]))
    return int(ts[-1])


@contextmanager
def captured(storage: StorageRef, folder: Path, rows: int, ts: int) -> Iterator[tuple[Reader, int]]:
    """The owner of the mixed table, with rows that are not flushed."""
    table = a_table(MIXED).table
    settings = CaptureSettings(data=folder / "capture", flush_bytes=1 << 40, flush_interval_s=1e9)
    decoder = TidbRowDecoder()
    store = EventStore(settings, storage.open(), decoder=decoder, schemas=FixedSchemas.of(table))
    store.start()
    try:
        taken = store.open_table(MIXED)
        done = threading.Semaphore(0)
        batches = list(raw_batches(rows, ts))
        for batch in batches:
            taken.consume_kv_events(batch, done.release)
        for _ in batches:
            done.acquire()
        taken.advance_resolved_ts(ts + rows)
        yield Reader(store, storage.open(), decoder), ts + rows
    finally:
        store.close(flush=False)


def raw_batches(rows: int, ts: int) -> Iterator[pa.RecordBatch]:
    """Inserts as the puller delivers them."""
    table = a_table(MIXED).table
    row = {"id": 1, "customer": 5, "amount": 1.5, "state": "new", "note": "n" * 60}
    value = records.value_of(table, records.to_record(table, row, start_ts=START))
    prefix = keys.record_prefix(MIXED)
    for first in range(0, rows, 10_000):
        ids = 10**12 + np.arange(first, min(rows, first + 10_000))
        commit = (ts + 1 + (ids - 10**12) // TRANSACTION).astype(np.uint64)
        columns = [
            pa.array(np.ones(len(ids), np.uint8)),
            pa.array(commit - np.uint64(1)),
            pa.array(commit),
            pa.array([prefix + each for each in handles(ids).to_pylist()], pa.binary()),
            pa.array([value] * len(ids), pa.binary()),
            pa.nulls(len(ids), pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def seconds(work: Callable[[], int]) -> tuple[float, int]:
    """How long some work takes, and what it counted."""
    started = time.perf_counter()
    counted = work()
    return time.perf_counter() - started, counted


def versus(
    ours: Callable[[], int], theirs: Callable[[], int], times: int = 3
) -> tuple[tuple[float, int], tuple[float, int]]:
    """The best of some runs of each, in turn, so that a busy machine is busy for both."""
    runs = [(seconds(ours), seconds(theirs)) for _ in range(times)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def collect(view: TableView, from_ts: int, to_ts: int, *, coalesce: bool) -> int:
    rows = 0
    with collect_changes(view, from_ts, to_ts, coalesce=coalesce) as handle:
        for batch in handle:
            rows += batch.data.num_rows + batch.tombstones.num_rows
    return rows


def scan(folder: Path, table_id: int, infos: list[ObjectInfo], columns: dict[Side, list[str]]) -> int:
    """The same columns as plain Parquet, object by object."""
    rows = 0
    for info in infos:
        path = folder / "objects" / paths.object_path(paths.table_root(table_id), info.side, info.id)
        rows += sum(
            batch.num_rows
            for batch in pq.ParquetFile(path).iter_batches(SLICE_ROWS, columns=columns[info.side])
        )
    return rows


def merge_slices(streams: list[ChangeStream]) -> int:
    return sum(batch.num_rows for batch in merge_streams(streams, SLICE_ROWS))


def merge_rows(streams: list[ChangeStream], rows_max: int) -> int:
    """Compare the heads, move one row, compare again; a batch is put together when it is full."""
    rows, batch = 0, []
    while rows < rows_max:
        heads = [(place, index) for index, each in enumerate(streams) if (place := each.peek()) is not None]
        if not heads:
            break
        batch.append(streams[min(heads)[1]].take(None, 1))
        rows += 1
        if len(batch) == SLICE_ROWS:
            pa.Table.from_batches(batch).combine_chunks()
            batch = []
    for each in streams:
        each.close()
    return rows


def view_of(storage: StorageRef, ids: tuple[int, ...], rows: Reader | None = None) -> TableView:
    return TableView("bench.orders", tuple(Partition(storage, each, rows) for each in ids))


def data_streams(view: TableView, to_ts: int) -> list[ChangeStream]:
    return [
        stream
        for partition in view.partitions
        for stream in open_streams(partition.state(from_ts=START), "data", START, to_ts)
    ]


@dataclass(frozen=True)
class Peak:
    """What collecting a range took: of the process, and in Arrow's buffers (MiB)."""

    process: float
    arrow: float
    rows: int

    @classmethod
    def of(cls, folder: Path, from_ts: int, to_ts: int, *, coalesce: bool) -> "Peak":
        """Measured in a process of its own."""
        arguments = ["--child", str(folder), str(from_ts), str(to_ts), str(int(coalesce))]
        made = subprocess.run(
            [sys.executable, __file__, *arguments], capture_output=True, text=True, check=True
        )
        return cls(**json.loads(made.stdout))


def child(folder: str, from_ts: int, to_ts: int, coalesce: int) -> None:
    storage = StorageRef(f"file://{folder}/objects")
    rows = collect(view_of(storage, (MIXED,)), from_ts, to_ts, coalesce=bool(coalesce))
    # The kernel's ru_maxrss would count what the parent had when it started this process.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    process = int(status["VmHWM"].split()[0]) / 1024
    arrow = pa.default_memory_pool().max_memory() / 2**20
    print(json.dumps({"process": process, "arrow": arrow, "rows": rows}))


def show(what: str, ratio: float, target: str, detail: str) -> None:
    print(f"{what:<52}{ratio:8.2f}   target {target:<8}  {detail}")


def measure_collecting(folder: Path, storage: StorageRef, mixed: Written, to_ts: int, in_memory: int) -> None:
    columns: dict[Side, list[str]] = {
        "data": [*arrow_schema(mixed.schema.table).names, "_commit_ts"],
        "tombstone": ["id", "_commit_ts"],
    }

    def plain() -> int:
        return scan(folder, MIXED, mixed.objects, columns)

    objects = view_of(storage, (MIXED,))
    for coalesce in (False, True):
        (took, rows), (plain_s, plain_rows) = versus(
            partial(collect, objects, START, to_ts, coalesce=coalesce), plain
        )
        assert coalesce or rows == plain_rows
        show(
            "  coalesced" if coalesce else "collect all changes of objects / plain Parquet",
            plain_s / took,
            "" if coalesce else ">= 0.50",
            f"{plain_rows / took:12,.0f} rows/s against {plain_rows / plain_s:12,.0f}",
        )
    with captured(storage, folder, in_memory, to_ts) as (reader, readable_ts):
        mixed_view = view_of(storage, (MIXED,), reader)
        (took, rows), (plain_s, plain_rows) = versus(
            lambda: collect(mixed_view, START, readable_ts, coalesce=False), plain
        )
        assert rows == plain_rows + in_memory
        show(
            "  with rows that are not flushed",
            plain_s / plain_rows * rows / took,
            ">= 0.50",
            f"{rows / took:12,.0f} rows/s, {in_memory:,} rows decoded from memory",
        )


def _merge_slices(view: TableView, upto: int) -> int:
    return merge_slices(data_streams(view, upto))


def _merge_sample(view: TableView, upto: int) -> int:
    return merge_rows(data_streams(view, upto), SAMPLE)


def measure_merging(storage: StorageRef, to_ts: int, split_ts: int) -> None:
    for name, view, upto, target in (
        ("merge by slices / row by row, mixed objects", view_of(storage, (MIXED,)), to_ts, ">= 20"),
        ("  transactions of three partitions in turn", view_of(storage, SPLIT), split_ts, ""),
    ):
        (took, rows), (one_s, one_rows) = versus(
            partial(_merge_slices, view, upto),
            partial(_merge_sample, view, upto),
        )
        rates = rows / took, one_rows / one_s
        detail = f"{rates[0]:12,.0f} rows/s against {rates[1]:12,.0f}"
        show(name, rates[0] / rates[1], target, detail)


def measure_snapshot(folder: Path, storage: StorageRef, deleted: Written, ts: int) -> None:
    columns = arrow_schema(deleted.schema.table).names
    infos = [each for each in deleted.objects if each.side == "data"]
    view = view_of(storage, (DELETED,))
    (took, rows), (plain_s, plain_rows) = versus(
        lambda: sum(each.num_rows for each in read_snapshot(view, ts, columns=columns)),
        lambda: scan(folder, DELETED, infos, {"data": columns, "tombstone": []}),
    )
    assert rows == plain_rows - sum(each.rows for each in deleted.objects if each.side == "tombstone")
    detail = f"{plain_rows / took:12,.0f} rows/s against {plain_rows / plain_s:12,.0f}"
    show("snapshot with a tenth deleted / plain scan", plain_s / took, ">= 0.60", detail)


def measure_memory(folder: Path, to_ts: int) -> None:
    """The tenth begins where there is a large transaction, so that it has all kinds of objects, too."""
    begin = min(START + 3 * FLUSH_TICKS, to_ts - 1)
    tenth = begin, begin + max(1, (to_ts - START) // 10)
    for coalesce in (False, True):
        few, many = (Peak.of(folder, *each, coalesce=coalesce) for each in (tenth, (START, to_ts)))
        name = "peak of Arrow's memory, range / a tenth of its time"
        detail = f"{many.arrow:,.0f} MiB for {many.rows:,} rows, {few.arrow:,.0f} MiB for {few.rows:,}"
        show("  coalesced" if coalesce else name, many.arrow / few.arrow, "<= 1.25", detail)
        detail = f"{many.process:,.0f} MiB, {few.process:,.0f} MiB; what allocators keep is in it"
        show("  of the whole process", many.process / few.process, "<= 1.25", detail)


def main() -> None:
    process.prepare_libraries()  # for the processes whose memory is measured, as in every process of ours
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changes", nargs="?", type=int, default=5_000_000)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child[0], *map(int, chosen.child[1:]))
        return
    changes: int = chosen.changes
    in_memory = changes // 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        storage = StorageRef(f"file://{folder}/objects")
        mixed, deleted = (Written(storage, a_table(each), folder) for each in (MIXED, DELETED))
        to_ts, deleted_ts = write_mixed(mixed, changes - in_memory), write_deleted(deleted, changes // 2)
        mixed.merge_some(mixed.commit(to_ts))
        deleted.commit(deleted_ts)
        split_ts = write_split(storage, folder, min(changes, 1_000_000))
        measure_memory(folder, to_ts)
        measure_collecting(folder, storage, mixed, to_ts, in_memory)
        measure_merging(storage, to_ts, split_ts)
        measure_snapshot(folder, storage, deleted, deleted_ts)


if __name__ == "__main__":
    main()
