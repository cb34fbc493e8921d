"""Hashes of rows, and digests of sets of rows that do not depend on their order. Pure; a column at a time.

Every row has a 64-bit hash. The digest of a set is the number of its rows and the sum of their hashes modulo
2^64, so the digests of parts add up to the digest of the whole. Each step (a word of a cell, the cells of a
row) is a bijection of its input, so sets that differ in one word of one row always have different sums. Other
differences stay unnoticed with the probability of 2^-64 that independent sums are equal: with a million
compared ranges a day, once in fifty billion years. It is no defence against rows made up to collide.

`row_hashes` takes columns of fixed width, bytes, and lists of these. `hashes_of` takes columns of any type
and is for rows that come from two different systems.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock.columnar.buffers import Bytes, Ints, Mask, Uints, pad, words

__all__ = [
    "Digest",
    "Hashes",
    "compare_hashes",
    "digests_by_range",
    "hash_text",
    "hashes_of",
    "row_hashes",
    "total",
]


Hashes = npt.NDArray[np.uint64]

_SLICE_ROWS = 8192  # hashing takes several times the size of long cells in memory
_WORD = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)
# Masks that keep the first `size` bytes of a little-endian word: the end of a cell.
_KEEP = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], dtype=np.uint64)
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows of a set, and the sum of their hashes."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.rows + other.rows, (self.sum + other.sum) % (1 << 64))

    @classmethod
    def of(cls, hashes: Hashes) -> "Digest":
        """Return the digest of rows with these hashes."""
        return cls(len(hashes), int(hashes.sum(dtype=np.uint64)))


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """Return the hash of each row's values, in the order of the columns; names do not matter.

    Equal rows must have equal types, so cast both sides of a comparison to one schema first.
    """
    starts = range(0, batch.num_rows, _SLICE_ROWS)
    slices = [_hash_rows(batch.slice(start, _SLICE_ROWS)) for start in starts]
    return np.concatenate(slices) if slices else np.zeros(0, np.uint64)


def digests_by_range(
    handles: pa.Array, hashes: Hashes, starts: Sequence[bytes]
) -> Iterator[tuple[int, Digest]]:
    """Yield the number and the digest of each range that has rows. Ranges begin at `starts`, which ascend.

    Every handle must be at or above the first start.
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
    """Return for each handle the number of the last range that begins at or below it."""
    begin, end, data = _bounds(handles)
    if (end - begin == _WORD).all():  # integer handles: their order is that of big-endian numbers
        bounds, numbers = _integer_starts(starts)
        places = np.searchsorted(bounds, words(pad(data), begin, ">u8").astype(np.uint64), side="right")
        return numbers[places]
    start_objects = np.array(list(starts), dtype=object)
    handle_objects = np.array(handles.to_pylist(), dtype=object)
    return np.searchsorted(start_objects, handle_objects, side="right").astype(np.int64) - 1


def _integer_starts(starts: Sequence[bytes]) -> tuple[Uints, Ints]:
    """Return the starts as numbers to compare with handles of eight bytes, and a range number for each place.

    A start of more than eight bytes counts as one above its first eight bytes, because a handle of exactly
    these eight bytes lies below it.
    """
    exact = [int.from_bytes(start[:_WORD].ljust(_WORD, b"\0")) + (len(start) > _WORD) for start in starts]
    reached = [(bound, number) for number, bound in enumerate(exact) if bound < 1 << 64]
    bounds = np.array([bound for bound, _ in reached], np.uint64)
    return bounds, np.array([-1, *(number for _, number in reached)], np.int64)


def total(digests: Iterable[Digest]) -> Digest:
    """Return the digest of all sets together."""
    return sum(digests, start=Digest())


def _hash_rows(batch: pa.RecordBatch) -> Hashes:
    hashes = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        hashes = _mix(hashes * _MIX_1 + _hash_cells(column))
    return hashes


def _mix(value: Hashes) -> Hashes:
    """Apply the finalizer of splitmix64: a bijection in which every bit depends on every bit."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


def _hash_cells(column: pa.Array) -> Hashes:
    if kinds.is_null(column.type) or column.null_count == len(column):
        return np.full(len(column), _NULL)
    if kinds.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if kinds.is_binary(column.type) or kinds.is_string(column.type) or kinds.is_list(column.type):
        hashes = _long_cells(*_bounds(column))
    else:
        hashes = _fixed_cells(column)
    if column.null_count:
        hashes[np.asarray(column.is_null())] = _NULL
    return hashes


def _fixed_cells(column: pa.Array) -> Hashes:
    size = column.type.bit_width // 8
    content = column.buffers()[1]
    if size == 2 * _WORD:
        pairs = np.frombuffer(content, np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
        return _mix(_mix(pairs[0::2]) * _MIX_1 + pairs[1::2])
    values = np.frombuffer(content, _UNSIGNED[size])[column.offset : column.offset + len(column)]
    return _mix(values.astype(np.uint64))


def _bounds(column: pa.Array) -> tuple[Ints, Ints, Bytes]:
    """Return where the bytes of each cell begin and end, and those bytes."""
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


def _long_cells(begin: Ints, end: Ints, data: Bytes) -> Hashes:
    """Return the hashes of cells of any length: the sum of their words, each mixed with its place."""
    sizes = end - begin
    counts = -(-sizes // _WORD)
    ends = np.cumsum(counts)
    nth = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    at = np.repeat(begin, counts) + _WORD * nth
    left = np.minimum(np.repeat(end, counts) - at, _WORD)
    content = words(pad(data), at, "<u8").astype(np.uint64) & _KEEP[left]
    hashes = _mix(content + _mix(nth.astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    return _mix(sums[ends] - sums[ends - counts] + sizes.astype(np.uint64) * _GOLDEN)


@dataclass(frozen=True, slots=True)
class Differences:
    """Handles of rows that are in only one of two sets, or differ between them."""

    only_first: pa.Array
    only_second: pa.Array
    unequal: pa.Array


def compare_hashes(handles: pa.Array, hashes: Hashes, others: pa.Array, other_hashes: Hashes) -> Differences:
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
    """Return the hash of each row's values in these columns. Equal rows of equal types have equal hashes."""
    plain = [part for name in columns for part in _plain(batch.column(name))]
    return _hash_columns(plain)


def hash_text(key_hash: int) -> str:
    """Return the text that names a key in reports without showing its values."""
    return f"{key_hash:016x}"


def _hash_columns(plain: Sequence[pa.Array]) -> Hashes:
    return row_hashes(pa.RecordBatch.from_arrays(list(plain), names=[str(at) for at in range(len(plain))]))


def _plain(column: pa.Array) -> list[pa.Array]:
    """Return the same values in columns that `row_hashes` takes: fixed width, bytes, and lists of these."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(column.storage)
    if kinds.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if kinds.is_struct(kind):
        fields = [part for child in column.flatten() for part in _plain(child)]
        return [column.is_valid().cast(pa.uint8()), *fields]
    if kinds.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        return [_with_elements(column, pa.array(_hash_columns(_plain(entries))))]
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
        return [_with_elements(column, pa.array(_hash_columns(_plain(column.values))))]
    values = column.values
    if not values.null_count:
        return [column, pa.nulls(len(column))]
    filled = values.fill_null(pa.scalar(0, child))
    return [_with_elements(column, filled), _null_elements(column)]


def _with_elements(lists: pa.Array, elements: pa.Array) -> pa.ListArray:
    """Return the same lists with other elements."""
    missing = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(lists.offsets.to_numpy(), pa.int32()), elements, mask=missing)


def _null_elements(lists: pa.ListArray) -> pa.Array:
    """Return which elements of each list are null.

    A list without null elements gives null, as all lists do in a column without null elements.
    """
    nulls = lists.values.is_null()
    before = np.concatenate([[0], np.cumsum(np.asarray(nulls))])
    offsets = lists.offsets.to_numpy()
    none = before[offsets[1:]] == before[offsets[:-1]]
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        nulls.cast(pa.uint8()),
        mask=pa.array(none | np.asarray(lists.is_null())),
    )
