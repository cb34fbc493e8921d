"""Checksums of rows that do not depend on their order, computed a column at a time. Pure.

Every row gets a 64-bit hash, and a set of rows the number of them and the sum of their hashes modulo 2^64;
sums of parts add up to the sum of the whole. Each step (a word of a cell, the cells of a row) is a bijection
of what it takes in, so sets that differ in one word of one row always differ in their sums. Other
differences escape with the probability of 2^-64 that independent sums are equal: comparing a million ranges
a day, once in fifty billion years. This is no defence against rows made up to collide.

Hashes of rows with columns of any type, for rows that come from two places. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock.columnar.buffers import Bytes, Ints, Mask, Uints, padded, words

__all__ = ["Digest", "Hashes", "differing", "digest", "digests_by_range", "hashes_of", "row_hashes", "total"]


Hashes = npt.NDArray[np.uint64]

_SLICE_ROWS = 8192  # long cells need several times their size while they are hashed
_WORD = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_KEEP = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], dtype=np.uint64)
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Digest:
    """How many rows there are, and the sum of their hashes."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.rows + other.rows, (self.sum + other.sum) % (1 << 64))

    @classmethod
    def of(cls, hashes: Hashes) -> "Digest":
        """The digest of rows with these hashes."""
        return cls(len(hashes), int(hashes.sum(dtype=np.uint64)))


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """The hash of each row: of its values, in the order of the columns; names do not count.

    Equal rows must have equal types, so both sides of a comparison are cast to one schema first.
    """
    starts = range(0, batch.num_rows, _SLICE_ROWS)
    found = [_hashes(batch.slice(start, _SLICE_ROWS)) for start in starts]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)


def digests_by_range(
    handles: pa.Array, hashes: Hashes, starts: Sequence[bytes]
) -> Iterator[tuple[int, Digest]]:
    """Divide rows among the ranges that begin at `starts`, which ascend; those with rows, with their digests.

    Every handle is at or above the first start.
    """
    if not len(handles):
        return
    places = range_numbers(handles, starts)
    order = np.argsort(places, kind="stable")
    numbers, firsts, counts = np.unique(places[order], return_index=True, return_counts=True)
    sums = np.add.reduceat(hashes[order], firsts)
    for number, count, total in zip(numbers, counts, sums, strict=True):
        yield int(number), Digest(int(count), int(total))


def range_numbers(handles: pa.Array, starts: Sequence[bytes]) -> Ints:
    """For each handle the number of the last range that begins at or below it."""
    begin, end, data = _bounds(handles)
    if (end - begin == _WORD).all():
        bounds, numbers = _integer_starts(starts)
        found = np.searchsorted(bounds, words(padded(data), begin, ">u8").astype(np.uint64), side="right")
        return numbers[found]
    known = np.array(list(starts), dtype=object)
    texts = np.array(handles.to_pylist(), dtype=object)
    return np.searchsorted(known, texts, side="right").astype(np.int64) - 1


def _integer_starts(starts: Sequence[bytes]) -> tuple[Uints, Ints]:
    """Starts as numbers that handles of eight bytes compare with, and a range's number for each place.

    A longer start lies just above the handle that it begins with.
    """
    exact = [int.from_bytes(start[:_WORD].ljust(_WORD, b"\0")) + (len(start) > _WORD) for start in starts]
    reached = [(bound, number) for number, bound in enumerate(exact) if bound < 1 << 64]
    bounds = np.array([bound for bound, _ in reached], np.uint64)
    return bounds, np.array([-1, *(number for _, number in reached)], np.int64)


def total(digests: Iterable[Digest]) -> Digest:
    """The digest of all together."""
    return sum(digests, start=Digest())


def _hashes(batch: pa.RecordBatch) -> Hashes:
    found = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        found = _mixed(found * _MIX_1 + _cells(column))
    return found


def _mixed(value: Hashes) -> Hashes:
    """Splitmix64's finish: a bijection after which every bit depends on every bit."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


def _cells(column: pa.Array) -> Hashes:
    if kinds.is_null(column.type) or column.null_count == len(column):
        return np.full(len(column), _NULL)
    if kinds.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if kinds.is_binary(column.type) or kinds.is_string(column.type) or kinds.is_list(column.type):
        found = _long(*_bounds(column))
    else:
        found = _fixed(column)
    if column.null_count:
        found[np.asarray(column.is_null())] = _NULL
    return found


def _fixed(column: pa.Array) -> Hashes:
    size = column.type.bit_width // 8
    content = column.buffers()[1]
    if size == 2 * _WORD:
        pairs = np.frombuffer(content, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
        return _mixed(_mixed(pairs[0::2]) * _MIX_1 + pairs[1::2])
    values = np.frombuffer(content, _UNSIGNED[size])[column.offset : column.offset + len(column)]
    return _mixed(values.astype(np.uint64))


def _bounds(column: pa.Array) -> tuple[Ints, Ints, Bytes]:
    """Where the bytes of each cell begin and end, and those bytes."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    bounds = offsets.astype(np.int64)
    if kinds.is_list(column.type):
        child = column.values
        size = child.type.bit_width // 8
        content, bounds = child.buffers()[1], (bounds + child.offset) * size
    else:
        content = column.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    first = int(bounds[0])
    return bounds[:-1] - first, bounds[1:] - first, data[first : int(bounds[-1])]


def _long(begin: Ints, end: Ints, data: Bytes) -> Hashes:
    """Hashes of cells of any length: the sum over their words, each mixed with its place."""
    sizes = end - begin
    counts = -(-sizes // _WORD)
    ends = np.cumsum(counts)
    nth = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    at = np.repeat(begin, counts) + _WORD * nth
    left = np.minimum(np.repeat(end, counts) - at, _WORD)
    found = words(padded(data), at, "<u8").astype(np.uint64) & _KEEP[left]
    hashes = _mixed(found + _mixed(nth.astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    return _mixed(sums[ends] - sums[ends - counts] + sizes.astype(np.uint64) * _GOLDEN)


@dataclass(frozen=True, slots=True)
class Differences:
    """Handles of rows that are in one set only, or have other values in the other."""

    only_first: pa.Array
    only_second: pa.Array
    unequal: pa.Array


def differing(handles: pa.Array, hashes: Hashes, others: pa.Array, other_hashes: Hashes) -> Differences:
    """Compare two sets of rows by handle; each handle is in a set at most once."""
    place = pc.index_in(handles, value_set=others)
    shared = np.asarray(place.is_valid())
    same: Mask = np.zeros(len(handles), np.bool_)
    same[shared] = hashes[shared] == other_hashes[place.drop_null().to_numpy()]
    return Differences(
        only_first=handles.filter(pa.array(~shared)),
        only_second=others.filter(pc.is_null(pc.index_in(others, value_set=handles))),
        unequal=handles.filter(pa.array(shared & ~same)),
    )


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
