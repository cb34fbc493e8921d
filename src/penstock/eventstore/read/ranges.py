"""Ranges of a table's changes, and the seam to whoever has those that are not in objects yet."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.clock import TS_MAX
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SchemaVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Changes of one side in (from_ts, to_ts], of rows in [handle_from, handle_to) (b"": no bound)."""

    table_id: int
    from_ts: int
    to_ts: int
    side: Side = "data"
    columns: tuple[str, ...] = ()  # none: all
    handle_from: bytes = b""
    handle_to: bytes = b""


@dataclass(frozen=True, slots=True)
class SchemaRange:
    """A range within which the table's schema does not change."""

    wanted: ReadRange
    schema: SchemaVersion


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """How far a table has come in the capture that owns it.

    No change up to `readable_ts` was committed after `changed_ts`, and none after `oldest_ts` is gone. The
    table was dropped, truncated or replaced at `ended_ts` (0: it is there).
    """

    table_id: int
    readable_ts: int
    resolved_ts: int
    flushed_ts: int
    changed_ts: int = TS_MAX
    oldest_ts: int = 0
    ended_ts: int = 0


class RangeReader(Protocol):
    """Reads ranges of the tables that a capture owns: in its process, or from elsewhere over Flight.

    A range that can be read gives the same rows in the same order every time, flushed or not; only the row
    ids of tombstones come with the flush. Every method raises Unavailable when the capture does not answer or
    does not own the table.
    """

    def progress(self, table_id: int) -> CaptureProgress:
        """How far a table can be read."""

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """Divide a range where the table's schema changes, in order.

        Raises Unavailable when the range is not complete yet, Invalid when it is no range.
        """

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema and the rows of a part, ordered by (commit_ts, start_ts, handle), in bounded memory.

        Raises Unavailable when the range is not complete yet, or rows moved while they were read; StaleRead
        when its beginning is gone; Invalid when the schema changes within it or a column is not there.
        """
