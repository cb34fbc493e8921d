"""Holds are written when they must be, and seldom."""

from penstock.clock import compose_ts
from penstock.eventstore.history_holds import HOLD_TTL_S
from penstock.follow.holds import BEHIND_MS, RENEWED_MAX, HoldPolicy

NOW = compose_ts(10**12)
FAR = compose_ts(BEHIND_MS)


def written(plan: HoldPolicy, table_ids: range, ts: int, now: float) -> list[int]:
    due = plan.tables_due(dict.fromkeys(table_ids, ts), now)
    for each in due:
        plan.record(each, ts, now)
    return due


def test_new_tables_are_held_at_once_however_many() -> None:
    plan = HoldPolicy()
    assert len(written(plan, range(10_000), NOW, 0.0)) == 10_000
    assert written(plan, range(10_001), NOW + 5, 1.0) == [10_000]


def test_a_hold_is_not_written_again_while_it_serves() -> None:
    plan = HoldPolicy()
    written(plan, range(3), NOW, 0.0)
    assert written(plan, range(3), NOW + FAR - compose_ts(1), HOLD_TTL_S / 3 - 1) == []


def test_it_is_renewed_long_before_it_runs_out_or_when_it_is_far_behind() -> None:
    plan = HoldPolicy()
    written(plan, range(3), NOW, 0.0)
    assert written(plan, range(3), NOW + 1, HOLD_TTL_S / 3) == [0, 1, 2]
    assert written(plan, range(3), NOW + FAR - compose_ts(1), HOLD_TTL_S / 3 + 1) == []
    assert written(plan, range(3), NOW + FAR, HOLD_TTL_S / 3 + 1) == [0, 1, 2]


def test_a_hold_that_must_go_back_is_written_at_once() -> None:
    plan = HoldPolicy()
    written(plan, range(2), NOW, 0.0)
    assert written(plan, range(2), NOW - 1, 0.5) == [0, 1]


def test_renewals_are_spread_and_the_oldest_come_first() -> None:
    plan = HoldPolicy()
    written(plan, range(5), NOW, 1.0)
    written(plan, range(1000), NOW, 2.0)
    first = written(plan, range(1000), NOW + FAR, 3.0)
    assert len(first) == RENEWED_MAX
    assert set(range(5)) <= set(first)
    assert not set(first) & set(written(plan, range(1000), NOW + FAR, 4.0))


def test_what_was_released_is_new_again() -> None:
    plan = HoldPolicy()
    written(plan, range(2), NOW, 0.0)
    plan.forget([1, 7])
    assert plan.tables_due(dict.fromkeys(range(2), NOW), 1.0) == [1]
