"""Kernels on columns: gather, pad, read words and compare without a Python object for each cell."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Uints = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

PADDING = 64
"""Bytes after the last cell of a padded buffer: a gather may read past the cell, never past the buffer."""


def pad(data: npt.NDArray[Any]) -> Bytes:
    """Return a copy of a buffer with room for gathers past its end."""
    roomy = np.empty(len(data) + PADDING, dtype=np.uint8)
    roomy[: len(data)] = data
    roomy[len(data) :] = 0
    return roomy


def words(data: Bytes, at: Ints, word: str) -> npt.NDArray[Any]:
    """Return the little- or big-endian word at each offset, aligned or not."""
    kind = np.dtype(word)
    # With a stride of one byte, element i of this view is the word that begins at byte i.
    by_offset = np.ndarray((len(data) - kind.itemsize + 1,), dtype=kind, buffer=data.data, strides=(1,))
    return by_offset[at]


def gather(data: Bytes, start: Ints, end: Ints, valid: Mask) -> pa.Array:
    """Return pieces of a buffer as a binary array.

    The pieces follow each other in the buffer, so pieces and gaps together already form a binary array.
    Taking every other element copies the pieces in one native call.
    """
    rows = len(start)
    if not rows:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * rows, dtype=np.int32)
    bounds[0::2] = start
    bounds[1::2] = end
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)], null_count=0
    )
    taken = pieces.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    return pa.Array.from_buffers(pa.binary(), rows, [validity(valid), *taken.buffers()[1:]])


def validity(valid: Mask) -> pa.Buffer | None:
    """Return Arrow's bitmap for a mask; None when every row is valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def equal_cells(one: pa.Array, other: pa.Array) -> Mask:
    """Return where two columns of one type have the same value, or both have none.

    Floating point numbers are compared by their bits, lists by their elements.
    """
    if pa.types.is_list(one.type):
        same = _equal_lists(one, other)
    else:
        same = pc.fill_null(pc.equal(_bits(one), _bits(other)), fill_value=False)
    neither = pc.and_(one.is_null(), other.is_null())
    return np.asarray(pc.or_(same, neither).to_numpy(zero_copy_only=False), np.bool_)


def _bits(column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type):
        return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column


def _equal_lists(one: pa.Array, other: pa.Array) -> pa.Array:
    """Return where two columns have lists of the same length with the same elements."""
    same = pc.fill_null(pc.equal(pc.list_value_length(one), pc.list_value_length(other)), fill_value=False)
    places = np.flatnonzero(same)
    left, right = one.take(pa.array(places)), other.take(pa.array(places))
    different = ~equal_cells(left.flatten(), right.flatten())
    mask = np.array(same)
    mask[places[pc.list_parent_indices(left).to_numpy()[different]]] = False
    return pa.array(mask)
