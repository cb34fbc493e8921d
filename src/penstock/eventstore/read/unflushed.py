"""What changes that are not in objects yet do to a snapshot: which rows they end, and which they leave.

Takes the memory of every handle that is touched, and of the batches that a reader gives; never of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Unavailable
from penstock.eventstore.paths import Side
from penstock.eventstore.projection import Projection
from penstock.eventstore.read.ranges import RangeReader, ReadRange, SchemaRange
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.tables.schema import TableInfo

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unflushed:
    """The changes of a range, by their effect.

    `touched` are the handles of all of them, in order, each once. `live` are the places, among the data rows
    in their order, of the rows that are there at the end of the range.
    """

    reader: RangeReader
    parts: tuple[SchemaRange, ...]
    touched: pa.Array
    live: Ints
    rows: int

    @classmethod
    def load(cls, reader: RangeReader, wanted: ReadRange) -> "Unflushed":
        """Look at every change of a range; raise Unavailable when it is not complete or cannot be had."""
        parts = tuple(reader.parts(wanted))
        begun = _times_of(reader, parts, "data")
        ended = _times_of(reader, parts, "tombstone")
        handles = pa.chunked_array([*begun.column(HANDLE).chunks, *ended.column(HANDLE).chunks], pa.binary())
        numbered = handles.combine_chunks().dictionary_encode()
        distinct = numbered.dictionary
        live = live_rows(
            numbered.indices.to_numpy(),
            begun.column(COMMIT_TS).to_numpy(),
            ended.column(COMMIT_TS).to_numpy(),
            len(distinct),
        )
        touched = distinct.take(pc.array_sort_indices(distinct))
        return cls(reader, parts, touched, live, begun.num_rows)

    def batches(self, table: TableInfo, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows that are there at the end of the range, once each, as columns of `table`.

        Raises Unavailable when the reader cannot give the rows that were looked at.
        """
        seen = 0
        for part in self.parts:
            projection = Projection(part.schema.table, table, names)
            wanted = replace(part.wanted, side="data", columns=projection.reads or (COMMIT_TS,))
            for batch in self.reader.read(wanted)[1]:
                start, end = np.searchsorted(self.live, [seen, seen + batch.num_rows])
                chosen = self.live[start:end] - seen
                seen += batch.num_rows
                if len(chosen):
                    kept = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
                    yield projection.apply(kept)
        if seen != self.rows:
            raise Unavailable("rows that are not flushed changed while they were read; try again")


def live_rows(numbers: Ints, begun_ts: Ints, ended_ts: Ints, handles: int) -> Ints:
    """Which data rows are there in the end: the places of each handle's last one, unless it ended later.

    `numbers` says of which handle each data row, then each tombstone is; both sides are ordered by time. At
    one timestamp a row ends before the next begins.
    """
    data, tombstones = numbers[: len(begun_ts)], numbers[len(begun_ts) :]
    last, begun, ended = (
        np.full(handles, -1, np.int64),
        np.zeros(handles, np.int64),
        np.zeros(handles, np.int64),
    )
    last[data] = np.arange(len(data))  # of equal numbers the last one stays
    begun[data] = begun_ts
    ended[tombstones] = ended_ts
    last = last[(last >= 0) & (begun >= ended)]
    last.sort()
    return last


def _times_of(reader: RangeReader, parts: Sequence[SchemaRange], side: Side) -> pa.Table:
    """When which handle changed on one side, in order."""
    columns = (HANDLE, COMMIT_TS)
    schema = pa.schema([(HANDLE, pa.binary()), (COMMIT_TS, pa.int64())])
    batches = [
        batch.cast(schema)
        for part in parts
        for batch in reader.read(replace(part.wanted, side=side, columns=columns))[1]
    ]
    return pa.Table.from_batches(batches, schema)
