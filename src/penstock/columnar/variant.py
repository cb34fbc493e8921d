"""Rows, and JSON, as values of Spark's type VARIANT. Pure.

A variant is two byte strings: `metadata`, the names of an object's fields, and `value`. The rows of a table
have the same names, so all but the values and their places is the same for every row.
https://github.com/apache/parquet-format/blob/master/VariantEncoding.md has the format.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Bytes, Ints
from penstock.errors import Corrupt

__all__ = ["VARIANT", "encode_json", "encode_objects"]

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type that Spark takes for VARIANT; Spark knows it by the metadata of its second field."""

_NOTHING = pa.scalar(b"", pa.binary())
_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)  # the two low bits of a value's first byte
_NULL = bytes([_PRIMITIVE])
_TYPE_SHIFT = 2
_TRUE, _FALSE = 1, 2
_INT1, _INT2, _INT4, _INT8, _DOUBLE, _DECIMAL4, _DECIMAL8, _DECIMAL16 = range(3, 11)
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT, _BINARY, _TEXT = range(11, 17)
_SHORT_TEXT_MAX = 63  # bytes of a text whose length is in its first byte
_SMALL_MAX = 255  # fields or elements whose number is one byte
_FLOAT_CELL = 5  # bytes of a float in an array, with its first byte

_FIXED: Mapping[pa.DataType, tuple[int, str]] = {
    pa.int8(): (_INT1, "<i1"),
    pa.int16(): (_INT2, "<i2"),
    pa.int32(): (_INT4, "<i4"),
    pa.int64(): (_INT8, "<i8"),
    pa.float32(): (_FLOAT, "<f4"),
    pa.float64(): (_DOUBLE, "<f8"),
    pa.date32(): (_DATE, "<i4"),
    pa.timestamp("us"): (_TIMESTAMP_NTZ, "<i8"),
    pa.timestamp("us", tz="UTC"): (_TIMESTAMP, "<i8"),
    pa.duration("us"): (_INT8, "<i8"),  # VARIANT has no intervals: microseconds
}


def encode_objects(columns: Mapping[str, pa.Array], rows: int) -> pa.StructArray:
    """Return each row as an object whose fields are the columns; a null is the variant null.

    Dates and times, decimals, binary values and vectors of floats keep their types; a duration is a number of
    microseconds. The columns together must stay below 2 GiB.
    """
    if not rows:
        return pa.array([], VARIANT)
    names = sorted(columns, key=lambda name: name.encode("utf-16-be"))  # as Java compares them
    cells = [_encode_cells(columns[name]) for name in names]
    sizes = [pc.binary_length(column).to_numpy() for column in cells]
    ends = np.cumsum(np.column_stack([np.zeros(rows, np.int64), *sizes]), axis=1)
    place_bytes = _width_of(int(ends.max(initial=0)))
    places = _fixed_cells(ends.astype(np.dtype(f"<u{place_bytes}")).view(np.uint8).reshape(rows, -1))
    prefix = pa.scalar(_object_prefix(len(names), place_bytes), pa.binary())
    values = pc.binary_join_element_wise(prefix, places, *cells, _NOTHING)
    metadata = pa.repeat(pa.scalar(_metadata(names), pa.binary()), rows)
    return pa.StructArray.from_arrays([values, metadata], fields=list(VARIANT))


def _metadata(names: list[str]) -> bytes:
    """Return the dictionary of names: its size, where each name begins, the names."""
    texts = [name.encode(errors="replace") for name in names]
    ends = np.cumsum([0, *map(len, texts)])
    width = _width_of(max(len(names), int(ends[-1])))
    head = bytes([1 | (width - 1) << 6]) + len(names).to_bytes(width, "little")
    return head + ends.astype(np.dtype(f"<u{width}")).tobytes() + b"".join(texts)


def _object_prefix(fields: int, place_bytes: int) -> bytes:
    """Return what comes before the places of an object's values: its kind, and the number of each name."""
    id_bytes = _width_of(fields)
    large = fields > _SMALL_MAX
    kind = (large << 4 | (id_bytes - 1) << 2 | (place_bytes - 1)) << _TYPE_SHIFT | _OBJECT
    ids = np.arange(fields, dtype=np.dtype(f"<u{id_bytes}")).tobytes()
    return bytes([kind]) + fields.to_bytes(4 if large else 1, "little") + ids


def _width_of(largest: int) -> int:
    return next(width for width in (1, 2, 4) if largest < 1 << 8 * width)


def _encode_cells(cells: pa.Array) -> pa.Array:
    """Return the values of a column, each with its type, as binary cells without nulls."""
    if cells.null_count == len(cells):  # or there are none
        return pa.repeat(pa.scalar(_NULL, pa.binary()), len(cells))
    kind = cells.type
    encode: Callable[[pa.Array], pa.Array]
    if pa.types.is_decimal128(kind):
        encode = _decimals
    elif pa.types.is_list(kind):
        encode = _vectors
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encode = _texts
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encode = _binaries
    else:
        encode = _numbers
    if not cells.null_count:
        return encode(cells)
    valid = cells.is_valid()
    index = np.where(valid, np.cumsum(valid), 0)  # 0 is the null, the others count from 1
    known = pa.concat_arrays([pa.array([_NULL], pa.binary()), encode(cells.drop_null())])
    return pc.take(known, pa.array(index), boundscheck=False)


def _numbers(cells: pa.Array) -> pa.Array:
    number, word = _FIXED[cells.type]
    if pa.types.is_temporal(cells.type):
        cells = cells.view(pa.int32() if pa.types.is_date32(cells.type) else pa.int64())
    words = cells.to_numpy().astype(np.dtype(word), copy=False)
    return _fixed_cells(_with_first(number << _TYPE_SHIFT, words.view(np.uint8).reshape(len(words), -1)))


def _decimals(cells: pa.Array) -> pa.Array:
    """Return decimals in the fewest bytes that every value of the column's precision fits."""
    precision, scale = cells.type.precision, cells.type.scale
    number, width = next(
        (number, width)
        for digits, number, width in ((9, _DECIMAL4, 4), (18, _DECIMAL8, 8), (38, _DECIMAL16, 16))
        if precision <= digits
    )
    wide = np.frombuffer(cells.buffers()[1], np.uint8).reshape(-1, 16)[
        cells.offset : cells.offset + len(cells)
    ]
    scales = np.full((len(cells), 1), scale, np.uint8)
    # The low bytes of a two's complement number are the same number in fewer bytes.
    return _fixed_cells(_with_first(number << _TYPE_SHIFT, np.hstack([scales, wide[:, :width]])))


def _texts(cells: pa.Array) -> pa.Array:
    data = cells.cast(pa.binary())
    sizes = pc.binary_length(data).to_numpy()
    short = sizes <= _SHORT_TEXT_MAX
    if short.all():
        heads = _fixed_cells((sizes << _TYPE_SHIFT | _SHORT_TEXT).astype(np.uint8).reshape(-1, 1))
    else:
        long = _sized_heads(_TEXT, sizes)
        firsts = _fixed_cells(
            (np.where(short, sizes, 0) << _TYPE_SHIFT | _SHORT_TEXT).astype(np.uint8).reshape(-1, 1)
        )
        heads = pc.if_else(pa.array(short), firsts, long)
    return pc.binary_join_element_wise(heads, data, _NOTHING)


def _binaries(cells: pa.Array) -> pa.Array:
    data = cells.cast(pa.binary())
    return pc.binary_join_element_wise(
        _sized_heads(_BINARY, pc.binary_length(data).to_numpy()), data, _NOTHING
    )


def _sized_heads(number: int, sizes: npt.NDArray[np.integer]) -> pa.Array:
    words = sizes.astype(np.dtype("<u4")).view(np.uint8).reshape(len(sizes), 4)
    return _fixed_cells(_with_first(number << _TYPE_SHIFT, words))


def _vectors(cells: pa.Array) -> pa.Array:
    """Return lists of floats as arrays, those of one length at once: vectors of a column seldom differ."""
    lengths = pc.list_value_length(cells).to_numpy()
    flat = cells.flatten().to_numpy().astype(np.dtype("<f4"), copy=False)
    starts: Ints = np.concatenate(([0], np.cumsum(lengths)))[:-1].astype(np.int64)
    found: list[pa.Array] = []
    order: list[Ints] = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        words = np.ascontiguousarray(flat[starts[rows, None] + np.arange(length)])
        floats = words.view(np.uint8).reshape(len(rows) * length, 4)
        values = _with_first(_FLOAT << _TYPE_SHIFT, floats).reshape(len(rows), length * _FLOAT_CELL)
        head = np.frombuffer(_array_prefix(length), np.uint8)
        found.append(_fixed_cells(np.hstack([np.tile(head, (len(rows), 1)), values])))
        order.append(rows)
    if not found:
        return pa.array([], pa.binary())
    back = np.argsort(np.concatenate(order), kind="stable")
    return pc.take(pa.concat_arrays(found), pa.array(back), boundscheck=False)


def _array_prefix(length: int) -> bytes:
    ends = np.arange(length + 1, dtype=np.int64) * _FLOAT_CELL
    width = _width_of(int(ends[-1]))
    large = length > _SMALL_MAX
    kind = (large << 2 | (width - 1)) << _TYPE_SHIFT | _ARRAY
    count = length.to_bytes(4 if large else 1, "little")
    return bytes([kind]) + count + ends.astype(np.dtype(f"<u{width}")).tobytes()


def _with_first(first: int, rest: Bytes) -> Bytes:
    return np.hstack([np.full((len(rest), 1), first, np.uint8), rest])


def _fixed_cells(rows: Bytes) -> pa.Array:
    """Return the rows of a matrix of bytes as binary cells."""
    ends = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    data = np.ascontiguousarray(rows)
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)], null_count=0
    )


def encode_json(texts: pa.Array) -> pa.StructArray:
    """Return each JSON text as a variant, with the types that Spark's `parse_json` chooses; null stays null.

    Raises Corrupt when a text is not JSON.
    """
    values: list[bytes] = []
    metadata: list[bytes] = []
    for text in texts.to_pylist():  # documents have their own names, so there are no vectors in it
        names: dict[str, int] = {}
        values.append(b"" if text is None else _encode_document(_parse_json(text), names))
        metadata.append(_metadata(list(names)))
    parts = [pa.array(part, pa.binary()) for part in (values, metadata)]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=texts.is_null())


_DIGITS_MAX = 38  # of a decimal
_PLAIN_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_INTEGERS = ((_INT1, 1), (_INT2, 2), (_INT4, 4), (_INT8, 8))
_DECIMALS = ((9, _DECIMAL4, 4), (18, _DECIMAL8, 8), (_DIGITS_MAX, _DECIMAL16, 16))


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, parse_int=_read_number, parse_float=_read_number, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Corrupt(
            "a JSON column has a value that is not JSON; keep its objects for inspection"
        ) from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read_number(text: str) -> int | Decimal | float:
    """Return a number as Spark does: exact where 64 bits or 38 digits do, else a double."""
    if not _PLAIN_NUMBER.fullmatch(text):
        return float(text)
    whole, point, fraction = text.partition(".")
    digits = len(f"{whole.lstrip('-')}{fraction}".lstrip("0"))
    if max(digits, len(fraction)) > _DIGITS_MAX:
        return float(text)
    number = Decimal(text)
    return int(number) if not point and -(1 << 63) <= number < 1 << 63 else number


def _encode_document(value: Any, names: dict[str, int]) -> bytes:
    """Return a value of parsed JSON; `names` gets the names of its objects' fields, by their numbers."""
    match value:
        case None:
            return _NULL
        case bool():
            return bytes([(_TRUE if value else _FALSE) << _TYPE_SHIFT])
        case int():
            number, width = next(
                kind for kind in _INTEGERS if -1 << (at := 8 * kind[1] - 1) <= value < 1 << at
            )
            return bytes([number << _TYPE_SHIFT]) + value.to_bytes(width, "little", signed=True)
        case Decimal():
            return _encode_decimal(value)
        case float():
            return bytes([_DOUBLE << _TYPE_SHIFT]) + np.float64(value).tobytes()
        case str():
            data = value.encode(errors="replace")  # half a surrogate is "?", as in Java
            if len(data) <= _SHORT_TEXT_MAX:
                return bytes([len(data) << _TYPE_SHIFT | _SHORT_TEXT]) + data
            return bytes([_TEXT << _TYPE_SHIFT]) + len(data).to_bytes(4, "little") + data
        case list():
            cells = [_encode_document(element, names) for element in value]
            places, width = _places(cells)
            large = len(cells) > _SMALL_MAX
            kind = (large << 2 | (width - 1)) << _TYPE_SHIFT | _ARRAY
            head = bytes([kind]) + len(cells).to_bytes(4 if large else 1, "little")
            return b"".join((head, places, *cells))
    fields = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))  # as Java compares
    ids = [names.setdefault(name, len(names)) for name in fields]
    cells = [_encode_document(value[name], names) for name in fields]
    places, width = _places(cells)
    large, id_width = len(cells) > _SMALL_MAX, _width_of(max(ids, default=0))
    kind = (large << 4 | (id_width - 1) << 2 | (width - 1)) << _TYPE_SHIFT | _OBJECT
    head = bytes([kind]) + len(cells).to_bytes(4 if large else 1, "little")
    numbers = np.array(ids, np.dtype(f"<u{id_width}")).tobytes()
    return b"".join((head, numbers, places, *cells))


def _encode_decimal(value: Decimal) -> bytes:
    """Return a decimal with the scale that it was written with, in the fewest bytes."""
    negative, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    scale = -exponent
    unscaled = (-1 if negative else 1) * int("".join(map(str, digits)))
    precision = max(scale, len(str(abs(unscaled))))
    number, width = next((number, width) for most, number, width in _DECIMALS if precision <= most)
    return bytes([number << _TYPE_SHIFT, scale]) + unscaled.to_bytes(width, "little", signed=True)


def _places(cells: Sequence[bytes]) -> tuple[bytes, int]:
    """Return where each cell begins and the last one ends, and the bytes of each of these numbers."""
    ends = np.cumsum([0, *map(len, cells)])
    width = _width_of(int(ends[-1]))
    return ends.astype(np.dtype(f"<u{width}")).tobytes(), width
