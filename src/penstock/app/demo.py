"""`penstock demo`: the embedded store under a transfer workload, with its invariant checked live."""

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Conflict, Corrupt
from penstock.kv import Client
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster

ACCOUNTS = 100
OPENING_BALANCE = 1_000
CALLERS = 8
_ATTEMPTS_MAX = 50


@dataclass(slots=True)
class Tally:
    """What the callers did, counted under a lock."""

    transfers: int = 0
    conflicts: int = 0
    checks: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, transfers: int = 0, conflicts: int = 0, checks: int = 0) -> None:
        """Count."""
        with self.lock:
            self.transfers += transfers
            self.conflicts += conflicts
            self.checks += checks


def account_key(number: int) -> bytes:
    """The key of an account's balance."""
    return b"account/%04d" % number


def open_accounts(client: Client) -> None:
    """Give every account its opening balance, in one transaction."""
    with client.begin() as txn:
        for number in range(ACCOUNTS):
            txn.put(account_key(number), b"%d" % OPENING_BALANCE)


def transfer(client: Client, clock: Clock, *, pessimistic: bool) -> int:
    """Move a random amount between two accounts; return how many conflicts it met on the way."""
    source = int(clock.random() * ACCOUNTS)
    target = (source + 1 + int(clock.random() * (ACCOUNTS - 1))) % ACCOUNTS
    for conflicts in range(_ATTEMPTS_MAX):
        try:
            with client.begin(pessimistic=pessimistic) as txn:
                keys = sorted((account_key(source), account_key(target)))
                if pessimistic:
                    txn.lock_keys(keys)
                balances = {key: int(txn.get(key) or b"0") for key in keys}
                amount = min(balances[account_key(source)], int(clock.random() * 100))
                txn.put(account_key(source), b"%d" % (balances[account_key(source)] - amount))
                txn.put(account_key(target), b"%d" % (balances[account_key(target)] + amount))
        except Conflict:
            continue
        return conflicts
    raise Conflict(f"a transfer met {_ATTEMPTS_MAX} conflicts in a row")


def total_at(client: Client, ts: int) -> int:
    """Sum all balances in the snapshot at `ts`."""
    return sum(int(value) for _, value in client.snapshot(ts).iter(b"account/", b"account0"))


def check_total(client: Client) -> None:
    """Raise Corrupt when money appeared or vanished."""
    ts = client.timestamp()
    total = total_at(client, ts)
    if total != ACCOUNTS * OPENING_BALANCE:
        raise Corrupt(
            f"the accounts hold {total} at {ts}, not {ACCOUNTS * OPENING_BALANCE}; keep the data directory"
        )


def run(*, seconds: float = 8.0, clock: Clock = SYSTEM) -> None:
    """Run the demonstration in a temporary directory and print what happened."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as data:
        settings = StoreSettings(data=Path(data), pd_addr="127.0.0.1:0", stores=3)
        cluster = eventloop.run(Cluster.start(settings, clock=clock))
        try:
            with Client.connect([cluster.pd_addr]) as client:
                _workload(console, client, cluster, seconds, clock)
        finally:
            eventloop.run(cluster.stop())


def _workload(console: Console, client: Client, cluster: Cluster, seconds: float, clock: Clock) -> None:
    console.print(f"Embedded store with 3 TiKV stores; placement driver at [bold]{cluster.pd_addr}[/]")
    open_accounts(client)
    middle = account_key(ACCOUNTS // 2)
    eventloop.run(cluster.split_at([middle]))
    tally = Tally()
    deadline = clock.monotonic() + seconds

    def caller(number: int) -> None:
        while clock.monotonic() < deadline:
            conflicts = transfer(client, clock, pessimistic=number % 2 == 1)
            tally.add(transfers=1, conflicts=conflicts)

    def auditor() -> None:
        while clock.monotonic() < deadline:
            check_total(client)
            tally.add(checks=1)

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True) as progress,
        ThreadPoolExecutor(CALLERS + 1) as pool,
    ):
        bar = progress.add_task("transferring")
        work = [pool.submit(caller, number) for number in range(CALLERS)]
        work.append(pool.submit(auditor))
        while not all(future.done() for future in work):
            progress.update(
                bar, description=f"{tally.transfers:,} transfers, {tally.checks:,} snapshots checked"
            )
            clock.pause(0.1)
        for future in work:
            future.result()
    check_total(client)
    _report(console, tally, seconds)


def _report(console: Console, tally: Tally, seconds: float) -> None:
    table = Table(title="Transfers between accounts", show_header=False)
    table.add_row("accounts", f"{ACCOUNTS:,} in 2 regions")
    table.add_row("callers", f"{CALLERS}, half optimistic, half pessimistic")
    table.add_row("transfers committed", f"{tally.transfers:,} ({tally.transfers / seconds:,.0f}/s)")
    table.add_row("conflicts met and retried", f"{tally.conflicts:,}")
    table.add_row("snapshots checked", f"{tally.checks + 1:,}")
    table.add_row(
        "invariant", f"total is {ACCOUNTS * OPENING_BALANCE:,} in every snapshot: [bold green]holds[/]"
    )
    console.print(table)
