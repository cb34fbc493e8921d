"""Where jobs read: how far tables have come, what they look like, and their changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.changes.handle import ChangesHandle
from penstock.changes.limits import ReadLimit
from penstock.eventstore.read.partition import TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.source import ReadableRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan:
    """A range that can be read, with its end fixed. Small, and can be pickled when the view can."""

    view: TableView
    from_ts: int
    to_ts: int
    schema: SchemaVersion
    """The table at `to_ts`."""
    rows: int
    """About how many changes there are."""
    nbytes: int
    """About how many bytes."""
    before: SchemaVersion | None = None
    """The table when the range begins; None: it is all rows."""

    @property
    def snapshot(self) -> bool:
        """Whether it is all rows at `to_ts`."""
        return self.from_ts == 0


class ScanSource(Protocol):
    """The changes of tables by their (logical) ids. Thread-safe; every method may raise Unavailable."""

    async def now_ts(self) -> int:
        """A timestamp of the database."""

    async def look(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """How far tables have come, in few calls for many; those not captured yet are left out."""

    def gone(self, table_id: int) -> str | None:
        """What became of a table that is not there any more, as one sentence with the remedy; None: it is."""

    def scan(self, table_id: int, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
        """Fix a range: as much of it as the limit allows, at least one commit; from_ts = 0 has no limit.

        Blocks. Raises StaleRead when history from `from_ts` on is gone, Unavailable when the range is not
        complete yet or nobody has the table.
        """

    def open(self, scan: TableScan, columns: Collection[str] | None) -> ChangesHandle:
        """Read it, coalesced; `columns` beside those of the primary key, None: all. Blocks."""

    async def hold(self, needed: Mapping[int, int]) -> None:
        """Keep the history of tables after their timestamps, in place of what was held before."""

    async def close(self) -> None:
        """End."""
