"""Taking rows: sorted, each once, whatever fits in memory; large transactions cut out whole."""

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar.sorted_spill import choose_cuts, position
from penstock.eventstore.log.rows import cut_chunks, select_between, sort_changes, sort_in_memory
from support.campaign import examples
from support.rawbatches import Change, changes, put, raw

KEYS = ("commit_ts", "start_ts", "key")
NOW = 1 << 60  # neighbouring timestamps up here are one and the same float
CHANGES = st.tuples(
    st.integers(NOW + 1, NOW + 6),
    st.integers(NOW, NOW + 2),
    st.binary(min_size=1, max_size=3),
    st.one_of(st.none(), st.binary(max_size=30)),
    st.one_of(st.none(), st.binary(max_size=4)),
)
BATCHES = st.lists(st.lists(CHANGES, max_size=12), max_size=8)


def once(batches: list[list[Change]]) -> list[Change]:
    """The model: the first copy of each change, in order."""
    first: dict[tuple[int, int, bytes], Change] = {}
    for batch in batches:
        for change in batch:
            first.setdefault(change[:3], change)
    return [first[place] for place in sorted(first)]


@settings(deadline=None, max_examples=examples(60))
@given(BATCHES)
def test_rows_come_in_order_and_once(batches: list[list[Change]]) -> None:
    slices = list(sort_in_memory([raw(batch) for batch in batches]))
    assert [change for each in slices for change in changes(each)] == once(batches)
    assert len(slices) <= 1


@settings(deadline=None, max_examples=examples(60))
@given(BATCHES, st.integers(1, 4), st.integers(1, 100))
def test_slices_are_bounded_in_rows_and_bytes(batches: list[list[Change]], rows: int, nbytes: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("penstock.eventstore.log.rows.SLICE_ROWS", rows)
        patched.setattr("penstock.eventstore.log.rows.SLICE_BYTES", nbytes)
        slices = [changes(each) for each in sort_in_memory([raw(batch) for batch in batches])]
    assert [change for each in slices for change in each] == once(batches)
    assert all(len(each) <= rows for each in slices)
    assert all(sum(weight(change) for change in each[1:]) <= nbytes for each in slices)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.integers(0, 50), max_size=60), st.integers(2, 8))
def test_a_sample_divides_the_rows_however_they_are_batched(sizes: list[int], parts: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("penstock.columnar.sorted_spill._SAMPLES_MAX", 64)
        total = sum(sizes)
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        batches = [
            raw([put(NOW + row, b"k") for row in range(start, start + size)])
            for start, size in zip(starts, sizes, strict=True)
        ]
        cuts = [place[0] - NOW for place in choose_cuts(batches, KEYS, parts=parts)]
    bounds = [0, *cuts, total]
    assert all(high - low <= total / parts + 2 * (total / 32 + 1) for low, high in itertools.pairwise(bounds))


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(CHANGES, max_size=12), st.integers(NOW, NOW + 7), st.integers(NOW, NOW + 7))
def test_a_range_excludes_its_start_and_includes_its_end(batch: list[Change], low: int, high: int) -> None:
    assert changes(select_between(raw(batch), low, high)) == [each for each in batch if low < each[0] <= high]


@settings(deadline=None, max_examples=examples(60))
@given(BATCHES, st.integers(20, 400), st.integers(NOW, NOW + 7))
def test_a_sort_on_disk_gives_the_same_as_one_in_memory(
    batches: list[list[Change]], memory: int, upto: int
) -> None:
    """A flush knows the size of whole batches, and takes what is complete of them: maybe nothing."""
    nbytes = sum(raw(batch).nbytes for batch in batches)
    complete = [[change for change in batch if change[0] <= upto] for batch in batches]
    with tempfile.TemporaryDirectory() as scratch:
        stream = sort_changes(
            lambda: [raw(batch) for batch in complete], nbytes, memory_bytes=memory, scratch=Path(scratch)
        )
        assert [change for batch in stream for change in changes(batch)] == once(complete)
        assert list(Path(scratch).iterdir()) == []


@settings(deadline=None, max_examples=examples(60))
@given(BATCHES, CHANGES)
def test_a_position_counts_the_rows_before_a_place(batches: list[list[Change]], place: Change) -> None:
    rows = once(batches)
    assert position(raw(rows), KEYS, place[:3]) == sum(each[:3] < place[:3] for each in rows)


def weight(change: Change) -> int:
    return 17 + sum(len(part) for part in change[2:] if isinstance(part, bytes))


@settings(deadline=None, max_examples=examples(100))
@given(BATCHES, st.integers(20, 200), st.integers(20, 400), st.data())
def test_chunks_hold_whole_commits_and_a_large_one_is_alone(
    batches: list[list[Change]], large: int, enough: int, data: st.DataObject
) -> None:
    rows = once(batches)
    marks = sorted(data.draw(st.sets(st.integers(0, len(rows)))))
    stream = [raw(rows[start:end]) for start, end in itertools.pairwise([0, *marks, len(rows)])]
    pieces = list(cut_chunks(stream, large_bytes=large, chunk_bytes=enough))
    assert [change for piece in pieces for change in changes(piece.rows)] == rows
    assert [each.chunk for each in pieces] == sorted(each.chunk for each in pieces)
    chunks = [
        [(change, piece.direct) for piece in group for change in changes(piece.rows)]
        for _, group in itertools.groupby(pieces, key=lambda piece: piece.chunk)
    ]
    commits = [{change[0] for change, _ in chunk} for chunk in chunks]
    assert all(max(one) < min(two) for one, two in itertools.pairwise(commits))
    for chunk, times in zip(chunks, commits, strict=True):
        nbytes = {ts: sum(weight(each) for each, _ in chunk if each[0] == ts) for ts in times}
        assert {direct for _, direct in chunk} == {max(nbytes.values()) > large}
        assert len(times) == 1 or max(nbytes.values()) <= large
    for one, two in itertools.pairwise(chunks):
        if not one[0][1] and not two[0][1]:  # a chunk of small commits ends when it is full
            assert sum(weight(change) for change, _ in one) >= enough
