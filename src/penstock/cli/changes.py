"""`penstock changes`: print the changes of a table between two timestamps."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.changes.columns import choose_columns
from penstock.changes.limits import ReadLimit
from penstock.control.deployment import Deployment, open_deployment
from penstock.control.display import format_ts, json_value
from penstock.control.table_changes import OP, ChangesRequest, change_schema, open_changes, resolve_range
from penstock.control.tables import find_table
from penstock.errors import Invalid
from penstock.eventstore.sides import COMMIT_TS
from penstock.process import printable
from penstock.settings import Settings
from penstock.spark.options import parse_first_ts
from penstock.tables.schema_snapshot import TablePlace

__all__ = ["ChangesFormat", "ChangesOptions", "parse_moment", "print_changes"]

_TABLE_ROWS = 100


class ChangesFormat(StrEnum):
    """How changes are printed: JSON lines, an Arrow stream, or a table for people."""

    JSON = "json"
    ARROW = "arrow"
    TABLE = "table"

    @classmethod
    def parse(cls, text: str | None) -> "ChangesFormat":
        """Return the format of that name; None means the one that suits the standard output."""
        if text is None:
            return cls.TABLE if sys.stdout.isatty() else cls.JSON
        try:
            return cls(text)
        except ValueError:
            raise Invalid(f"--format {text} is unknown; use json, arrow or table") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesOptions:
    """Which changes to print, and how."""

    table: str
    from_ts: int | None
    to_ts: int | None
    columns: tuple[str, ...] | None
    format: ChangesFormat
    limit: int | None


def parse_moment(option: str, text: str | None) -> int | None:
    """Return the timestamp that a text names: a number, or a date and time in ISO 8601; None for none.

    A time stands for its first timestamp at both ends of a range, so ranges that share an end have no gap
    and no overlap.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    return parse_first_ts(option, text)


def print_changes(settings: Settings, options: ChangesOptions) -> None:
    """Print the changes in commit order, in memory that does not grow with the range.

    Raises NotFound for an unknown table, Conflict when it is not captured or not readable up to the end of
    the range yet, and StaleRead when the history of the range is gone or a statement such as TRUNCATE is in
    it.
    """
    if options.format is ChangesFormat.ARROW and sys.stdout.isatty():
        raise Invalid("an Arrow stream is binary; redirect it to a file, or use --format json or table")
    with open_deployment(settings) as deployment:
        place = find_table(deployment, options.table)
        name = f"{place.database.name}.{place.table.name}"
        batches = _read(deployment, place, options)
        if options.format is ChangesFormat.ARROW:
            empty = change_schema(choose_columns(place.table, options.columns))
            _print_arrow(_take(batches, options.limit), empty)
        elif options.format is ChangesFormat.JSON:
            _print_lines(name, _take(batches, options.limit))
        else:
            _print_table(batches, options.limit or _TABLE_ROWS)


def _read(deployment: Deployment, place: TablePlace, options: ChangesOptions) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a range. What one read covers may end earlier than the range does."""
    request = ChangesRequest(from_ts=options.from_ts, to_ts=options.to_ts, columns=options.columns)
    while True:
        resolved = resolve_range(deployment, place, request, ReadLimit())
        if resolved.scan is None:
            return
        with closing(open_changes(resolved.scan, options.columns)) as changes:
            yield from changes
        if resolved.end_ts >= resolved.to_ts:
            return
        request = ChangesRequest(from_ts=resolved.end_ts, to_ts=resolved.to_ts, columns=options.columns)


def _take(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `limit` rows; all of them without a limit."""
    left = limit
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= min(left, batch.num_rows)
            if not left:
                return


def _print_arrow(batches: Iterator[pa.RecordBatch], empty: pa.Schema) -> None:
    """Write one Arrow stream; `empty` is its schema when there are no changes."""
    first = next(batches, None)
    schema = empty if first is None else first.schema
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as stream:
        for batch in () if first is None else chain([first], batches):
            if batch.schema != schema:
                raise Invalid(
                    "columns changed within the range, and an Arrow stream has one schema; use --format json,"
                    " or end the range earlier"
                )
            stream.write_batch(batch)
    sys.stdout.buffer.flush()


def _print_lines(name: str, batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        sys.stdout.write("".join(_line(name, change) for change in batch.to_pylist()))


def _line(name: str, change: dict[str, Any]) -> str:
    op, commit_ts = change.pop(OP), change.pop(COMMIT_TS)
    row = {column: json_value(cell) for column, cell in change.items()}
    return (
        json.dumps({"table": name, "op": op, "commit_ts": commit_ts, "row": row}, ensure_ascii=False) + "\n"
    )


def _print_table(batches: Iterator[pa.RecordBatch], limit: int) -> None:
    rows: list[tuple[Any, ...]] = []
    names: tuple[str, ...] = ()
    for batch in _take(batches, limit + 1):  # one more tells whether there are more
        names = ("op", "committed", *batch.schema.names[2:])
        for op, commit_ts, *cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            rows.append((op, format_ts(commit_ts), *map(json_value, cells)))
    table = Table()
    for name in names:
        table.add_column(Text(printable(name)))
    for row in rows[:limit]:
        table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    console = Console()
    console.print(table if rows else "no changes")
    if len(rows) > limit:
        console.print(f"these are the first {limit}; --limit shows more, --format json prints all")
