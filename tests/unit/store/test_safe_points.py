import pytest

from penstock.errors import Corrupt, Invalid
from penstock.store.pd.safe_points import GC_WORKER, SafePoints

NOW = 1_000_000


def test_the_txn_safe_point_stops_at_the_lowest_barrier() -> None:
    points = SafePoints()
    points.set_barrier("backup", 50, 60, NOW)
    points.set_barrier("feed", 80, 60, NOW)
    blocker = points.advance_txn(100, NOW)
    assert blocker is not None
    assert (blocker.id, points.txn) == ("backup", 50)
    points.delete_barrier("backup")
    points.advance_txn(100, NOW)
    assert points.txn == 80


def test_an_expired_barrier_holds_nothing_back() -> None:
    points = SafePoints()
    points.set_barrier("feed", 50, 60, NOW)
    assert points.advance_txn(100, NOW + 60_000) is None
    assert points.txn == 100
    assert points.barriers(NOW) == []


def test_gc_never_passes_the_txn_safe_point_and_neither_goes_back() -> None:
    points = SafePoints()
    points.advance_txn(70, NOW)
    points.advance_gc(60)
    for refused in (
        lambda: points.advance_gc(71),
        lambda: points.advance_gc(59),
        lambda: points.advance_txn(69, NOW),
    ):
        with pytest.raises(Invalid):
            refused()
    assert (points.gc, points.txn) == (60, 70)


def test_a_barrier_behind_the_txn_safe_point_comes_too_late() -> None:
    points = SafePoints()
    points.advance_txn(70, NOW)
    with pytest.raises(Invalid, match="behind the txn safe point 70"):
        points.set_barrier("feed", 69, 60, NOW)
    with pytest.raises(Invalid, match="positive TTL"):
        points.set_barrier("feed", 99, 0, NOW)
    with pytest.raises(Invalid, match="not a name"):
        points.set_barrier(GC_WORKER, 99, 10, NOW)


def test_the_older_calls_see_the_lowest_entry() -> None:
    points = SafePoints()
    assert points.update_service("feed", 50, 60, NOW).ts == 0
    assert points.update_service(GC_WORKER, 90, 1 << 62, NOW).ts == 50
    lowest = points.update_service("late", 40, 60, NOW)
    assert lowest.ts == 50
    assert [barrier.id for barrier in points.barriers(NOW)] == ["feed"]
    points.update_service("feed", 0, 0, NOW)
    assert points.update_service(GC_WORKER, 90, 1 << 62, NOW).ts == 90


def test_the_oldest_call_only_ever_raises() -> None:
    points = SafePoints()
    assert points.update_gc(30) == 30
    assert points.update_gc(20) == 30
    assert points.txn == 30


def test_a_barrier_reports_the_seconds_it_has_left() -> None:
    points = SafePoints()
    barrier = points.set_barrier("feed", 50, 60, NOW)
    assert barrier.ttl_s(NOW + 1) == 60
    assert barrier.ttl_s(NOW + 59_001) == 1
    assert points.set_barrier("ever", 50, (1 << 63) - 1, NOW).ttl_s(NOW + 10**9) == (1 << 63) - 1


def test_safe_points_survive_their_form_on_disk() -> None:
    points = SafePoints()
    points.advance_txn(40, NOW)
    points.advance_gc(30)
    points.set_barrier("feed", 50, 60, NOW)
    assert SafePoints.load(points.dump()) == points
    assert SafePoints.load(None) == SafePoints()
    with pytest.raises(Corrupt):
        SafePoints.load(b"{}")
