"""Rounds of reading: what goes into one job, who waits for whom, and what is read again."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from penstock.changes.limits import ReadLimit
from penstock.changes.options import ChangeOptions
from penstock.changes.plan import ChangesPartition
from penstock.errors import Aborted, StaleRead, Unavailable
from penstock.follow.scans import scan_tail
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.range_read import EarlyReads, RoundReader
from penstock.jobs.iteration.rounds import (
    LARGE_BYTES,
    PartAnswer,
    PartWork,
    ReadLane,
    ReadQueue,
    ReadRound,
    ReadRounds,
    ReadTask,
    RoundPart,
)
from penstock.settings import JobsSettings
from penstock.spark.rounds import TaskResult
from support.itemtables import item, item_table
from support.jobdoubles import WorldSource, iteration_of, job_row
from support.tableworld import TableWorld

WAIT_S = 20.0
NOTHING = PartAnswer(b"", b"", 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableWorld]:
    with TableWorld(tmp_path_factory.mktemp("rounds"), item_table()) as made:
        for number in range(40):
            made.commit(item("integer", number % 10, f"name {number}"))
        made.resolve()
        yield made


def work_of(world: TableWorld) -> PartWork:
    scan = scan_tail(world.view(), 1, world.ts, ReadLimit())
    options = ChangeOptions(replay=True, skip_deletes=True, batch_rows=2)
    part = ChangesPartition(table=scan.view, from_ts=1, to_ts=world.ts, options=options, rows=scan.rows)
    return PartWork(part, scan.schema, ("id", "name"))


class HereJobs:
    """ReadJobs that run tasks in this process; `fault` is called with each round and may raise."""

    def __init__(
        self, fault: Callable[[ReadRound], None] = lambda _: None, *, patience_s: float = WAIT_S
    ) -> None:
        self.cores = 2
        self._patience_s = patience_s
        self.rounds: list[ReadRound] = []
        self.interrupted: list[str] = []
        self._fault = fault

    def run(self, round_: ReadRound, tag: str) -> list[TaskResult[Any]]:
        del tag
        self.rounds.append(round_)
        self._fault(round_)
        works = tuple((number, part.work) for number, part in enumerate(round_.pieces))
        return list(ReadTask(works, self._patience_s, threads=4).run())

    def interrupt(self, tag: str) -> None:
        self.interrupted.append(tag)


class _Work(PartWork):
    """Work whose reading is a function of the test."""

    __slots__ = ("_do",)

    def __init__(self, like: PartWork, do: Callable[[], PartAnswer]) -> None:
        super().__init__(like.part, like.schema, like.columns)
        object.__setattr__(self, "_do", do)

    def read(self) -> PartAnswer:
        return self._do()


def part_of(
    world: TableWorld, do: Callable[[], PartAnswer] = lambda: NOTHING, *, nbytes: int = 0, account: str = "a"
) -> RoundPart:
    return RoundPart(account, _Work(work_of(world), do), nbytes)


def read_all(jobs: HereJobs, parts: Sequence[RoundPart]) -> list[PartAnswer]:
    rounds = ReadRounds(jobs)
    try:
        for part in parts:
            rounds.submit(part)
        return [part.answer.result(WAIT_S) for part in parts]
    finally:
        rounds.close()


def test_a_hundred_tables_with_few_changes_are_one_job(world: TableWorld) -> None:
    jobs = HereJobs()
    read_all(jobs, [part_of(world) for _ in range(100)])
    assert [len(round_.pieces) for round_ in jobs.rounds] == [100]
    assert len(jobs.rounds[0].tasks) == 2, "every core has a task"


def test_accounts_take_turns(world: TableWorld) -> None:
    queue = ReadQueue()
    for part in [part_of(world, account="a", nbytes=1 << 19) for _ in range(99)]:
        queue.add(part)
    queue.add(part_of(world, account="b"))
    taken = queue.take(cores=1)
    assert taken is not None
    assert {part.account for part in taken.pieces} == {"a", "b"}
    assert len(queue), "a round has a bound"


def test_long_reads_of_one_account_leave_a_job_and_a_core_to_others(world: TableWorld) -> None:
    queue = ReadQueue()
    for _ in range(20):
        queue.add(part_of(world, account="ann", nbytes=LARGE_BYTES))
    alone = _take_all(queue, cores=4)
    assert [part.account for round_ in alone for part in round_.pieces] == ["ann"] * 8
    queue.add(part_of(world, account="bob", nbytes=LARGE_BYTES))
    (others,) = _take_all(queue, cores=4)
    assert others.pieces[0].account == "bob", "beside what runs already"
    queue.finish(others)
    for round_ in alone[:5]:
        queue.finish(round_)
    assert _take_all(queue, cores=4) == [], "three of four cores are held"
    queue.finish(alone[5])
    assert len(_take_all(queue, cores=4)) == 1


def test_slow_reads_of_one_account_do_not_delay_those_of_another(world: TableWorld) -> None:
    queue = ReadQueue()
    for account in ("ann", "ann", "bob"):
        slow = part_of(world, account=account)
        slow.slow = True
        if account == "bob":
            (first,) = _take_all(queue, cores=2)
            late = part_of(world, account="ann")
            late.slow = True
            queue.add(late)
        queue.add(slow)
    (second,) = _take_all(queue, cores=2)
    assert [part.account for part in second.pieces] == ["bob"]
    queue.finish(second)
    queue.finish(first)
    (third,) = _take_all(queue, cores=2)
    assert [part.account for part in third.pieces] == ["ann"]


def _take_all(queue: ReadQueue, cores: int) -> list[ReadRound]:
    taken = []
    while (round_ := queue.take(cores)) is not None:
        taken.append(round_)
    return taken


def test_a_large_part_has_a_job_of_its_own_and_nobody_waits_for_it(world: TableWorld) -> None:
    small_is_there = threading.Event()

    def large() -> PartAnswer:
        assert small_is_there.wait(WAIT_S)
        return NOTHING

    jobs = HereJobs()
    rounds = ReadRounds(jobs)
    first, second = part_of(world, large, nbytes=LARGE_BYTES), part_of(world)
    rounds.submit(first)
    rounds.submit(second)
    second.answer.result(WAIT_S)
    small_is_there.set()
    first.answer.result(WAIT_S)
    rounds.close()
    assert {round_.lane: len(round_.pieces) for round_ in jobs.rounds} == {
        ReadLane.LARGE: 1,
        ReadLane.SMALL: 1,
    }


def test_others_get_their_answers_while_one_part_hangs_and_it_is_read_again(world: TableWorld) -> None:
    others_are_there, calls = threading.Event(), iter(range(9))

    def hang_once() -> PartAnswer:
        if next(calls) == 0:
            others_are_there.wait(WAIT_S)
        return NOTHING

    jobs = HereJobs(patience_s=0.2)
    rounds = ReadRounds(jobs)
    slow, quick = part_of(world, hang_once), part_of(world)
    rounds.submit(slow)
    rounds.submit(quick)
    quick.answer.result(WAIT_S)
    slow.answer.result(WAIT_S)
    others_are_there.set()
    rounds.close()
    assert [round_.lane for round_ in jobs.rounds] == [ReadLane.SMALL, ReadLane.SLOW]


def test_a_job_that_spark_loses_is_repeated(world: TableWorld) -> None:
    failing = iter([Unavailable("the Spark session died"), RuntimeError("of Java"), None])

    def fault(_round: ReadRound) -> None:
        error = next(failing)
        if error is not None:
            raise error

    jobs = HereJobs(fault)
    assert read_all(jobs, [part_of(world)]) == [NOTHING]
    assert len(jobs.rounds) == 3


def test_spark_that_stays_away_is_the_error_of_the_range(world: TableWorld) -> None:
    def fault(_round: ReadRound) -> None:
        raise Unavailable("the Spark session died")

    with pytest.raises(Unavailable, match="session died"):
        read_all(HereJobs(fault), [part_of(world)])


def test_an_error_of_one_range_is_its_own(world: TableWorld) -> None:
    def stale() -> PartAnswer:
        raise StaleRead("shop.items", 5, oldest_ts=9)

    def broken() -> PartAnswer:
        raise ValueError("a row with values")

    jobs = HereJobs()
    rounds = ReadRounds(jobs)
    parts = [part_of(world, stale), part_of(world, broken), part_of(world)]
    for part in parts:
        rounds.submit(part)
    assert parts[2].answer.result(WAIT_S) == NOTHING
    assert isinstance(parts[0].answer.exception(WAIT_S), StaleRead)
    assert "a row with values" not in str(parts[1].answer.exception(WAIT_S)), "it may quote rows"
    assert len(jobs.rounds) == 1
    rounds.close()


def test_the_end_of_the_runner_ends_what_waits_and_what_runs(world: TableWorld) -> None:
    running, end = threading.Event(), threading.Event()

    def fault(_round: ReadRound) -> None:
        running.set()
        end.wait(WAIT_S)
        raise Unavailable("the job was interrupted")

    jobs = HereJobs(fault)
    rounds = ReadRounds(jobs)
    first = part_of(world)
    rounds.submit(first)
    assert running.wait(WAIT_S)
    rounds.close()
    end.set()
    late = part_of(world)
    rounds.submit(late)
    assert len(jobs.interrupted) == 1
    for part in (first, late):
        assert isinstance(part.answer.exception(WAIT_S), Aborted)


@pytest.mark.parametrize("answer_bytes", [1, 400, 1 << 20])
def test_a_part_that_is_larger_than_an_answer_is_resumed(world: TableWorld, answer_bytes: int) -> None:
    """Every change comes once and in order, and no answer has many more bytes than it may."""

    def answer_less(round_: ReadRound) -> None:
        for part in round_.pieces:
            if part.work.answer_bytes != answer_bytes:  # what is left of a part has it
                part.work = replace(work_of(world), answer_bytes=answer_bytes)

    jobs = HereJobs(answer_less)
    rounds = ReadRounds(jobs)
    scan = scan_tail(world.view(), 1, world.ts, ReadLimit())
    batches = list(RoundReader(rounds).begin(scan, None, "a").batches())
    rounds.close()
    last: dict[tuple[object, ...], dict[str, object]] = {}
    order: list[int] = []
    for batch in batches:
        order += batch.inserts.column("_commit_ts").to_pylist()
        last |= {(row["id"],): {"id": row["id"], "name": row["name"]} for row in batch.inserts.to_pylist()}
    assert order == sorted(order)
    assert last == world.versions.at(world.ts)
    assert (len(jobs.rounds) > 1) == (answer_bytes < 1 << 20)


def test_a_range_that_nobody_wants_any_more_is_not_read(world: TableWorld) -> None:
    queue = ReadQueue()
    part = part_of(world)
    queue.add(part)
    part.answer.cancel()
    assert queue.take(cores=1) is None


def _waiting(number: int, world: TableWorld) -> Iteration:
    job = job_row(f"job{number}")
    return replace(iteration_of(job, from_ts=world.ts - 30, to_ts=world.ts), id=str(number))


def test_iterations_that_wait_for_a_worker_share_a_round(world: TableWorld) -> None:
    jobs = HereJobs()
    rounds = ReadRounds(jobs)
    ahead = EarlyReads(RoundReader(rounds), WorldSource(world), JobsSettings())
    iterations = [_waiting(number, world) for number in range(30)]
    for iteration in iterations:
        ahead.begin(iteration)
    assert ahead.take("0") is None, "jobs that take DataFrames are not read for"
    for iteration in iterations:
        ahead.note_batches(iteration.jobs[0].key, batches=True)
    for iteration in iterations:
        ahead.begin(iteration)
    for iteration in iterations:
        early = ahead.take(iteration.id)
        assert early is not None
        assert sum(batch.rows for batch in early.read.batches()) > 0
        assert ahead.take(iteration.id) is None, "a retry reads again"
    assert len(jobs.rounds) <= 3
    ahead.close()
    rounds.close()


def test_what_was_read_ahead_for_nobody_is_given_up(world: TableWorld) -> None:
    rounds = ReadRounds(HereJobs(), gather_s=30.0)
    ahead = EarlyReads(RoundReader(rounds), WorldSource(world), JobsSettings())
    iteration = _waiting(1, world)
    ahead.note_batches(iteration.jobs[0].key, batches=True)
    ahead.begin(iteration)
    early: Future[object] = ahead._early[iteration.id]  # type: ignore[assignment] # for its value
    ahead.drop(iteration.id)
    found = early.result(WAIT_S)
    assert found is None or found.read._closed  # type: ignore[attr-defined] # see above
    ahead.close()
    rounds.close()
