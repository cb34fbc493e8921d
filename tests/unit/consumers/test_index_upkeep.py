"""When an index is measured, trained, folded, merged, compacted and cleaned."""

from typing import Any

import pytest

from penstock.consumers.search_index.upkeep import Condition, Fragment, Limits, next_steps, to_compact

LIMITS = Limits(rows_min=1000)


def steps(**facts: Any) -> str:
    now = Condition(
        **{"rows": 100_000, "trained": True, "trained_rows": 100_000, "recall_trained": 0.95, **facts}
    )
    return " ".join(next_steps(now, LIMITS))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ""),
        ({"rows": 999, "trained": False, "trained_rows": 0}, ""),
        ({"rows": 1000, "trained": False, "trained_rows": 0}, "train"),
        ({"unindexed_rows": 1000}, ""),
        ({"unindexed_rows": 1001}, "fold"),
        ({"rows": 10_000_000, "unindexed_rows": 50_000}, ""),
        ({"rows": 10_000_000, "unindexed_rows": 50_001}, "fold"),
        ({"segments": 8}, ""),
        ({"segments": 8, "unindexed_rows": 2000}, "fold merge"),
        ({"segments": 9}, "merge"),
        ({"changed_rows": 5000}, ""),
        ({"changed_rows": 5001}, "measure"),
        ({"changed_rows": 5001, "measured_rows": 4000}, ""),
        ({"changed_rows": 9001, "measured_rows": 4000}, "measure"),
        ({"changed_rows": 5001, "recall_trained": 0.0}, ""),
        ({"changed_rows": 5001, "recall": 0.86}, ""),
        ({"changed_rows": 5001, "recall": 0.84}, "train"),
        ({"changed_rows": 5001, "recall": 0.86, "unindexed_rows": 5001}, "fold"),
        ({"changed_rows": 51_000}, "measure"),
        ({"changed_rows": 51_001}, "train"),
        ({"changed_rows": 51_001, "unindexed_rows": 9000, "segments": 20}, "train"),
        ({"changed_rows": 4000, "largest_share": 9.0}, ""),
        ({"changed_rows": 6000, "largest_share": 9.0}, "train"),
        ({"versions": 63}, ""),
        ({"versions": 64}, "clean"),
        ({"versions": 80, "unindexed_rows": 5000}, "fold clean"),
        ({"rows": 10, "trained": False, "versions": 80}, "clean"),
        ({"fragments": tuple(Fragment(at, 5) for at in range(16)), "unindexed_rows": 5000}, "compact fold"),
    ],
)
def test_what_is_done_when(facts: dict[str, Any], expected: str) -> None:
    assert steps(**facts) == expected


def test_no_index_is_made_where_none_is_wanted() -> None:
    now = Condition(rows=10**9, trained=False)
    assert next_steps(now, Limits(rows_min=None)) == ()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1] * 15, set()),
        ([1] * 16, set(range(16))),
        ([100] + [1] * 16, set(range(1, 17))),
        ([16] * 15 + [15] * 15, set()),
        ([17] * 10 + [200] * 6, set(range(16))),
        ([1 << 20] * 40, set()),
        ([(1 << 20) - 1] * 16, set(range(16))),
    ],
)
def test_fragments_of_one_size_are_written_together(sizes: list[int], expected: set[int]) -> None:
    assert to_compact([Fragment(at, rows) for at, rows in enumerate(sizes)], Limits()) == expected


@pytest.mark.parametrize(
    ("rows", "deleted", "compacted"),
    [(1_000_000, 200_000, False), (1_000_000, 200_001, True), (2000, 1000, False), (2000, 1001, True)],
)
def test_a_fragment_with_many_deleted_rows_is_written_anew(rows: int, deleted: int, compacted: bool) -> None:
    assert bool(to_compact([Fragment(3, rows, deleted)], Limits())) == compacted


def test_the_work_of_compactions_grows_with_the_logarithm_of_the_rows() -> None:
    """Each row is written again at most once for every size that there is."""
    fragments: list[Fragment] = []
    written = 0
    for number in range(5000):
        fragments.append(Fragment(number, 10))
        while chosen := to_compact(fragments, Limits()):
            merged = [each for each in fragments if each.id in chosen]
            written += sum(each.rows for each in merged)
            fragments = [each for each in fragments if each.id not in chosen]
            fragments.append(Fragment(merged[0].id, sum(each.rows for each in merged)))
    assert len(fragments) < 64
    assert written < 4 * 50_000
