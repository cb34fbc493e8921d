"""Chunks of the spool, and what became of files, as rows of Spark's."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.changefeeds.engines.engine import Chunk, FileWork, Traced, WriteResult
from penstock.follow.positions import Position

if TYPE_CHECKING:
    from penstock.changefeeds.engines.encode import EncodedChunk

DESCRIPTORS = (
    "which",
    "part",
    "number",
    "start_ts",
    "start_handle",
    "end_ts",
    "end_handle",
    "rows",
    "nbytes",
    "traced",
)
CHUNKS = (
    "which int, part int, number long, start_ts long, start_handle binary, end_ts long, end_handle binary,"
    " rows long, nbytes long, traced binary, payload binary"
)
_CODEC = "lz4"
_TRACED = "<u8"
WRITTEN = "number int, data_path string, nbytes long, error string"

_CHUNKS = pa.schema(
    [
        ("which", pa.int32()),
        ("part", pa.int32()),
        ("number", pa.int64()),
        ("start_ts", pa.int64()),
        ("start_handle", pa.binary()),
        ("end_ts", pa.int64()),
        ("end_handle", pa.binary()),
        ("rows", pa.int64()),
        ("nbytes", pa.int64()),
        ("traced", pa.binary()),
        ("payload", pa.binary()),
    ]
)
_PAYLOADS = pa.schema([("place", pa.int64()), ("nbytes", pa.int64()), ("payload", pa.binary())])
_WRITTEN = pa.schema(
    [("number", pa.int32()), ("data_path", pa.string()), ("nbytes", pa.int64()), ("error", pa.string())]
)


def chunk_batch(which: int, part: int, number: int, encoded: "EncodedChunk") -> pa.RecordBatch:
    """One chunk: of slice `which` its part `part`. Text is far less to move when it is compressed."""
    start, end = encoded.start, encoded.end
    row = [which, part, number, start.ts, start.handle, end.ts, end.handle, encoded.rows]
    packed = pa.compress(encoded.payload, codec=_CODEC, asbytes=True)
    traced = np.array(encoded.traced, _TRACED).tobytes()
    return _one_row(_CHUNKS, [*row, len(encoded.payload), traced, packed])


def payload_table(payloads: Iterable[tuple[int, bytes]]) -> pa.Table:
    """Rows of (place, nbytes, payload), as `read_payloads` takes them."""
    found = [
        (place, len(payload), pa.compress(payload, codec=_CODEC, asbytes=True)) for place, payload in payloads
    ]
    columns = zip(*found, strict=True)
    return pa.table(
        [pa.array(each, kind) for each, kind in zip(columns, _PAYLOADS.types, strict=True)], schema=_PAYLOADS
    )


def read_payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The place and the payload of each row of (place, nbytes, payload)."""
    for batch in batches:
        places, sizes, packed = batch.columns
        for place, nbytes, payload in zip(places.to_pylist(), sizes.to_pylist(), packed, strict=True):
            yield place, pa.decompress(payload.as_buffer(), nbytes, codec=_CODEC, asbytes=True)


def read_chunks(found: pa.Table, segment: int) -> dict[int, list[tuple[tuple[int, int], Chunk]]]:
    """The chunks of each slice, with what they are ordered by."""
    chunks: dict[int, list[tuple[tuple[int, int], Chunk]]] = {}
    for row in found.to_pylist():
        chunk = Chunk(
            segment=segment,
            number=row["number"],
            start=Position(row["start_ts"], row["start_handle"]),
            end=Position(row["end_ts"], row["end_handle"]),
            rows=row["rows"],
            nbytes=row["nbytes"],
            traced=_traced(row["traced"]),
        )
        chunks.setdefault(row["which"], []).append(((row["part"], row["number"]), chunk))
    return chunks


def _traced(packed: bytes) -> Traced:
    return tuple((ts, rows) for ts, rows in np.frombuffer(packed, _TRACED).reshape(-1, 2).tolist())


def written_batch(number: int, written: WriteResult) -> pa.RecordBatch:
    """What became of file `number`."""
    return _one_row(_WRITTEN, [number, written.data_path, written.nbytes, written.error])


def read_written(found: pa.Table, files: Sequence[FileWork]) -> list[WriteResult]:
    """What became of each file, in their order; one of which no payload was found has failed."""
    by_number = {
        row["number"]: WriteResult(row["data_path"], row["nbytes"], row["error"]) for row in found.to_pylist()
    }
    return [
        by_number.get(number, WriteResult(file.data_path, 0, "its payloads are gone from the spool"))
        for number, file in enumerate(files)
    ]


def _one_row(schema: pa.Schema, row: list[object]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
