"""Which transactions are traced: the same for everybody, whatever batches they come in."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.tracing.sampling import SampleFilter, Sampling

_TIMES = st.lists(st.integers(1, (1 << 63) - 1) | st.integers(1, 50), max_size=60)
_SHARES = st.floats(0, 1)
_CLUSTERS = st.integers(0, (1 << 64) - 1)


@given(_TIMES, st.lists(st.integers(0, 60), max_size=4), _SHARES, _CLUSTERS)
def test_transactions_are_picked_alike_however_their_rows_are_cut(
    commits: list[int], cuts: list[int], share: float, cluster: int
) -> None:
    sampling = Sampling.of(cluster, share)
    whole = sampling.pick(np.array(commits, np.uint64)).pairs()
    picks = SampleFilter(Sampling.of(cluster, share))
    for part in np.split(np.array(commits, np.int64), sorted(cuts)):
        picks.add(part)
    assert picks.transactions().pairs() == whole
    counts = Counter(commits)
    assert all(counts[ts] == rows for ts, rows in whole)


@given(_TIMES, st.lists(st.integers(0, 60), max_size=4), st.integers(1, 10), _CLUSTERS)
def test_of_too_many_those_are_kept_that_everybody_would_keep_with_all_of_their_rows(
    commits: list[int], cuts: list[int], held_max: int, cluster: int
) -> None:
    sampling = Sampling.of(cluster, 1.0)
    picks = SampleFilter(sampling, held_max=held_max)
    for part in np.split(np.array(commits, np.uint64), sorted(cuts)):
        picks.add(part)
        picks.add_pairs(())
    kept = picks.transactions()
    counts = Counter(commits)
    assert all(counts[ts] == rows for ts, rows in kept.pairs())
    whole = sampling.pick(np.array(commits, np.uint64))
    assert sampling.limit(whole, len(kept)).pairs() == kept.pairs()
    assert min(held_max, len(whole)) <= len(kept) <= 2 * held_max
    assert picks.dropped == 0 or len(kept) < len(whole)


@given(_TIMES, _SHARES, _SHARES, _CLUSTERS)
def test_a_larger_share_has_all_that_a_smaller_one_has(
    commits: list[int], one: float, other: float, cluster: int
) -> None:
    few, many = sorted((one, other))
    times = np.array(commits, np.uint64)
    assert set(Sampling.of(cluster, few).pick(times).pairs()) <= set(
        Sampling.of(cluster, many).pick(times).pairs()
    )
    assert len(Sampling.of(cluster, 1.0).pick(times)) == len(set(commits))
    assert len(Sampling.of(cluster, 0.0).pick(times)) == 0


@given(st.sets(st.integers(1, (1 << 63) - 1), min_size=1, max_size=50), _CLUSTERS)
def test_no_two_transactions_share_a_trace(commits: set[int], cluster: int) -> None:
    times = np.array(sorted(commits), np.uint64)
    ids = Sampling.of(cluster, 1.0).trace_ids(times)
    assert len(set(ids)) == len(commits)
    assert all(0 < each < 1 << 128 for each in ids)


@given(st.integers(1, 1 << 60), st.integers(0, 1000))
def test_about_the_share_is_picked_of_timestamps_that_follow_each_other(first: int, cluster: int) -> None:
    times = np.arange(first, first + 20_000, dtype=np.uint64)
    assert 120 <= len(Sampling.of(cluster, 0.01).pick(times)) <= 290
