"""Matched rows on their way into a raw batch, column by column."""

from array import array

import pyarrow as pa

from penstock.tables.raw import RAW_SCHEMA, Op

__all__ = ["RawColumns"]

_DELETE = int(Op.DELETE)


class RawColumns:
    """Rows of one subscription in the order they were matched. `add` is the hot path of the puller."""

    __slots__ = ("_commit_ts", "_keys", "_old_values", "_ops", "_start_ts", "_values")

    def __init__(self) -> None:
        self._ops = array("B")
        self._start_ts = array("Q")
        self._commit_ts = array("Q")
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._old_values: list[bytes | None] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, op: int, start_ts: int, commit_ts: int, key: bytes, value: bytes, old_value: bytes) -> None:
        """Append a row; an empty old value means that there was none."""
        self._ops.append(op)
        self._start_ts.append(start_ts)
        self._commit_ts.append(commit_ts)
        self._keys.append(key)
        self._values.append(None if op == _DELETE else value)
        self._old_values.append(old_value or None)

    def take(self) -> pa.RecordBatch:
        """Return the rows as a raw batch and begin anew."""
        batch = pa.RecordBatch.from_arrays(
            [
                pa.Array.from_buffers(pa.uint8(), len(self), [None, pa.py_buffer(self._ops)]),
                pa.Array.from_buffers(pa.uint64(), len(self), [None, pa.py_buffer(self._start_ts)]),
                pa.Array.from_buffers(pa.uint64(), len(self), [None, pa.py_buffer(self._commit_ts)]),
                pa.array(self._keys, pa.binary()),
                pa.array(self._values, pa.binary()),
                pa.array(self._old_values, pa.binary()),
            ],
            schema=RAW_SCHEMA,
        )
        self.__init__()  # type: ignore[misc]  # the arrays belong to the batch now
        return batch
