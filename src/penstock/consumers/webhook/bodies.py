"""Changes cut into bodies of requests, each of limited size. Pure, but that it asks for the changes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.columnar.text_lines import content
from penstock.consumers.webhook.jsonlines import JsonLines
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.consumer import DataRetriever, every
from penstock.tables.fieldtypes import Tp

DELETED = "_deleted"
ARROW = "application/vnd.apache.arrow.stream"
_DIGEST_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Body:
    """What one request sends."""

    content: bytes
    content_type: str

    @property
    def digest(self) -> str:
        """Tells it from other bodies."""
        return hashlib.sha256(self.content).hexdigest()[:_DIGEST_DIGITS]


def bodies(data: DataRetriever, form: str, limit_bytes: int) -> Iterator[Body]:
    """All changes in order, as `json` lines or `arrow` streams; one change may be larger than the limit.

    There is one body at least, which may be empty.
    """
    return _arrow_bodies(data, limit_bytes) if form == "arrow" else _json_bodies(data, limit_bytes)


def _json_bodies(data: DataRetriever, limit_bytes: int) -> Iterator[Body]:
    documents = [column.name for column in data.schema.table.columns if column.type.tp is Tp.JSON]
    lines = JsonLines(documents)
    held, nbytes = list[bytes](), 0
    for inserts, deletes, _ in every(data):
        text, bounds = content(lines.encode(inserts, deletes))
        begin = 0
        while begin < len(bounds) - 1:
            room = bounds[begin] + limit_bytes - nbytes
            end = int(np.searchsorted(bounds, room, side="right")) - 1
            if end <= begin and not nbytes:
                end = begin + 1  # larger than a request may be: it goes alone
            held.append(text[bounds[begin] : bounds[max(begin, end)]].tobytes())
            nbytes += len(held[-1])
            begin = max(begin, end)
            if begin < len(bounds) - 1:
                yield Body(b"".join(held), lines.content_type)
                held, nbytes = [], 0
    yield Body(b"".join(held), lines.content_type)


def _arrow_bodies(data: DataRetriever, limit_bytes: int) -> Iterator[Body]:
    held: Body | None = None
    for inserts, deletes, _ in every(data):
        for piece in _pieces(_merged(inserts, deletes), limit_bytes):
            if held is not None:
                yield held
            held = Body(piece, ARROW)
    yield held or Body(b"", ARROW)


def _merged(inserts: pa.RecordBatch, deletes: pa.RecordBatch) -> pa.RecordBatch:
    """Both sides as rows in order: `_deleted` tells of which only the key counts."""
    known = set(deletes.schema.names)
    gone = [
        deletes.column(field.name) if field.name in known else pa.nulls(deletes.num_rows, field.type)
        for field in inserts.schema
    ]
    flags = np.repeat(np.array([True, False]), [deletes.num_rows, inserts.num_rows])
    times = np.concatenate([deletes.column(COMMIT_TS).to_numpy(), inserts.column(COMMIT_TS).to_numpy()])
    order = pa.array(np.argsort(times, kind="stable"))
    columns = [pa.concat_arrays(sides).take(order) for sides in zip(gone, inserts.columns, strict=True)]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(flags).take(order)], names=[*inserts.schema.names, DELETED]
    )


def _pieces(rows: pa.RecordBatch, limit_bytes: int) -> Iterator[bytes]:
    if not rows.num_rows:
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    made = sink.getvalue()
    if made.size <= limit_bytes or rows.num_rows == 1:
        yield made.to_pybytes()
        return
    parts = min(rows.num_rows, max(2, -(-made.size // limit_bytes)))
    step = -(-rows.num_rows // parts)
    for start in range(0, rows.num_rows, step):
        yield from _pieces(rows.slice(start, step), limit_bytes)
