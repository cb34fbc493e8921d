"""Cells of one column over a whole batch, and how to read them at once.

All arrays have one entry per row. Reading is a gather: numpy picks unaligned words out of the
buffer at every row's offset in one call.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.buffers import Bytes, Floats, Ints, Mask, Uints, gather, validity, words
from penstock.errors import Corrupt

SIGN = np.uint64(1 << 63)

_INT_SIZES = np.zeros(256, dtype=np.bool_)
_INT_SIZES[[1, 2, 4, 8]] = True
_KEEP = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(9)], dtype=np.uint64)
_SHIFT = np.array([64 - 8 * max(size, 1) for size in range(9)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Cells:
    """Where the cells of one column are.

    Invariant: `start` never decreases, and a row whose cell is not `valid` has size 0.
    """

    data: Bytes
    start: Ints
    size: Ints
    valid: Mask

    def __len__(self) -> int:
        return len(self.start)

    def ints(self) -> Ints:
        """Signed integers of 1, 2, 4 or 8 bytes; Corrupt for any other size."""
        shift = _SHIFT[self._int_sizes()]
        signed = words(self.data, self.start, "<u8").view(np.int64) << shift >> shift
        return np.where(self.valid, signed, 0)

    def uints(self) -> Uints:
        """Unsigned integers of 1, 2, 4 or 8 bytes; Corrupt for any other size."""
        return words(self.data, self.start, "<u8") & _KEEP[self._int_sizes()]

    def floats(self) -> Floats:
        """Doubles in their ordered form."""
        self.check(self.size == 8, "a float that is not 8 bytes")
        return ordered_floats(words(self.data, self.start, ">u8").astype(np.uint64))

    def binary(self) -> pa.Array:
        """The cells as a binary array."""
        return gather(self.data, self.start, self.start + self.size, self.valid)

    def decimal_cells(self) -> "Cells":
        """The cells themselves: a decimal begins with its precision and scale."""
        return self

    def check(self, holds: Mask, what: str) -> None:
        """Raise Corrupt unless every valid cell is as it must be."""
        if not (holds | ~self.valid).all():
            raise Corrupt(f"a row holds {what}; keep it for inspection")

    def _int_sizes(self) -> Ints:
        clipped = np.minimum(self.size, 9)
        self.check(_INT_SIZES[clipped], "an integer that is not 1, 2, 4 or 8 bytes")
        return clipped


def ordered_ints(encoded: Uints) -> Ints:
    """Signed integers out of their ordered form."""
    return (encoded ^ SIGN).view(np.int64)


def ordered_floats(encoded: Uints) -> Floats:
    """Doubles out of their ordered form."""
    return np.where(encoded & SIGN, encoded ^ SIGN, ~encoded).view(np.float64)


def fixed(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
    """An Arrow array of fixed-width values over numpy's memory."""
    return pa.Array.from_buffers(
        kind, len(valid), [validity(valid), pa.py_buffer(np.ascontiguousarray(values))]
    )
