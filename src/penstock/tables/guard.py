"""Refuses the commit of rows that the schema at the commit would have written otherwise."""

import threading
import weakref
from collections.abc import Mapping, Sequence

from penstock.kv import Client, Transaction
from penstock.kv.protocol import Write
from penstock.tables.meta import parse_json, table_key
from penstock.tables.online import is_same_form
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import TablePlace

_PARSED_MAX = 256


class SchemaGuard:
    """The schema hook of a transaction that writes rows.

    Rows commit when the tables have the columns and indexes that the rows were written with. The check reads
    at the commit timestamp, where it meets the lock of a change that commits before, so it is exact.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._written: dict[bytes, TableInfo] = {}
        self._remembered: set[bytes] = set()

    def uses(self, place: TablePlace, *, remembered: bool = False) -> None:
        """Note that the transaction writes rows of a table under this schema.

        A remembered schema may be older than the transaction: then nothing of it may have changed, also not
        its name or a default.
        """
        key = table_key(place.database.id, place.table.id)
        self._written[key] = place.table
        (self._remembered.add if remembered else self._remembered.discard)(key)

    async def check(self, since_ts: int, until_ts: int) -> bool:
        """Return whether every table written to still takes the rows as they are."""
        del since_ts
        if not self._written:
            return True
        snapshot = self._client.on_loop.snapshot(until_ts)
        return self._holds(await snapshot.batch_get(sorted(self._written)))

    def _holds(self, stored: Mapping[bytes, bytes]) -> bool:
        for key, written in self._written.items():
            if key not in stored:
                return False
            current = _parsed.table(key, stored[key])
            same = current == written if key in self._remembered else is_same_form(written, current)
            if not same:
                return False
        return True

    async def amend(self, since_ts: int, until_ts: int, writes: Sequence[Write]) -> Sequence[Write] | None:
        """Return None: the transaction runs again under the new schema."""
        del since_ts, until_ts, writes
        return None


class _ParsedSchemas:
    """Descriptions of tables by their bytes, so that a commit compares without parsing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[bytes, tuple[bytes, TableInfo]] = {}

    def table(self, key: bytes, value: bytes) -> TableInfo:
        """Return the table that a value of the meta keys describes."""
        with self._lock:
            known = self._tables.get(key)
        if known is not None and known[0] == value:
            return known[1]
        table = TableInfo.from_json(parse_json(value))
        with self._lock:
            self._tables[key] = (value, table)
            while len(self._tables) > _PARSED_MAX:
                del self._tables[next(iter(self._tables))]
        return table


_parsed = _ParsedSchemas()


class Guards:
    """The guarded transactions of a catalog."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._guards: weakref.WeakKeyDictionary[Transaction, SchemaGuard] = weakref.WeakKeyDictionary()

    def begin(self, *, pessimistic: bool = False, commits_soon: bool = False) -> Transaction:
        """Begin a transaction with a guard; one that commits soon asks for its commit timestamp already."""
        guard = SchemaGuard(self._client)
        txn = self._client.begin(pessimistic=pessimistic, reserve_commit_ts=commits_soon)
        txn.check_schema_by(guard)
        self._guards[txn] = guard
        return txn

    def uses(self, txn: Transaction, place: TablePlace, *, remembered: bool = False) -> None:
        """Note that a transaction writes rows of a table; guard it from now on if it was begun elsewhere.

        Raise Invalid for a transaction with a schema hook of its own.
        """
        guard = self._guards.get(txn)
        if guard is None:
            guard = SchemaGuard(self._client)
            txn.check_schema_by(guard)
            self._guards[txn] = guard
        guard.uses(place, remembered=remembered)
