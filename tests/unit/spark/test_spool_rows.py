"""Descriptors of chunks as rows of Spark's, and back."""

import pyarrow as pa
import pytest

from penstock.changefeeds.engines.encode import EncodedChunk
from penstock.changefeeds.engines.engine import Chunk, Traced
from penstock.changefeeds.engines.spark import chunk_batch, read_batch, read_chunks
from penstock.follow.slices import Position


@pytest.mark.parametrize("traced", [(), ((1 << 60, 3), (5, 1))])
def test_a_chunk_is_described_as_it_was_made(traced: Traced) -> None:
    encoded = EncodedChunk(Position(4, b"a"), Position(5), 7, b"payload", traced)
    rows = [chunk_batch(2, 1, 9, encoded), read_batch(2, 8, 0.5), read_batch(2, 3, 1.5)]
    found, rows_read = read_chunks(pa.Table.from_batches(rows), segment=3, slices=4)
    chunk = Chunk(3, 9, Position(4, b"a"), Position(5), 7, len(b"payload"), traced)
    assert found == [([], 0.0), ([], 0.0), ([chunk], 1.5), ([], 0.0)]
    assert rows_read == 11, "of two tasks"
