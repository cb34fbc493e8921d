"""One backoff policy in place of the formulas that its users had: every delay is the number that it was."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changefeeds import failures as changefeed_failures
from penstock.consumers.webhook import sender
from penstock.eventstore.objects import flush
from penstock.eventstore.upkeep import upkeep
from penstock.jobs.scheduler.scheduler import retry_policy
from penstock.kv import transact
from penstock.retry import BackoffPolicy
from penstock.settings import JobsSettings
from penstock.sources.tikv import routing

FAILURES = st.integers(1, 5000)
CHANCES = st.floats(0, 1, exclude_max=True)
BASES_S = st.floats(0.001, 1e6)

# What each user computed by itself, of the failures in a row and of a number in [0, 1).
FORMER: dict[str, tuple[BackoffPolicy, Callable[[int, float], float]]] = {
    "changefeed": (
        changefeed_failures.RETRY_BACKOFF,
        lambda failures, chance: min(60.0, 0.5 * 2 ** min(failures - 1, 16)) * (0.5 + chance / 2),
    ),
    "flush": (flush._BACKOFF, lambda failures, _chance: min(30.0, 0.5 * 2 ** min(failures - 1, 10))),
    "upkeep": (upkeep._BACKOFF, lambda failures, _chance: min(300.0, 1.0 * 2.0 ** min(failures - 1, 20))),
    "webhook": (
        sender._BACKOFF,
        lambda failures, chance: min(0.5 * 2 ** min(failures - 1, 900), 30.0) * (0.5 + chance / 2),
    ),
    "transaction": (
        transact._BACKOFF,
        lambda failures, chance: min(0.005 * 2 ** min(failures - 1, 900), 0.5) * (0.5 + chance),
    ),
}


@pytest.mark.parametrize("user", FORMER)
@given(failures=FAILURES, chance=CHANCES)
def test_each_user_waits_as_long_as_it_did(user: str, failures: int, chance: float) -> None:
    policy, former = FORMER[user]
    assert policy.delay_s(failures, chance) == former(failures, chance)


@given(failures=FAILURES, chance=CHANCES)
def test_ranges_of_a_source_wait_as_long_as_they_did(failures: int, chance: float) -> None:
    longest = min(2.0, 0.05 * 2 ** min(failures - 1, 16))
    assert math.isclose(routing._BACKOFF.delay_s(failures, chance), longest / 2 + longest / 2 * chance)


@given(failures=FAILURES, chance=CHANCES, backoff_s=BASES_S)
def test_jobs_wait_as_long_as_they_did(failures: int, chance: float, backoff_s: float) -> None:
    policy = retry_policy(JobsSettings(backoff_s=backoff_s))
    longest = min(backoff_s * 2.0 ** min(failures - 1, 32), 60.0)
    assert policy.delay_s(failures, chance) == longest * (1 + chance) / 2


@given(ends=FAILURES, backoff_s=BASES_S, backoff_max_s=BASES_S)
def test_parts_that_end_wait_as_long_as_they_did(ends: int, backoff_s: float, backoff_max_s: float) -> None:
    policy = BackoffPolicy(base_s=backoff_s, cap_s=backoff_max_s)
    assert policy.delay_s(ends) == min(backoff_s * 2.0 ** min(ends - 1, 64), backoff_max_s)


@given(
    failures=FAILURES,
    chance=CHANCES,
    base_s=BASES_S,
    cap_s=BASES_S,
    factor=st.floats(1, 10),
    jitter=st.tuples(st.floats(0, 1), st.floats(1, 2)),
)
def test_a_delay_never_shrinks_and_stays_within_its_jitter(
    failures: int, chance: float, base_s: float, cap_s: float, factor: float, jitter: tuple[float, float]
) -> None:
    policy = BackoffPolicy(base_s=base_s, cap_s=cap_s, factor=factor, jitter=jitter)
    delay_s = policy.delay_s(failures, chance)
    low, high = jitter
    assert math.isfinite(delay_s)
    assert 0 <= delay_s <= cap_s * high
    assert delay_s >= min(base_s, cap_s) * low
    assert delay_s <= policy.delay_s(failures + 1, chance)


@given(attempts=st.integers(1, 50), failures=st.integers(0, 60))
def test_the_last_try_is_the_one_after_all_others_failed(attempts: int, failures: int) -> None:
    policy = BackoffPolicy(base_s=1, cap_s=1, attempts=attempts)
    assert policy.is_last(failures) == (failures + 1 >= attempts)
    assert not BackoffPolicy(base_s=1, cap_s=1).is_last(failures)
