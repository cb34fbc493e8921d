"""Hashes of rows with columns of any type, for rows that come from two places. Pure."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from penstock.columnar.row_hash import Hashes, row_hashes

__all__ = ["digest", "hashes_of"]


def hashes_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """The hash of each row: of the values of these columns. Equal rows of equal types have equal hashes."""
    plain = [each for name in columns for each in _plain(batch.column(name))]
    return _hashed(plain)


def digest(key_hash: int) -> str:
    """How a key is shown: what it is cannot be told from it."""
    return f"{key_hash:016x}"


def _hashed(plain: Sequence[pa.Array]) -> Hashes:
    return row_hashes(pa.RecordBatch.from_arrays(list(plain), names=[str(at) for at in range(len(plain))]))


def _plain(column: pa.Array) -> list[pa.Array]:
    """The same values in columns of the types that hashes know: of fixed width, bytes, and lists of these."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(column.storage)
    if kinds.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if kinds.is_struct(kind):
        fields = [each for child in column.flatten() for each in _plain(child)]
        return [column.is_valid().cast(pa.uint8()), *fields]
    if kinds.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        return [_with_elements(column, pa.array(_hashed(_plain(entries))))]
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return _plain_list(column.cast(pa.list_(kind.value_type)))
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return [column.cast(pa.string())]
    if kinds.is_decimal256(kind):
        return [column.view(pa.binary(32)).cast(pa.binary())]
    if kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_binary_view(kind):
        return [column.cast(pa.binary())]
    return [column]


def _plain_list(column: pa.ListArray) -> list[pa.Array]:
    child = column.type.value_type
    if not (kinds.is_integer(child) or kinds.is_floating(child)):
        return [_with_elements(column, pa.array(_hashed(_plain(column.values))))]
    values = column.values
    if not values.null_count:
        return [column, pa.nulls(len(column))]
    filled = values.fill_null(pa.scalar(0, child))
    return [_with_elements(column, filled), _null_elements(column)]


def _with_elements(lists: pa.Array, elements: pa.Array) -> pa.ListArray:
    """The same lists of other elements."""
    missing = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(lists.offsets.to_numpy(), pa.int32()), elements, mask=missing)


def _null_elements(lists: pa.ListArray) -> pa.Array:
    """Which elements of a list are null; null where none is, as for lists among which there are no such."""
    nulls = lists.values.is_null()
    before = np.concatenate([[0], np.cumsum(np.asarray(nulls))])
    offsets = lists.offsets.to_numpy()
    none = before[offsets[1:]] == before[offsets[:-1]]
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        nulls.cast(pa.uint8()),
        mask=pa.array(none | np.asarray(lists.is_null())),
    )
