"""The puller in one run: `python bench/pipeline.py [--events 300000] [--rows 400000] [--json]`.

First the span pipeline alone, against the bare hand-off of the same items between the same threads over
the fastest queue Python has. Then the whole pull path: a recorded region stream, served over gRPC from
a process of its own, through request worker, processor, matcher and pipeline; once to a consumer that
persists nothing, and once into an event store with its defaults, until every row is synced to its log
(flushes run beside it, as they would). What counts are the ratio and the bounds at the end.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import Any

import grpc
import pyarrow as pa

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.log.table_log import TableLog
from penstock.kv.rpc.connections import Dialer
from penstock.object_storage import open_storage
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import metapb_pb2 as metapb
from penstock.settings import CaptureSettings, KvSettings, PullerSettings
from penstock.sources.pipeline import SpanPipelineManager
from penstock.sources.tikv.key_ranges import KeySpan
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.prewrite_spill import PrewriteMemory, PrewriteSpill
from penstock.sources.tikv.processor import RegionEventProcessor
from penstock.sources.tikv.range_lock import LockedRange
from penstock.sources.tikv.request_cache import RequestCache
from penstock.sources.tikv.request_worker import RegionRequestWorker
from penstock.sources.tikv.routing import Urgency
from penstock.sources.tikv.subscription import RegionTask, SubscribedSpan
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from penstock.tables.keys import record_key
from support.events import FixedSchemas, change

RATIO_MIN = 0.4
EVENTS_MIN = 200_000
ROWS_MIN = 100_000

PRODUCERS, WORKERS = PullerSettings().region_workers, PullerSettings().workers
SUBSCRIPTIONS, DATA_PER_RESOLVED = 8, 16
SHUFFLED = 64
BATCH = pa.record_batch({"key": pa.array([b"k"], pa.binary())})

REGIONS, TXN_ROWS, EVENT_TXNS = 16, 8, 16
TABLE = replace(define_table("items", [("id", "bigint primary key"), ("name", "varchar(128)")]), id=1)


def persist(queue: Any, call: Callable[[Any], None], total: int) -> None:
    """Take what was consumed and call back in a shuffled order."""
    order = list(range(SHUFFLED))
    random.Random(7).shuffle(order)
    get, done = queue.get, 0
    while done < total:
        taken = [get()]
        taken += [get() for _ in range(min(queue.qsize(), SHUFFLED - 1))]
        if len(taken) == SHUFFLED:
            taken = [taken[at] for at in order]
        for each in taken:
            call(each)
        done += len(taken)


def race(threads: list[threading.Thread]) -> float:
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def span_pipeline(events: int) -> float:
    """Data events per second through the span pipeline, resolved timestamps in between."""
    pipeline = SpanPipelineManager(workers=WORKERS)
    queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
    put = queue.put
    told = [0] * SUBSCRIPTIONS

    def consume(_: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        put(finish)
        return True

    def advance(sub_id: int) -> Callable[[int], None]:
        def told_to(ts: int) -> None:
            told[sub_id] = ts

        return told_to

    for sub_id in range(SUBSCRIPTIONS):
        pipeline.register(sub_id, consume, advance(sub_id))

    def produce(first: int) -> None:
        data, resolved = pipeline.enqueue_data, pipeline.enqueue_resolved
        for number in range(first, events, PRODUCERS):
            sub_id = number % SUBSCRIPTIONS
            data(sub_id, BATCH, 5000)
            if number % DATA_PER_RESOLVED < PRODUCERS:
                resolved(sub_id, number + 1)

    threads = [threading.Thread(target=produce, args=(first,)) for first in range(PRODUCERS)]
    threads.append(threading.Thread(target=persist, args=(queue, lambda finish: finish(), events)))
    seconds = race(threads)
    pipeline.close()
    assert pipeline.quota.used == 0, "quota was lost"
    return events / seconds


def bare_queue(events: int, new_queue: Callable[[], Any]) -> float:
    """The same items over the same number of hops between as many threads, with nothing done to them."""
    inboxes = [new_queue() for _ in range(WORKERS)]
    persisting = new_queue()

    def work(number: int) -> None:
        get, put = inboxes[number].get, persisting.put
        left = sum(1 for event in range(events) if event % SUBSCRIPTIONS % WORKERS == number)
        while left:
            item = get()
            if item[0] == 0:
                put(item)
            elif item[0] == 2:
                left -= 1

    def produce(first: int) -> None:
        for number in range(first, events, PRODUCERS):
            sub_id = number % SUBSCRIPTIONS
            inboxes[sub_id % WORKERS].put((0, sub_id, BATCH, 5000))
            if number % DATA_PER_RESOLVED < PRODUCERS:
                inboxes[sub_id % WORKERS].put((1, sub_id, None, number + 1))

    def back(item: Any) -> None:
        inboxes[item[1] % WORKERS].put((2, item[1], None, 0))

    threads = [threading.Thread(target=produce, args=(first,)) for first in range(PRODUCERS)]
    threads += [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    threads.append(threading.Thread(target=persist, args=(persisting, back, events)))
    return events / race(threads)


def recording(rows: int) -> list[bytes]:
    """Messages of prewrites and commits over all regions, with resolved timestamps in between."""
    start = cdcpb.ChangeDataEvent()
    for region_id in range(1, REGIONS + 1):
        event = start.events.add(region_id=region_id, request_id=1)
        event.entries.entries.add(type=cdcpb.Event.INITIALIZED)
    messages = [start.SerializeToString()]
    value, old_value = (change(TABLE, 1, {"id": 1, "name": each * 110})[3] for each in "vo")
    ts, made = 100, 0
    while made < rows:
        message = cdcpb.ChangeDataEvent()
        for region_id in range(1, REGIONS + 1):
            entries = message.events.add(region_id=region_id, request_id=1).entries.entries
            for txn in range(EVENT_TXNS):
                keys = [record_key(1, region_id << 32 | made + txn * TXN_ROWS + n) for n in range(TXN_ROWS)]
                for key in keys:
                    entries.add(
                        type=1,
                        op_type=1,
                        start_ts=ts,
                        key=key,
                        value=value,
                        old_value=old_value if txn % 2 else b"",
                    )
                for key in keys:
                    entries.add(type=2, op_type=1, start_ts=ts, commit_ts=ts + 1, key=key)
                ts += 2
            made += EVENT_TXNS * TXN_ROWS
        messages.append(message.SerializeToString())
        resolved = cdcpb.ResolvedTs(regions=range(1, REGIONS + 1), ts=ts, request_id=1)
        messages.append(cdcpb.ChangeDataEvent(resolved_ts=resolved).SerializeToString())
        ts += 1
    return messages


async def serve(rows: int) -> None:
    """The store: sends the recording once every region was asked for."""
    messages = recording(rows)

    async def feed(requests: Any, _: Any) -> AsyncIterator[bytes]:
        for _ in range(REGIONS):
            await anext(requests)
        for message in messages:
            yield message
        await asyncio.Event().wait()

    handler = grpc.stream_stream_rpc_method_handler(feed)
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    resolved = cdcpb.ChangeDataEvent.FromString(messages[-1]).resolved_ts.ts
    print(json.dumps({"port": port, "resolved_ts": resolved, "bytes": sum(map(len, messages))}), flush=True)
    await server.wait_for_termination()


def fail(*reason: object) -> None:
    """Nothing ends in this run."""
    raise AssertionError(reason)


class Nowhere:
    """A consumer that persists nothing."""

    def consume_kv_events(self, _: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        finish()
        return True

    def advance_resolved_ts(self, _: int) -> None: ...


@contextmanager
def event_store() -> Iterator[TableLog]:
    """A table of an event store on the local disk, with the settings a capture has."""
    with tempfile.TemporaryDirectory() as folder:
        settings = CaptureSettings(data=Path(folder) / "capture", storage=f"file://{folder}/events")
        storage = open_storage(settings.storage)
        store = EventStore(settings, storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE))
        store.start()
        try:
            yield store.open_table(TABLE.id)
        finally:
            store.close(flush=False)


async def pull(addr: str, last_ts: int, rows: int, into: Nowhere | TableLog) -> float:
    """Rows per second from the first request to the last resolved timestamp: then every row is persisted."""
    settings = PullerSettings()
    pipeline = SpanPipelineManager(workers=settings.workers, quota_bytes=settings.quota_bytes)
    loop = asyncio.get_running_loop()
    complete = asyncio.Event()
    seen = 0

    def consume(raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        nonlocal seen
        seen += raw.num_rows
        return into.consume_kv_events(raw, finish)

    def advance(ts: int) -> None:
        into.advance_resolved_ts(ts)
        if ts >= last_ts:
            loop.call_soon_threadsafe(complete.set)

    processor = RegionEventProcessor(
        pipeline,
        on_scanned=lambda _: None,
        on_ended=fail,
        on_failed=fail,
        workers=settings.region_workers,
        queue_size=settings.region_queue_size,
        queue_bytes=settings.region_queue_bytes,
        clock=SYSTEM,
    )
    memory, spill = PrewriteMemory(settings.prewrite_memory_bytes), PrewriteSpill()
    cache = RequestCache(REGIONS, clock=SYSTEM, now_ms=lambda: 0)
    span = SubscribedSpan(1, KeySpan(1, b"", b""), 1, advance_interval_s=0.0, now=0.0, on_failure=print)
    await asyncio.to_thread(pipeline.register, 1, consume, advance)
    bounds = [b"", *(record_key(1, (n + 1) << 32) for n in range(1, REGIONS)), b""]
    for number in range(REGIONS):
        meta = metapb.Region(id=number + 1, start_key=bounds[number], end_key=bounds[number + 1])
        locked = span.range_lock.lock(bounds[number], bounds[number + 1], number + 1, 1)
        assert isinstance(locked, LockedRange)
        cache.add(RegionTask(span, meta, locked, urgency=Urgency.HIGH, created_at=0.0))
    started = time.perf_counter()
    worker = RegionRequestWorker(
        1,
        addr,
        dialer=Dialer(None, KvSettings()),
        cluster_id=1,
        cache=cache,
        processor=processor,
        on_given_back=fail,
        on_lost=fail,
        new_matcher=lambda: Matcher(memory, spill),
        clock=SYSTEM,
    )
    await complete.wait()
    seconds = time.perf_counter() - started
    assert seen >= rows
    await worker.close()
    await asyncio.to_thread(pipeline.close)
    await processor.close()
    return seen / seconds


def pull_path(rows: int, runs: int) -> tuple[float, float]:
    """The best of some runs against a store in a process of its own: to nowhere, and to the event store."""
    store = subprocess.Popen(
        [sys.executable, __file__, "--serve", "--rows", str(rows)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert store.stdout is not None
        told = json.loads(store.stdout.readline())
        addr = f"127.0.0.1:{told['port']}"
        nowhere, persisted = [], []
        for _ in range(runs):
            nowhere.append(eventloop.run(pull(addr, told["resolved_ts"], rows, Nowhere())))
            with event_store() as table:
                persisted.append(eventloop.run(pull(addr, told["resolved_ts"], rows, table)))
        return max(nowhere), max(persisted)
    finally:
        store.kill()
        store.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        eventloop.run(serve(chosen.rows))
        return
    pairs = [
        (span_pipeline(chosen.events), bare_queue(chosen.events, SimpleQueue)) for _ in range(chosen.runs)
    ]
    ours, bare = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]  # the median run
    nowhere, persisted = pull_path(chosen.rows, chosen.runs)
    found = {
        "span pipeline, data events/s": round(ours),
        "bare SimpleQueue hand-off, items/s": round(bare),
        "ratio": round(ours / bare, 2),
        "bare queue.Queue hand-off, items/s": round(bare_queue(chosen.events // 4, Queue)),
        "pull path to nowhere, rows/s": round(nowhere),
        "pull path to persisted, rows/s": round(persisted),
    }
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, number in found.items():
            print(f"{name:40} {number:>14,}")
    kept = ours / bare >= RATIO_MIN and ours >= EVENTS_MIN and persisted >= ROWS_MIN
    sys.exit(
        0 if kept else f"below the bounds: ratio {RATIO_MIN}, {EVENTS_MIN:,} events/s, {ROWS_MIN:,} rows/s"
    )


if __name__ == "__main__":
    main()
