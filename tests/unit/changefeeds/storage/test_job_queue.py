"""Which work shares a job."""

from penstock.changefeeds.sinks.storage.job_queue import LARGE_BYTES, DispatcherJob, JobQueue

Work = tuple[str, int]


def jobs_of(*, shared: int = 1, large: int = 2, slow: int = 2) -> JobQueue[Work]:
    return JobQueue(
        dispatcher_of=lambda work: work[0],
        weigh=lambda work: work[1],
        shared_max=shared,
        large_max=large,
        slow_max=slow,
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
    jobs.finish(first, [0.1, 0.1])
    second = jobs.take()
    assert second is not None
    assert second.work == (("c", 1), ("d", 1))


def test_large_work_has_a_job_of_its_own_and_leaves_room_for_the_others() -> None:
    jobs = jobs_of(large=1)
    for name in "abc":
        jobs.add((name, LARGE_BYTES))
    jobs.add(("d", 1))
    first, second = jobs.take(), jobs.take()
    assert first is not None
    assert second is not None
    assert (first.work, first.alone) == ((("a", LARGE_BYTES),), True)
    assert (second.work, second.alone) == ((("d", 1),), False)
    assert jobs.take() is None


def taken(jobs: JobQueue[Work]) -> list[DispatcherJob[Work]]:
    found = []
    while (job := jobs.take()) is not None:
        found.append(job)
    return found


def names(found: list[DispatcherJob[Work]]) -> list[str]:
    return ["".join(name for name, _ in job.work) for job in found]


def test_whose_work_was_slow_is_alone_until_it_is_not() -> None:
    jobs = jobs_of()
    for name in "abc":
        jobs.add((name, 1))
    (together,) = taken(jobs)
    jobs.finish(together, [3.0, 1.5, 0.1])
    for name in "abc":
        jobs.add((name, 1))
    apart = taken(jobs)
    assert names(apart) == ["a", "b", "c"]
    for job, seconds in zip(apart, (3.0, 0.1, 0.1), strict=True):
        jobs.finish(job, [seconds])
    for name in "abc":
        jobs.add((name, 1))
    assert names(taken(jobs)) == ["a", "bc"]


def test_when_everybody_is_slow_they_share_jobs() -> None:
    jobs = jobs_of(shared=2)
    for name in "abcd":
        jobs.add((name, 1))
    (together,) = taken(jobs)
    jobs.finish(together, [3.0, 3.1, 3.2, 3.3])
    for name in "abcd":
        jobs.add((name, 1))
    assert names(taken(jobs)) == ["abcd"]


def test_slow_work_keeps_no_large_work_waiting() -> None:
    jobs = jobs_of(slow=1, large=1)
    for name in "abcd":
        jobs.add((name, 1))
    (together,) = taken(jobs)
    jobs.finish(together, [3.0, 3.0, 3.0, 0.1])
    for name in "abc":
        jobs.add((name, 1))
    jobs.add(("d", LARGE_BYTES))
    found = taken(jobs)
    assert sorted(names(found)) == ["a", "d"]
    (large,) = (job for job in found if job.work[0][0] == "d")
    jobs.finish(large, [60.0])
    jobs.add(("d", 1))
    assert names(taken(jobs)) == ["d"], "how long large work takes is a matter of its size"


def test_the_work_that_fails_a_job_is_found_and_the_rest_is_done() -> None:
    jobs = jobs_of(shared=1)
    for name in "abcde":
        jobs.add((name, 1))
    done: list[str] = []
    failed: list[str] = []
    for _ in range(20):
        for job in taken(jobs):
            if any(name == "d" for name, _ in job.work):
                alone = jobs.fail(job)
                failed += [] if alone is None else [alone[0]]
            else:
                jobs.finish(job, [0.1] * len(job.work))
                done += names([job])
    assert (sorted("".join(done)), failed) == (list("abce"), ["d"])
