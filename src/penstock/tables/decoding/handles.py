"""The handles of a batch of record keys: integers, or the parts of common handles."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.buffers import Bytes, Floats, Ints, Mask, Uints, validity, words
from penstock.errors import Corrupt, Invalid
from penstock.tables.codec.datums import DatumFlag
from penstock.tables.codec.decimals import packed_bytes
from penstock.tables.codec.ordered import INT_BYTES
from penstock.tables.decoding.cells import Cells, decode_ordered_floats, decode_ordered_ints
from penstock.tables.keys import PREFIX_BYTES, RECORD_SEPARATOR, TABLE_PREFIX
from penstock.tables.schema import TableInfo

_FIXED_FLAGS = (DatumFlag.INT, DatumFlag.UINT, DatumFlag.FLOAT, DatumFlag.DURATION)
_GROUP = 8
_FULL = 0xFF


def record_rows(data: Bytes, begin: Ints, end: Ints, table: TableInfo) -> Mask:
    """Return which keys are records and not index entries; raise Invalid if one is of another table."""
    if (end - begin <= PREFIX_BYTES).any():
        raise Invalid(f"a batch for table {table.name} has keys that are too short; route keys by table")
    theirs = (data[begin] == ord(TABLE_PREFIX)) & np.isin(
        decode_ordered_ints(words(data, begin + 1, ">u8").astype(np.uint64)), table.physical_ids
    )
    if not theirs.all():
        raise Invalid(f"a batch for table {table.name} has keys of another table; route keys by table")
    separator = words(data, begin + 1 + INT_BYTES, "<u2")
    return np.asarray(separator == int.from_bytes(RECORD_SEPARATOR, "little"))


@dataclass(frozen=True, slots=True)
class IntHandles:
    """The integer handles of record keys, as storage of the primary key column."""

    handles: Ints

    @classmethod
    def read(cls, data: Bytes, begin: Ints, end: Ints) -> "IntHandles":
        """Read the handles; raise Corrupt when a key does not end in an integer."""
        if (end - begin != PREFIX_BYTES + INT_BYTES).any():
            raise Corrupt("a record key does not end in an integer handle; keep it for inspection")
        return cls(decode_ordered_ints(words(data, begin + PREFIX_BYTES, ">u8").astype(np.uint64)))

    @property
    def valid(self) -> Mask:
        return np.ones(len(self.handles), dtype=np.bool_)

    def ints(self) -> Ints:
        return self.handles

    def uints(self) -> Uints:
        return self.handles.view(np.uint64)

    def floats(self) -> Floats:
        raise AssertionError("an integer handle is not a float")

    def binary(self) -> pa.Array:
        raise AssertionError("an integer handle is not a string")

    def decimal_cells(self) -> Cells:
        raise AssertionError("an integer handle is not a decimal")


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of common handles: one datum of each key, whose flag is at `at`."""

    data: Bytes
    at: Ints
    end: Ints
    valid: Mask

    def ints(self) -> Ints:
        self._expect(DatumFlag.INT, DatumFlag.DURATION)
        return decode_ordered_ints(self._words())

    def uints(self) -> Uints:
        self._expect(DatumFlag.UINT)
        return self._words()

    def floats(self) -> Floats:
        self._expect(DatumFlag.FLOAT)
        return decode_ordered_floats(self._words())

    def decimal_cells(self) -> Cells:
        self._expect(DatumFlag.DECIMAL)
        return Cells(self.data, self.at + 1, np.where(self.valid, self.end - self.at - 1, 0), self.valid)

    def binary(self) -> pa.Array:
        """Return the strings: the first eight of each group of nine bytes, without the padding at the end."""
        self._expect(DatumFlag.BYTES)
        groups = np.where(self.valid, (self.end - self.at - 1) // (_GROUP + 1), 0)
        padding = np.where(self.valid, _FULL - self.data[self.end - 1].astype(np.int64), 0)
        offsets = np.concatenate([[0], np.cumsum(groups * _GROUP - padding)])
        sizes = np.diff(offsets)
        nth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        raw = self.data[np.repeat(self.at + 1, sizes) + nth + nth // _GROUP]
        buffers = [validity(self.valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw)]
        return pa.Array.from_buffers(pa.binary(), len(self.at), buffers)

    def _words(self) -> Uints:
        return words(self.data, self.at + 1, ">u8").astype(np.uint64)

    def _expect(self, *flags: DatumFlag) -> None:
        if not (np.isin(self.data[self.at], flags) | ~self.valid).all():
            raise Corrupt("a common handle does not fit the table's primary key; keep its key for inspection")


def common_handles(data: Bytes, begin: Ints, end: Ints, parts: int) -> list[KeyPart]:
    """Return the first `parts` columns of common handles; raise Corrupt when a key is cut short."""
    columns, at = [], begin + PREFIX_BYTES
    for _ in range(parts):
        after = _datum_ends(data, at, end)
        if (after > end).any():
            raise Corrupt("a common handle is cut short; keep its key for inspection")
        columns.append(KeyPart(data, at, after, data[at] != DatumFlag.NIL))
        at = after
    return columns


def _datum_ends(data: Bytes, at: Ints, limit: Ints) -> Ints:
    flags = data[at]
    ends = at + 1
    ends[np.isin(flags, _FIXED_FLAGS)] += INT_BYTES
    strings = np.flatnonzero(flags == DatumFlag.BYTES)
    if len(strings):
        ends[strings] = _group_ends(data, at[strings] + 1, limit[strings])
    decimals = np.flatnonzero(flags == DatumFlag.DECIMAL)
    if len(decimals):
        ends[decimals] += _decimal_sizes(words(data, at[decimals] + 1, "<u2").astype(np.int64))
    if not np.isin(flags, (*_FIXED_FLAGS, DatumFlag.BYTES, DatumFlag.DECIMAL, DatumFlag.NIL)).all():
        raise Corrupt("a common handle has an unknown flag; keep its key for inspection")
    return ends


def _group_ends(data: Bytes, at: Ints, limit: Ints) -> Ints:
    ends = at.copy()
    open_ = np.arange(len(at))
    while len(open_):
        ends[open_] += _GROUP + 1
        if (ends[open_] > limit[open_]).any():
            raise Corrupt("a string in a common handle is cut short; keep its key for inspection")
        open_ = open_[data[ends[open_] - 1] == _FULL]
    if (data[ends - 1] < _FULL - _GROUP).any():
        raise Corrupt("a string in a common handle has an impossible padding; keep its key for inspection")
    return ends


def _decimal_sizes(heads: npt.NDArray[np.int64]) -> Ints:
    distinct, which = np.unique(heads, return_inverse=True)
    sizes = [2 + packed_bytes(max(int(head) & 0xFF, int(head) >> 8), int(head) >> 8) for head in distinct]
    return np.array(sizes, dtype=np.int64)[which]
