"""A bank in two tables, as a workload: transfers from many callers, with a total that must never change."""

import threading
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.errors import Conflict, Corrupt
from penstock.kv import Client
from penstock.tables import Catalog
from penstock.tables.keys import record_key

ACCOUNTS = 100
OPENING_BALANCE = 1_000
ACCOUNTS_TABLE = "bank.accounts"
TRANSFERS_TABLE = "bank.transfers"
_ATTEMPTS_MAX = 50


@dataclass(slots=True)
class Tally:
    """What the callers did, and timestamps to look back at, kept under a lock."""

    transfers: int = 0
    conflicts: int = 0
    checks: int = 0
    moments: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def transferred(self, conflicts: int) -> None:
        """Count a committed transfer and the conflicts it met on the way."""
        with self._lock:
            self.transfers += 1
            self.conflicts += conflicts

    def checked(self, ts: int) -> None:
        """Count a snapshot that was found right."""
        with self._lock:
            self.checks += 1
            self.moments.append(ts)


class Bank:
    """The tables and what callers do to them."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.db = Catalog(client)
        self.tally = Tally()
        self._has_notes = False

    def open(self) -> dict[str, int]:
        """Make the tables and give every account its opening balance; return the tables' ids by name."""
        self.db.create_database("bank")
        accounts = self.db.create_table(
            ACCOUNTS_TABLE,
            [("id", "bigint primary key"), ("owner", "varchar(64)"), ("balance", "bigint not null")],
        )
        transfers = self.db.create_table(
            TRANSFERS_TABLE,
            [
                ("id", "bigint auto_increment primary key"),
                ("source", "bigint"),
                ("target", "bigint"),
                ("amount", "bigint"),
            ],
        )
        self.db.table(ACCOUNTS_TABLE).insert(
            {"id": number, "owner": f"customer {number}", "balance": OPENING_BALANCE}
            for number in range(ACCOUNTS)
        )
        return {ACCOUNTS_TABLE: accounts.id, TRANSFERS_TABLE: transfers.id}

    def add_notes(self) -> None:
        """Change a schema under the running callers."""
        self.db.add_column(TRANSFERS_TABLE, "note", "varchar(64)")
        self._has_notes = True

    def transfer(self, *, pessimistic: bool) -> None:
        """Move a random amount between two accounts, again and again until no conflict is met."""
        source = int(self._clock.random() * ACCOUNTS)
        target = (source + 1 + int(self._clock.random() * (ACCOUNTS - 1))) % ACCOUNTS
        for conflicts in range(_ATTEMPTS_MAX):
            try:
                self._transfer(source, target, pessimistic=pessimistic)
            except Conflict:
                continue
            self.tally.transferred(conflicts)
            return
        raise Conflict(f"a transfer met {_ATTEMPTS_MAX} conflicts in a row")

    def _transfer(self, source: int, target: int, *, pessimistic: bool) -> None:
        accounts, transfers = self.db.table(ACCOUNTS_TABLE), self.db.table(TRANSFERS_TABLE)
        note = {"note": "with regards"} if self._has_notes else {}
        with self.db.begin(pessimistic=pessimistic) as txn:
            if pessimistic:
                txn.lock_keys([record_key(accounts.info.id, number) for number in sorted((source, target))])
            balances = {
                number: self._balance(number, accounts.get(number, txn=txn)) for number in (source, target)
            }
            amount = min(balances[source], int(self._clock.random() * 100))
            accounts.update(
                [
                    {"id": source, "balance": balances[source] - amount},
                    {"id": target, "balance": balances[target] + amount},
                ],
                txn=txn,
            )
            transfers.insert([{"source": source, "target": target, "amount": amount, **note}], txn=txn)

    @staticmethod
    def _balance(number: int, row: dict[str, object] | None) -> int:
        if row is None:
            raise Corrupt(f"account {number} is gone; keep the data directory")
        balance = row["balance"]
        assert isinstance(balance, int)
        return balance

    def check_total(self) -> None:
        """Raise Corrupt when money appeared or vanished in the snapshot of this moment."""
        ts = self._client.timestamp()
        balances = self.db.table(ACCOUNTS_TABLE).to_arrow(columns=["balance"], at_ts=ts)
        total = sum(balances["balance"].to_pylist())
        if total != ACCOUNTS * OPENING_BALANCE:
            raise Corrupt(
                f"the accounts hold {total} at {ts}, not {ACCOUNTS * OPENING_BALANCE}; keep the data"
            )
        self.tally.checked(ts)
