"""Writing rows of tables: `python bench/write.py [--seconds 3]`.

What counts are the ratios at the end, measured in one run: columns against rows in the encoder, batches
against single rows, an insert against a put. The store runs in a process of its own. What client and store
take of CPU is measured too: it tells more than rates on a busy machine.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.kv import Client
from penstock.tables import Catalog, Index, Table, define_table, indexes
from penstock.tables.batches import RowBatch, columns_of_arrow, columns_of_rows
from penstock.tables.keys import record_key
from penstock.tables.online import WriteForm
from penstock.tables.records import handle_of, to_record, value_of
from support.warmstore import WarmStore

COLUMNS = [
    ("id", "bigint primary key"),
    ("customer", "varchar(40) not null"),
    ("amount", "decimal(12,2)"),
    ("quantity", "int"),
    ("created", "datetime"),
]
INDEXES = [Index("by_customer", ["customer"])]
BATCHES = (1_000, 10_000)
INSERT_OVER_PUT_MIN = 0.5
_START = datetime(2026, 1, 1)


def rows_from(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "customer": f"customer {n % 997}",
            "amount": Decimal(n % 10_000) / 4,
            "quantity": n % 50,
            "created": _START + timedelta(seconds=n % 86_400),
        }
        for n in range(first, first + count)
    ]


_cpu: dict[str, tuple[float, float]] = {}
_store_pids: list[int] = []


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(name: str, work: Callable[[], int], seconds: float) -> float:
    """Return how many things `work` does in a second, repeated for that long after one warm-up."""
    work()
    pids = [os.getpid(), *_store_pids]
    before = [_cpu_s(pid) for pid in pids]
    started, done = time.monotonic(), 0
    while (spent := time.monotonic() - started) < seconds:
        done += work()
    used = [(_cpu_s(pid) - then) / done * 1e6 for pid, then in zip(pids, before, strict=True)]
    _cpu[name] = (used[0], sum(used[1:]))
    return done / spent


def encoders(seconds: float) -> dict[str, float]:
    """Rows per second of the encoders alone, with an index: row by row, and by columns."""
    table = define_table("orders", COLUMNS, indexes=INDEXES)
    form, rows = WriteForm(table), rows_from(0, 1_000)
    arrow = pa.Table.from_pylist(rows)

    def by_rows() -> int:
        for row in rows:
            record = to_record(table, row, start_ts=1)
            handle = handle_of(table, record)
            record_key(table.id, handle)
            value_of(table, record, form.columns)
            for index in form.added:
                indexes.entry(table, index, record, handle)
        return len(rows)

    def encode(columns: Any) -> int:
        batch = RowBatch.encode(form, columns, len(rows), start_ts=1)
        batch.record_pairs(batch.handles)
        list(batch.entries(batch.handles))
        return len(rows)

    return {
        "encode rows": rate("encode rows", by_rows, seconds),
        "encode columns of dicts": rate(
            "encode columns of dicts", lambda: encode(columns_of_rows(table, rows, start_ts=1)), seconds
        ),
        "encode columns of arrow": rate(
            "encode columns of arrow", lambda: encode(columns_of_arrow(table, arrow)), seconds
        ),
    }


def writes(client: Client, seconds: float) -> dict[str, float]:
    """Rows per second into the store: batches of rows and columns, single rows, and puts beside them."""
    catalog = Catalog(client)
    catalog.create_database("bench")
    results: dict[str, float] = {}
    ids = itertools.count()

    def table_of(name: str, wanted: Sequence[Index]) -> Table:
        catalog.create_table(f"bench.{name}", COLUMNS, indexes=wanted)
        return catalog.table(f"bench.{name}")

    plain, indexed = table_of("plain", ()), table_of("indexed", INDEXES)
    for count in BATCHES:
        shape = [pa.Table.from_pylist(rows_from(0, count))]

        def insert_columns(target: Table, shape: list[pa.Table] = shape, count: int = count) -> int:
            first = next(ids) * 100_000
            numbers = pa.array(range(first, first + count), pa.int64())
            return len(target.insert(shape[0].set_column(0, "id", numbers)))

        def insert_dicts(count: int = count) -> int:
            return len(plain.insert(rows_from(next(ids) * 100_000, count)))

        for name, target in (("plain", plain), ("indexed", indexed)):
            results[f"insert {name} {count} arrow"] = rate(
                f"insert {name} {count} arrow",
                partial(insert_columns, target),
                seconds,
            )
        results[f"insert plain {count} dicts"] = rate(f"insert plain {count} dicts", insert_dicts, seconds)
    results["insert one"] = rate(
        "insert one", lambda: len(plain.insert(rows_from(next(ids) * 100_000, 1))), seconds
    )

    def put_one() -> int:
        with client.begin() as txn:
            txn.put(b"raw/%012d" % next(ids), b"v" * 60)
        return 1

    results["put one"] = rate("put one", put_one, seconds)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    results = encoders(options.seconds)
    with (
        tempfile.TemporaryDirectory() as data,
        WarmStore.start(Path(data), stores=1) as store,
        Client.connect([store.pd_addr]) as client,
    ):
        _store_pids.append(store.pid)
        results |= writes(client, options.seconds)
    for name, found in results.items():
        client_us, store_us = _cpu[name]
        print(
            f"{name:>28}: {found:>10,.0f} rows/s; CPU of a row: {client_us:,.1f} us, store {store_us:,.1f} us"
        )
    print("\nratios")
    for shape in ("dicts", "arrow"):
        ratio = results[f"encode columns of {shape}"] / results["encode rows"]
        print(f"  encoder: columns of {shape} over rows {ratio:.1f}")
    for count in BATCHES:
        ratio = results[f"insert plain {count} arrow"] / results["insert one"]
        print(f"  batches of {count:,} over single rows {ratio:.0f}")
    ratio = results["insert one"] / results["put one"]
    print(f"  insert of one row over a put in one phase {ratio:.2f} (wanted {INSERT_OVER_PUT_MIN})")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
