"""Rows per second through the event store's log and through a flush: `python bench/eventstore.py`.

Baselines measured in the same run: the same bytes written and synced by a plain file, and the decoder alone.
"""

import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.log.wal import Wal
from penstock.eventstore.manifest import ManifestState, ObjectInfo
from penstock.eventstore.objects.primary_key_index import PrimaryKeyIndex
from penstock.eventstore.objects.row_ids import Moves, RowIds
from penstock.object_storage import open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.keys import record_key
from penstock.tables.raw import RAW_SCHEMA
from support.events import FixedSchemas, a_table, change

TABLE = a_table()
START = 1 << 58
ROWS = 1_000_000
BATCH = 1000


def batches(rows: int, size: int, *, updates: bool = False) -> list[pa.RecordBatch]:
    """Raw batches of inserts, or of later updates of the same rows, ten a transaction, a little shuffled."""
    value = change(TABLE, START, {"id": 1, "name": "n" * 60})[3]
    made = []
    order = np.random.default_rng(1).permutation(size)
    begin = START + (2 * ROWS if updates else 0)
    for first in range(0, rows, size):
        ts = begin + np.arange(first, first + size, dtype=np.uint64)[order] // 10
        columns = [
            pa.array(np.ones(size, np.uint8)),
            pa.array(ts),
            pa.array(ts + np.uint64(1)),
            pa.array([record_key(TABLE.id, first + int(at)) for at in order], pa.binary()),
            pa.array([value] * size, pa.binary()),
            pa.array([value if updates else None] * size, pa.binary()),
        ]
        made.append(pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA))
    return made


def log(raw: list[pa.RecordBatch], folder: Path) -> float:
    """Seconds until every batch is acknowledged."""
    wal = Wal(folder / "wal", segment_bytes=64 << 20, queue_bytes=64 << 20, on_failure=print)
    wal.start(lambda _frame, _place: None)
    done = threading.Semaphore(0)
    started = time.perf_counter()
    for batch in raw:
        wal.append(1, batch, START, lambda _: done.release())
    for _ in raw:
        done.acquire()
    taken = time.perf_counter() - started
    wal.close()
    return taken


def plain_file(raw: list[pa.RecordBatch], folder: Path) -> float:
    """Seconds to write the same batches to a file and sync every 16 MiB."""
    started = time.perf_counter()
    with (folder / "plain").open("wb", buffering=0) as file:
        unsynced = 0
        for batch in raw:
            unsynced += file.write(batch.serialize())
            if unsynced > 16 << 20:
                os.fdatasync(file.fileno())
                unsynced = 0
        os.fdatasync(file.fileno())
    return time.perf_counter() - started


def flush(folder: Path, *rounds: list[pa.RecordBatch]) -> list[float]:
    """Seconds from the last acknowledgement to the manifest's commit and the index, for each round."""
    settings = CaptureSettings(
        data=folder / "store",
        flush_bytes=1 << 40,
        flush_interval_s=3600,
        memory_bytes=1 << 30,
        sort_bytes=1 << 30,
    )
    storage = open_storage(f"file://{folder}/objects")
    store = EventStore(settings, storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE))
    store.start()
    table = store.open_table(TABLE.id)
    taken = []
    for number, raw in enumerate(rounds, 1):
        done = threading.Semaphore(0)
        for batch in raw:
            table.consume_kv_events(batch, done.release)
        for _ in raw:
            done.acquire()
        table.advance_resolved_ts(START + 2 * ROWS * number)
        started = time.perf_counter()
        assert store.flush(TABLE.id)
        taken.append(time.perf_counter() - started)
    store.close(flush=False)
    return taken


def index(folder: Path) -> tuple[float, float]:
    """Seconds to put and to find the rows of one object in the primary-key index."""
    order = np.random.default_rng(1).permutation(ROWS).astype(">u8")
    bounds = np.arange(ROWS + 1, dtype=np.int32) * 8
    handles = pa.Array.from_buffers(
        pa.binary(), ROWS, [None, pa.py_buffer(bounds), pa.py_buffer(order.tobytes())]
    )
    data = ObjectInfo(
        id="0" * 31 + "1", side="data", kind="appendable", schema_version=1, create_ts=1, min_ts=1, max_ts=1,
        rows=ROWS, size_bytes=1, key_min=b"", key_max=b"",
    )  # fmt: skip
    empty = ManifestState(seq=1, origin="bench", flushed_ts=1)
    state = replace(empty, seq=2, objects={data.id: data})
    found = PrimaryKeyIndex(folder / "index")
    table = found.table(TABLE.id, open_storage("memory:///"))
    table.catch_up(empty)
    everything = np.arange(ROWS)
    moves = Moves(
        handles.slice(0, 0), pc.take(handles, pc.sort_indices(handles)), RowIds.within(data.id, everything)
    )
    started = time.perf_counter()
    table.apply(moves, state)
    put_s = time.perf_counter() - started
    started = time.perf_counter()
    assert (table.find(handles).offsets == order.astype(np.int64)).all()
    find_s = time.perf_counter() - started
    found.close()
    return put_s, find_s


def decode(raw: list[pa.RecordBatch]) -> float:
    """Seconds of the decoder alone, over one large batch as a flush gives it."""
    (whole,) = pa.Table.from_batches(raw).combine_chunks().to_batches()
    started = time.perf_counter()
    TidbRowDecoder().decode(whole, TABLE)
    return time.perf_counter() - started


def main() -> None:
    raw = batches(ROWS, BATCH)
    nbytes = sum(batch.nbytes for batch in raw)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log_s, plain_s = log(raw, folder), plain_file(raw, folder)
        flush_s, update_s = flush(folder, raw, batches(ROWS, BATCH, updates=True))
        decode_s = decode(raw)
        put_s, find_s = index(folder)
    small_rows = 20_000
    small = batches(small_rows, 1)
    with tempfile.TemporaryDirectory() as name:
        small_s = log(small, Path(name))
    print(f"log, {BATCH} rows a batch: {ROWS / log_s:12,.0f} rows/s  {nbytes / log_s / 1e6:6,.0f} MB/s")
    print(f"     of a plain file:   {plain_s / log_s:12.2f}")
    print(f"log, one row a batch:   {small_rows / small_s:12,.0f} rows/s")
    print(f"flush to Parquet:       {ROWS / flush_s:12,.0f} rows/s")
    print(f"     of the decoder:    {decode_s / flush_s:12.2f}")
    print(f"     of updates:        {ROWS / update_s:12,.0f} rows/s")
    print(f"index, rows put:        {ROWS / put_s:12,.0f} rows/s")
    print(f"index, rows found:      {ROWS / find_s:12,.0f} rows/s")


if __name__ == "__main__":
    main()
