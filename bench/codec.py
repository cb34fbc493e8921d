"""Rows into Arrow and back, vectorised against row at a time: `python bench/codec.py [--rows 262144]`.

Ten columns as tables have them: integers, strings, a decimal, times, a double, NULLs here and
there. Rates are per second of CPU time, summed over all threads: what one core does, whoever else
uses the machine. The wall-clock rate of the decoder is printed beside it.
"""

import argparse
import random
import sys
import time
from datetime import datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from penstock.tables.encoding import encode_batch
from penstock.tables.keys import record_key
from penstock.tables.raw import RAW_SCHEMA, Op
from penstock.tables.records import handle_of, read_record, row_of, to_record, value_of
from penstock.tables.schema import TableInfo

ROWS_PER_SECOND_MIN = 500_000
BATCH_ROWS = 16_384

TABLE = define_table(
    "orders",
    [
        ("id", "bigint primary key"),
        ("customer", "int not null"),
        ("product", "varchar(40)"),
        ("note", "varchar(200)"),
        ("quantity", "smallint unsigned"),
        ("price", "decimal(12,2)"),
        ("weight", "double"),
        ("created", "datetime(6) not null"),
        ("updated", "timestamp"),
        ("flags", "bigint unsigned"),
    ],
)


def rows(count: int) -> list[dict[str, object]]:
    """Rows with a NULL in every fifth place that allows one."""
    chance = random.Random(7)
    start = datetime(2024, 1, 1)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.2 else value

    return [
        {
            "id": n * 3,
            "customer": chance.randrange(1 << 31),
            "product": maybe(f"product-{chance.randrange(10_000):05}"),
            "note": maybe("left at the door, " * chance.randrange(1, 4)),
            "quantity": maybe(chance.randrange(1, 1 << 16)),
            "price": maybe(Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-2)),
            "weight": maybe(chance.random() * 100),
            "created": start + timedelta(microseconds=chance.randrange(10**13)),
            "updated": maybe(start + timedelta(seconds=chance.randrange(10**7))),
            "flags": maybe(chance.randrange(1 << 64)),
        }
        for n in range(count)
    ]


def raw_batches(table: TableInfo, count: int) -> list[pa.RecordBatch]:
    """The rows as a change stream hands them over."""
    records = [to_record(table, row, start_ts=0) for row in rows(count)]
    keys = [record_key(table.id, handle_of(table, record)) for record in records]
    values = [value_of(table, record) for record in records]
    ts = list(range(count))
    whole = pa.RecordBatch.from_arrays(
        [
            pa.array([int(Op.PUT)] * count, pa.uint8()),
            pa.array(ts, pa.uint64()),
            pa.array(ts, pa.uint64()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.nulls(count, pa.binary()),
        ],
        schema=RAW_SCHEMA,
    )
    return [whole.slice(at, BATCH_ROWS) for at in range(0, count, BATCH_ROWS)]


def vectorised(table: TableInfo, batches: list[pa.RecordBatch]) -> tuple[float, float]:
    """Rows per second of CPU time, and per second on the wall."""
    decoder = TidbRowDecoder()
    started, began = time.process_time(), time.perf_counter()
    done = sum(decoder.decode(batch, table).data.num_rows for batch in batches)
    return done / (time.process_time() - started), done / (time.perf_counter() - began)


def row_at_a_time(table: TableInfo, batch: pa.RecordBatch) -> float:
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    started = time.process_time()
    for key, value in zip(keys, values, strict=True):
        row_of(table, read_record(table, key, value))
    return float(batch.num_rows / (time.process_time() - started))


def bulk(table: TableInfo, batches: list[pa.RecordBatch]) -> float:
    started = time.process_time()
    done = sum(len(encode_batch(table, batch, start_ts=0).values) for batch in batches)
    return done / (time.process_time() - started)


def encode_row_at_a_time(table: TableInfo, batch: pa.RecordBatch) -> float:
    given = batch.to_pylist()
    started = time.process_time()
    for row in given:
        record = to_record(table, row, start_ts=0)
        record_key(table.id, handle_of(table, record))
        value_of(table, record)
    return len(given) / (time.process_time() - started)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=262_144)
    count = options.parse_args().rows
    pa.set_cpu_count(1)
    batches = raw_batches(TABLE, count)
    vectorised(TABLE, batches[:1])
    runs = [vectorised(TABLE, batches) for _ in range(3)]
    decoding, on_the_wall = max(cpu for cpu, _ in runs), max(wall for _, wall in runs)
    slow = row_at_a_time(TABLE, batches[0])
    arrow = [TidbRowDecoder().decode(batch, TABLE).data for batch in batches]
    encoding = max(bulk(TABLE, arrow) for _ in range(2))
    slow_encoding = encode_row_at_a_time(TABLE, arrow[0])
    print(f"decode, vectorised      {decoding:12,.0f} rows/s ({on_the_wall:,.0f} by the clock)")
    print(f"decode, row at a time   {slow:12,.0f} rows/s")
    print(f"ratio                   {decoding / slow:12.1f}")
    print(f"encode, vectorised      {encoding:12,.0f} rows/s")
    print(f"encode, row at a time   {slow_encoding:12,.0f} rows/s")
    print(f"ratio                   {encoding / slow_encoding:12.1f}")
    if decoding < ROWS_PER_SECOND_MIN:
        print(f"below {ROWS_PER_SECOND_MIN:,} rows/s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
