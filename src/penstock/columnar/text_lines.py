"""Lines of text from columns, and the escaping of their cells, for all rows at once. Pure.

A line is a sequence of constants and cells. `Substitution` replaces bytes that must be escaped in all cells
of a column at once.
"""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Bytes, Ints

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


_NOTHING = pa.scalar(b"", pa.binary())


class Lines:
    """Builds the lines of some rows. It joins constants that follow each other into one."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[bytes | _Quote | pa.Array] = []
        self._null: bytes | None = None  # what the join writes for cells that are null

    def text(self, constant: bytes) -> None:
        """Append the same bytes to every line."""
        if self._parts and isinstance(self._parts[-1], bytes):
            self._parts[-1] += constant
        else:
            self._parts.append(constant)

    def cells(self, cells: pa.Array, *, quote: bytes = b"", null: bytes = b"") -> None:
        """Append a cell to each line, in quotes; `null`, without quotes, for cells that are null."""
        if not cells.null_count:
            self.text(quote)
            self._parts.append(as_binary(cells))
            self.text(quote)
        elif quote and self._null in {None, null}:  # the join writes it in the place of null cells
            self._null = null
            valid = np.asarray(cells.is_valid())
            self._parts += [_Quote(quote, valid), as_binary(cells), _Quote(quote, valid)]
        else:
            self._parts.append(quote_cells(cells, quote=quote, null=null))

    def choice(self, texts: Sequence[bytes], which: npt.NDArray[np.integer]) -> None:
        """Append one of a few texts to each line: the one that `which` gives by its index."""
        if not self._rows or (which == which[0]).all():
            self.text(texts[which[0]] if self._rows else b"")
        else:
            self._parts.append(choose_texts(texts, which))

    def build(self) -> pa.Array:
        """Return the lines."""
        parts: list[pa.Array | pa.Scalar] = []
        for is_cells, group in groupby(self._parts, lambda part: isinstance(part, pa.Array)):
            run = list(group)
            parts += run if is_cells else [self._between(run)]
        if all(isinstance(part, pa.Scalar) for part in parts):
            return pa.repeat(pa.scalar(b"".join(part.as_py() for part in parts), pa.binary()), self._rows)
        null = None if self._null is None else self._null.decode()
        handling = "emit_null" if null is None else "replace"
        return pc.binary_join_element_wise(
            *parts, _NOTHING, null_handling=handling, null_replacement=null or ""
        )

    def _between(self, run: "Sequence[bytes | _Quote]") -> pa.Array | pa.Scalar:
        """Return what stands between two columns: constants, and quotes of cells that are not null.

        There are few different ones, so each line takes one of them.
        """
        texts, which = [b""], np.zeros(self._rows, np.int64)
        for part in run:
            if isinstance(part, _Quote):
                which += len(texts) * part.valid
                texts += [text + part.quote for text in texts]
            else:
                texts = [text + part for text in texts]
        return pa.scalar(texts[0], pa.binary()) if len(texts) == 1 else choose_texts(texts, which)


@dataclass(frozen=True, slots=True, eq=False)
class _Quote:
    """A quote of the cells that are valid."""

    quote: bytes
    valid: npt.NDArray[np.bool_]


def as_binary(cells: pa.Array) -> pa.Array:
    """Return text as its bytes, without a copy."""
    return cells if pa.types.is_binary(cells.type) else cells.cast(pa.binary())


def quote_cells(cells: pa.Array, *, quote: bytes, null: bytes) -> pa.Array:
    """Return cells in quotes, and `null` without quotes for cells that are null."""
    mark = pa.scalar(quote, pa.binary())
    inside = (
        pc.binary_join_element_wise(mark, as_binary(cells), mark, _NOTHING) if quote else as_binary(cells)
    )
    return inside.fill_null(pa.scalar(null, pa.binary()))


def choose_texts(texts: Sequence[bytes], which: npt.NDArray[np.integer]) -> pa.Array:
    """Return one of a few texts for each row: the one that `which` gives by its index."""
    return pc.take(pa.array(texts, pa.binary()), pa.array(which), boundscheck=False)


def numbers(values: Ints) -> pa.Array:
    """Return integers as text."""
    return pa.array(values).cast(pa.string())


def spread(cells: pa.Array, places: npt.NDArray[np.bool_], other: bytes) -> pa.Array:
    """Return the cells where `places` is set, in order, and `other` everywhere else."""
    index = np.where(places, np.cumsum(places), 0)  # 0 is `other`, the cells count from 1
    texts = pa.concat_arrays([pa.array([other], pa.binary()), as_binary(cells)])
    return pc.take(texts, pa.array(index), boundscheck=False)


def truths(cells: pa.Array) -> npt.NDArray[np.bool_]:
    """Return booleans as a mask in which null is false."""
    return np.asarray(pc.fill_null(cells, fill_value=False))


def content(cells: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of text or binary cells, the place where each cell begins, and the end of the last."""
    _, offsets, data = cells.buffers()
    if not len(cells) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(cells) + 1, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def of_content(data: Bytes | pa.Buffer, bounds: Ints, cells: pa.Array) -> pa.Array:
    """Return binary cells with other bytes than `cells`, null where `cells` are null."""
    valid = None
    if cells.null_count:
        valid = pa.py_buffer(np.packbits(np.asarray(cells.is_valid()), bitorder="little"))
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return pa.Array.from_buffers(
        pa.binary(), len(cells), [valid, pa.py_buffer(bounds.astype(np.int32)), buffer]
    )


class Substitution:
    """Replaces byte sequences of one to three bytes by others. Longer sequences win over single bytes.

    The bytes between are copied in runs, so the time depends on the number of replacements.
    """

    def __init__(self, pairs: Mapping[bytes, bytes]) -> None:
        self._texts = pa.array(list(pairs.values()), pa.binary())
        self._sizes = np.array([len(text) for text in pairs.values()], np.int64)
        self._numbers = np.zeros(256, np.int64)
        self._long: list[tuple[bytes, int]] = []
        for number, pattern in enumerate(pairs):
            if len(pattern) == 1:
                self._numbers[pattern[0]] = number
            else:
                self._long.append((pattern, number))
        # For each byte, 1 when it is replaced: bytes.translate needs one pass, and a sixth of the time of
        # comparisons of whole arrays.
        self._marks = bytes(bytes([byte]) in pairs for byte in range(256))

    def apply(self, cells: pa.Array) -> pa.Array:
        """Return text or binary cells as binary, with the replacements; copy nothing if there are none."""
        data, bounds = content(cells)
        at, widths, numbers = self._find(data, bounds)
        if not len(at):
            return as_binary(cells)
        # Cut the bytes at every replacement: even runs stay, odd runs are what a text replaces.
        edges = np.empty(2 * len(at) + 2, np.int32)
        edges[0], edges[-1] = 0, len(data)
        edges[1:-1:2], edges[2:-1:2] = at, at + widths
        runs = pa.Array.from_buffers(
            pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)], null_count=0
        )
        index = np.arange(len(edges) - 1, dtype=np.int64)
        index[1::2] = len(runs) + numbers
        taken = pc.take(pa.concat_arrays([runs, self._texts]), pa.array(index), boundscheck=False)
        grown = np.concatenate(([0], np.cumsum(self._sizes[numbers] - widths)))
        moved = bounds + grown[np.searchsorted(at, bounds)]
        return of_content(taken.buffers()[2], moved, cells)

    def _find(self, data: Bytes, bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return where to replace something, how many bytes, and the number of the text for each."""
        at = np.flatnonzero(np.frombuffer(data.tobytes().translate(self._marks), np.bool_))
        widths, numbers = np.ones(len(at), np.int64), self._numbers[data[at]]
        for pattern, number in self._long:
            places = _places(data, bounds, pattern)
            if len(places):
                covered = np.isin(at, (places[:, None] + np.arange(len(pattern))).ravel())
                at = np.concatenate((at[~covered], places))
                widths = np.concatenate((widths[~covered], np.full(len(places), len(pattern))))
                numbers = np.concatenate((numbers[~covered], np.full(len(places), number)))
                order = np.argsort(at)
                at, widths, numbers = at[order], widths[order], numbers[order]
        return at, widths, numbers


def _places(data: Bytes, bounds: Ints, pattern: bytes) -> Ints:
    """Return where a pattern begins: whole within a cell, and without overlaps."""
    if len(data) < len(pattern):
        return np.empty(0, np.int64)
    last = len(data) - len(pattern) + 1
    matches: npt.NDArray[np.bool_] = data[:last] == pattern[0]
    if not matches.any():
        return np.empty(0, np.int64)
    for offset, byte in enumerate(pattern[1:], 1):
        matches &= data[offset : last + offset] == byte
    at = np.flatnonzero(matches)
    cell = np.searchsorted(bounds, at, side="right")
    at = at[cell == np.searchsorted(bounds, at + len(pattern) - 1, side="right")]
    while len(at) > 1 and (np.diff(at) < len(pattern)).any():
        first = int(np.flatnonzero(np.diff(at) < len(pattern))[0]) + 1
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
        **{pattern: text for pattern, text in _ESCAPES.items() if len(pattern) == 1},
    }
)
"""Bytes as the characters of ISO 8859-1, inside a JSON string."""


@lru_cache(maxsize=4096)
def json_string(text: str) -> bytes:
    """Return a text as a JSON string, in quotes. It is for names, which are few and come again."""
    cell = JSON.apply(pa.array([text], pa.string()))[0].as_py()
    return b'"%s"' % cell


def hex_cells(cells: pa.Array) -> pa.Array:
    """Return bytes in hexadecimal digits."""
    data, bounds = content(cells)
    return of_content(np.frombuffer(binascii.hexlify(data.data), np.uint8), 2 * bounds, cells)


_PADS = pa.array([b"", b"\0\0", b"\0"], pa.binary())


def base64_cells(cells: pa.Array) -> pa.Array:
    """Return bytes in base 64.

    Each cell is padded to a whole number of triples, so that one call encodes all cells together. Then "="
    replaces what the padding became.
    """
    _, before = content(cells)
    sizes = np.diff(before)
    short = (-sizes) % 3
    pads = _PADS.take(pa.array(sizes % 3))
    whole = pc.binary_join_element_wise(as_binary(cells).fill_null(b""), pads, pa.scalar(b"", pa.binary()))
    data, bounds = content(whole)
    encoded = np.frombuffer(binascii.b2a_base64(data.data, newline=False), np.uint8).copy()
    ends = bounds[1:] // 3 * 4
    encoded[ends[short > 0] - 1] = ord("=")
    encoded[ends[short > 1] - 2] = ord("=")
    return of_content(encoded, bounds // 3 * 4, cells)
