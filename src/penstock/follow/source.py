"""Where a changefeed reads: the changes of tables, and the DDLs between them.

Where jobs read: how far tables have come, what they look like, and their changes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.changes.batches import ChangesHandle
from penstock.changes.limits import ReadLimit
from penstock.eventstore.read.partition import TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, Slice, TableSpan


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """How far a physical table can be read, and up to where it certainly has no change that is not older.

    `changed_ts` is at least the newest commit among its changes up to `readable_ts`; changes up to
    `oldest_ts` may be gone.
    """

    readable_ts: int
    changed_ts: int
    oldest_ts: int = 0


class SliceSource(Protocol):
    """Everything that a changefeed needs to know of what it carries. Raises Unavailable, which passes.

    The same start and end give the same changes in the same order, whatever was flushed or merged meanwhile.
    """

    def ddl_resolved_ts(self) -> int:
        """DDLs up to it are known."""

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """The DDLs in (from_ts, to_ts], in order; to_ts is at most `ddl_resolved_ts`."""

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        """The tables that are there at a timestamp that is resolved for DDLs, whoever captures them."""

    async def now_ts(self) -> int:
        """A timestamp of the database."""

    async def look(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """How far physical tables have come, in few calls for many tables; those unknown yet are left out."""

    async def next_slice(
        self,
        dispatcher: TableSpan,
        start: Position,
        upto_ts: int,
        limit: ReadLimit,
        *,
        begin: Position | None = None,
    ) -> Slice | None:
        """The changes after `start`, as many as the limit allows, none after `upto_ts`; None: there are none.

        At least one commit, and within a snapshot at least one row, if there is any. There is no DDL of the
        table in between, and `upto_ts` is readable. `begin` is where the dispatcher began: a start with a
        handle at the timestamp of a snapshot that it began with is inside that snapshot, any other one inside
        a commit. Raises StaleRead when history is gone.
        """

    async def cuts(self, table_id: int, at_ts: int, rows: int) -> list[bytes]:
        """Handles that divide a physical table into parts of about so many rows; none for a small one."""

    async def hold(self, table_ids: Collection[int], ts: int) -> None:
        """Keep history after `ts` of tables for this changefeed, in place of what it held before."""

    async def release(self, table_ids: Collection[int]) -> None:
        """Hold nothing of these tables any more."""

    async def close(self) -> None:
        """End."""


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
