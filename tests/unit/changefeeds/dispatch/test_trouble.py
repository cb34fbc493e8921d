import pytest

from penstock.changefeeds.failures import FailureTracker
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.testing.clock import ManualClock


def test_waits_grow_to_a_bound() -> None:
    trouble = FailureTracker("feed", clock=ManualClock())
    waits = [trouble.record(Unavailable("x"), attempt) for attempt in (0, 1, 2, 10, 1000)]
    assert waits == [0.375, 0.75, 1.5, 45.0, 45.0]


def test_it_gives_up_by_the_time_without_progress() -> None:
    clock = ManualClock()
    trouble = FailureTracker("feed", give_up_s=100, clock=clock)
    trouble.record(Unavailable("x"), 0)
    clock.advance(99)
    trouble.record(Unavailable("x"), 1)
    trouble.clear()
    assert not trouble.failing
    assert not trouble.error
    clock.advance(99)
    trouble.record(Unavailable("x"), 0)
    clock.advance(100)
    with pytest.raises(Unavailable):
        trouble.record(Unavailable("x"), 1)
    assert trouble.error == "Unavailable: x"


@pytest.mark.parametrize("error", [Invalid("x"), Fenced("x")])
def test_what_cannot_pass_is_raised_at_once(error: Exception) -> None:
    trouble = FailureTracker("feed", clock=ManualClock())
    with pytest.raises(type(error)):
        trouble.record(error, 0)
    assert trouble.failing


def test_an_error_is_told_in_one_line() -> None:
    trouble = FailureTracker("feed", clock=ManualClock())
    trouble.record(RuntimeError("a job failed\n\tat java.lang.Thread.run\nCaused by: a row"), 0)
    assert trouble.error == "RuntimeError: a job failed"
