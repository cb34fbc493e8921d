"""The next rows of a side: what is on view does not depend on how rows come in slices."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pytest

from penstock.changes.tail import Extent, SideCache

TIMES = [1, 1, 2, 3, 3, 3, 3, 3, 4, 6, 7, 7]


def rows(times: Sequence[int], text: str = "x") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"name": pa.array([text] * len(times)), "_commit_ts": pa.array(times, pa.int64())}
    )


def in_slices(times: Sequence[int], size: int) -> Iterator[pa.RecordBatch]:
    whole = rows(times)
    for at in range(0, len(times), size):
        yield whole.slice(at, size)


def taken(found: Iterable[pa.RecordBatch]) -> list[int]:
    return [ts for each in found for ts in each.column("_commit_ts").to_pylist()]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_what_is_on_view_depends_on_the_rows_alone(size: int) -> None:
    cache = SideCache(in_slices(TIMES, size), rows_max=4)
    assert cache.fill() == Extent(1, 3)
    assert taken(cache.take_upto(2)) == [1, 1, 2]
    assert cache.fill() == Extent(3, 3)
    assert taken(cache.take_upto(2)) == []
    assert taken(cache.take_upto(3)) == [3, 3, 3, 3]  # no more than may be on view
    assert cache.fill() == Extent(3, 7)
    assert taken(cache.take_upto(6)) == [3, 4, 6]
    assert cache.fill() == Extent(7, None)
    assert taken(cache.take_upto(100)) == [7, 7]
    assert cache.fill() == Extent(None, None)


def test_large_rows_are_cached_until_there_is_one_to_cut_at() -> None:
    slices = (rows([ts], "x" * 1000) for ts in range(1, 100))
    cache = SideCache(slices, rows_max=1000, bytes_max=10_000)
    extent = cache.fill()
    assert extent.first_ts == 1
    assert extent.next_ts in range(9, 12)
    assert next(slices).column("_commit_ts").to_pylist() == [extent.next_ts + 1]


def test_rows_larger_than_all_memory_still_come() -> None:
    slices = (rows([ts], "x" * 1000) for ts in range(1, 5))
    cache = SideCache(slices, rows_max=1000, bytes_max=10)
    found = []
    while (extent := cache.fill()).first_ts is not None:
        found.append(taken(cache.take_upto(100 if extent.next_ts is None else extent.next_ts - 1)))
    assert found == [[1], [2], [3], [4]]


def test_a_slice_that_is_taken_whole_is_not_copied() -> None:
    slices = list(in_slices(range(100), 10))
    cache = SideCache(iter(slices), rows_max=50)
    cache.fill()
    assert all(found is given for found, given in zip(cache.take_upto(49), slices, strict=False))
