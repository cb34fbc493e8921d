"""A recorded history of a real TiDB, replayed into the embedded store.

record = load_record()
async with replaying(tmp_path / "kv") as (pd_addr, replay):
    for point in record.points:
        ts = await replay.until(point)  # reads at ts see every transaction up to the point
        ...

`PENSTOCK_TIDB_HISTORY` names the folder of another record; tests/golden/README.md has the format.
"""

import gzip
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.kv import AsyncClient
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables.codec.rows import decode
from penstock.tables.keys import is_record_key

__all__ = [
    "GOLDEN",
    "Mutation",
    "Point",
    "PointTable",
    "RecordedTxn",
    "Replay",
    "TidbRecord",
    "load_record",
    "replaying",
    "without_sources",
]

GOLDEN = Path(__file__).parent.parent / "golden" / "tidb-history"
REWRITES = 1 << 8
"""The source of TiDB's transactions that rewrite a column."""
_MODIFIES = re.compile(r"\b(MODIFY|CHANGE)\b", re.IGNORECASE)
_VIRTUAL = " VIRTUAL"


class Mutation(NamedTuple):
    """One key of a transaction; `op` is put, del or lock."""

    op: str
    key: bytes
    value: bytes


@dataclass(frozen=True)
class RecordedTxn:
    """A transaction that TiDB committed, with TiDB's timestamps.

    `source` is what TiDB said of the writer: change streams leave out the backfill of MODIFY COLUMN by it.
    """

    start_ts: int
    commit_ts: int
    statement: int
    mutations: tuple[Mutation, ...]
    source: int = 0


@dataclass(frozen=True, eq=False)
class PointTable:
    """A base table at a point: what SHOW CREATE TABLE and SELECT * answered."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    create: str
    rows: tuple[tuple[str | None, ...], ...]

    def differs(self, other: "PointTable | None") -> bool:
        """Return whether the table has other columns or rows than at another point, or was not there."""
        return other is None or (self.columns, self.types, self.rows) != (
            other.columns,
            other.types,
            other.rows,
        )

    @property
    def is_temporary(self) -> bool:
        """Whether the rows of the table never leave a session: nobody else can have them."""
        return self.create.startswith("CREATE GLOBAL TEMPORARY")

    @property
    def virtual_columns(self) -> frozenset[str]:
        """Generated columns that TiDB computes on read: no key and no value has them, so TiCDC has none."""
        return frozenset(name for name, line in self._definitions if _is_virtual(line))

    @property
    def not_null_columns(self) -> frozenset[str]:
        """Columns that have a value in every row."""
        return frozenset(name for name, line in self._definitions if " NOT NULL" in line)

    @property
    def _definitions(self) -> Iterator[tuple[str, str]]:
        lines = [line.strip() for line in self.create.splitlines()]
        for name in self.columns:
            yield name, next(line for line in lines if line.startswith(_quote(name)))

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The columns that rows have in the key-value store."""
        return tuple(name for name in self.columns if name not in self.virtual_columns)


@dataclass(frozen=True)
class Point:
    """A moment of the record, with every table of it by `database.table`."""

    name: str
    ts: int
    tables: Mapping[str, PointTable]


@dataclass(frozen=True)
class TidbRecord:
    """A whole record: transactions in the order of their commits, and the points between them."""

    txns: tuple[RecordedTxn, ...]
    points: tuple[Point, ...]
    statements: Mapping[int, str]

    @property
    def databases(self) -> tuple[str, ...]:
        """The databases that had a table at some point."""
        return tuple(sorted({name.partition(".")[0] for point in self.points for name in point.tables}))

    @property
    def patterns(self) -> list[str]:
        """What a user would name to capture all of it."""
        return [f"{database}.*" for database in self.databases]


@cache
def load_record(folder: str = "") -> TidbRecord:
    """Read a record; by default the one of PENSTOCK_TIDB_HISTORY, else that of tests/golden.

    Where a record does not say which transactions are backfills of MODIFY COLUMN, their rows tell.
    """
    root = Path(folder or os.environ.get("PENSTOCK_TIDB_HISTORY") or GOLDEN)
    trees = list(_lines(root / "txns.jsonl.gz"))
    txns = [
        RecordedTxn(
            txn["start_ts"],
            txn["commit_ts"],
            txn["stmt"],
            tuple(_mutations(txn["muts"])),
            txn.get("txn_source", 0),
        )
        for txn in trees
    ]
    txns.sort(key=lambda txn: (txn.commit_ts, txn.start_ts))
    statements = {tree["n"]: tree["sql"] for tree in _lines(root / "statements.jsonl.gz")}
    if not any(txn.source for txn in txns):
        txns = _mark_backfills(txns, statements)
    points = [_point(tree) for tree in _lines(root / "points.jsonl.gz")]
    return TidbRecord(tuple(txns), tuple(sorted(points, key=lambda point: point.ts)), statements)


def without_sources(record: TidbRecord) -> TidbRecord:
    """Return a record as a TiKV before 6.5 has it, which sends backfills as well."""
    return replace(record, txns=tuple(replace(txn, source=0) for txn in record.txns))


def _mark_backfills(txns: list[RecordedTxn], statements: Mapping[int, str]) -> list[RecordedTxn]:
    """Give a source to the transactions of MODIFY COLUMN that add a cell to rows and change no other one."""
    rows: dict[bytes, dict[int, bytes | None]] = {}
    found = []
    for txn in txns:
        adds = []
        for op, key, value in txn.mutations:
            if op == "lock" or not is_record_key(key):
                continue
            before, after = rows.get(key), decode(value).cells if op == "put" else None
            adds.append(before is not None and after is not None and _adds(before, after))
            if after is not None:
                rows[key] = dict(after)
            else:
                rows.pop(key, None)
        rewrites = _MODIFIES.search(statements.get(txn.statement, "")) and adds and all(adds)
        found.append(replace(txn, source=REWRITES) if rewrites else txn)
    return found


def _adds(before: Mapping[int, bytes | None], after: Mapping[int, bytes | None]) -> bool:
    """Return whether a row got a new column and kept its values; columns that are dropped go meanwhile."""
    return max(after) > max(before) and all(after[key] == before[key] for key in before.keys() & after)


def _lines(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _mutations(trees: list[dict[str, str]]) -> Iterator[Mutation]:
    for tree in trees:
        yield Mutation(tree["op"], bytes.fromhex(tree["key"]), bytes.fromhex(tree["value"]))


def _point(tree: Mapping[str, Any]) -> Point:
    tables = {
        name: PointTable(
            name,
            tuple(table["columns"]),
            tuple(table["types"]),
            table["create"],
            tuple(tuple(row) for row in table["rows"] or ()),
        )
        for name, table in tree["tables"].items()
    }
    return Point(tree["name"], tree["ts"], tables)


def _is_virtual(line: str) -> bool:
    return "GENERATED ALWAYS AS" in line and _VIRTUAL in line


def _quote(name: str) -> str:
    return "`{}` ".format(name.replace("`", "``"))


@dataclass
class Replay:
    """Commits a record's transactions in order, each as one transaction of `penstock.kv`.

    `times` has the timestamp of each point that was reached: after everything before it, and before
    everything behind it.
    """

    client: AsyncClient
    record: TidbRecord
    times: dict[str, int] = field(default_factory=dict)
    _next: int = 0

    async def until(self, point: Point) -> int:
        """Replay every transaction up to a point, and note the points before it; return its timestamp."""
        for passed in self.record.points:
            if passed.ts <= point.ts and passed.name not in self.times:
                await self._commit_until(passed.ts)
                self.times[passed.name] = await self.client.timestamp()
        return self.times[point.name]

    async def to_the_end(self) -> int:
        """Replay everything; return the timestamp of the last point."""
        return await self.until(self.record.points[-1])

    async def _commit_until(self, recorded_ts: int) -> None:
        txns = self.record.txns
        while self._next < len(txns) and txns[self._next].commit_ts <= recorded_ts:
            await self._commit(txns[self._next])
            self._next += 1

    async def _commit(self, recorded: RecordedTxn) -> None:
        source = recorded.source
        async with self.client.begin(async_commit=False, one_pc=False, txn_source=source) as txn:
            for op, key, value in recorded.mutations:
                if op == "put":
                    await txn.put(key, value)
                elif op == "del":
                    await txn.delete(key)
                else:
                    await txn.lock_keys([key])


@asynccontextmanager
async def replaying(folder: Path, record: TidbRecord | None = None) -> AsyncIterator[tuple[str, Replay]]:
    """Start a store in `folder`; yield the address of its placement driver, and a replay into it."""
    settings = StoreSettings(data=folder, pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=50)
    cluster = await Cluster.start(settings)
    try:
        async with await AsyncClient.connect((cluster.pd_addr,)) as client:
            yield cluster.pd_addr, Replay(client, record or load_record())
    finally:
        await cluster.stop()
