"""Which work shares a job."""

from penstock.changefeeds.sinks.storage.job_queue import LARGE_BYTES, JobQueue

Work = tuple[str, int]


def jobs_of(*, shared: int = 1, alone: int = 2) -> JobQueue[Work]:
    return JobQueue(
        dispatcher_of=lambda work: work[0], weigh=lambda work: work[1], shared_max=shared, alone_max=alone
    )


def test_small_work_shares_a_job_and_what_comes_meanwhile_shares_the_next() -> None:
    jobs = jobs_of()
    jobs.add(("a", 1))
    jobs.add(("b", 1))
    first = jobs.take()
    assert first is not None
    assert first.work == (("a", 1), ("b", 1))
    jobs.add(("c", 1))
    jobs.add(("d", 1))
    assert jobs.take() is None
    jobs.finish(first, 0.1)
    second = jobs.take()
    assert second is not None
    assert second.work == (("c", 1), ("d", 1))


def test_large_work_has_a_job_of_its_own_and_leaves_room_for_the_others() -> None:
    jobs = jobs_of(alone=1)
    for name in "abc":
        jobs.add((name, LARGE_BYTES))
    jobs.add(("d", 1))
    first, second = jobs.take(), jobs.take()
    assert first is not None
    assert second is not None
    assert (first.work, first.alone) == ((("a", LARGE_BYTES),), True)
    assert (second.work, second.alone) == ((("d", 1),), False)
    assert jobs.take() is None


def test_whose_job_was_slow_is_alone_until_it_is_not() -> None:
    jobs = jobs_of()
    jobs.add(("a", 1))
    jobs.add(("b", 1))
    both = jobs.take()
    assert both is not None
    jobs.finish(both, 3.0)
    for name in "abc":
        jobs.add((name, 1))
    taken = [jobs.take() for _ in range(3)]
    assert [job.work for job in taken if job is not None] == [(("a", 1),), (("b", 1),), (("c", 1),)]
    for job, seconds in zip(taken, (3.0, 0.1, 0.1), strict=True):
        assert job is not None
        jobs.finish(job, seconds)
    for name in "abc":
        jobs.add((name, 1))
    first, second = jobs.take(), jobs.take()
    assert first is not None
    assert second is not None
    assert (first.work, second.work) == ((("a", 1),), (("b", 1), ("c", 1)))
