"""A stream of bytes in blocks that end where a line ends, so that each can be read by itself."""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.json as pj

from penstock.errors import Corrupt

BLOCK_BYTES = 8 * 1024 * 1024


class Readable(Protocol):
    """What a decoder needs of a file."""

    def read(self, nbytes: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""


def blocks(
    stream: Readable, line_end: bytes, block_bytes: int = BLOCK_BYTES, *, quote: bytes = b""
) -> Iterator[bytes]:
    """Whole lines, about `block_bytes` of them at a time; one longer line comes alone.

    A line end between quotes ends no line; a quote within quotes is doubled.
    """
    held: list[bytes] = []
    inside = False  # whether what is held ends between quotes
    while data := stream.read(block_bytes):
        cut = _last_end(data, line_end, quote, inside=inside)
        if not cut:
            held.append(data)
            inside ^= _is_odd(data, quote)
            continue
        yield b"".join((*held, data[:cut]))
        held = [data[cut:]]
        inside = _is_odd(held[0], quote)
    if rest := b"".join(held):
        yield rest


def _last_end(data: bytes, line_end: bytes, quote: bytes, *, inside: bool) -> int:
    """The place after the last line end that is not between quotes; 0 when there is none."""
    at = data.rfind(line_end)
    odd = inside ^ _is_odd(data[:at], quote) if at >= 0 else False
    while at >= 0 and odd:
        before = data.rfind(line_end, 0, at)
        if before >= 0:
            odd ^= _is_odd(data[before:at], quote)
        at = before
    return at + len(line_end) if at >= 0 else 0


def _is_odd(data: bytes, quote: bytes) -> bool:
    return bool(quote) and data.count(quote) % 2 == 1


def parse_json(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Lines of JSON as a batch of this schema, other members left out; raise Corrupt when a line is none.

    Members that are missing are null.
    """
    reading = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        found = pj.read_json(pa.BufferReader(block), read_options=reading, parse_options=parsing)
    except pa.ArrowInvalid as error:
        raise Corrupt("a line is no JSON, or not of the schema file's columns; keep the file") from error
    batches = found.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
