"""Chunks are cut by rows alone: between commits, unless a commit is too large."""

from collections.abc import Sequence

import numpy as np

from penstock.changefeeds.engines.encode import ChunkCutter, RowSizes

Rows = list[tuple[int, int]]  # commit, bytes


def cut(
    rows: Rows,
    *,
    blocks: list[int] | None = None,
    chunk: int = 10,
    commit: int = 30,
    anywhere: bool = False,
    followed: Sequence[int] = (),
) -> list[int]:
    cuts = ChunkCutter(chunk, commit, anywhere=anywhere)
    ends = [*(blocks or []), len(rows)]
    found: list[int] = []
    start = 0
    for end in ends:
        some = rows[start:end]
        whole = end == len(rows) or rows[end][0] != rows[end - 1][0]
        sizes = RowSizes(
            np.array([r[1] for r in some], np.int64),
            np.array([r[0] for r in some], np.int64),
            np.array([number in followed for number in range(start, end)], np.bool_),
        )
        found += cuts.add(sizes, whole=whole)
        start = end
    return [*found, cuts.rest()] if cuts.rest() else found


def test_a_chunk_ends_with_the_commit_that_fills_it() -> None:
    assert cut([(1, 4), (2, 4), (3, 4), (4, 4)]) == [3, 1]
    assert cut([(1, 4), (2, 4), (2, 4), (2, 4), (3, 4)]) == [4, 1]


def test_a_commit_is_cut_only_when_it_is_too_large() -> None:
    fits, too_large = [(1, 5)] * 6, [(1, 5)] * 7
    assert cut(fits) == [6]
    assert cut(too_large) == [2, 2, 2, 1]


def test_a_row_is_not_cut_off_from_the_one_that_belongs_to_it() -> None:
    rows = [(1, 10)] * 6
    assert cut(rows, followed=[1, 4]) == [1, 2, 1, 2]
    for first in range(1, len(rows)):
        assert cut(rows, blocks=[first], followed=[1, 4], commit=5) == [1, 2, 1, 2]


def test_a_snapshot_is_cut_anywhere() -> None:
    assert cut([(1, 5)] * 5, anywhere=True) == [2, 2, 1]


def test_a_row_larger_than_a_chunk_is_a_chunk() -> None:
    assert cut([(1, 50), (2, 1), (3, 50)]) == [1, 2]


def test_cuts_do_not_depend_on_how_rows_arrive() -> None:
    rows = [
        (1, 4),
        (2, 20),
        (3, 5),
        (3, 30),
        (3, 6),
        (4, 1),
        (5, 31),
        (6, 9),
        (7, 9),
        (7, 9),
        (7, 9),
        (8, 40),
    ]
    wanted = cut(rows)
    assert sum(wanted) == len(rows)
    for first in range(1, len(rows)):
        assert cut(rows, blocks=[first]) == wanted
        for second in range(first + 1, len(rows)):
            assert cut(rows, blocks=[first, second]) == wanted
    assert cut(rows, blocks=list(range(1, len(rows)))) == wanted
