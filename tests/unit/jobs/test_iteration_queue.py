"""Which iteration is next."""

from dataclasses import replace

import pytest

from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.scheduler.fair_queue import FairQueue, Waiting
from penstock.shares import Shares
from support.jobdoubles import iteration_of, job_row


def _iteration(name: str, account: str = "sys", *, priority: int = 0) -> Iteration:
    return iteration_of(job_row(name, account=account, detail={"priority": priority}), to_ts=10)


def _order(queue: FairQueue, seconds: float = 1.0) -> list[str]:
    """What a single worker runs, one after the other."""
    order = []
    while (taken := queue.take()) is not None:
        order.append(taken.iteration.jobs[0].key.job_name)
        queue.finish(taken.iteration.account, seconds)
    return order


def test_it_is_first_in_first_out_among_equals() -> None:
    queue = FairQueue(10)
    for name in ("a", "b", "c"):
        assert queue.offer(_iteration(name))
    assert _order(queue) == ["a", "b", "c"]


def test_a_higher_priority_goes_first_within_an_account() -> None:
    queue = FairQueue(10)
    for name, priority in (("low", -1), ("old", 0), ("high", 5), ("young", 0)):
        queue.offer(_iteration(name, priority=priority))
    assert _order(queue) == ["high", "old", "young", "low"]


def test_a_full_queue_refuses_and_keeps_nothing_of_what_it_refused() -> None:
    queue = FairQueue(2)
    assert queue.offer(_iteration("a"))
    assert queue.offer(_iteration("b"))
    assert not queue.offer(_iteration("c"))
    assert queue.remove(_iteration("c").jobs[0].key) is None
    assert len(queue) == 2
    queue.take()
    assert queue.offer(_iteration("c"))


def test_a_thousand_iterations_of_one_account_do_not_keep_anothers_only_one_waiting() -> None:
    queue = FairQueue(2000)
    for number in range(1000):
        queue.offer(_iteration(f"many{number}", "many"))
    for _ in range(3):
        taken = queue.take()
        assert taken is not None
        queue.finish("many", 1.0)
    queue.offer(_iteration("only", "few"))
    assert "only" in _order(queue)[:2]


def test_priority_does_not_overtake_another_account() -> None:
    queue = FairQueue(100)
    for number in range(10):
        queue.offer(_iteration(f"loud{number}", "loud", priority=100))
        queue.offer(_iteration(f"quiet{number}", "quiet", priority=-100))
    order = _order(queue)
    assert sum(name.startswith("quiet") for name in order[:10]) == 5


def test_accounts_get_workers_by_their_weights() -> None:
    queue = FairQueue(100, {"big": 3})
    for number in range(20):
        queue.offer(_iteration(f"big{number}", "big"))
        queue.offer(_iteration(f"small{number}", "small"))
    running = [queue.take() for _ in range(8)]
    accounts = [each.iteration.account for each in running if each is not None]
    assert (accounts.count("big"), accounts.count("small")) == (6, 2)


def test_accounts_get_time_by_their_weights_when_there_is_one_worker() -> None:
    queue = FairQueue(200, {"big": 3})
    for number in range(40):
        queue.offer(_iteration(f"big{number}", "big"))
        queue.offer(_iteration(f"small{number}", "small"))
    order = _order(queue)[:40]
    assert sum(name.startswith("big") for name in order) == 30


def test_an_account_with_long_iterations_gets_fewer_of_them() -> None:
    queue = FairQueue(200)
    for number in range(40):
        queue.offer(_iteration(f"long{number}", "long"))
        queue.offer(_iteration(f"short{number}", "short"))
    spent = {"long": 0.0, "short": 0.0}
    for _ in range(30):
        taken = queue.take()
        assert taken is not None
        seconds = 9.0 if taken.iteration.account == "long" else 1.0
        spent[taken.iteration.account] += seconds
        queue.finish(taken.iteration.account, seconds)
    assert abs(spent["long"] - spent["short"]) <= 9


def test_who_comes_after_a_long_rest_has_saved_nothing() -> None:
    queue = FairQueue(200)
    queue.offer(_iteration("first", "rested"))
    assert _order(queue) == ["first"]
    for number in range(50):
        queue.offer(_iteration(f"busy{number}", "busy"))
    for _ in range(40):
        queue.take()
        queue.finish("busy", 1.0)
    for number in range(10):
        queue.offer(_iteration(f"rested{number}", "rested"))
    order = _order(queue)[:10]
    assert sum(name.startswith("busy") for name in order) == 5


def test_a_retry_waits_for_its_time_and_comes_at_its_old_place() -> None:
    queue = FairQueue(10)
    queue.offer(_iteration("a"))
    queue.offer(_iteration("b"))
    taken = queue.take()
    assert taken is not None
    queue.finish("sys", 1.0)
    queue.retry(Waiting(taken.number, taken.iteration, failures=1), at=50.0)
    assert queue.release_due(49.0) == 50.0
    assert len(queue) == 2
    assert queue.release_due(50.0) is None
    again = queue.take()
    assert again is not None
    assert (again.iteration, again.failures, again.since) == (taken.iteration, 1, 50.0)


def test_what_waits_to_be_tried_again_counts_for_the_bound() -> None:
    queue = FairQueue(1)
    queue.offer(_iteration("a"))
    taken = queue.take()
    assert taken is not None
    queue.retry(taken, at=5.0)
    assert not queue.offer(_iteration("b"))


@pytest.mark.parametrize("parked", [False, True])
def test_a_job_is_taken_out_without_its_siblings(parked: bool) -> None:
    queue = FairQueue(10)
    kept, gone = job_row("kept", detail={"priority": -3}), job_row("gone", detail={"priority": 3})
    queue.offer(iteration_of(kept, gone, to_ts=10))
    if parked:
        taken = queue.take()
        assert taken is not None
        queue.retry(taken, at=1.0)
    assert queue.remove(gone.key) == gone
    assert queue.remove(gone.key) is None
    queue.release_due(2.0)
    queue.offer(_iteration("other"))
    assert _order(queue) == ["other", "kept"]  # by the priority of who is left


def test_what_waits_for_long_is_held_while_the_log_is_told() -> None:
    queue = FairQueue(10)
    old, young = job_row("old"), job_row("young")
    queue.offer(iteration_of(old, to_ts=10), now=1.0)
    queue.offer(iteration_of(young, to_ts=10), now=5.0)
    (held,) = queue.hold_unannounced(before=2.0)
    assert held.iteration.jobs == (old,)
    assert len(queue) == 2
    assert queue.hold_unannounced(before=2.0) == []
    written = old.with_status(from_ts=0)
    queue.announce(held.number, {old.key: written})
    assert queue.hold_unannounced(before=2.0) == []  # it is known
    assert queue.take() == replace(held, iteration=iteration_of(written, to_ts=10), announced=True)


def test_nobody_takes_what_is_held() -> None:
    queue = FairQueue(10)
    queue.offer(_iteration("a"), now=1.0)
    (held,) = queue.hold_unannounced(before=2.0)
    assert queue.take() is None
    queue.announce(held.number, None)  # the log does not answer: as before
    assert queue.take() == held


def test_who_is_lost_while_it_is_held_is_taken_out() -> None:
    queue = FairQueue(10)
    jobs = [job_row(name) for name in ("stale", "removed", "kept")]
    queue.offer(iteration_of(*jobs, to_ts=10), now=1.0)
    (held,) = queue.hold_unannounced(before=2.0)
    assert queue.remove(jobs[1].key) == jobs[1]
    queue.announce(held.number, {job.key: job for job in jobs[1:]})
    taken = queue.take()
    assert taken is not None
    assert taken.iteration.jobs == (jobs[2],)
    assert queue.offer(iteration_of(jobs[0], to_ts=10))  # it is not here any more


def test_nothing_is_left_of_an_iteration_whose_jobs_are_all_lost() -> None:
    queue = FairQueue(1)
    for lost in ({}, "removed"):
        job = job_row("a")
        queue.offer(iteration_of(job, to_ts=10), now=1.0)
        (held,) = queue.hold_unannounced(before=2.0)
        if lost == "removed":
            queue.remove(job.key)
        queue.announce(held.number, {})
        assert len(queue) == 0
        assert queue.take() is None


@pytest.mark.parametrize("parked", [False, True])
def test_an_iteration_without_jobs_is_gone(parked: bool) -> None:
    queue = FairQueue(1)
    job = job_row("only")
    queue.offer(iteration_of(job, to_ts=10))
    if parked:
        taken = queue.take()
        assert taken is not None
        queue.retry(taken, at=1.0)
    queue.remove(job.key)
    assert len(queue) == 0
    assert queue.release_due(2.0) is None
    assert queue.take() is None
    assert queue.offer(iteration_of(job, to_ts=10))


def _take_all(queue: FairQueue) -> list[str]:
    """The accounts whose iterations begin now, if none ends."""
    taken = []
    while (found := queue.take()) is not None:
        taken.append(found.iteration.account)
    return taken


def test_an_account_alone_may_hold_every_worker_and_another_still_gets_one() -> None:
    queue = FairQueue(100, shares=Shares.of(10))
    for number in range(30):
        queue.offer(_iteration(f"a{number}", "ann"))
    assert _take_all(queue) == ["ann"] * 10
    for number in range(5):
        queue.offer(_iteration(f"b{number}", "bob"))
    assert _take_all(queue) == ["bob"], "beyond the workers that the other holds"
    queue.finish("bob", 1.0)
    assert _take_all(queue) == ["bob"], "and again"


def test_among_several_accounts_none_holds_more_than_its_cap() -> None:
    queue = FairQueue(100, shares=Shares.of(10))
    queue.offer(_iteration("b", "bob"))
    for number in range(30):
        queue.offer(_iteration(f"a{number}", "ann"))
    assert sorted(_take_all(queue)) == ["ann"] * 8 + ["bob"]
    for number in range(4):
        queue.offer(_iteration(f"b{number}", "bob"))
    assert _take_all(queue) == ["bob"], "the tenth worker"
    for _ in range(3):
        queue.finish("ann", 1.0)
    assert _take_all(queue) == ["bob", "bob", "bob"], "whoever holds less comes first"


def test_a_cap_of_the_settings_is_kept_and_is_at_least_one() -> None:
    assert Shares.of(10, 3).account_count == 3
    assert Shares.of(10, 99).account_count == 10
    assert Shares.of(1).account_count == 1
    assert Shares.of(4).account_count == 3


def test_more_floors_than_workers_are_not_given() -> None:
    queue = FairQueue(100, shares=Shares.of(2))
    for number in range(9):
        queue.offer(_iteration(f"job{number}", f"account{number}"))
    assert len(_take_all(queue)) == 4


def test_a_queue_that_one_account_has_filled_takes_the_first_iteration_of_another() -> None:
    queue = FairQueue(2)
    for name in ("a", "b"):
        assert queue.offer(_iteration(name, "ann"))
    assert not queue.offer(_iteration("c", "ann"))
    assert queue.offer(_iteration("d", "bob"))
    assert not queue.offer(_iteration("e", "bob"))


def _wide(number: int, consumers: int, account: str) -> Iteration:
    jobs = [job_row(f"{account}{number}-{place}", account=account) for place in range(consumers)]
    return iteration_of(*jobs, to_ts=10)


def test_the_consumers_of_an_account_that_run_at_the_same_time_are_bounded() -> None:
    queue = FairQueue(100, consumers_max=100)
    for number in range(4):
        queue.offer(_wide(number, 40, "ann"))
    queue.offer(_wide(0, 300, "bob"))
    assert _take_all(queue) == ["ann", "bob", "ann"], "an iteration alone may have more"
    queue.finish("bob", 1.0, consumers=300)
    assert _take_all(queue) == []
    queue.finish("ann", 1.0, consumers=40)
    assert _take_all(queue) == ["ann"]
