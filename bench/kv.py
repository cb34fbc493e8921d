"""The KV client against the embedded store, in one run: `python bench/kv.py [--seconds 2] [--rows 1000000]`.

The store runs in a process of its own, so that client and server have a core each. What counts
are the ratios at the end; absolute numbers depend on the machine.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock import eventloop
from penstock.kv import AsyncClient, Client
from penstock.settings import KvSettings
from support.warmstore import WarmStore

CALLERS = (1, 16, 64)
PROTOCOLS = {
    "1pc": {"one_pc": True, "async_commit": True},
    "async": {"one_pc": False, "async_commit": True},
    "2pc": {"one_pc": False, "async_commit": False},
}
BATCH_RATIO_MIN = 2.0
SCAN_ROWS_MIN = 150_000


async def transactions(
    pd_addr: str, settings: KvSettings, protocol: dict[str, Any], callers: int, seconds: float
) -> float:
    """Transactions per second of `callers` tasks that each write two fresh keys a transaction."""
    client = await AsyncClient.connect([pd_addr], settings=settings)
    counter = itertools.count()
    done = 0

    async def call(name: int, until: float) -> None:
        nonlocal done
        while time.monotonic() < until:
            n = next(counter)
            async with client.begin(**protocol) as txn:
                await txn.put(b"bench/%04d/%012d/a" % (name, n), b"value")
                await txn.put(b"bench/%04d/%012d/b" % (name, n), b"value")
            done += 1

    await asyncio.gather(
        *(call(i, time.monotonic() + 0.3) for i in range(callers))
    )  # connections, region cache
    done = 0
    started = time.monotonic()
    await asyncio.gather(*(call(i, started + seconds) for i in range(callers)))
    rate = done / (time.monotonic() - started)
    await client.close()
    return rate


async def reads(pd_addr: str, settings: KvSettings, callers: int, seconds: float) -> float:
    """Point reads per second of `callers` tasks."""
    client = await AsyncClient.connect([pd_addr], settings=settings)
    done = 0

    async def call(name: int, until: float) -> None:
        nonlocal done
        n = 0
        while time.monotonic() < until:
            snapshot = client.snapshot(await client.timestamp())
            await snapshot.get(b"bench/%04d/%012d/a" % (name, n))
            n += 1
            done += 1

    await asyncio.gather(*(call(i, time.monotonic() + 0.3) for i in range(callers)))
    done = 0
    started = time.monotonic()
    await asyncio.gather(*(call(i, started + seconds) for i in range(callers)))
    rate = done / (time.monotonic() - started)
    await client.close()
    return rate


def load(client: Client, rows: int) -> float:
    """Write `rows` small rows in transactions of 20,000; return rows per second."""
    started = time.monotonic()
    for first in range(0, rows, 20_000):
        with client.begin() as txn:
            for row in range(first, min(first + 20_000, rows)):
                txn.put(b"scan/%012d" % row, b"a small row, %d" % row)
    return rows / (time.monotonic() - started)


def scan(client: Client, rows: int) -> float:
    """Read them back through the blocking client; return rows per second."""
    snapshot = client.snapshot(client.timestamp())
    started = time.monotonic()
    count = sum(1 for _ in snapshot.iter(b"scan/", b"scan0"))
    rate = rows / (time.monotonic() - started)
    assert count == rows, f"the scan returned {count} of {rows} rows"
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the scan")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    settings = {"batch": KvSettings(), "unary": KvSettings(max_batch_size=0)}
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as data, WarmStore.start(Path(data), stores=1) as store:
        for (name, protocol), callers, (mode, chosen) in itertools.product(
            PROTOCOLS.items(), CALLERS, settings.items()
        ):
            rate = eventloop.run(transactions(store.pd_addr, chosen, protocol, callers, options.seconds))
            results[f"{name}/{callers}/{mode}"] = rate
            print(f"{name:>6} {callers:>3} callers {mode:>6}: {rate:>9,.0f} transactions/s", flush=True)
        for callers, (mode, chosen) in itertools.product(CALLERS, settings.items()):
            rate = eventloop.run(reads(store.pd_addr, chosen, callers, options.seconds))
            results[f"get/{callers}/{mode}"] = rate
            print(f"   get {callers:>3} callers {mode:>6}: {rate:>9,.0f} reads/s", flush=True)
        with Client.connect([store.pd_addr]) as client:
            results["load"] = load(client, options.rows)
            results["scan"] = max(scan(client, options.rows) for _ in range(2))
        print(
            f"load {options.rows:,} rows: {results['load']:,.0f} rows/s; scan: {results['scan']:,.0f} rows/s"
        )
    print("\nratios")
    for name in (*PROTOCOLS, "get"):
        ratio = results[f"{name}/64/batch"] / results[f"{name}/64/unary"]
        print(
            f"  {name}: batch client over unary client at 64 callers {ratio:.2f} (wanted {BATCH_RATIO_MIN})"
        )
    for name in ("1pc", "async"):
        print(f"  {name} over 2pc at 64 callers {results[f'{name}/64/batch'] / results['2pc/64/batch']:.2f}")
    print(f"  scan over {SCAN_ROWS_MIN:,} rows/s {results['scan'] / SCAN_ROWS_MIN:.2f} (wanted 1)")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
