"""The weighted quota, with real threads where somebody waits."""

import threading
from collections.abc import Callable

import pytest

from penstock.clock import SYSTEM
from penstock.sources.quota import Cancelled, InflightQuota, QuotaOwner


def eventually(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 5
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it never came true"
        SYSTEM.pause(0.001)


class Asking:
    """A thread that acquires quota; `outcome` is None while it waits."""

    def __init__(self, quota: InflightQuota, weight: int, owner: QuotaOwner) -> None:
        self.outcome: str | None = None
        waiting = len(quota._waiting)
        self._thread = threading.Thread(target=self._ask, args=(quota, weight, owner))
        self._thread.start()
        eventually(lambda: self.outcome is not None or len(quota._waiting) > waiting)

    def _ask(self, quota: InflightQuota, weight: int, owner: QuotaOwner) -> None:
        try:
            quota.acquire(weight, owner)
            self.outcome = "taken"
        except Cancelled:
            self.outcome = "cancelled"

    def join(self) -> str | None:
        self._thread.join(5)
        return self.outcome


def test_quota_is_taken_until_it_is_used_up() -> None:
    quota, owner = InflightQuota(10), QuotaOwner()
    assert quota.try_acquire(6, owner)
    assert quota.try_acquire(4, owner)
    assert not quota.try_acquire(1, owner)
    quota.release(4)
    assert quota.try_acquire(1, owner)
    assert (quota.used, quota.batches) == (7, 2)


def test_a_batch_heavier_than_the_whole_quota_is_admitted_alone() -> None:
    quota, owner = InflightQuota(10), QuotaOwner()
    assert quota.try_acquire(50, owner)
    assert not quota.try_acquire(1, owner)
    quota.release(50)
    assert quota.used == 0


def test_a_heavy_batch_that_waits_is_not_overtaken_by_light_ones() -> None:
    quota, owner = InflightQuota(10), QuotaOwner()
    assert quota.try_acquire(5, owner)
    heavy = Asking(quota, 50, owner)
    assert not quota.try_acquire(1, owner), "it would have fitted, but somebody was first"
    light = Asking(quota, 1, owner)
    quota.release(5)
    assert heavy.join() == "taken"
    assert light.outcome is None
    quota.release(50)
    assert light.join() == "taken"
    assert quota.used == 1


def test_cancelling_an_owner_dismisses_its_waiters_and_lets_others_in() -> None:
    quota, leaving, staying = InflightQuota(10), QuotaOwner(), QuotaOwner()
    quota.try_acquire(5, staying)
    first = Asking(quota, 8, leaving)
    second = Asking(quota, 3, staying)
    quota.cancel(leaving)
    assert first.join() == "cancelled"
    assert second.join() == "taken"
    assert quota.used == 8
    with pytest.raises(Cancelled):
        quota.try_acquire(1, leaving)
    with pytest.raises(Cancelled):
        quota.acquire(1, leaving)


def test_closing_dismisses_everybody() -> None:
    quota, owner = InflightQuota(10), QuotaOwner()
    quota.try_acquire(10, owner)
    waiting = [Asking(quota, 1, owner) for _ in range(3)]
    quota.close()
    assert [each.join() for each in waiting] == ["cancelled"] * 3
    with pytest.raises(Cancelled):
        quota.try_acquire(1, owner)
    assert quota.used == 10


def test_one_release_can_let_several_in() -> None:
    quota, owner = InflightQuota(10), QuotaOwner()
    quota.try_acquire(10, owner)
    waiting = [Asking(quota, 2, owner) for _ in range(3)]
    quota.release(10)
    assert [each.join() for each in waiting] == ["taken"] * 3
    assert quota.used == 6


def test_what_did_not_wait_is_counted_once() -> None:
    quota, owner = InflightQuota(2), QuotaOwner()
    quota.try_acquire(1, owner)
    quota.try_acquire(1, owner)
    late = Asking(quota, 1, owner)
    quota.release(1)
    late.join()
    assert quota.take_unwaited() == 2
    assert quota.take_unwaited() == 0


def test_releasing_twice_is_our_own_mistake() -> None:
    quota, owner = InflightQuota(2), QuotaOwner()
    quota.try_acquire(1, owner)
    quota.release(1)
    with pytest.raises(AssertionError, match="twice"):
        quota.release(1)
