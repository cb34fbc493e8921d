"""Changes of a table as bytes of an answer, made while it is sent: pages of JSON, or an Arrow stream."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from penstock.control.cells import plain
from penstock.control.table_changes import ChangeReader
from penstock.eventstore.sides import COMMIT_TS

__all__ = ["ARROW", "PageBounds", "arrow_stream", "begun", "json_page"]

ARROW = "application/vnd.apache.arrow.stream"
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of a stream, by Arrow's IPC format


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBounds:
    """What a page may have: `limit` rows after the first `skip`, of a range that is read up to `end_ts`."""

    table: str
    from_ts: int
    to_ts: int
    end_ts: int
    limit: int
    skip: int = 0


def begun(changes: ChangeReader) -> Iterator[pa.RecordBatch]:
    """The batches of changes, of which the first is read: what can go wrong at once does so now."""
    batches = iter(changes)
    first = next(batches, None)
    return batches if first is None else chain([first], batches)


def arrow_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """The batches as an Arrow IPC stream."""
    yield schema.serialize().to_pybytes()
    for batch in batches:
        yield batch.serialize().to_pybytes()
    yield _END


def json_page(bounds: PageBounds, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A page as JSON; its end says where the next one begins, also within a transaction."""
    head = {"table": bounds.table, "from_ts": bounds.from_ts, "to_ts": bounds.to_ts}
    yield (json.dumps(head)[:-1] + ', "rows": [').encode()
    position = _Position(bounds.skip, bounds.limit)
    for batch in batches:
        rows = position.take(batch)
        if rows.num_rows:
            lines = (
                json.dumps({name: plain(cell) for name, cell in row.items()}) for row in rows.to_pylist()
            )
            yield ((", " if position.sent > rows.num_rows else "") + ", ".join(lines)).encode()
        if position.cut:
            break
    next_from_ts: int | None = None
    if position.cut:
        next_from_ts = position.cut_ts - 1
    elif bounds.end_ts < bounds.to_ts:
        next_from_ts = bounds.end_ts
    tail = {
        "more": next_from_ts is not None,
        "next_from_ts": next_from_ts,
        "next_skip": position.cut_rows if position.cut else 0,
    }
    yield ("], " + json.dumps(tail)[1:]).encode()


class _Position:
    """Where a page is in its range. Once it is full, `cut_ts` is the commit of the next row, of which
    `cut_rows` came before: on this page, or skipped.
    """

    def __init__(self, skip: int, limit: int) -> None:
        self.sent = 0
        self.cut = False
        self.cut_ts = 0
        self.cut_rows = 0
        self._skip = skip
        self._limit = limit

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that belong on the page; nothing comes after it is cut."""
        times: list[int] = batch.column(COMMIT_TS).to_pylist()
        start = min(self._skip, len(times))
        self._skip -= start
        end = min(len(times), start + self._limit - self.sent)
        passed = times[:end]
        if passed:
            same = len(passed) - next(
                (place for place, ts in enumerate(passed) if ts == passed[-1]), len(passed)
            )
            self.cut_rows = same + (self.cut_rows if passed[-1] == self.cut_ts == passed[0] else 0)
            self.cut_ts = passed[-1]
        if end < len(times):
            self.cut = True
            if times[end] != self.cut_ts:
                self.cut_ts, self.cut_rows = times[end], 0
        self.sent += end - start
        return batch.slice(start, end - start)
