"""Changes as bodies of requests, each of limited size: lines of JSON, or Arrow streams.

Lines of JSON are in the order of commits:

    {"op":"upsert","commit_ts":"463…","row":{"id":"1","name":"Ada"}}
    {"op":"delete","commit_ts":"463…","key":{"id":"1"}}

    | column | JSON |
    |---|---|
    | TINYINT to INT, YEAR, FLOAT, DOUBLE | number |
    | INT UNSIGNED, BIGINT, BIT, DECIMAL | string of digits, because many readers only have doubles |
    | texts, ENUM, SET | string |
    | bytes, `_handle` | string in base 64 |
    | DATE, DATETIME | "2026-02-28", "2026-02-28 01:02:03.000004" |
    | TIMESTAMP, TIME | "2026-02-28 01:02:03.000004Z", "-01:00:00.000000" |
    | JSON, VECTOR | as it is |
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.columns import DELETED, free_name
from penstock.columnar.text_lines import JSON, Lines, base64_cells, content, json_string, numbers
from penstock.jobs.consumer import DataRetriever, iter_batches
from penstock.tables.columns import FieldType, Tp
from penstock.tables.text_values import decimals, fixed_floats, spans, vectors

ARROW = "application/vnd.apache.arrow.stream"
_DIGEST_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Body:
    """The body of one request."""

    content: bytes
    content_type: str

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of its SHA-256."""
        return hashlib.sha256(self.content).hexdigest()[:_DIGEST_DIGITS]


def iter_bodies(data: DataRetriever, form: str, limit_bytes: int) -> Iterator[Body]:
    """Yield all changes in order, as `json` lines or `arrow` streams; one change may exceed the limit.

    There is at least one body, which may be empty.
    """
    return _arrow_bodies(data, limit_bytes) if form == "arrow" else _json_bodies(data, limit_bytes)


def _json_bodies(data: DataRetriever, limit_bytes: int) -> Iterator[Body]:
    documents = [column.name for column in data.schema.table.columns if column.type.tp is Tp.JSON]
    lines = JsonLines(documents)
    waiting, nbytes = list[bytes](), 0
    for inserts, deletes, _ in iter_batches(data):
        text, bounds = content(lines.encode(inserts, deletes))
        begin = 0
        while begin < len(bounds) - 1:
            room = bounds[begin] + limit_bytes - nbytes
            end = int(np.searchsorted(bounds, room, side="right")) - 1
            if end <= begin and not nbytes:
                end = begin + 1  # a change that exceeds the limit is sent alone
            waiting.append(text[bounds[begin] : bounds[max(begin, end)]].tobytes())
            nbytes += len(waiting[-1])
            begin = max(begin, end)
            if begin < len(bounds) - 1:
                yield Body(b"".join(waiting), lines.content_type)
                waiting, nbytes = [], 0
    yield Body(b"".join(waiting), lines.content_type)


def _arrow_bodies(data: DataRetriever, limit_bytes: int) -> Iterator[Body]:
    previous: Body | None = None
    for inserts, deletes, _ in iter_batches(data):
        for stream in _split_rows(_merge_sides(inserts, deletes), limit_bytes):
            if previous is not None:
                yield previous
            previous = Body(stream, ARROW)
    yield previous or Body(b"", ARROW)


def _merge_sides(inserts: pa.RecordBatch, deletes: pa.RecordBatch) -> pa.RecordBatch:
    """Return both sides as rows in order; where `_deleted` is true, only the key counts."""
    known = set(deletes.schema.names)
    gone = [
        deletes.column(field.name) if field.name in known else pa.nulls(deletes.num_rows, field.type)
        for field in inserts.schema
    ]
    flags = np.repeat(np.array([True, False]), [deletes.num_rows, inserts.num_rows])
    times = np.concatenate([side.columns[-1].to_numpy() for side in (deletes, inserts)])
    order = pa.array(np.argsort(times, kind="stable"))
    columns = [pa.concat_arrays(sides).take(order) for sides in zip(gone, inserts.columns, strict=True)]
    names = [*inserts.schema.names, free_name(DELETED, inserts.schema)]
    return pa.RecordBatch.from_arrays([*columns, pa.array(flags).take(order)], names=names)


def _split_rows(rows: pa.RecordBatch, limit_bytes: int) -> Iterator[bytes]:
    """Yield rows as streams of limited size; a single row may exceed it."""
    if not rows.num_rows:
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    stream_bytes = sink.getvalue()
    if stream_bytes.size <= limit_bytes or rows.num_rows == 1:
        yield stream_bytes.to_pybytes()
        return
    parts = min(rows.num_rows, max(2, -(-stream_bytes.size // limit_bytes)))
    step = -(-rows.num_rows // parts)
    for start in range(0, rows.num_rows, step):
        yield from _split_rows(rows.slice(start, step), limit_bytes)


_MICROSECONDS = FieldType(Tp.DURATION, decimal=6)
_NOTHING = pa.scalar("", pa.string())


class JsonLines:
    """Lines of one table's changes; `documents` are the columns whose texts are JSON already."""

    content_type = "application/x-ndjson"

    def __init__(self, documents: Sequence[str]) -> None:
        self._documents = frozenset(documents)

    def encode(self, inserts: pa.RecordBatch, deletes: pa.RecordBatch) -> pa.Array:
        """Return a line for each change, with its end, as binary; at equal commits the deletes come first."""
        gone, put = self._lines(deletes, b"delete", b"key"), self._lines(inserts, b"upsert", b"row")
        times = np.concatenate([side.columns[-1].to_numpy() for side in (deletes, inserts)])
        order = np.argsort(times, kind="stable")  # deletes stay before inserts of the same time
        return pa.concat_arrays([gone, put]).take(pa.array(order))

    def _lines(self, rows: pa.RecordBatch, act: bytes, member: bytes) -> pa.Array:
        lines = Lines(rows.num_rows)
        lines.text(b'{"op":"%s","commit_ts":"' % act)
        lines.cells(numbers(rows.columns[-1].to_numpy()))
        lines.text(b'","%s":{' % member)
        for number, name in enumerate(rows.schema.names[:-1]):
            lines.text(b"%s%s:" % (b"," * bool(number), json_string(name)))
            values, bare = self._cells(name, rows.column(name))
            lines.cells(values, quote=b"" if bare else b'"', null=b"null")
        lines.text(b"}}\n")
        return lines.build()

    def _cells(self, name: str, values: pa.Array) -> tuple[pa.Array, bool]:
        """Return the texts of values, and whether they need no quotes."""
        kind = values.type
        if name in self._documents:
            return values, True
        if pa.types.is_string(kind):
            return JSON.apply(values), False
        if pa.types.is_binary(kind):
            return base64_cells(values), False
        if pa.types.is_floating(kind):
            return fixed_floats(values), True
        if pa.types.is_list(kind):
            return vectors(values), True
        if pa.types.is_decimal(kind):
            return decimals(values), False
        if pa.types.is_timestamp(kind):
            return _moments(values), False
        if pa.types.is_duration(kind):
            return spans(_MICROSECONDS, values), False
        return values.cast(pa.string()), pa.types.is_integer(kind) and kind.bit_width <= 32


def _moments(values: pa.Array) -> pa.Array:
    found = values.cast(pa.timestamp("us")).cast(pa.string())
    return found if values.type.tz is None else pc.binary_join_element_wise(found, "Z", _NOTHING)
