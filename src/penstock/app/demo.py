"""`penstock demo`: the embedded store under a workload, captured into the event store, and checked.

A bank's transfers run against three stores; a capture follows them; a column is added in the middle. The
total is checked in one snapshot after another while they run. At the end the captured objects are merged, and
snapshots of the event store, and snapshots brought forward by its changes, are compared with the key-value
store's own.
"""

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock import eventloop
from penstock.app.bank import ACCOUNTS, ACCOUNTS_TABLE, OPENING_BALANCE, Bank
from penstock.changes import collect_changes
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Corrupt, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.capture import Capture
from penstock.eventstore.finding import find_table
from penstock.eventstore.flightreader import FlightReader
from penstock.eventstore.manifestlog import load
from penstock.eventstore.partition import StorageRef, TableView
from penstock.eventstore.sides import COMMIT_TS
from penstock.eventstore.snapshot import read_snapshot
from penstock.kv import Client
from penstock.settings import CaptureSettings, Settings
from penstock.tables.keys import record_key
from penstock.testing.store import Admin, StoreProcess

CALLERS = 8
_MOMENTS_COMPARED = 12
_CAPTURE_DEADLINE_S = 60.0
_LOOK_S = 0.1


@dataclass(slots=True)
class _World:
    """The running parts of the demonstration."""

    console: Console
    clock: Clock
    client: Client
    capture: Capture
    storage: StorageRef
    bank: Bank
    tables: dict[str, int]
    lags_ms: list[int] = field(default_factory=list)
    merges: int = 0
    changes: int = 0

    def note_lag(self) -> None:
        """Note how far what can be read of the captured tables lies behind now."""
        captured = min(self.capture.store.readable_ts(table_id) for table_id in self.tables.values())
        at_ms = physical_ms(captured)
        if at_ms:  # the first resolved timestamp may still be on its way
            self.lags_ms.append(max(0, self.clock.wall_ms() - at_ms))


def run(*, seconds: float = 8.0, clock: Clock = SYSTEM) -> None:
    """Run the demonstration in a temporary directory and print what happened."""
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder,
        _world(console, Path(folder), clock) as world,
    ):
        _workload(world, seconds)
        _wait_until_captured(world)
        _merge(world)
        compared = _compare(world)
        _report(world, seconds, compared)


@contextmanager
def _world(console: Console, folder: Path, clock: Clock) -> Iterator[_World]:
    with StoreProcess.start(folder / "store", stores=3) as store, Client.connect([store.pd_addr]) as client:
        console.print(f"Embedded store with 3 TiKV stores; placement driver at [bold]{store.pd_addr}[/]")
        bank = Bank(client, clock)
        tables = bank.open()
        eventloop.run(_split(store.pd_addr, record_key(tables[ACCOUNTS_TABLE], ACCOUNTS // 2)))
        events = f"file://{folder}/events"
        settings = Settings(
            pd_addrs=(store.pd_addr,),
            capture=CaptureSettings(
                data=folder / "capture",
                storage=events,
                tables=("bank.*",),
                flush_interval_s=1,
                idle_flush_interval_s=1,
                flight_addr="127.0.0.1:0",
            ),
        )
        capture = eventloop.run(Capture.start(settings, clock=clock))
        try:
            console.print(
                f"Capture of bank.* into the event store; Arrow Flight at [bold]{capture.flight_addr}[/]"
            )
            yield _World(console, clock, client, capture, StorageRef(events), bank, tables)
        finally:
            eventloop.run(capture.stop())


async def _split(pd_addr: str, key: bytes) -> None:
    admin = Admin(pd_addr)
    try:
        await admin.split([key])
    finally:
        await admin.close()


def _workload(world: _World, seconds: float) -> None:
    clock, bank = world.clock, world.bank
    started = clock.monotonic()
    deadline = started + seconds

    def caller(number: int) -> None:
        while clock.monotonic() < deadline:
            bank.transfer(pessimistic=number % 2 == 1)

    def auditor() -> None:
        while clock.monotonic() < deadline:
            bank.check_total()

    def administrator() -> None:
        clock.pause(seconds / 2)
        bank.add_notes()

    with _progress(world.console) as progress, ThreadPoolExecutor(CALLERS + 2) as pool:
        bar = progress.add_task("transferring")
        work: list[Future[Any]] = [pool.submit(caller, number) for number in range(CALLERS)]
        work += [pool.submit(auditor), pool.submit(administrator)]
        while not all(future.done() for future in work):
            tally = bank.tally
            world.note_lag()
            progress.update(
                bar, description=f"{tally.transfers:,} transfers, {tally.checks:,} snapshots checked"
            )
            clock.pause(_LOOK_S)
        for future in work:
            future.result()
    bank.check_total()


def _wait_until_captured(world: _World) -> None:
    """Wait until every table can be read up to this moment."""
    end = world.client.timestamp()
    deadline = world.clock.monotonic() + _CAPTURE_DEADLINE_S
    for name, table_id in world.tables.items():
        while world.capture.store.readable_ts(table_id) < end:
            if world.clock.monotonic() > deadline:
                raise Unavailable(
                    f"{name} was not captured within {_CAPTURE_DEADLINE_S:.0f} s; run the demo again"
                )
            world.clock.pause(_LOOK_S)


def _merge(world: _World) -> None:
    """Merge what is in objects; newer rows stay where they are."""
    with _progress(world.console) as progress:
        progress.add_task("merging objects")
        world.merges = sum(world.capture.store.merge(table_id) for table_id in world.tables.values())


def _compare(world: _World) -> int:
    """Compare captured tables with snapshots at many moments; raise Corrupt for the first difference."""
    moments = world.bank.tally.moments
    chosen = sorted({*moments[:: max(1, len(moments) // _MOMENTS_COMPARED)], moments[-1]})
    compared = 0
    with FlightReader(world.capture.flight_addr) as rows, _progress(world.console) as progress:
        bar = progress.add_task("comparing")
        for name in world.tables:
            table = find_table(world.storage, name, rows=rows)
            followed: _Rows = {}
            last_ts = 0
            for ts in chosen:
                followed, last_ts = _brought_forward(world, table, followed, last_ts, ts), ts
                stored = _by_id(world.bank.db.table(name).scan(at_ts=ts))
                captured = _by_id(read_snapshot(table, ts))
                if not _same(captured) == _same(followed) == _same(stored):
                    raise Corrupt(
                        f"{name} differs from its snapshot at {ts}; this is a defect, please report it"
                    )
                compared += 1
                progress.update(bar, description=f"{compared} snapshots compared")
    return compared


_Rows = dict[int, dict[str, Any]]


def _by_id(batches: Iterable[pa.RecordBatch]) -> _Rows:
    return {row["id"]: row for batch in batches for row in batch.to_pylist()}


def _brought_forward(world: _World, table: TableView, rows: _Rows, from_ts: int, to_ts: int) -> _Rows:
    """Rows as of one timestamp (0: none), brought to a later one by what changed in between."""
    found = dict(rows)
    with collect_changes(table, from_ts, to_ts) as handle:
        for batch in handle:
            for key in batch.tombstones.column("id").to_pylist():
                del found[key]
            found |= _by_id([batch.data])
            world.changes += batch.data.num_rows + batch.tombstones.num_rows
    return found


def _same(rows: _Rows) -> _Rows:
    """Rows without their timestamps and NULLs: a change before a column was added does not have it."""
    return {
        key: {name: value for name, value in row.items() if value is not None and name != COMMIT_TS}
        for key, row in rows.items()
    }


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _report(world: _World, seconds: float, compared: int) -> None:
    tally = world.bank.tally
    storage = world.storage.open()
    states = [load(storage, paths.table_root(table_id)) for table_id in world.tables.values()]
    objects = [each for state in states for each in state.objects.values() if each.kind != "merged"]
    cuts = quantiles(world.lags_ms, n=100) if len(world.lags_ms) > 1 else world.lags_ms * 99
    table = Table(title="Transfers between accounts", show_header=False)
    table.add_row("accounts", f"{ACCOUNTS:,} rows in 2 regions")
    table.add_row("callers", f"{CALLERS}, half optimistic, half pessimistic")
    table.add_row("transfers committed", f"{tally.transfers:,} ({tally.transfers / seconds:,.0f}/s)")
    table.add_row("conflicts met and retried", f"{tally.conflicts:,}")
    table.add_row("column added while it ran", "bank.transfers.note")
    table.add_row("snapshots checked", f"{tally.checks:,}")
    table.add_row("total in every snapshot", f"{ACCOUNTS * OPENING_BALANCE:,}: [bold green]holds[/]")
    table.add_row("rows captured", f"{sum(each.rows for each in objects):,} in {len(objects):,} objects")
    table.add_row("capture lag, p50 / p99", f"{cuts[49]:,.0f} ms / {cuts[98]:,.0f} ms")
    table.add_row("objects merged", f"{world.merges:,} merges")
    table.add_row("changes applied from moment to moment", f"{world.changes:,}")
    table.add_row("captured tables against snapshots", f"{compared} comparisons: [bold green]equal[/]")
    world.console.print(table)
