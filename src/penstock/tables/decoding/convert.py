"""Storage values of a whole batch into the Arrow array of their column's type.

A storage value is what the codec keeps of a value whatever the column: an integer, a float,
bytes. Cells of rows and parts of keys hold the same storage values in different bytes.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.columnar.buffers import Floats, Ints, Mask, Uints, validity
from penstock.errors import Corrupt
from penstock.tables import values
from penstock.tables.arrow import UNSIGNED_LONG, arrow_type
from penstock.tables.decoding import numbers
from penstock.tables.decoding.cells import Cells, fixed
from penstock.tables.fieldtypes import INTEGER_BITS, STRINGS, FieldType, Tp


class StoredValues(Protocol):
    """A column's storage values over a batch; `valid` marks rows that have one."""

    @property
    def valid(self) -> Mask: ...

    def ints(self) -> Ints:
        """Signed integers."""

    def uints(self) -> Uints:
        """Unsigned integers."""

    def floats(self) -> Floats:
        """Doubles."""

    def binary(self) -> pa.Array:
        """Bytes: strings, JSON documents, vectors, decimals with their precision and scale."""

    def decimal_cells(self) -> Cells:
        """Where the decimals are."""


def to_arrow(kind: FieldType, storage: StoredValues) -> pa.Array:
    """The Arrow array of a column; raise Corrupt when a value is damaged."""
    return _CONVERSIONS[kind.tp](kind, storage)


def _integers(kind: FieldType, storage: StoredValues) -> pa.Array:
    wanted = arrow_type(kind)
    if wanted == UNSIGNED_LONG:
        return numbers.unsigned_longs(storage.uints(), wanted, storage.valid)
    wide = storage.uints().view(np.int64) if kind.unsigned or kind.tp is Tp.BIT else storage.ints()
    return _narrowed(wanted, wide, storage.valid)


def _narrowed(wanted: pa.DataType, wide: Ints, valid: Mask) -> pa.Array:
    narrow = wide.astype(wanted.to_pandas_dtype())
    if not ((narrow == wide) | ~valid).all():
        raise Corrupt("an integer of a row is wider than its column; keep the row for inspection")
    return fixed(wanted, narrow, valid)


def _year(kind: FieldType, storage: StoredValues) -> pa.Array:
    return _narrowed(arrow_type(kind), storage.ints(), storage.valid)


def _floating(kind: FieldType, storage: StoredValues) -> pa.Array:
    wanted = arrow_type(kind)
    doubles = np.where(storage.valid, storage.floats(), 0.0)  # what lies where NULLs are is no number
    return fixed(wanted, doubles.astype(wanted.to_pandas_dtype()), storage.valid)


def _decimals(kind: FieldType, storage: StoredValues) -> pa.Array:
    wanted = arrow_type(kind)
    if pa.types.is_decimal128(wanted):
        converted = numbers.decimals(storage.decimal_cells(), wanted)
        if converted is not None:
            return converted
        return _one_by_one(kind, storage, lambda value: value)
    return _one_by_one(kind, storage, lambda value: f"{value:f}")


def _one_by_one(kind: FieldType, storage: StoredValues, finish: Callable[[Any], Any]) -> pa.Array:
    cells = storage.binary().to_pylist()
    found = (None if cell is None else finish(values.from_cell(kind, cell)) for cell in cells)
    try:
        return pa.array(found, arrow_type(kind), size=len(cells))
    except pa.ArrowInvalid as error:
        raise Corrupt(f"a {kind.tp.name} of a row is wider than its column; keep the row") from error


def _strings(kind: FieldType, storage: StoredValues) -> pa.Array:
    raw = storage.binary()
    if kind.is_binary:
        return raw
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are no UTF-8, written before anybody checked
        texts = (None if cell is None else cell.decode(errors="replace") for cell in raw.to_pylist())
        return pa.array(texts, pa.string(), size=len(raw))


def _times(kind: FieldType, storage: StoredValues) -> pa.Array:
    if kind.tp is Tp.DATE:
        return numbers.dates(storage.uints(), storage.valid)
    return numbers.timestamps(storage.uints(), arrow_type(kind), storage.valid)


def _enum(kind: FieldType, storage: StoredValues) -> pa.Array:
    names = pa.array(["", *kind.elems], pa.string())
    chosen = storage.uints()
    number = np.where(chosen < len(names), chosen, 0).astype(np.int64)
    return names.take(pa.array(number, mask=~storage.valid))


def _set(kind: FieldType, storage: StoredValues) -> pa.Array:
    distinct, which = np.unique(storage.uints(), return_inverse=True)
    names = [",".join(e for i, e in enumerate(kind.elems) if int(bits) >> i & 1) for bits in distinct]
    return pa.array(names, pa.string()).take(pa.array(which, mask=~storage.valid))


def _vectors(kind: FieldType, storage: StoredValues) -> pa.Array:
    cells = storage.binary()
    offsets = np.frombuffer(cells.buffers()[1], dtype=np.int32, count=len(cells) + 1).astype(np.int64)
    sizes = np.diff(offsets)
    raw = np.frombuffer(cells.buffers()[2] or b"", dtype=np.uint8)
    if ((sizes % 4 != 0) | (storage.valid & (sizes < 4))).any():
        raise Corrupt("a vector of a row is cut short; keep the row for inspection")
    lanes = raw[: offsets[-1]].view("<u4")
    heads = offsets[:-1][storage.valid] // 4
    if (lanes[heads] != sizes[storage.valid] // 4 - 1).any():
        raise Corrupt("a vector of a row has another dimension than it says; keep the row for inspection")
    floats = np.delete(lanes, heads).view("<f4")
    counts = np.where(storage.valid, sizes // 4 - 1, 0)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    buffers = [validity(storage.valid), pa.py_buffer(ends)]
    child = pa.array(floats, pa.float32())
    return pa.Array.from_buffers(arrow_type(kind), len(cells), buffers, children=[child])


def _nothing(kind: FieldType, storage: StoredValues) -> pa.Array:
    if storage.valid.any():
        raise Corrupt(f"a column of type {kind.tp.name} holds a value, which cannot be; keep the row")
    return pa.nulls(len(storage.valid), arrow_type(kind))


_CONVERSIONS: dict[Tp, Callable[[FieldType, StoredValues], pa.Array]] = {
    **dict.fromkeys((*INTEGER_BITS, Tp.BIT), _integers),
    **dict.fromkeys(STRINGS, _strings),
    **dict.fromkeys((Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP), _times),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), _floating),
    **dict.fromkeys((Tp.NULL, Tp.GEOMETRY), _nothing),
    Tp.YEAR: _year,
    Tp.NEW_DECIMAL: _decimals,
    Tp.DURATION: lambda _, storage: numbers.durations(storage.ints(), storage.valid),
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.JSON: lambda kind, storage: _one_by_one(kind, storage, lambda text: text),
    Tp.VECTOR_FLOAT32: _vectors,
}
