"""Tables of a shop that change all the time, for tests of whatever follows them.

items   a number as its key, columns of several types, NULLs; gets a column while rows change
tags    a key of two texts
visits  no primary key
"""

import base64
import datetime as dt
import random  # noqa: TID251 - only the type; the caller's seed decides the numbers
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from penstock.clock import SYSTEM, Clock
from penstock.kv import Transaction
from penstock.tables import Catalog

__all__ = ["ADDED", "ADDED_DEFAULT", "KEYS", "TABLES", "WORDS", "ShopWorkload", "item_of_json"]

TABLES: dict[str, list[tuple[str, str]]] = {
    "shop.items": [
        ("id", "bigint primary key"),
        ("title", "varchar(64)"),
        ("body", "text"),
        ("price", "decimal(12,2)"),
        ("score", "double"),
        ("seen", "datetime(3)"),
        ("data", "varbinary(24)"),
    ],
    "shop.tags": [
        ("kind", "varchar(16)"),
        ("name", "varchar(32)"),
        ("note", "varchar(64)"),
        ("weight", "int"),
    ],
    "shop.visits": [("number", "bigint"), ("place", "varchar(32)")],
}
KEYS: dict[str, tuple[str, ...]] = {
    "shop.items": ("id",),
    "shop.tags": ("kind", "name"),
    "shop.visits": ("number",),
}
"""What identifies a row, also where it is no key."""
ADDED, ADDED_DEFAULT = "stock", 7
"""The column that comes later, and what it is in rows from before."""

WORDS = ("river", "dam", "turbine", "valve", "gate", "water", "penstock", "größe")
_FILL_ROWS = 5_000
_KINDS = ("a", "b", "Ab", "ä")
_DAY = dt.datetime(2024, 2, 29, 23, 59, 59)


def item_of_json(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item, or its key, from its JSON form."""
    read: dict[str, Callable[[Any], Any]] = {
        "id": int,
        "price": Decimal,
        "seen": dt.datetime.fromisoformat,
        "data": base64.b64decode,
    }
    return {
        name: value if value is None or name not in read else read[name](value) for name, value in row.items()
    }


class ShopWorkload:
    """Commits transactions of chance: rows that come, change, change their keys and go, in all tables.

    It knows which keys are there, so every statement finds its rows. `last_ts` is the last commit of each
    table.
    """

    def __init__(self, db: Catalog, mix: random.Random, *, clock: Clock = SYSTEM) -> None:
        self.last_ts = dict.fromkeys(TABLES, 0)
        self.commits = 0
        self._db = db
        self._mix = mix
        self._clock = clock
        self._items: list[int] = []
        self._tags: list[tuple[str, str]] = []
        self._visits: list[int] = []  # row ids
        self._numbers = 0
        self._added = False
        self._to_be_added = threading.Event()

    def create(self) -> None:
        """Make the tables."""
        self._db.create_database("shop")
        for name, columns in TABLES.items():
            key = KEYS[name] if name == "shop.tags" else ()
            self._db.create_table(name, columns, primary_key=key)

    def fill(self, rows: int) -> None:
        """Rows of every table, in one transaction each."""
        self._commit("shop.items", lambda txn: self._insert_items(txn, rows))
        self._commit("shop.tags", lambda txn: self._insert_tags(txn, rows))
        self._commit("shop.visits", lambda txn: self._insert_visits(txn, rows))

    def fill_items(self, rows: int) -> None:
        """Many items, some thousands in a transaction."""
        for start in range(0, rows, _FILL_ROWS):
            count = min(_FILL_ROWS, rows - start)
            self._commit("shop.items", lambda txn, count=count: self._insert_items(txn, count))

    def add_column(self) -> None:
        """Let items get a column that is 7 in all rows from before; some moments later, while it runs."""
        self._to_be_added.set()

    @contextmanager
    def running(self, pause_s: float) -> Iterator[None]:
        """Commit all the time, until the block ends; raise what went wrong with that."""
        stopped, failures = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                while not stopped.wait(pause_s * self._mix.random()):
                    if self._to_be_added.is_set() and not self._added:
                        self._db.add_column("shop.items", ADDED, f"int default {ADDED_DEFAULT}")
                        self._added = True
                    self.commit()
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=work, name="workload")
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
        assert not failures, f"the workload failed: {type(failures[0]).__name__}"
        self.commit_everywhere()

    def commit(self) -> None:
        """One transaction, in one table or in all."""
        chance = self._mix.random()
        if chance < 0.5:
            self._commit("shop.items", self._change_items)
        elif chance < 0.75:
            self._commit("shop.tags", self._change_tags)
        elif chance < 0.9:
            self._commit("shop.visits", self._change_visits)
        else:
            self.commit_everywhere()

    def commit_everywhere(self) -> None:
        """One transaction in all tables."""

        def change(txn: Transaction) -> None:
            self._change_items(txn)
            self._change_tags(txn)
            self._change_visits(txn)

        self._commit(" ".join(TABLES), change)

    def _commit(self, tables: str, change: Any) -> None:
        with self._db.begin() as txn:
            change(txn)
        self.commits += 1
        for name in tables.split():
            self.last_ts[name] = txn.commit_ts

    # items

    def _change_items(self, txn: Transaction) -> None:
        table, mix = self._db.table("shop.items"), self._mix
        self._insert_items(txn, mix.choice([1, 1, 2, 40]))
        changed = self._some(self._items, mix.choice([1, 3, 30]))
        table.update([{**self._item(), "id": item_id} for item_id in changed], txn=txn)
        partly = self._some(self._items, 2)
        table.update([{"id": item_id, "price": None} for item_id in partly], txn=txn)
        for old in self._some(self._items, mix.choice([0, 0, 1])):  # its key changes
            row = table.get(old, txn=txn)
            assert row is not None
            table.delete([old], txn=txn)
            self._items.remove(old)
            table.insert([{**row, "id": self._new_id()}], txn=txn)
        leaving = self._some(self._items, mix.choice([0, 1, 3, 38]))
        table.delete(leaving, txn=txn)
        self._items = sorted(set(self._items).difference(leaving))
        if leaving and mix.random() < 0.5:  # and comes back at once, as another row
            table.insert([{**self._item(), "id": leaving[0]}], txn=txn)
            self._items.append(leaving[0])

    def _insert_items(self, txn: Transaction, count: int) -> None:
        rows = [{**self._item(), "id": self._new_id()} for _ in range(count)]
        self._db.table("shop.items").insert(rows, txn=txn)

    def _new_id(self) -> int:
        self._numbers += 1
        self._items.append(self._numbers)
        return self._numbers

    def _item(self) -> dict[str, Any]:
        mix = self._mix
        row = {
            "title": None if mix.random() < 0.1 else self._text(3),
            "body": self._text(mix.choice([2, 10, 40])),
            "price": mix.choice([None, Decimal(mix.randint(-(10**6), 10**6)) / 100]),
            "score": mix.random() - 0.5,
            "seen": mix.choice([None, _DAY + dt.timedelta(milliseconds=mix.randint(0, 10**9))]),
            "data": mix.choice([None, b"", mix.randbytes(8)]),
        }
        return {**row, ADDED: mix.choice([None, mix.randint(0, 99)])} if self._added else row

    def _text(self, words: int) -> str:
        return " ".join(self._mix.choices(WORDS, k=words)) + f" {self._mix.randint(0, 10**6)}"

    # tags

    def _change_tags(self, txn: Transaction) -> None:
        table, mix = self._db.table("shop.tags"), self._mix
        self._insert_tags(txn, mix.choice([1, 2]))
        changed = self._some(self._tags, 2)
        table.update(
            [{"kind": kind, "name": name, "weight": mix.randint(-5, 5)} for kind, name in changed], txn=txn
        )
        for old in self._some(self._tags, 1):  # its key changes
            row = table.get(old, txn=txn)
            assert row is not None
            table.delete([old], txn=txn)
            self._tags.remove(old)
            kind, name = self._new_tag()
            table.insert([{**row, "kind": kind, "name": name}], txn=txn)
        leaving = self._some(self._tags, mix.choice([0, 2]))
        table.delete(leaving, txn=txn)
        self._tags = sorted(set(self._tags).difference(leaving))

    def _insert_tags(self, txn: Transaction, count: int) -> None:
        rows = []
        for _ in range(count):
            kind, name = self._new_tag()
            rows.append(
                {"kind": kind, "name": name, "note": self._text(2), "weight": self._mix.randint(0, 9)}
            )
        self._db.table("shop.tags").insert(rows, txn=txn)

    def _new_tag(self) -> tuple[str, str]:
        self._numbers += 1
        self._tags.append((self._mix.choice(_KINDS), f"{self._mix.choice(WORDS)}-{self._numbers}"))
        return self._tags[-1]

    # visits

    def _change_visits(self, txn: Transaction) -> None:
        self._insert_visits(txn, self._mix.choice([1, 3]))
        leaving = self._some(self._visits, self._mix.choice([0, 2]))
        self._db.table("shop.visits").delete(leaving, txn=txn)
        self._visits = sorted(set(self._visits).difference(leaving))

    def _insert_visits(self, txn: Transaction, count: int) -> None:
        rows = []
        for _ in range(count):
            self._numbers += 1
            rows.append({"number": self._numbers, "place": self._mix.choice([None, self._text(1)[:32]])})
        self._visits += self._db.table("shop.visits").insert(rows, txn=txn)

    def _some(self, there: list[Any], count: int) -> list[Any]:
        return self._mix.sample(there, min(count, len(there)))
