"""The two seams to a growing event store: `SliceSource` for changefeeds and `ScanSource` for jobs.

Both say how far tables can be read and keep history that is still needed. They differ in what a table is: a
changefeed follows physical tables and the DDLs between their changes, a job follows a logical table, whatever
its partitions. `penstock.follow.follower` implements both; simulations and tests have doubles.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from penstock.changes.batches import ChangesHandle
from penstock.changes.limits import ReadLimit
from penstock.errors import Invalid
from penstock.eventstore.read.partition import Refusal, TableView
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import ANY_SIZE, Position, Slice, SliceSize, TableSpan
from penstock.tables.accounts import SYSTEM_ACCOUNT


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """How far a table can be read now."""

    readable_ts: int
    """Every change of the table up to this timestamp can be read."""
    changed_ts: int
    """At least the newest commit up to `readable_ts`: the table has no change between the two."""
    oldest_ts: int = 0
    """Changes up to this timestamp may be gone."""
    refusal: Refusal | None = None
    """Why no later change can be read until somebody removes the cause; None: more come by themselves."""
    uncaptured: bool = False
    """Whether no capture has had the table for a while, for a reason that nobody knows."""


class SliceSource(Protocol):
    """What a changefeed reads: slices of physical tables, and the DDLs between them.

    The same start and end give the same changes in the same order, whatever was flushed or merged meanwhile.
    Every method may raise Unavailable: the caller waits and asks again.
    """

    def ddl_resolved_ts(self) -> int:
        """Return the timestamp up to which every DDL is known."""

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """Return the DDLs in (from_ts, to_ts], in order; `to_ts` is at most `ddl_resolved_ts`."""

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        """Return the tables that exist at `at_ts`, captured or not; it is at most `ddl_resolved_ts`."""

    def unreadable(self, at_ts: int) -> list[SchemaVersion]:
        """Return the tables whose descriptions at `at_ts` cannot be read, each since that is so.

        Such a table is among `tables` as it was before, if it could be read then.
        """

    async def now_ts(self) -> int:
        """Return a timestamp of the database."""

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return how far physical tables can be read, in few calls for many tables.

        Tables of which nothing is known yet are left out. One that cannot be captured, or that no capture has
        had for a while, is not left out: it is readable up to 0 when nothing of it was ever captured.
        """

    async def next_slice(
        self,
        dispatcher: TableSpan,
        start: Position,
        upto_ts: int,
        limit: ReadLimit,
        *,
        begin: Position | None = None,
        size: SliceSize = ANY_SIZE,
    ) -> Slice | None:
        """Return the changes after `start`, within the limit and up to `upto_ts`; None when there are none.

        A commit that exceeds the limit comes as a whole. The size decides about its parts.

        A slice has at least one commit, or one row of a snapshot, even if the limit is smaller. The caller
        asks for a range without a DDL of the table and up to a readable `upto_ts`. `begin` is where the
        dispatcher began: a start with a handle is inside the snapshot when the dispatcher began with a
        snapshot at the same timestamp, and inside a commit otherwise. Raises StaleRead when the history is
        gone.
        """

    async def split_points(self, table_id: int, at_ts: int, rows: int) -> list[bytes]:
        """Return handles that split a physical table into parts of about `rows` rows; none if it is small."""

    async def hold(self, table_ids: Collection[int], ts: int) -> None:
        """Keep the history of tables after `ts` for this changefeed, in place of what it held before."""

    async def release(self, table_ids: Collection[int]) -> None:
        """Give up what this changefeed holds of these tables."""

    async def close(self) -> None:
        """Close connections and threads; holds stay for the next run."""


class TableGone(Invalid):
    """The source table was dropped, truncated or replaced."""


def describe_other_account(account: str, versions: Iterable[SchemaVersion]) -> str:
    """Return why a table is gone for an account, and the remedy.

    Of the versions of the table, which are in order, only those of the account give it a name.
    """
    names = [version.name for version in versions if version.account == account]
    subject = f"table {names[-1]}" if names else "the table"
    return (
        f"{subject} does not belong to account {account} any more, or did not at that time; unregister its"
        " jobs with `penstock job unregister`, and register them under the account that has the table"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan:
    """A range of a table's changes with its end fixed. Small, and can be pickled when the view can."""

    view: TableView
    from_ts: int
    to_ts: int
    schema: SchemaVersion
    """The table at `to_ts`."""
    rows: int
    """About how many changes the range has."""
    nbytes: int
    """About how many bytes the changes have."""
    before: SchemaVersion | None = None
    """The table where the range begins; None for a snapshot."""
    accounts: frozenset[str] | None = None
    """The accounts that the table belonged to in the range; None where that is not followed."""

    @property
    def snapshot(self) -> bool:
        """Whether the scan has all rows at `to_ts` instead of changes."""
        return self.from_ts == 0

    def check_account(self, account: str) -> Self:
        """Return the scan; raise TableGone when the table was another account's in a part of the range.

        Readers of the account `sys` may read everything.
        """
        others = (self.accounts or frozenset()) - {account}
        if others and account != SYSTEM_ACCOUNT.name:
            versions = [self.schema] if self.before is None else [self.before, self.schema]
            raise TableGone(describe_other_account(account, versions))
        return self


class ScanSource(Protocol):
    """What jobs read: ranges of changes of logical tables. Thread-safe; methods may raise Unavailable."""

    async def now_ts(self) -> int:
        """Return a timestamp of the database."""

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return how far tables can be read, in few calls for many; those not captured yet are left out.

        A table that cannot be captured is not left out: it is readable up to 0 when nothing of it was ever
        captured.
        """

    def why_gone(self, table_id: int, account: str = SYSTEM_ACCOUNT.name) -> str | None:
        """Return what became of a table that does not exist any more, and the remedy; None when it exists.

        A table that went to another account is gone for an account other than `sys`.
        """

    def scan(self, table_id: int, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
        """Fix the range (from_ts, to_ts], or as much of it as the limit allows: at least one commit.

        With `from_ts` 0 it is the snapshot at `to_ts`, which has no limit. Blocks. Raises StaleRead when the
        history after `from_ts` is gone, Unavailable when the range is not complete yet or the
        table is not captured.
        """

    def open(
        self, scan: TableScan, columns: Collection[str] | None, *, impossible_dates: bool = False
    ) -> ChangesHandle:
        """Open the coalesced changes of a scan. Blocks.

        `columns` are read beside those of the primary key; None reads all. Dates that no calendar has are
        null, unless `impossible_dates` keeps them.
        """

    async def hold(self, needed: Mapping[int, int]) -> None:
        """Keep the history of tables after their timestamps, in place of everything that was held before."""

    async def close(self) -> None:
        """Close connections and threads; holds stay for the next runner."""
