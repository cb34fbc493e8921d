"""Where a changefeed reads: the changes of tables, and the DDLs between them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from penstock.changes.limits import ReadLimit
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.positions import Position
from penstock.follow.slices import Slice, TableSpan


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
