"""Keeps a transaction from committing rows to a table that was dropped meanwhile."""

import asyncio
import weakref
from collections.abc import Sequence

from penstock.kv import Client, Transaction
from penstock.kv.protocol import Write
from penstock.tables.meta import table_key


class SchemaGuard:
    """The schema hook of a transaction that writes rows.

    Only a drop or a truncation makes encoded rows useless; after every other change they are readable, and
    they commit. The check reads at the commit timestamp, so it is exact.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys: set[bytes] = set()

    def uses(self, database_id: int, table_id: int) -> None:
        """Note that the transaction writes rows of a table."""
        self._keys.add(table_key(database_id, table_id))

    async def check(self, since_ts: int, until_ts: int) -> bool:
        """Return whether every table written to still exists."""
        del since_ts
        if not self._keys:
            return True
        snapshot = self._client.snapshot(until_ts)
        schemas = await asyncio.to_thread(snapshot.batch_get, sorted(self._keys))
        return len(schemas) == len(self._keys)

    async def amend(self, since_ts: int, until_ts: int, writes: Sequence[Write]) -> Sequence[Write] | None:
        """Return None: rows of a dropped table cannot be amended."""
        del since_ts, until_ts, writes
        return None


class Guards:
    """The guarded transactions of a catalog."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._guards: weakref.WeakKeyDictionary[Transaction, SchemaGuard] = weakref.WeakKeyDictionary()

    def begin(self, *, pessimistic: bool = False) -> Transaction:
        """Begin a transaction with a guard.

        It commits in two phases, because a commit timestamp that the store chose itself could not be checked
        before it is final.
        """
        guard = SchemaGuard(self._client)
        txn = self._client.begin(pessimistic=pessimistic, async_commit=False, one_pc=False, schema=guard)
        self._guards[txn] = guard
        return txn

    def uses(self, txn: Transaction, database_id: int, table_id: int) -> None:
        """Note that a transaction writes rows of a table; ignore a transaction that was not begun here."""
        guard = self._guards.get(txn)
        if guard is not None:
            guard.uses(database_id, table_id)
