"""Changes out of objects, in order, row group by row group.

An appendable object is in order, and those of a side do not overlap in time. A direct object is one
transaction, whose place is somewhere among the rows of the others.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import Corrupt
from penstock.eventstore import paths
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.sides import COMMIT_TS, HANDLE, START_TS
from penstock.eventstore.storage import Storage

_BATCHES_PER_GROUP = 4  # row groups are bounded in bytes, so their parts are

Batches = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """Reads some columns, and those that place a change, of a table's changes in (from_ts, to_ts]."""

    storage: Storage
    table_id: int
    from_ts: int
    to_ts: int
    columns: Sequence[str]

    def changes(self, objects: Iterable[ObjectInfo]) -> Batches:
        """The changes of one side's objects, in order. Takes the memory of two row groups.

        Raises Unavailable when storage does not answer, Corrupt when an object is damaged.
        """
        chosen = [each for each in objects if each.min_ts <= self.to_ts and each.max_ts > self.from_ts]
        chosen.sort(key=lambda each: each.min_ts)
        appendable = [each for each in chosen if each.kind == "appendable"]
        waiting = sorted((self._place(each), each.id, each) for each in chosen if each.kind == "direct")
        for info in appendable:
            with closing(self._rows(info)) as batches:
                for batch in batches:
                    rest = batch
                    while waiting and (at := _rows_before(rest, waiting[0][0])) < rest.num_rows:
                        yield rest.slice(0, at)
                        yield from self._rows(waiting.pop(0)[-1])
                        rest = rest.slice(at)
                    yield rest
        for *_, info in waiting:
            yield from self._rows(info)

    def _rows(self, info: ObjectInfo) -> Batches:
        with self._opened(info) as file:
            for group in range(file.num_row_groups):
                low, high = _bounds(file, group, COMMIT_TS)
                if high <= self.from_ts or low > self.to_ts:
                    continue
                wanted = [*self.columns, HANDLE, COMMIT_TS, START_TS]
                rows = -(-file.metadata.row_group(group).num_rows // _BATCHES_PER_GROUP)
                for batch in file.iter_batches(rows, row_groups=[group], columns=wanted):
                    commit = batch.column(COMMIT_TS).to_numpy()
                    start, end = np.searchsorted(commit, [self.from_ts, self.to_ts], side="right")
                    yield batch.slice(start, end - start)

    def _place(self, info: ObjectInfo) -> tuple[int, int]:
        """When the transaction of a direct object committed and began."""
        with self._opened(info) as file:
            return info.min_ts, _bounds(file, 0, START_TS)[0]

    @contextmanager
    def _opened(self, info: ObjectInfo) -> Iterator[pq.ParquetFile]:
        path = paths.object_path(paths.table_root(self.table_id), info.side, info.id)
        try:
            with self.storage.open(path) as source, pq.ParquetFile(source, pre_buffer=True) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"object {path} is damaged; keep it for inspection") from error


def _bounds(file: pq.ParquetFile, group: int, column: str) -> tuple[int, int]:
    """The lowest and highest value of a column in a row group, as its statistics have them."""
    described = file.metadata.row_group(group)
    for index in range(described.num_columns):
        found = described.column(index)
        if found.path_in_schema == column and found.statistics is not None:
            return found.statistics.min, found.statistics.max
    raise pa.ArrowInvalid(f"no statistics of {column}")


def _rows_before(batch: pa.RecordBatch, place: tuple[int, int]) -> int:
    """How many rows of an ordered batch come before a transaction."""
    commit, start = batch.column(COMMIT_TS).to_numpy(), batch.column(START_TS).to_numpy()
    low, high = np.searchsorted(commit, place[0]), np.searchsorted(commit, place[0], side="right")
    return int(low + np.searchsorted(start[low:high], place[1]))
