"""A recorded history of a real TiDB, replayed into the embedded store.

record = load_record()
async with replaying(tmp_path / "kv") as (pd_addr, replay):
    for point in record.points:
        ts = await replay.until(point)  # reads at ts see every transaction up to the point
        ...

`PENSTOCK_TIDB_HISTORY` names the folder of another record; tests/golden/README.md has the format. A record
may have any number of points, one or more, and any tables, or none: tests derive from it what they compare.
"""

import gzip
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from penstock.eventstore.schema_history import DatabaseDescription, read_description
from penstock.kv import AsyncClient
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables.codec.rows import decode
from penstock.tables.columns import SchemaState
from penstock.tables.keys import META_PREFIX, decode_meta_key, decode_record_key, is_record_key
from penstock.tables.meta import parse_json
from penstock.tables.records import origin_cell
from penstock.tables.schema import TableInfo
from penstock.tables.system_tables import is_system

__all__ = [
    "GOLDEN",
    "Mutation",
    "Part",
    "Point",
    "PointTable",
    "RecordedTxn",
    "Replay",
    "TidbRecord",
    "is_golden",
    "load_record",
    "part_behind",
    "replaying",
    "without_sources",
]

GOLDEN = Path(__file__).parent.parent / "golden" / "tidb-history"
REWRITES = 1 << 8
"""The source of TiDB's transactions that rewrite a column."""
_MODIFIES = re.compile(r"\s*(/\*.*?\*/\s*)*ALTER\b.*\b(MODIFY|CHANGE)\b", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_TEMPORARY = re.compile(r"CREATE (GLOBAL )?TEMPORARY ")
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
        return _TEMPORARY.match(self.create) is not None

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
        """Each column with the line that defines it, without the texts of comments and defaults."""
        lines = [line.strip() for line in self.create.split("\n")]  # texts may have other ends of lines
        for name in self.columns:
            line = next(line for line in lines if line.startswith(_quote(name)))
            yield name, _QUOTED.sub("''", line.removeprefix(_quote(name)))

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The columns that rows have in the key-value store."""
        return tuple(name for name in self.columns if name not in self.virtual_columns)


@dataclass(frozen=True)
class Point:
    """A moment of the record, with every table of it by `database.table`; several may have one name."""

    name: str
    ts: int
    tables: Mapping[str, PointTable]


@dataclass(frozen=True)
class TidbRecord:
    """A whole record: transactions in the order of their commits, and the points between them."""

    txns: tuple[RecordedTxn, ...]
    points: tuple[Point, ...]
    statements: Mapping[int, str]

    @cached_property
    def databases(self) -> tuple[str, ...]:
        """The databases that users ever had: a table may come from one that is gone at every point."""
        found = {name.partition(".")[0] for point in self.points for name in point.tables}
        for txn in self.txns:
            for mutation in txn.mutations:
                if mutation.op == "put" and mutation.key.startswith(META_PREFIX):
                    described = read_description(mutation.key, mutation.value)
                    if isinstance(described, DatabaseDescription) and described.database is not None:
                        found.add(described.database.name)
        return tuple(sorted(name for name in found if not is_system(name)))

    @property
    def patterns(self) -> list[str]:
        """What a user would name to capture all of it."""
        return [f"{escape(database)}.*" for database in self.databases]


class Part(NamedTuple):
    """Points that a test compares: what it starts begins after `start` points; it compares [first:last]."""

    start: int
    first: int
    last: int


def part_behind(points: int, share: float) -> Part:
    """Return what is compared of something that begins after this share of the points, at least one.

    It is compared at each point from there to the end: every point is compared for a share of 0.
    """
    start = max(1, int(points * share))
    return Part(start, start - 1, points)


def is_golden() -> bool:
    """Return whether the record is that of tests/golden, of which tests know what it has."""
    return _record_folder().resolve() == GOLDEN.resolve()


def _record_folder() -> Path:
    return Path(os.environ.get("PENSTOCK_TIDB_HISTORY") or GOLDEN)


@cache
def load_record(folder: str = "") -> TidbRecord:
    """Read a record; by default the one of PENSTOCK_TIDB_HISTORY, else that of tests/golden.

    Where a record does not say which transactions are backfills of MODIFY COLUMN, their rows tell.
    """
    root = Path(folder) if folder else _record_folder()
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
    """Give a source to what MODIFY COLUMN writes: transactions that only add hidden cells to rows."""
    rows: dict[bytes, dict[int, bytes | None]] = {}
    tables: dict[bytes, bytes] = {}
    found = []
    for txn in txns:
        written = []
        for op, key, value in txn.mutations:
            if key.startswith(META_PREFIX):
                tables.pop(key, None)
                if op == "put":
                    tables[key] = value
            if op == "lock" or not is_record_key(key):
                continue
            before, after = rows.pop(key, None), decode(value).cells if op == "put" else None
            written.append((decode_record_key(key)[0], before, after))
            if after is not None:
                rows[key] = dict(after)
        rewrites = _MODIFIES.match(statements.get(txn.statement, "")) and written
        if rewrites and all(_is_backfill(tables, *row) for row in written):
            found.append(replace(txn, source=REWRITES))
        else:
            found.append(txn)
    return found


_Cells = Mapping[int, bytes | None]


def _is_backfill(
    tables: Mapping[bytes, bytes], physical_id: int, before: _Cells | None, after: _Cells | None
) -> bool:
    """Return whether a row kept its values and got what only a backfill writes, with all that rows may lack.

    That is a column that readers do not see. A session's update that gives a value to a column which the row
    lacked is none, though it writes the hidden column as well. Columns that are dropped go meanwhile.
    """
    if before is None or after is None or any(after[key] != before[key] for key in before.keys() & after):
        return False
    for key, value in tables.items():
        if b'"id":%d,' % physical_id in value and (decode_meta_key(key).field or b"").startswith(b"Table:"):
            table = TableInfo.from_json(parse_json(value))
            if physical_id in table.physical_ids:
                added = {number: cell for number, cell in after.items() if number not in before}
                hidden = {column.id for column in table.columns if column.state is not SchemaState.PUBLIC}
                lacked = {column.id: origin_cell(column) for column in table.columns}
                keys = {column.id for column in table.primary_key}
                return not hidden.isdisjoint(added) and all(
                    number in hidden | keys or cell in {None, lacked.get(number)}
                    for number, cell in added.items()
                )
    return False


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

    `times` has the timestamp of each point that was reached, by TiDB's timestamp of it: after everything
    before it, and before everything behind it.
    """

    client: AsyncClient
    record: TidbRecord
    times: dict[int, int] = field(default_factory=dict)
    _next: int = 0

    async def until(self, point: Point) -> int:
        """Replay every transaction up to a point, and note the points before it; return its timestamp."""
        for passed in self.record.points:
            if passed.ts <= point.ts and passed.ts not in self.times:
                await self._commit_until(passed.ts)
                self.times[passed.ts] = await self.client.timestamp()
        return self.times[point.ts]

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
