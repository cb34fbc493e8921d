"""Routes of tables: up to where each can be read, its history, and its changes between two timestamps.

Changes are encoded while they are sent, as a page of JSON or as an Arrow stream.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import pyarrow as pa
from fastapi import APIRouter, Query

from penstock.api.deployment import PREFIX, Deployed, SharedState
from penstock.api.errors import problem_responses
from penstock.api.middleware import ReadCost, StreamedAnswer
from penstock.api.models import ChangesPage, TableDetail, TableSummary
from penstock.api.routes.jobs import OfTable
from penstock.api.security import Authenticated
from penstock.changes.columns import choose_columns
from penstock.changes.limits import ReadLimit
from penstock.control import tables as control_tables
from penstock.control.deployment import Deployment
from penstock.control.display import json_value
from penstock.control.table_changes import (
    ChangeReader,
    ChangesRequest,
    ResolvedRange,
    change_schema,
    open_changes,
    resolve_range,
)
from penstock.errors import Invalid
from penstock.eventstore.sides import COMMIT_TS
from penstock.tables.accounts import SYSTEM_ACCOUNT
from penstock.tables.schema_snapshot import TablePlace

__all__ = ["ARROW", "PageBounds", "api", "arrow_stream", "json_page", "start_reading"]


ARROW = "application/vnd.apache.arrow.stream"
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the end-of-stream marker of Arrow's IPC format


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBounds:
    """The bounds of a page: `limit` rows after the first `skip`, of a range that is read up to `end_ts`."""

    table: str
    from_ts: int
    to_ts: int
    end_ts: int
    limit: int
    skip: int = 0


def start_reading(changes: ChangeReader) -> Iterator[pa.RecordBatch]:
    """Return the batches of changes, and read the first: its errors then become an answer with a status."""
    batches = iter(changes)
    first = next(batches, None)
    return batches if first is None else chain([first], batches)


def arrow_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the batches as an Arrow IPC stream."""
    yield schema.serialize().to_pybytes()
    for batch in batches:
        yield batch.serialize().to_pybytes()
    yield _ARROW_END


def json_page(bounds: PageBounds, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield a page as JSON; its end says where the next page begins, which may be within a transaction."""
    head = {"table": bounds.table, "from_ts": bounds.from_ts, "to_ts": bounds.to_ts}
    yield (json.dumps(head)[:-1] + ', "rows": [').encode()
    position = _PagePosition(bounds.skip, bounds.limit)
    for batch in batches:
        rows = position.take(batch)
        if rows.num_rows:
            lines = (
                json.dumps({name: json_value(cell) for name, cell in row.items()}) for row in rows.to_pylist()
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


class _PagePosition:
    """The position of a page in its range.

    Once the page is full, `cut` is set, `cut_ts` is the commit timestamp of the next row, and `cut_rows`
    counts the rows of that commit that came before it, on this page or skipped.
    """

    def __init__(self, skip: int, limit: int) -> None:
        self.sent = 0
        self.cut = False
        self.cut_ts = 0
        self.cut_rows = 0
        self._skip = skip
        self._limit = limit

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that belong on the page. Do not call it once `cut` is set."""
        times: list[int] = batch.column(COMMIT_TS).to_pylist()
        start = min(self._skip, len(times))
        self._skip -= start
        end = min(len(times), start + self._limit - self.sent)
        passed = times[:end]
        if passed:
            same = len(passed) - next(
                (index for index, ts in enumerate(passed) if ts == passed[-1]), len(passed)
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


@api.get("", response_model=list[TableSummary], responses=problem_responses(401, 429, 503))
def list_tables(deployment: Deployed, caller: Authenticated) -> list[dict[str, Any]]:
    """List tables with the timestamps up to which they can be read."""
    return control_tables.list_tables(deployment, account=caller.account)


@api.get("/{table}", response_model=TableDetail, responses=problem_responses(400, 401, 404, 429, 503))
def get_table(table: OfTable, deployment: Deployed, caller: Authenticated) -> dict[str, Any]:
    """Show a table: its columns, the versions of its schema, and its objects by kind and time."""
    return control_tables.describe_table(deployment, table, account=caller.account)


@api.get(
    "/{table}/changes",
    responses={
        200: {
            "model": ChangesPage,
            "description": "A page of JSON, or a stream",
            "content": {ARROW: _BINARY},
        },
        **problem_responses(400, 401, 404, 409, 410, 429, 503),
    },
)
def read_changes(
    table: OfTable,
    deployment: Deployed,
    caller: Authenticated,
    state: SharedState,
    from_ts: Annotated[
        int | None,
        Query(
            ge=0,
            le=_TS_MAX,
            description="Changes after it; by default an hour before to_ts. 0: all rows at to_ts (arrow).",
        ),
    ] = None,
    to_ts: Annotated[
        int | None, Query(ge=0, le=_TS_MAX, description="Changes up to this timestamp; by default all.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        Query(description="Column beside the primary key; may be repeated. All by default."),
    ] = None,
    limit: Annotated[
        int | None,
        Query(ge=1, description="Changes in one answer, at most api.rows_max; arrow: whole transactions."),
    ] = None,
    skip: Annotated[
        int, Query(ge=0, le=_SKIP_MAX, description="Changes to skip: next_skip of the previous page.")
    ] = 0,
    answer: Annotated[
        Literal["json", "arrow"], Query(alias="format", description="A page of JSON, or an Arrow stream.")
    ] = "json",
) -> StreamedAnswer:
    """Read the changes of a table in (from_ts, to_ts], in commit order.

    Some DDL statements remove or add rows without a change for each: TRUNCATE TABLE; TRUNCATE, DROP, EXCHANGE
    or REORGANIZE PARTITION; another table under the same name. A range that contains such a statement fails
    with status 410, which names the timestamp of the last one: read a snapshot there, and the changes after
    it. Without from_ts the range begins there.

    The header Penstock-To-Ts of an Arrow stream says up to where it goes, and Penstock-More whether the range
    has more changes after that.
    """
    place = control_tables.find_table(deployment, table, account=caller.account)
    if answer == "arrow" and skip:
        raise Invalid(
            "skip is for pages of JSON; leave it out with format=arrow, which has whole transactions"
        )
    if answer == "json" and from_ts == 0:
        raise Invalid("the rows of a table come as an Arrow stream only; use format=arrow, or from_ts >= 1")
    account = caller.account or SYSTEM_ACCOUNT.name
    request = ChangesRequest(from_ts=from_ts, to_ts=to_ts, columns=columns, account=account)
    rows_max = state.settings.api.rows_max
    with ExitStack() as closing:
        cost = closing.enter_context(state.readers.reading(caller.name))
        stall_s = state.settings.api.reader_stall_s
        if answer == "arrow":
            changes = _arrow_answer(
                deployment, place, request, min(limit or rows_max, rows_max), closing, stall_s, cost
            )
        else:
            changes = _json_answer(
                deployment, place, request, skip, min(limit or _PAGE_ROWS, rows_max), closing, stall_s, cost
            )
        closing.callback(lambda: setattr(cost, "nbytes", changes.sent))
        changes.closing = closing.pop_all()
        return changes


def _json_answer(
    deployment: Deployment,
    place: TablePlace,
    request: ChangesRequest,
    skip: int,
    limit: int,
    closing: ExitStack,
    stall_s: float,
    cost: ReadCost,
) -> StreamedAnswer:
    enough = ReadLimit(rows=2 * (skip + limit))  # an update counts as two rows
    resolved = resolve_range(deployment, place, request, enough)
    bounds = PageBounds(
        table=f"{place.database.name}.{place.table.name}",
        from_ts=resolved.from_ts,
        to_ts=resolved.to_ts,
        end_ts=resolved.end_ts,
        limit=limit,
        skip=skip,
    )
    _, batches = _open_changes(place, resolved, request, closing, cost)
    return StreamedAnswer(json_page(bounds, batches), stall_s=stall_s, media_type="application/json")


def _arrow_answer(
    deployment: Deployment,
    place: TablePlace,
    request: ChangesRequest,
    limit: int,
    closing: ExitStack,
    stall_s: float,
    cost: ReadCost,
) -> StreamedAnswer:
    resolved = resolve_range(deployment, place, request, ReadLimit(rows=limit))
    schema, batches = _open_changes(place, resolved, request, closing, cost)
    headers = {
        "Penstock-From-Ts": str(resolved.from_ts),
        "Penstock-To-Ts": str(resolved.end_ts),
        "Penstock-More": "true" if resolved.end_ts < resolved.to_ts else "false",
    }
    return StreamedAnswer(arrow_stream(schema, batches), stall_s=stall_s, media_type=ARROW, headers=headers)


def _open_changes(
    place: TablePlace, resolved: ResolvedRange, request: ChangesRequest, closing: ExitStack, cost: ReadCost
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Return the schema and the batches of a range; `closing` closes them. An empty range has no batches."""
    if resolved.scan is None:
        return change_schema(choose_columns(place.table, request.columns)), ()
    changes = open_changes(resolved.scan, request.columns)
    closing.callback(changes.close)
    return changes.schema, _count_rows(start_reading(changes), cost)


def _count_rows(batches: Iterator[pa.RecordBatch], cost: ReadCost) -> Iterator[pa.RecordBatch]:
    """Yield batches, and charge their rows: also those of a page that are skipped were read."""
    for batch in batches:
        cost.rows += batch.num_rows
        yield batch
