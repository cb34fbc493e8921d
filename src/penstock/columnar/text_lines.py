"""Lines out of columns: each line is constants and cells, one after the other, for all rows at once.

Bytes that cannot stand as they are: replaced in all cells of a column at once. Pure.
"""

import binascii
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "JSON",
    "LATIN1_JSON",
    "Ints",
    "Lines",
    "Substitution",
    "as_binary",
    "base64_cells",
    "content",
    "hex_cells",
    "json_string",
    "numbers",
    "of_content",
    "spread",
    "truths",
]


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


class Substitution:
    """Puts other bytes in place of some, each of one to three bytes; longer ones win over single ones.

    What is not replaced is copied in runs, so that the time goes by what is replaced.
    """

    def __init__(self, pairs: Mapping[bytes, bytes]) -> None:
        self._texts = pa.array(list(pairs.values()), pa.binary())
        self._sizes = np.array([len(each) for each in pairs.values()], np.int64)
        self._numbers = np.zeros(256, np.int64)
        self._long: list[tuple[bytes, int]] = []
        for number, found in enumerate(pairs):
            if len(found) == 1:
                self._numbers[found[0]] = number
            else:
                self._long.append((found, number))
        self._ranges = _ranges(sorted(each[0] for each in pairs if len(each) == 1))

    def apply(self, cells: pa.Array) -> pa.Array:
        """The cells, text or binary, as binary; those that have nothing to replace are not copied."""
        held, bounds = content(cells)
        at, widths, numbers = self._found(held, bounds)
        if not len(at):
            return as_binary(cells)
        edges = np.empty(2 * len(at) + 2, np.int32)
        edges[0], edges[-1] = 0, len(held)
        edges[1:-1:2], edges[2:-1:2] = at, at + widths
        runs = pa.Array.from_buffers(
            pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(held)], null_count=0
        )
        index = np.arange(len(edges) - 1, dtype=np.int64)
        index[1::2] = len(runs) + numbers
        taken = pc.take(pa.concat_arrays([runs, self._texts]), pa.array(index), boundscheck=False)
        grown = np.concatenate(([0], np.cumsum(self._sizes[numbers] - widths)))
        moved = bounds + grown[np.searchsorted(at, bounds)]
        return of_content(taken.buffers()[2], moved, cells)

    def _found(self, held: Bytes, bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Where something is to be replaced, how long it is there, and by which text."""
        marked = np.zeros(len(held), np.bool_)
        for low, high in self._ranges:
            marked |= (held - np.uint8(low)) <= np.uint8(high - low)
        at = np.flatnonzero(marked)
        widths, numbers = np.ones(len(at), np.int64), self._numbers[held[at]]
        for found, number in self._long:
            places = _places(held, bounds, found)
            if len(places):
                covered = np.isin(at, (places[:, None] + np.arange(len(found))).ravel())
                at = np.concatenate((at[~covered], places))
                widths = np.concatenate((widths[~covered], np.full(len(places), len(found))))
                numbers = np.concatenate((numbers[~covered], np.full(len(places), number)))
                order = np.argsort(at)
                at, widths, numbers = at[order], widths[order], numbers[order]
        return at, widths, numbers


def _ranges(found: list[int]) -> list[tuple[int, int]]:
    """Numbers as ranges of such that follow each other: few comparisons instead of a look at a table."""
    runs = [
        [number for _, number in run] for _, run in groupby(enumerate(found), lambda each: each[1] - each[0])
    ]
    return [(run[0], run[-1]) for run in runs]


def _places(held: Bytes, bounds: Ints, found: bytes) -> Ints:
    """Where some bytes begin, within a cell and not within each other."""
    if len(held) < len(found):
        return np.empty(0, np.int64)
    last = len(held) - len(found) + 1
    matches: npt.NDArray[np.bool_] = held[:last] == found[0]
    if not matches.any():
        return np.empty(0, np.int64)
    for offset, byte in enumerate(found[1:], 1):
        matches &= held[offset : last + offset] == byte
    at = np.flatnonzero(matches)
    cell = np.searchsorted(bounds, at, side="right")
    at = at[cell == np.searchsorted(bounds, at + len(found) - 1, side="right")]
    while len(at) > 1 and (np.diff(at) < len(found)).any():
        first = int(np.flatnonzero(np.diff(at) < len(found))[0]) + 1
        at = np.delete(at, first)
    return at


_SHORT = {b"\t": b"\\t", b"\r": b"\\r", b"\n": b"\\n", b"\\": b"\\\\", b'"': b'\\"'}
_ESCAPES = {
    **{bytes([byte]): b"\\u%04x" % byte for byte in (*range(0x20), *b"<>&")},
    **_SHORT,
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}

JSON = Substitution(_ESCAPES)
"""Text inside a JSON string, with the escapes that Go's writers choose."""

LATIN1_JSON = Substitution(
    {
        **{bytes([byte]): chr(byte).encode() for byte in range(0x80, 0x100)},
        **{found: text for found, text in _ESCAPES.items() if len(found) == 1},
    }
)
"""Bytes as the characters of ISO 8859-1, inside a JSON string."""


def json_string(text: str) -> bytes:
    """One JSON string, in quotes."""
    cell = JSON.apply(pa.array([text], pa.string()))[0].as_py()
    return b'"%s"' % cell


def hex_cells(cells: pa.Array) -> pa.Array:
    """Bytes in hexadecimal digits."""
    held, bounds = content(cells)
    return of_content(np.frombuffer(binascii.hexlify(held.data), np.uint8), 2 * bounds, cells)


_PADS = pa.array([b"", b"\0\0", b"\0"], pa.binary())


def base64_cells(cells: pa.Array) -> pa.Array:
    """Bytes in base 64: every cell is made a whole number of triples, then all are encoded as one."""
    _, before = content(cells)
    sizes = np.diff(before)
    short = (-sizes) % 3
    pads = _PADS.take(pa.array(sizes % 3))
    whole = pc.binary_join_element_wise(as_binary(cells).fill_null(b""), pads, pa.scalar(b"", pa.binary()))
    held, bounds = content(whole)
    made = np.frombuffer(binascii.b2a_base64(held.data, newline=False), np.uint8).copy()
    ends = bounds[1:] // 3 * 4
    made[ends[short > 0] - 1] = ord("=")
    made[ends[short > 1] - 2] = ord("=")
    return of_content(made, bounds // 3 * 4, cells)
