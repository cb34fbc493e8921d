"""Tables: how far each can be read, its history, and its changes between two timestamps.

Changes of a table as bytes of an answer, made while it is sent: pages of JSON, or an Arrow stream.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import pyarrow as pa
from fastapi import APIRouter, Query

from penstock.api.deployment import PREFIX, Deployed, Shared
from penstock.api.errors import declared
from penstock.api.middleware import StreamedAnswer
from penstock.api.models import ChangesPage, TableDetail, TableSummary
from penstock.api.routes.jobs import OfTable
from penstock.api.security import Asking
from penstock.changes.columns import chosen_columns
from penstock.changes.limits import ReadLimit
from penstock.control import table_changes, tables
from penstock.control.deployment import Deployment
from penstock.control.display import plain
from penstock.control.table_changes import Asked, ChangeReader, ResolvedRange
from penstock.errors import Invalid
from penstock.eventstore.sides import COMMIT_TS
from penstock.tables.schema_snapshot import TablePlace

__all__ = ["ARROW", "PageBounds", "api", "arrow_stream", "begun", "json_page"]


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


api = APIRouter(prefix=f"{PREFIX}/tables", tags=["tables"])

_TS_MAX = (1 << 63) - 1
_PAGE_ROWS = 1000
_SKIP_MAX = 1_000_000_000
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@api.get("", response_model=list[TableSummary], responses=declared(401, 429, 503))
def listed(deployment: Deployed, caller: Asking) -> list[dict[str, Any]]:
    """List tables, with how far each can be read."""
    return tables.listed(deployment, account=caller.account)


@api.get("/{table}", response_model=TableDetail, responses=declared(400, 401, 404, 429, 503))
def get(table: OfTable, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Show a table: its columns, the versions of its schema, and its objects by kind and time."""
    return tables.detail(deployment, table, account=caller.account)


@api.get(
    "/{table}/changes",
    responses={
        200: {
            "model": ChangesPage,
            "description": "A page of JSON, or a stream",
            "content": {ARROW: _BINARY},
        },
        **declared(400, 401, 404, 409, 410, 429, 503),
    },
)
def changes(
    table: OfTable,
    deployment: Deployed,
    caller: Asking,
    service: Shared,
    from_ts: Annotated[
        int | None,
        Query(
            ge=0,
            le=_TS_MAX,
            description="Changes after it; by default an hour before to_ts. 0: all rows at to_ts, as arrow.",
        ),
    ] = None,
    to_ts: Annotated[
        int | None, Query(ge=0, le=_TS_MAX, description="Changes up to it; as far as there are by default.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        Query(description="Column beside the primary key; may be repeated. All by default."),
    ] = None,
    limit: Annotated[
        int | None,
        Query(ge=1, description="Changes of one answer, at most api.rows_max; arrow: whole transactions."),
    ] = None,
    skip: Annotated[
        int, Query(ge=0, le=_SKIP_MAX, description="Changes to leave out: next_skip of the page before.")
    ] = 0,
    answer: Annotated[
        Literal["json", "arrow"], Query(alias="format", description="A page of JSON, or a stream of Arrow.")
    ] = "json",
) -> StreamedAnswer:
    """Read the changes of a table in (from_ts, to_ts], in the order of their commits.

    A DDL that takes or brings rows without changing any cannot be told row by row: TRUNCATE TABLE; TRUNCATE,
    DROP, EXCHANGE or REORGANIZE PARTITION; another table under the same name. A range of changes with such a
    moment in it fails with status 410, which names the last of them: read a snapshot there, and the changes
    after it. Without from_ts the range begins there.

    An Arrow stream says in its headers Penstock-To-Ts how far it goes, and in Penstock-More whether the range
    has more after that.
    """
    place = tables.find(deployment, table, account=caller.account)
    if answer == "arrow" and skip:
        raise Invalid("skip is for pages of JSON; a stream of Arrow has whole transactions")
    if answer == "json" and from_ts == 0:
        raise Invalid("the rows of a table come as a stream of Arrow; ask with format=arrow, or from_ts >= 1")
    asked = Asked(from_ts=from_ts, to_ts=to_ts, columns=columns)
    rows_max = service.settings.api.rows_max
    with ExitStack() as closing:
        closing.enter_context(service.readers.reading(caller.name))
        if answer == "arrow":
            made = _stream(deployment, place, asked, min(limit or rows_max, rows_max), closing)
        else:
            made = _page(deployment, place, asked, skip, min(limit or _PAGE_ROWS, rows_max), closing)
        made.closing = closing.pop_all()
        return made


def _page(
    deployment: Deployment, place: TablePlace, asked: Asked, skip: int, limit: int, closing: ExitStack
) -> StreamedAnswer:
    enough = ReadLimit(rows=2 * (skip + limit))  # updates count twice
    fixed = table_changes.fixed(deployment, place, asked, enough)
    bounds = PageBounds(
        table=f"{place.database.name}.{place.table.name}",
        from_ts=fixed.from_ts,
        to_ts=fixed.to_ts,
        end_ts=fixed.end_ts,
        limit=limit,
        skip=skip,
    )
    _, batches = _opened(place, fixed, asked, closing)
    return StreamedAnswer(json_page(bounds, batches), media_type="application/json")


def _stream(
    deployment: Deployment, place: TablePlace, asked: Asked, limit: int, closing: ExitStack
) -> StreamedAnswer:
    fixed = table_changes.fixed(deployment, place, asked, ReadLimit(rows=limit))
    schema, batches = _opened(place, fixed, asked, closing)
    headers = {
        "Penstock-From-Ts": str(fixed.from_ts),
        "Penstock-To-Ts": str(fixed.end_ts),
        "Penstock-More": "true" if fixed.end_ts < fixed.to_ts else "false",
    }
    return StreamedAnswer(arrow_stream(schema, batches), media_type=ARROW, headers=headers)


def _opened(
    place: TablePlace, fixed: ResolvedRange, asked: Asked, closing: ExitStack
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """What a range holds, which `closing` closes; nothing of an empty one."""
    if fixed.scan is None:
        return table_changes.shown_schema(chosen_columns(place.table, asked.columns)), ()
    found = table_changes.opened(fixed.scan, asked.columns)
    closing.callback(found.close)
    return found.schema, begun(found)
