"""Numbers for rows: implicit row ids and auto-increment columns, reserved in ranges.

Each range is reserved in its own transaction. So numbers are unique and grow, but have gaps: a process loses
what it reserved and did not use.
"""

import threading
from dataclasses import dataclass

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables.meta import MetaWriter

RANGE = 1_000
_MAX = (1 << 63) - 1


@dataclass(slots=True)
class _IdRange:
    next: int = 1
    last: int = 0


class AutoIds:
    """Gives numbers for the rows of any table. Thread-safe."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._ranges: dict[tuple[int, int, bool], _IdRange] = {}

    def take(self, database_id: int, table_id: int, count: int, *, apart: bool = False) -> range:
        """Return `count` numbers that no row of the table has had before.

        `apart`: they are auto-increment values of a table that counts those apart from its row ids.
        """
        with self._lock:
            reserved = self._ranges.setdefault((database_id, table_id, apart), _IdRange())
            if reserved.last - reserved.next + 1 < count:
                first, last = self._reserve(database_id, table_id, max(count, RANGE), above=0, apart=apart)
                reserved.next, reserved.last = first, last
            numbers = range(reserved.next, reserved.next + count)
            reserved.next += count
            return numbers

    def pass_over(self, database_id: int, table_id: int, number: int, *, apart: bool = False) -> None:
        """Never give a number up to this one, which a caller chose itself."""
        if number <= 0:
            return
        with self._lock:
            reserved = self._ranges.setdefault((database_id, table_id, apart), _IdRange())
            if number < reserved.next:
                return
            if number > reserved.last:
                reserved.next, reserved.last = self._reserve(
                    database_id, table_id, RANGE, above=number, apart=apart
                )
            reserved.next = max(reserved.next, number + 1)

    def _reserve(
        self, database_id: int, table_id: int, count: int, *, above: int, apart: bool
    ) -> tuple[int, int]:
        def reserve(txn: Transaction) -> tuple[int, int]:
            return MetaWriter(txn).take_row_ids(database_id, table_id, count, above=above, apart=apart)

        first, last = transact(self._client.begin, reserve, clock=self._clock)
        if last > _MAX:
            raise Invalid(f"table {table_id} has used up its row ids; create a new table")
        return first, last
