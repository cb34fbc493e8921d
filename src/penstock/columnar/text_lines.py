"""Lines out of columns: each line is constants and cells, one after the other, for all rows at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_NOTHING = pa.scalar(b"", pa.binary())


class Lines:
    """The lines of some rows while they are built. Constants that follow each other are one."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[bytes | pa.Array] = []

    def text(self, constant: bytes) -> None:
        """The same in every line."""
        if self._parts and isinstance(self._parts[-1], bytes):
            self._parts[-1] += constant
        else:
            self._parts.append(constant)

    def cells(self, cells: pa.Array, *, quote: bytes = b"", null: bytes = b"") -> None:
        """A cell of each line, in quotes; `null`, without quotes, for those that are null."""
        if not cells.null_count:
            self.text(quote)
            self._parts.append(as_binary(cells))
            self.text(quote)
        else:
            self._parts.append(quoted(cells, quote=quote, null=null))

    def choice(self, texts: Sequence[bytes], which: npt.NDArray[np.integer]) -> None:
        """One of a few texts in each line."""
        if not self._rows or (which == which[0]).all():
            self.text(texts[which[0]] if self._rows else b"")
        else:
            self._parts.append(chosen(texts, which))

    def build(self) -> pa.Array:
        """The lines."""
        parts = [pa.scalar(each, pa.binary()) if isinstance(each, bytes) else each for each in self._parts]
        if all(isinstance(each, pa.Scalar) for each in parts):
            return pa.repeat(pa.scalar(b"".join(each.as_py() for each in parts), pa.binary()), self._rows)
        return pc.binary_join_element_wise(*parts, _NOTHING)


def as_binary(cells: pa.Array) -> pa.Array:
    """Text as its bytes, which copies nothing."""
    return cells if pa.types.is_binary(cells.type) else cells.cast(pa.binary())


def quoted(cells: pa.Array, *, quote: bytes, null: bytes) -> pa.Array:
    """Cells in quotes, and `null` where there is none."""
    mark = pa.scalar(quote, pa.binary())
    inside = (
        pc.binary_join_element_wise(mark, as_binary(cells), mark, _NOTHING) if quote else as_binary(cells)
    )
    return inside.fill_null(pa.scalar(null, pa.binary()))


def chosen(texts: Sequence[bytes], which: npt.NDArray[np.integer]) -> pa.Array:
    """One of a few texts for each row."""
    return pc.take(pa.array(texts, pa.binary()), pa.array(which), boundscheck=False)


def numbers(values: Ints) -> pa.Array:
    """Whole numbers as text."""
    return pa.array(values).cast(pa.string())


def spread(cells: pa.Array, places: npt.NDArray[np.bool_], other: bytes) -> pa.Array:
    """Cells where `places` is set, in order; `other` everywhere else."""
    index = np.where(places, np.cumsum(places), 0)
    known = pa.concat_arrays([pa.array([other], pa.binary()), as_binary(cells)])
    return pc.take(known, pa.array(index), boundscheck=False)


def truths(cells: pa.Array) -> npt.NDArray[np.bool_]:
    """Booleans as a mask, in which null is false."""
    return np.asarray(pc.fill_null(cells, fill_value=False))


def content(cells: pa.Array) -> tuple[Bytes, Ints]:
    """The bytes of text or binary cells, and where each begins in them, and the last ends."""
    _, offsets, held = cells.buffers()
    if not len(cells) or held is None:
        return np.empty(0, np.uint8), np.zeros(len(cells) + 1, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1].astype(np.int64)
    return np.frombuffer(held, np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def of_content(held: Bytes | pa.Buffer, bounds: Ints, cells: pa.Array) -> pa.Array:
    """Binary cells of other bytes than those of `cells`, null where they are."""
    valid = None
    if cells.null_count:
        valid = pa.py_buffer(np.packbits(np.asarray(cells.is_valid()), bitorder="little"))
    buffer = held if isinstance(held, pa.Buffer) else pa.py_buffer(held)
    return pa.Array.from_buffers(
        pa.binary(), len(cells), [valid, pa.py_buffer(bounds.astype(np.int32)), buffer]
    )
