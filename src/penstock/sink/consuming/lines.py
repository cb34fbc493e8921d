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


def blocks(stream: Readable, line_end: bytes, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Whole lines, about `block_bytes` of them at a time; one longer line comes alone."""
    rest = b""
    while data := stream.read(block_bytes):
        cut = data.rfind(line_end)
        if cut < 0:
            rest += data
            continue
        cut += len(line_end)
        yield rest + data[:cut]
        rest = data[cut:]
    if rest:
        yield rest


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
    return batches[0] if batches else schema.empty_table().to_batches()[0]
