"""Rows into Arrow, vectorised against row at a time, in one run: `python bench/codec.py [--rows 262144]`.

Ten columns as tables have them: integers, strings, a decimal, times, a double, NULLs here and
there. One core; absolute numbers depend on the machine, the ratio less so.
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


def vectorised(table: TableInfo, batches: list[pa.RecordBatch]) -> float:
    decoder = TidbRowDecoder()
    started = time.perf_counter()
    done = sum(decoder.decode(batch, table).data.num_rows for batch in batches)
    return done / (time.perf_counter() - started)


def row_at_a_time(table: TableInfo, batch: pa.RecordBatch) -> float:
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    started = time.perf_counter()
    for key, value in zip(keys, values, strict=True):
        row_of(table, read_record(table, key, value))
    return batch.num_rows / (time.perf_counter() - started)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=262_144)
    count = options.parse_args().rows
    pa.set_cpu_count(1)
    batches = raw_batches(TABLE, count)
    vectorised(TABLE, batches[:1])
    decoding = max(vectorised(TABLE, batches) for _ in range(3))
    slow = row_at_a_time(TABLE, batches[0])
    print(f"decode, vectorised      {decoding:12,.0f} rows/s")
    print(f"decode, row at a time   {slow:12,.0f} rows/s")
    print(f"ratio                   {decoding / slow:12.1f}")
    if decoding < ROWS_PER_SECOND_MIN:
        print(f"below {ROWS_PER_SECOND_MIN:,} rows/s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
