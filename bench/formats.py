"""How many rows a second of CPU time are encoded in each format, beside what pyarrow and json do with them.

.venv/bin/python bench/formats.py [rows]
"""

import io
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.csv

from penstock.changefeeds.codecs.encoder import Encoder, encoder_of
from penstock.changefeeds.codecs.options import CsvOptions, EncoderOptions
from penstock.changefeeds.codecs.row_changes import INSERT, UPDATE, Pairing, RowChanges
from penstock.changes import ChangeBatch, Hint
from penstock.clock import compose_ts
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD
from penstock.follow.slices import Position
from penstock.tables.arrow import arrow_schema
from penstock.tables.define import define_table

TABLE = define_table(
    "orders",
    [
        ("id", "bigint primary key"),
        ("customer", "varchar(64)"),
        ("amount", "decimal(12,2)"),
        ("quantity", "int"),
        ("at", "datetime"),
    ],
)
SCHEMA = SchemaVersion(0, 1, TABLE, "shop")
PIECE_ROWS = 32 * 1024


def some_rows(count: int) -> pa.RecordBatch:
    begin = datetime(2026, 1, 1)
    columns = [
        pa.array(np.arange(count) * 977),
        pa.array([f"customer {number % 5003} of Some Street" for number in range(count)]),
        pa.array([Decimal(number % 99991) / 100 for number in range(count)], pa.decimal128(12, 2)),
        pa.array((np.arange(count) % 40).astype(np.int32)),
        pa.array([begin + timedelta(seconds=number) for number in range(count)], pa.timestamp("us")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TABLE))


def changes_of(rows: pa.RecordBatch, *, updates: bool) -> RowChanges:
    count = rows.num_rows
    return RowChanges(
        kinds=np.full(count, UPDATE if updates else INSERT, np.int8),
        commit_ts=compose_ts(1_700_000_000_000) + np.arange(count) // 100,
        handles=pa.array([number.to_bytes(8, "big") for number in range(count)], pa.binary()),
        known=np.ones(count, np.bool_),
        rows=rows,
        old=rows if updates else rows.slice(0, 0),
    )


def measure(name: str, count: int, work: Callable[[], int]) -> None:
    taken = []
    for _ in range(3):
        begin = time.process_time()
        nbytes = work()
        taken.append(time.process_time() - begin)
    best = min(taken)
    print(f"{name:44} {count / best:12,.0f} rows/s {nbytes / best / 2**20:8.1f} MiB/s")


def encode_all(encoder: Encoder, changes: RowChanges) -> int:
    """Encode the changes in pieces; return the bytes."""
    return sum(len(encoder.payload([encoder.encode(piece)])) for piece in changes.pieces(PIECE_ROWS, 1 << 30))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    pa.set_cpu_count(1)
    rows = some_rows(count)
    inserts, updates = changes_of(rows, updates=False), changes_of(rows, updates=True)
    canal = EncoderOptions(enable_tidb_extension=True)
    cases = [
        ("canal-json, inserts", canal, inserts),
        ("canal-json, updates", canal, updates),
        ("canal-json, updated columns only", replace(canal, only_output_updated_columns=True), updates),
        ("canal-json, inserts, gzip", replace(canal, compression="gzip"), inserts),
        ("canal-json, inserts, zstd", replace(canal, compression="zstd"), inserts),
        ("csv, inserts", EncoderOptions(protocol="csv"), inserts),
        (
            "csv, updates with old values",
            EncoderOptions(protocol="csv", csv=CsvOptions(output_old_value=True)),
            updates,
        ),
        ("debezium, inserts", EncoderOptions(protocol="debezium"), inserts),
        ("debezium, updates", EncoderOptions(protocol="debezium"), updates),
        ("parquet, inserts", EncoderOptions(protocol="parquet"), inserts),
        ("parquet, updates", EncoderOptions(protocol="parquet"), updates),
    ]
    for name, options, changes in cases:
        encoder = encoder_of(SCHEMA, options)
        measure(
            name,
            count,
            partial(encode_all, encoder, changes),
        )
    sides = batch_of(updates)
    pairing = Pairing(TABLE, rows.schema.names, rows.schema.names)
    measure("pairing the sides of updates", count, lambda: pairing.of([sides], Position(0)).rows.nbytes)
    measure("pyarrow.csv.write_csv", count, lambda: write_csv(rows))
    measure("json.dumps of a dict per row", count, lambda: dump_json(rows))


def batch_of(changes: RowChanges) -> ChangeBatch:
    """Both sides of updates, each in the order of time, within a commit in none."""
    order = np.lexsort((np.arange(len(changes)) * 7919 % 100, changes.commit_ts))
    system = {HANDLE: changes.handles, COMMIT_TS: pa.array(changes.commit_ts)}
    old = pa.StructArray.from_arrays(changes.old.columns, fields=list(changes.old.schema))
    data = pa.RecordBatch.from_pydict(
        dict(zip(changes.rows.schema.names, changes.rows.columns, strict=True)) | system
    )
    ends = pa.RecordBatch.from_pydict({"id": changes.old.column("id")} | system | {OLD: old})
    return ChangeBatch(
        data.take(pa.array(order)), ends.take(pa.array(order)), Hint.TAIL_DONE, SCHEMA, complete_ts=0
    )


def write_csv(rows: pa.RecordBatch) -> int:
    sink = io.BytesIO()
    pyarrow.csv.write_csv(rows, sink)
    return sink.tell()


def dump_json(rows: pa.RecordBatch) -> int:
    lines = ({"data": [{name: str(cell) for name, cell in row.items()}]} for row in rows.to_pylist())
    return sum(len(json.dumps(line)) for line in lines)


if __name__ == "__main__":
    main()
