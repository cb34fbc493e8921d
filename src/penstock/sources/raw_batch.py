"""Matched rows on their way into raw batches, column by column."""

from array import array
from collections.abc import Callable

import pyarrow as pa

from penstock.tables.raw import RAW_SCHEMA, Op

__all__ = ["BATCH_BYTES", "BATCH_BYTES_MAX", "RawColumns"]

BATCH_BYTES = 4096  # what a batch costs in memory beyond the bytes of its rows
BATCH_BYTES_MAX = 4 * 1024 * 1024
_ROW_BYTES = 32  # timestamps, offsets, operation
_DELETE = int(Op.DELETE)


class RawColumns:
    """Rows of one subscription in the order they were matched.

    `hand_over(batch, weight)` is called with a raw batch when there are enough rows, and on `flush`.
    It may raise; the rows of that batch are gone then.
    """

    __slots__ = ("_bytes", "_commit_ts", "_hand_over", "_keys", "_old_values", "_ops", "_start_ts", "_values")

    def __init__(self, hand_over: Callable[[pa.RecordBatch, int], None]) -> None:
        self._hand_over = hand_over
        self._clear()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, op: int, start_ts: int, commit_ts: int, key: bytes, value: bytes, old_value: bytes) -> None:
        """Append a row; an empty old value means that there was none.

        A delete of nothing is no change: TiDB commits one for a row that a transaction inserts and deletes.
        """
        if op == _DELETE and not old_value:
            return
        self._ops.append(op)
        self._start_ts.append(start_ts)
        self._commit_ts.append(commit_ts)
        self._keys.append(key)
        self._values.append(None if op == _DELETE else value)
        self._old_values.append(old_value or None)
        self._bytes += len(key) + len(value) + len(old_value) + _ROW_BYTES
        if self._bytes >= BATCH_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand over the rows collected so far."""
        count = len(self._keys)
        if not count:
            return
        weight = self._bytes + BATCH_BYTES
        columns = [
            pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(self._ops)]),
            pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(self._start_ts)]),
            pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(self._commit_ts)]),
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.array(self._old_values, pa.binary()),
        ]
        self._clear()
        self._hand_over(pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA), weight)

    def _clear(self) -> None:
        self._bytes = 0
        self._ops = array("B")
        self._start_ts = array("Q")
        self._commit_ts = array("Q")
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._old_values: list[bytes | None] = []
