"""What a layer above may hang into a commit: a schema check, and a binlog."""

from collections.abc import Sequence
from typing import Protocol

Write = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""


class SchemaHook(Protocol):
    """Guards a transaction against schema changes made while it ran.

    Called on the event loop. An error that it raises ends the commit and rolls the transaction back.
    """

    async def check(self, since_ts: int, until_ts: int) -> bool:
        """Return whether the schema in force at `since_ts` still is at `until_ts`."""

    async def amend(self, since_ts: int, until_ts: int, writes: Sequence[Write]) -> Sequence[Write] | None:
        """Return what must be written besides `writes` to obey the newer schema, or None when nothing can.

        Asked of pessimistic transactions only, whose reads are protected by locks. The keys
        returned are new to the transaction.
        """


class BinlogHook(Protocol):
    """Records transactions in a log beside the store. Called on the event loop.

    A transaction with a binlog commits in two phases. `prewrite` runs beside the store's prewrite
    and must be durable before it returns: only then the transaction commits. `commit` or `skip`
    follows once the outcome is known; neither does when it stays unknown.
    """

    async def prewrite(self, start_ts: int, primary: bytes, writes: Sequence[Write]) -> None:
        """Record what is about to be committed; an error ends the commit and rolls back."""

    async def commit(self, start_ts: int, commit_ts: int) -> None:
        """Record that the transaction is committed; it is, whatever this raises."""

    async def skip(self, start_ts: int) -> None:
        """Record that the transaction is rolled back."""
