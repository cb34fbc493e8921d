"""Flushes and reads more rows than fit into its settings, and prints what memory that took. Run by a test."""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import ReadRange
from penstock.object_storage import open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from penstock.tables.keys import record_key
from penstock.tables.raw import RAW_SCHEMA
from support.events import FixedSchemas, change

MIB = 1 << 20
START = 1 << 58
TABLE = replace(define_table("items", [("id", "bigint primary key"), ("name", "longtext")]), id=1)


def batches(shape: str, total: int) -> Iterator[pa.RecordBatch]:
    """Updates of `total` bytes; batches overlap in time."""
    length = 64 * 1024 if shape == "large rows" else 400
    value = change(TABLE, START, {"id": 1, "name": "n" * length})[3]
    assert value is not None
    size = MIB // (2 * len(value))
    values = pa.array([value] * size, pa.binary())
    made = first = 0
    while made < total:
        ts = START + 1 + (np.arange(first, first + size) * 7919 % 65536 if shape != "one transaction" else 0)
        commit = np.broadcast_to(ts, size).astype(np.uint64)
        keys = pa.array([record_key(1, number) for number in range(first, first + size)], pa.binary())
        columns = [
            np.ones(size, np.uint8),
            commit - np.uint64(1),
            commit,
            keys,
            values,
            values,
        ]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(each, field.type) for each, field in zip(columns, RAW_SCHEMA, strict=True)],
            schema=RAW_SCHEMA,
        )
        first, made = first + size, made + batch.nbytes
        yield batch


def memory() -> int:
    """Bytes of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def peak(work: Callable[[], object]) -> int:
    """How much more memory some work took at its peak."""
    pa.default_memory_pool().release_unused()
    before = highest = memory()
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.005):
            highest = max(highest, memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return highest - before


def main(folder: Path, shape: str) -> None:
    settings = CaptureSettings(
        data=folder / "data",
        flush_bytes=1 << 40,
        flush_interval_s=3600,
        memory_bytes=1,
        sort_bytes=16 * MIB,
        large_txn_bytes=16 * MIB,
        wal_queue_bytes=8 * MIB,
    )
    storage = open_storage(f"file://{folder}/objects")
    store = EventStore(settings, storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE))
    store.start()
    table = store.open_table(1)
    stored = threading.Semaphore(0)
    nbytes = rows = sent = 0
    for batch in batches(shape, 192 * MIB):
        assert table.consume_kv_events(batch, stored.release)
        nbytes, rows, sent = nbytes + batch.nbytes, rows + batch.num_rows, sent + 1
    for _ in range(sent):
        stored.acquire()
    table.advance_resolved_ts(START + 100_000)
    wanted = ReadRange(table_id=1, from_ts=0, to_ts=START + 100_000)
    service = FlightService("127.0.0.1:0", store, Reader(store, storage, TidbRowDecoder()))
    seen: list[int] = []
    with FlightReader(service.addr) as reader:

        def read() -> None:
            seen.append(sum(each.num_rows for each in reader.read(wanted)[1]))

        found = {
            "unflushed": peak(read),
            "flush": peak(lambda: store.flush(1)),
            "flushed": peak(read),
        }
    service.close()
    store.close(flush=False)
    sys.stdout.write(json.dumps({**found, "bytes": nbytes, "rows": rows, "seen": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
