"""The workload of the demonstration: the tables of a shop, and its transactions.

Customers sign up, order, pay, return, review, move and leave; products come and go. Names and texts are
random.
"""

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from penstock.cli.demo.lags import DemoCommit
from penstock.clock import Clock
from penstock.kv import Transaction
from penstock.kv.transact import transact
from penstock.tables import Catalog
from penstock.tables.keys import record_key

__all__ = [
    "CATEGORIES",
    "CITIES",
    "CUSTOMERS",
    "ORDERS",
    "ORDER_ITEMS",
    "PRODUCTS",
    "REVIEWS",
    "SEARCH_WORDS",
    "DemoKeys",
    "Shop",
    "choose_city",
    "make_customer_name",
    "make_product_name",
    "write_description",
    "write_review",
]


Chance = Callable[[], float]
"""Returns a random number in [0, 1)."""
T = TypeVar("T")

SEARCH_WORDS = "copper kettle for the camp fire"
"""The words that the demonstration searches for, from names and descriptions."""

CATEGORIES = ("kitchen", "garden", "travel", "office", "workshop")
CITIES = ("Aachen", "Bergen", "Cork", "Debrecen", "Évora", "Ghent", "Łódź", "Malmö", "Porto", "Zürich")
_QUALITIES = ("light", "sturdy", "folding", "quiet", "hand-made", "slim", "weatherproof", "classic")
_MATERIALS = ("copper", "oak", "steel", "linen", "glass", "bamboo", "leather", "ceramic", "wool")
_THINGS = (
    *("kettle", "lamp", "chair", "knife", "bottle", "tent", "notebook", "bench"),
    *("basket", "clock", "blanket", "pan", "shelf", "teapot", "backpack", "hammer"),
)
_PLACES = ("the camp fire", "small kitchens", "long journeys", "a quiet desk", "the balcony", "rough weather")
_PRAISE = (
    "It keeps its shape for years.",
    "Every part can be replaced.",
    "It dries in minutes.",
    "Two people carry it easily.",
    "The handle stays cool.",
    "It comes without plastic.",
)
_OPINIONS = (
    "Just what I needed",
    "Good, but heavy",
    "Broke after a week",
    "Lovely colour",
    "Would buy again",
)
_FIRST = ("Ada", "Blaise", "Clara", "Dénes", "Emmy", "Fritz", "Grace", "Hedy", "Ida", "Jón")
_LAST = (
    "Lovelace",
    "Pascal",
    "Immerwahr",
    "Gábor",
    "Noether",
    "Haber",
    "Hopper",
    "Lamarr",
    "Rhodes",
    "Jónsson",
)


def choose(choices: Sequence[T], chance: Chance) -> T:
    """Return a random one of the choices."""
    return choices[int(chance() * len(choices))]


def make_product_name(chance: Chance) -> str:
    """Return a name such as `folding oak chair`."""
    return " ".join(choose(words, chance) for words in (_QUALITIES, _MATERIALS, _THINGS))


def write_description(name: str, chance: Chance) -> str:
    """Return three sentences about a product."""
    first = int(chance() * len(_PRAISE))
    praise = f"{_PRAISE[first - 1]} {_PRAISE[first]}"
    return f"A {name} for {choose(_PLACES, chance)}, made in {choose(CITIES, chance)}. {praise}"


def write_review(chance: Chance) -> str:
    """Return the text of a review."""
    return f"{choose(_OPINIONS, chance)}. {choose(_PRAISE, chance)}"


def make_customer_name(chance: Chance) -> str:
    """Return the name of a customer."""
    return f"{choose(_FIRST, chance)} {choose(_LAST, chance)}"


def choose_city(chance: Chance) -> str:
    """Return a random city."""
    return choose(CITIES, chance)


CUSTOMERS, PRODUCTS, ORDERS = "shop.customers", "shop.products", "shop.orders"
ORDER_ITEMS, REVIEWS = "shop.order_items", "shop.reviews"
COLUMNS: dict[str, list[tuple[str, str]]] = {
    CUSTOMERS: [
        ("id", "bigint auto_increment primary key"),
        ("name", "varchar(64) not null"),
        ("city", "varchar(64)"),
        ("since", "datetime(3)"),
    ],
    PRODUCTS: [
        ("id", "bigint auto_increment primary key"),
        ("name", "varchar(128) not null"),
        ("category", "varchar(32)"),
        ("description", "text"),
        ("price", "decimal(10,2) not null"),
        ("stock", "int not null"),
    ],
    ORDERS: [
        ("id", "bigint auto_increment primary key"),
        ("customer_id", "bigint not null"),
        ("status", "varchar(16) not null"),
        ("total", "decimal(12,2) not null"),
        ("placed_at", "datetime(3) not null"),
    ],
    ORDER_ITEMS: [
        ("order_id", "bigint"),
        ("line", "int"),
        ("product_id", "bigint not null"),
        ("quantity", "int not null"),
        ("price", "decimal(10,2) not null"),
    ],
    REVIEWS: [
        ("id", "bigint auto_increment primary key"),
        ("product_id", "bigint not null"),
        ("stars", "tinyint not null"),
        ("text", "varchar(512)"),
    ],
}
_KEYS = {ORDER_ITEMS: ("order_id", "line")}
_NEXT_STATUS = {"placed": "paid", "paid": "shipped", "shipped": "delivered", "delivered": "delivered"}
_CHANNELS = ("web", "app", "phone")
_LINES_MAX = 4
_FILL_ROWS = 500


class DemoKeys:
    """Keys of rows that probably exist. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: list[int] = []
        self._lock = threading.Lock()

    def add(self, keys: Iterable[int]) -> None:
        """Add the keys of rows that exist."""
        with self._lock:
            self._keys += keys

    def sample(self, count: int) -> list[int]:
        """Return up to `count` random keys, sorted and each once."""
        with self._lock:
            size = len(self._keys)
            return sorted({self._keys[int(self._clock.random() * size)] for _ in range(count) if size})

    def take(self) -> int | None:
        """Remove and return a random key; None when there is none."""
        with self._lock:
            if not self._keys:
                return None
            index = int(self._clock.random() * len(self._keys))
            # Swap it to the end: removing the last key moves no others.
            self._keys[index], self._keys[-1] = self._keys[-1], self._keys[index]
            return self._keys.pop()


class Shop:
    """The transactions of a shop. Each is repeated until it commits without a conflict.

    Thread-safe. `on_commit` is called for every committed transaction.
    """

    def __init__(self, db: Catalog, clock: Clock, on_commit: Callable[[DemoCommit], None]) -> None:
        self._db = db
        self._clock = clock
        self._on_commit = on_commit
        self._customers, self._products, self._orders = DemoKeys(clock), DemoKeys(clock), DemoKeys(clock)
        self._has_channels = self._has_reviews = False

    def open(self, *, customers: int, products: int) -> None:
        """Create the database and its tables, and insert the first rows."""
        self._db.create_database("shop")
        for name in (CUSTOMERS, PRODUCTS, ORDERS, ORDER_ITEMS):
            self._create(name)
        for count in _portions(customers):
            self.sign_up(count, measured=False)
        for count in _portions(products):
            self.offer(count, measured=False)

    # Changes of the schema.

    def add_channels(self) -> str:
        """Add a column to orders while they are written; return what was done."""
        self._db.add_column(ORDERS, "channel", "varchar(16) default 'web'")
        self._has_channels = True
        return f"column channel added to {ORDERS}"

    def open_reviews(self) -> str:
        """Create another table while the others are written; return what was done."""
        self._create(REVIEWS)
        self._has_reviews = True
        return f"table {REVIEWS} created"

    def _create(self, name: str) -> None:
        self._db.create_table(name, COLUMNS[name], primary_key=_KEYS.get(name, ()))

    # Customers.

    def sign_up(self, count: int = 1, *, measured: bool = True) -> None:
        """Insert customers."""
        rows = [
            {
                "name": make_customer_name(self._chance),
                "city": choose_city(self._chance),
                "since": self._now(),
            }
            for _ in range(count)
        ]

        def work(txn: Transaction) -> dict[str, int]:
            keys = self._db.table(CUSTOMERS).insert(rows, txn=txn)
            self._customers.add(keys)
            return {CUSTOMERS: count}

        self._run(work, measured=measured)

    def move(self) -> None:
        """Change the city of a customer."""
        changes = [{"id": key, "city": choose_city(self._chance)} for key in self._customers.sample(1)]
        self._run(lambda txn: {CUSTOMERS: self._db.table(CUSTOMERS).update(changes, txn=txn)})

    def leave(self) -> None:
        """Delete a customer."""
        self._delete(CUSTOMERS, self._customers)

    # Products.

    def offer(self, count: int = 1, *, measured: bool = True) -> None:
        """Insert products."""
        names = [make_product_name(self._chance) for _ in range(count)]
        rows = [
            {
                "name": name,
                "category": choose(CATEGORIES, self._chance),
                "description": write_description(name, self._chance),
                "price": self._price(),
                "stock": 1_000,
            }
            for name in names
        ]

        def work(txn: Transaction) -> dict[str, int]:
            self._products.add(self._db.table(PRODUCTS).insert(rows, txn=txn))
            return {PRODUCTS: count}

        self._run(work, measured=measured)

    def rewrite(self) -> None:
        """Change the name, description and price of a product."""
        name = make_product_name(self._chance)
        changes = [
            {
                "id": key,
                "name": name,
                "description": write_description(name, self._chance),
                "price": self._price(),
            }
            for key in self._products.sample(1)
        ]
        self._run(lambda txn: {PRODUCTS: self._db.table(PRODUCTS).update(changes, txn=txn)})

    def restock(self) -> None:
        """Refill the stock of some products."""
        changes = [{"id": key, "stock": 1_000} for key in self._products.sample(5)]
        self._run(lambda txn: {PRODUCTS: self._db.table(PRODUCTS).update(changes, txn=txn)})

    def retire(self) -> None:
        """Delete a product."""
        self._delete(PRODUCTS, self._products)

    def review(self) -> None:
        """Insert reviews, once their table exists."""
        if not self._has_reviews:
            return
        rows = [
            {
                "product_id": key,
                "stars": 1 + int(self._chance() * 5),
                "text": write_review(self._chance),
            }
            for key in self._products.sample(2)
        ]
        self._run(lambda txn: {REVIEWS: len(self._db.table(REVIEWS).insert(rows, txn=txn))})

    # Orders.

    def order(self, *, pessimistic: bool) -> None:
        """Insert an order with its lines and reduce the stock, in one transaction over three tables."""
        customers, product_ids = self._customers.sample(1), self._products.sample(_LINES_MAX)
        # Read before the transaction begins, because its schema is that of its start.
        channel = {"channel": choose(_CHANNELS, self._chance)} if self._has_channels else {}

        def work(txn: Transaction) -> dict[str, int]:
            products = self._db.table(PRODUCTS)
            if pessimistic:  # in key order, so that there is no deadlock
                txn.lock_keys([record_key(products.info.id, key) for key in product_ids])
            found = [row for key in product_ids if (row := products.get(key, txn=txn)) and row["stock"] > 0]
            return self._place_order(txn, customers[0], found, channel) if customers and found else {}

        self._run(work, pessimistic=pessimistic)

    def _place_order(
        self, txn: Transaction, customer_id: int, found: Sequence[dict[str, Any]], channel: dict[str, str]
    ) -> dict[str, int]:
        order = {
            "customer_id": customer_id,
            "status": "placed",
            "total": sum((row["price"] for row in found), Decimal()),
            "placed_at": self._now(),
            **channel,
        }
        (order_id,) = self._db.table(ORDERS).insert([order], txn=txn)
        lines = [
            {
                "order_id": order_id,
                "line": line,
                "product_id": row["id"],
                "quantity": 1,
                "price": row["price"],
            }
            for line, row in enumerate(found, 1)
        ]
        self._db.table(ORDER_ITEMS).insert(lines, txn=txn)
        less = [{"id": row["id"], "stock": row["stock"] - 1} for row in found]
        self._db.table(PRODUCTS).update(less, txn=txn)
        self._orders.add([order_id])
        return {ORDERS: 1, ORDER_ITEMS: len(lines), PRODUCTS: len(less)}

    def proceed(self) -> None:
        """Move some orders to their next status."""
        keys = self._orders.sample(5)

        def work(txn: Transaction) -> dict[str, int]:
            orders = self._db.table(ORDERS)
            found = [row for key in keys if (row := orders.get(key, txn=txn))]
            changes = [{"id": row["id"], "status": _NEXT_STATUS[row["status"]]} for row in found]
            return {ORDERS: orders.update(changes, txn=txn)}

        self._run(work)

    def cancel(self) -> None:
        """Delete an order with its lines."""
        order_id = self._orders.take()
        if order_id is None:
            return

        def work(txn: Transaction) -> dict[str, int]:
            lines = [(order_id, line) for line in range(1, _LINES_MAX + 1)]
            gone = self._db.table(ORDER_ITEMS).delete(lines, txn=txn)
            return {ORDERS: self._db.table(ORDERS).delete([order_id], txn=txn), ORDER_ITEMS: gone}

        self._run(work)

    def _delete(self, table: str, keys: DemoKeys) -> None:
        key = keys.take()
        if key is not None:
            self._run(lambda txn: {table: self._db.table(table).delete([key], txn=txn)})

    def _run(
        self,
        work: Callable[[Transaction], dict[str, int]],
        *,
        pessimistic: bool = False,
        measured: bool = True,
    ) -> None:
        begin = partial(self._db.begin, pessimistic=pessimistic)
        txn, counts = transact(begin, lambda txn: (txn, work(txn)), clock=self._clock)
        rows = {table: count for table, count in counts.items() if count}
        if rows:
            self._on_commit(DemoCommit(txn.commit_ts, rows, measured))

    def _chance(self) -> float:
        return self._clock.random()

    def _price(self) -> Decimal:
        return Decimal(100 + int(self._chance() * 20_000)) / 100

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.wall_ms() / 1000, dt.UTC).replace(tzinfo=None)


def _portions(rows: int) -> Iterable[int]:
    """Yield the sizes of the transactions that insert so many rows."""
    for start in range(0, rows, _FILL_ROWS):
        yield min(_FILL_ROWS, rows - start)
