"""Which files share a job, and what becomes of those that are slow, hang or fail."""

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changefeeds.engines import files
from penstock.changefeeds.engines import rounds as rounds_module
from penstock.changefeeds.engines.engine import DirectFile, DirectResult, FileWork
from penstock.changefeeds.engines.rounds import (
    LARGE_BYTES,
    FileQueue,
    FileRound,
    FileRounds,
    Lane,
    RoundFile,
    RoundTask,
    rules_of,
)
from penstock.clock import SYSTEM
from penstock.errors import PenstockError, StaleRead, Unavailable
from penstock.object_storage import REQUEST_S, StorageRef, put_timeout_s
from penstock.spark.rounds import TaskResult

TARGET = StorageRef("memory://")


def direct(name: str, weight: int = 1000, *, after: str = "") -> DirectFile:
    path, before = f"{name}.json", f"{after}.json" if after else ""
    work = FileWork(dispatcher_id=name, chunks=(), data_path=path, index_path=f"{name}.index", after=before)
    return DirectFile(work, (), weight)


def train(count: int, weight: int) -> list[RoundFile]:
    """Files of one dispatcher, each behind the last one."""
    return [
        RoundFile("d", "a", TARGET, direct(f"d{number}", weight, after=f"d{number - 1}" if number else ""))
        for number in range(count)
    ]


def waiting(name: str, weight: int = 1000, *, account: str = "a") -> RoundFile:
    return RoundFile(name, account, TARGET, direct(name, weight))


def names(round_: FileRound | None) -> list[str]:
    return [] if round_ is None else sorted(file.key for file in round_.pieces)


def test_files_that_wait_together_share_a_job() -> None:
    queue = FileQueue()
    for name in "abc":
        queue.add(waiting(name))
    assert names(queue.take(cores=2)) == ["a", "b", "c"]
    assert queue.take(cores=2) is None


def test_few_small_files_are_one_task_and_many_use_the_cores() -> None:
    few, many = FileQueue(), FileQueue()
    for number in range(8):
        few.add(waiting(f"few{number}"))
    for number in range(100):
        many.add(waiting(f"many{number}"))
    one, more = few.take(cores=4), many.take(cores=4)
    assert one is not None
    assert more is not None
    assert (len(one.tasks), len(more.tasks)) == (1, 4)


def test_a_large_file_has_a_job_of_its_own() -> None:
    queue = FileQueue()
    queue.add(waiting("small"))
    queue.add(waiting("large", LARGE_BYTES))
    first, second = queue.take(cores=2), queue.take(cores=2)
    assert (names(first), names(second)) == (["small"], ["large"])


@pytest.mark.parametrize(("seconds", "lane"), [(0.4, Lane.FAST), (1.9, Lane.SLOW), (20.0, Lane.STUCK)])
def test_the_next_file_goes_into_the_lane_that_the_last_was_fit_for(seconds: float, lane: Lane) -> None:
    queue = FileQueue()
    queue.add(first := waiting("a"))
    round_ = queue.take(cores=2)
    assert round_ is not None
    assert round_.lane is Lane.FAST
    queue.finish(round_, [], {first: seconds})
    queue.add(second := waiting("a"))
    round_ = queue.take(cores=2)
    assert round_ is not None
    assert round_.lane is lane
    queue.finish(round_, [], {second: 0.1})
    queue.add(waiting("a"))
    round_ = queue.take(cores=2)
    assert round_ is not None
    assert round_.lane is Lane.FAST


def test_slow_files_keep_no_fast_ones_waiting_and_leave_cores_to_them() -> None:
    queue = FileQueue()
    slow = [waiting(f"slow{number}") for number in range(200)]
    for file in slow:
        file.tries = 2
        queue.add(file)
    queue.add(waiting("fast"))
    first, second = queue.take(cores=8), queue.take(cores=8)
    assert names(first) == ["fast"]
    assert second is not None
    assert (second.lane, len(second.tasks), len(second.pieces)) == (Lane.STUCK, 1, 200)
    assert queue.take(cores=8) is None


def test_an_account_with_many_files_leaves_room_for_others() -> None:
    queue = FileQueue()
    for number in range(2000):
        queue.add(waiting(f"many{number}", account="many"))
    queue.add(waiting("few", account="few"))
    assert "few" in names(queue.take(cores=2))


def _take_all(queue: FileQueue, cores: int) -> list[FileRound]:
    taken = []
    while (round_ := queue.take(cores)) is not None:
        taken.append(round_)
    return taken


def test_files_of_one_account_that_hang_leave_a_job_and_a_core_to_others() -> None:
    queue = FileQueue()
    for number in range(20):
        queue.add(waiting(f"ann{number}", LARGE_BYTES, account="ann"))
    alone = _take_all(queue, cores=4)
    assert len(alone) == 3, "a core is left to small files"
    queue.add(waiting("bob", LARGE_BYTES, account="bob"))
    assert _take_all(queue, cores=4) == [], "three of four cores are held"
    queue.finish(alone[0], [], {})
    (others,) = _take_all(queue, cores=4)
    assert names(others) == ["bob"], "before more files of ann"
    queue.finish(others, [], {})
    assert _take_all(queue, cores=4) == [], "a core is left to other accounts"
    queue.finish(alone[1], [], {})
    assert len(_take_all(queue, cores=4)) == 1


def test_a_train_of_files_takes_not_every_core_from_other_accounts() -> None:
    queue = FileQueue()
    queue.add(waiting("bob", account="bob"))
    for file in train(9, LARGE_BYTES):
        queue.add(file)
    assert sorted(len(round_.tasks) for round_ in _take_all(queue, cores=4)) == [1, 2]


def test_slow_files_of_one_account_do_not_delay_those_of_another() -> None:
    queue = FileQueue()

    def add(name: str, account: str) -> None:
        file = waiting(name, account=account)
        file.tries = 2
        queue.add(file)

    add("first", "ann")
    (first,) = _take_all(queue, cores=2)
    add("late", "ann")
    add("other", "bob")
    (second,) = _take_all(queue, cores=2)
    assert (names(first), names(second)) == (["first"], ["other"])
    queue.finish(second, [], {})
    queue.finish(first, [], {})
    (third,) = _take_all(queue, cores=2)
    assert names(third) == ["late"]


def test_jobs_that_run_are_limited() -> None:
    queue = FileQueue()
    running = []
    for number in range(20):
        queue.add(waiting(f"large{number}", LARGE_BYTES))
        queue.add(waiting(f"small{number}"))
        if (round_ := queue.take(cores=2)) is not None:
            running.append(round_)
    while (round_ := queue.take(cores=20)) is not None:
        running.append(round_)
    assert Counter(round_.lane for round_ in running) == {Lane.LARGE: 8, Lane.FAST: 2}
    for round_ in running:
        queue.finish(round_, [], {})
    assert queue.take(cores=20) is not None


@pytest.mark.parametrize(("cores", "tasks"), [(1, 1), (2, 2), (3, 2), (8, 7)])
def test_large_files_leave_a_core_to_the_others(cores: int, tasks: int) -> None:
    queue = FileQueue()
    for file in train(20, LARGE_BYTES):
        queue.add(file)
    for number in range(20):
        queue.add(waiting(f"large{number}", LARGE_BYTES))
    running = []
    while (round_ := queue.take(cores)) is not None:
        running.append(round_)
    assert sum(len(round_.tasks) for round_ in running) == tasks
    for round_ in running:
        queue.finish(round_, [], {})
    assert queue.take(cores) is not None


def test_of_two_cores_large_files_have_one_while_there_are_small_ones() -> None:
    queue = FileQueue()
    queue.add(waiting("small"))
    for number in range(3):
        queue.add(waiting(f"large{number}", LARGE_BYTES))
    small, large = queue.take(cores=2), queue.take(cores=2)
    assert small is not None
    assert large is not None
    assert (names(small), len(large.tasks), queue.take(cores=2)) == (["small"], 1, None)
    queue.finish(small, [], {})
    assert queue.take(cores=2) is not None


def test_a_large_file_that_was_left_is_made_among_those_that_hang() -> None:
    queue = FileQueue()
    queue.add(first := waiting("a", LARGE_BYTES))
    round_ = queue.take(cores=2)
    assert round_ is not None
    first.tries = 1
    queue.finish(round_, [first], {first: 60.0})
    again = queue.take(cores=2)
    assert again is not None
    assert (again.lane, again.pieces, queue.take(cores=2)) == (Lane.STUCK, [first], None)
    queue.add(waiting("a", LARGE_BYTES))  # of the same dispatcher: it would hang too
    assert queue.take(cores=2) is None
    queue.finish(again, [], {first: 20.0})
    after = queue.take(cores=2)
    assert after is not None
    assert after.lane is Lane.STUCK, "it was queued when the first one had not ended"
    queue.finish(after, [], {after.pieces[0]: 20.0})
    queue.add(waiting("a", LARGE_BYTES))
    last = queue.take(cores=2)
    assert last is not None
    assert last.lane is Lane.LARGE


def test_a_dispatcher_is_as_slow_as_the_slowest_of_its_files() -> None:
    queue = FileQueue()
    files_ = train(3, 1000)
    for file in files_:
        queue.add(file)
    round_ = queue.take(cores=2)
    assert round_ is not None
    assert len(round_.pieces) == 3
    queue.finish(round_, [], {files_[0]: 8.0, files_[1]: 0.1, files_[2]: 0.0})
    queue.add(RoundFile("d", "a", TARGET, direct("d9")))
    again = queue.take(cores=2)
    assert again is not None
    assert again.lane is Lane.SLOW
    queue.finish(again, [], {again.pieces[0]: 0.0})
    queue.add(RoundFile("d", "a", TARGET, direct("d10")))
    kept = queue.take(cores=2)
    assert kept is not None
    assert kept.lane is Lane.SLOW, "a file that was not begun tells nothing"


def test_a_dispatcher_that_is_several_times_slower_than_the_others_goes_apart_at_once() -> None:
    """Also if it is not slow by itself: its round would wait for it each time."""
    queue = FileQueue()
    files_ = [waiting(name) for name in "abcdefgh"]
    for file in files_:
        queue.add(file)
    (round_,) = _take_all(queue, cores=2)
    queue.finish(round_, [], dict.fromkeys(files_, 0.05) | {files_[0]: 0.4})
    for name in "abc":
        queue.add(waiting(name))
    first, second = _take_all(queue, cores=2)
    assert (names(first), names(second), second.lane) == (["b", "c"], ["a"], Lane.SLOW)
    queue.finish(second, [], {second.pieces[0]: 0.1})
    queue.finish(first, [], dict.fromkeys(first.pieces, 0.05))
    queue.add(waiting("a"))
    assert [each.lane for each in _take_all(queue, cores=2)] == [Lane.FAST]


SENT = st.tuples(st.integers(0, 9), st.sampled_from([10, 5_000_000, LARGE_BYTES]), st.sampled_from("abc"))


@given(st.lists(SENT, max_size=80), st.randoms(use_true_random=False))
def test_every_file_ends_once_and_what_is_left_comes_again(sent, random) -> None:
    queue = FileQueue()
    for number, (key, weight, account) in enumerate(sent):
        queue.add(waiting(f"{key}/{number}", weight, account=account))
    ended: list[str] = []
    running: list[FileRound] = []
    for _ in range(10_000):
        round_ = queue.take(cores=3)
        if round_ is not None:
            assert len(round_.pieces) <= 512
            assert len(round_.tasks) <= 3 or round_.lane is Lane.LARGE
            assert all(round_.tasks)
            running.append(round_)
            continue
        if not running:
            break
        round_ = running.pop(random.randrange(len(running)))
        left = [file for file in round_.pieces if random.random() < 0.3]
        for file in left:
            file.tries += 1
        queue.finish(round_, left, {file: random.choice([0.1, 5.0, 20.0]) for file in round_.pieces})
        ended += [file.key for file in round_.pieces if file not in left]
    assert sorted(ended) == sorted(f"{key}/{number}" for number, (key, _, _) in enumerate(sent))
    assert queue.idle


@pytest.mark.parametrize("weight", [1000, LARGE_BYTES])
def test_files_of_a_dispatcher_are_made_together_or_after_each_other(weight: int) -> None:
    queue = FileQueue()
    files_ = train(7, weight)
    for file in files_:
        queue.add(file)
    made: list[RoundFile] = []
    while (round_ := queue.take(cores=2)) is not None:
        assert queue.take(cores=2) is None, "the others wait for these"
        for tasks in round_.tasks:
            assert list(tasks) == sorted(tasks, key=files_.index)
        assert weight < LARGE_BYTES or [len(task) for task in round_.tasks] == [1] * len(round_.tasks)
        assert len(round_.pieces) > 1 or not made or len(made) == 6
        made += sorted(round_.pieces, key=files_.index)
        queue.finish(round_, (), {})
    assert made == files_
    assert queue.idle


def test_files_behind_one_that_hangs_hold_no_core_while_it_is_tried_again() -> None:
    queue = FileQueue()
    files_ = train(3, 1000)
    for file in files_:
        queue.add(file)
    round_ = queue.take(cores=2)
    assert round_ is not None
    files_[0].tries = 1
    queue.finish(round_, files_, {files_[0]: 2.0})
    again = queue.take(cores=2)
    assert again is not None
    assert (again.lane, again.pieces) == (Lane.SLOW, [files_[0]])
    assert queue.take(cores=2) is None
    queue.finish(again, (), {files_[0]: 0.1})
    rest = queue.take(cores=2)
    assert rest is not None
    assert sorted(rest.pieces, key=files_.index) == files_[1:]


def test_a_file_is_put_when_the_one_before_is_there(tmp_path: Path) -> None:
    target = StorageRef(f"file://{tmp_path}")
    storage = target.open()
    work = direct("d1", after="d0").file
    waiting_task = RoundTask((), patience_s=30.0, threads=1)
    waited = threading.Thread(
        target=waiting_task._wait_for_turn, args=(work, storage), kwargs={"began_at": SYSTEM.monotonic()}
    )
    waited.start()
    waited.join(0.1)
    assert waited.is_alive()
    storage.write("d0.json", b"")
    waited.join(30)
    assert not waited.is_alive()


def test_a_file_whose_turn_does_not_come_is_left_and_not_counted_as_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = StorageRef(f"file://{tmp_path}")

    def make(direct_: DirectFile, target: StorageRef, turn: Callable[..., None], _: object) -> DirectResult:
        turn(direct_.file, target.open())
        return DirectResult(rows=1)

    monkeypatch.setattr(files, "make_file", make)
    results = RoundTask(((0, target, direct("d1", after="d0")),), patience_s=0.1, threads=1).run()
    assert results == [TaskResult(0, None, 0.0)]


def test_only_the_next_file_of_a_train_waits_long_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rounds_module, "_TURN_WAIT_S", 0.05)
    target = StorageRef(f"file://{tmp_path}")
    storage = target.open()
    work = direct("d2", after="d1").file
    third = RoundTask((), patience_s=600.0, threads=1, before_that="d0.json")
    with pytest.raises(rounds_module._NoTurnError):
        third._wait_for_turn(work, storage, began_at=SYSTEM.monotonic())
    storage.write("d0.json", b"")
    waited = threading.Thread(
        target=third._wait_for_turn, args=(work, storage), kwargs={"began_at": SYSTEM.monotonic()}
    )
    waited.start()
    waited.join(0.2)
    assert waited.is_alive()
    storage.write("d1.json", b"")
    waited.join(30)
    assert not waited.is_alive()


@contextmanager
def made_by(monkeypatch: pytest.MonkeyPatch, make: Callable[[DirectFile], DirectResult]) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(files, "make_file", lambda file, target, turn, on_step: make(file))
        yield


def task(*named: str, patience_s: float = 30.0, threads: int = 4, prompt_s: float = 0.0) -> RoundTask:
    numbered = tuple((number, TARGET, direct(name)) for number, name in enumerate(named))
    return RoundTask(numbered, patience_s, threads, prompt_s)


def test_fast_files_are_given_back_soon_when_one_takes_many_times_as_long(monkeypatch) -> None:
    release = threading.Event()

    def make(file: DirectFile) -> DirectResult:
        if file.file.dispatcher_id == "slow":
            release.wait(300)
        return DirectResult(rows=1)

    with made_by(monkeypatch, make):
        results = {each.number: each for each in task("a", "slow", "b", patience_s=300, prompt_s=0.05).run()}
        release.set()
    assert [results[number].result is None for number in range(3)] == [False, True, False]
    assert 0 < results[1].seconds < 300


def test_a_file_that_goes_on_is_waited_for_and_one_that_is_given_up_ends_at_its_next_step(
    monkeypatch,
) -> None:
    steps: list[int] = []
    stalled, ended = threading.Event(), threading.Event()

    def make(file: DirectFile, target: StorageRef, turn: object, on_step: Callable[[str], None]) -> object:
        for number in range(10):  # together they take longer than the task waits
            steps.append(number)
            on_step("encode rows")
            threading.Event().wait(0.1)
        stalled.wait(30)
        try:
            on_step("put the file")
        finally:
            ended.set()
        return DirectResult(rows=1)

    monkeypatch.setattr(files, "make_file", make)
    (left,) = task("large", patience_s=0.5).run()
    assert (left.result, left.step, len(steps)) == (None, "encode rows", 10)
    stalled.set()
    assert ended.wait(30)


def test_a_task_leaves_a_file_that_hangs_and_gives_back_the_others(monkeypatch) -> None:
    release = threading.Event()

    def make(file: DirectFile) -> DirectResult:
        if file.file.dispatcher_id == "hangs":
            release.wait(30)
        return DirectResult(rows=1)

    with made_by(monkeypatch, make):
        results = {result.number: result for result in task("a", "hangs", "b", patience_s=0.05).run()}
        release.set()
    assert results[0].result == results[2].result == DirectResult(rows=1)
    assert results[1].result is None
    assert results[1].seconds >= 0.05


def test_a_file_that_had_no_thread_was_not_begun(monkeypatch) -> None:
    release = threading.Event()

    def make(file: DirectFile) -> DirectResult:
        release.wait(30)
        return DirectResult(rows=1)

    with made_by(monkeypatch, make):
        results = task("hangs", "waits", patience_s=0.05, threads=1).run()
        release.set()
    assert {result.number: result.seconds > 0 for result in results} == {0: True, 1: False}


def test_a_task_waits_as_long_as_files_end(monkeypatch) -> None:
    turn = threading.Semaphore(1)

    def make(file: DirectFile) -> DirectResult:
        with turn:
            threading.Event().wait(0.03)
        return DirectResult(rows=1)

    with made_by(monkeypatch, make):
        results = task(*"abcdefghijkl", patience_s=1.0).run()
    assert all(result.result == DirectResult(rows=1) for result in results)


def test_a_failure_of_one_file_is_its_own_and_travels(monkeypatch) -> None:
    def make(file: DirectFile) -> DirectResult:
        if file.file.dispatcher_id == "bug":
            raise ValueError("row value: secret")
        gone = StaleRead("shop.items", 5, oldest_ts=9, remedy="read a snapshot")
        return DirectResult(failure=gone) if file.file.dispatcher_id == "gone" else DirectResult(rows=1)

    with made_by(monkeypatch, make):
        results = pickle.loads(pickle.dumps(task("ok", "bug", "gone").run()))
    by_number = {result.number: result.result for result in results}
    assert by_number[0] == DirectResult(rows=1)
    assert by_number[1].failure.args == (
        "bug.json: ValueError in a Spark task; the log of the executor says where",
    )
    assert isinstance(by_number[2].failure, StaleRead)


class JobDouble:
    """Runs jobs as a function of their round says; holds those of which `held` says so."""

    cores = 2

    def __init__(self, answer: Callable[[RoundFile, int], TaskResult]) -> None:
        self._answer = answer
        self.rounds: list[FileRound] = []
        self.interrupted: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.began = threading.Event()

    def run(self, round_: FileRound, tag: str) -> list[TaskResult]:
        self.rounds.append(round_)
        self.began.set()
        assert self.hold.wait(30)
        if tag in self.interrupted:
            raise Unavailable("interrupted")
        return [self._answer(file, number) for number, file in enumerate(round_.pieces)]

    def interrupt(self, tag: str) -> None:
        self.interrupted.append(tag)
        self.hold.set()


def done(file: RoundFile, number: int) -> TaskResult:
    return TaskResult(number, DirectResult(rows=1), 0.01)


async def make(rounds: FileRounds, name: str, weight: int = 1000) -> DirectResult:
    return await rounds.make_file(TARGET, direct(name, weight), changefeed="feed", account="a")


async def test_callers_share_a_round_and_each_has_its_own_result() -> None:
    def answer(file: RoundFile, number: int) -> TaskResult:
        failure = Unavailable("no") if "bad" in file.key else None
        return TaskResult(number, DirectResult(rows=len(file.key), failure=failure), 0.01)

    jobs = JobDouble(answer)
    rounds = FileRounds(jobs)
    good, bad, other = await asyncio.gather(make(rounds, "x"), make(rounds, "bad"), make(rounds, "yyy"))
    rounds.close()
    assert (good.rows, other.rows, str(bad.failure)) == (len("feed/x"), len("feed/yyy"), "no")
    assert len(jobs.rounds) == 1


async def test_what_a_task_has_left_is_made_in_the_next_lane_and_given_up_after_some_tries() -> None:
    jobs = JobDouble(lambda file, number: TaskResult(number, None, 2.0, "put the file"))
    rounds = FileRounds(jobs)
    result = await make(rounds, "hangs")
    rounds.close()
    assert isinstance(result.failure, Unavailable)
    assert str(result.failure) == (
        "hangs.json was not written in 4 tries: after 2 s the last one was still at 'put the file'; check the"
        " remote"
    )
    assert [round_.lane for round_ in jobs.rounds] == [Lane.FAST, Lane.SLOW, Lane.STUCK, Lane.STUCK]


async def test_a_file_whose_request_was_given_up_is_made_again_and_one_that_was_refused_is_not() -> None:
    silent = DirectResult(failure=Unavailable("no answer"))
    made = DirectResult(rows=1)
    tried: list[str] = []

    def answer(file: RoundFile, number: int) -> TaskResult:
        tried.append(file.key)
        again = tried.count(file.key) > 1 and "hangs" not in file.key
        return TaskResult(number, made if again else silent, 0.1 if "refused" in file.key else 30.0)

    rounds = FileRounds(JobDouble(answer))
    late, refused, hangs = await asyncio.gather(
        *(make(rounds, name) for name in ("late", "refused", "hangs"))
    )
    rounds.close()
    assert (late, refused, hangs) == (made, silent, silent)
    assert [tried.count(f"feed/{name}") for name in ("late", "refused", "hangs")] == [2, 1, 4]


def test_a_round_waits_longer_than_the_requests_of_its_files() -> None:
    queue = FileQueue()
    queue.add(waiting("large", 96 * 1024 * 1024))
    round_ = queue.take(cores=2)
    assert round_ is not None
    assert rules_of(round_).patience_s > put_timeout_s(96 * 1024 * 1024)
    queue.add(stuck := waiting("small"))
    stuck.tries = 2
    queue = FileQueue()
    queue.add(stuck)
    round_ = queue.take(cores=2)
    assert round_ is not None
    assert rules_of(round_).patience_s > put_timeout_s(1000) == REQUEST_S


async def test_a_job_that_fails_fails_its_files_and_no_others() -> None:
    def answer(file: RoundFile, number: int) -> TaskResult:
        if "large" in file.key:
            raise PenstockError("the job failed")
        return done(file, number)

    rounds = FileRounds(JobDouble(answer))
    large, small = await asyncio.gather(make(rounds, "large", LARGE_BYTES), make(rounds, "small"))
    rounds.close()
    assert (str(large.failure), small.rows) == ("the job failed", 1)


async def test_a_cancelled_call_waits_for_its_job_and_interrupts_one_that_nobody_else_waits_for() -> None:
    jobs = JobDouble(done)
    jobs.hold.clear()
    rounds = FileRounds(jobs)
    calls = [asyncio.create_task(make(rounds, name)) for name in "ab"]
    assert await asyncio.to_thread(jobs.began.wait, 30)
    calls[0].cancel()
    await asyncio.wait(calls, timeout=1.5)
    assert (jobs.interrupted, calls[0].done()) == ([], False)
    calls[1].cancel()
    await asyncio.wait(calls, timeout=30)
    rounds.close()
    assert [call.cancelled() for call in calls] == [True, True]
    assert len(jobs.interrupted) >= 1


async def test_a_cancelled_call_before_its_job_costs_no_job() -> None:
    jobs = JobDouble(done)
    rounds = FileRounds(jobs, gather_s=0.2)
    call = asyncio.create_task(make(rounds, "a"))
    await asyncio.wait([call], timeout=0)
    call.cancel()
    await asyncio.wait([call])
    assert (await make(rounds, "b")).rows == 1
    rounds.close()
    assert [names(round_) for round_ in jobs.rounds] == [["feed/b"]]


async def test_a_file_that_fails_fails_those_behind_it_and_what_comes_later_is_made() -> None:
    failing = {"d0.json"}
    written = {""}

    def answer(file: RoundFile, number: int) -> TaskResult:
        path, before = file.direct.file.data_path, file.direct.file.after
        if before not in written:
            return TaskResult(number, None, 0.0)  # its turn did not come
        if path in failing:
            return TaskResult(number, DirectResult(failure=Unavailable("no")), 0.01)
        written.add(path)
        return TaskResult(number, DirectResult(rows=1), 0.01)

    rounds = FileRounds(JobDouble(answer), gather_s=0.0)
    answers = [
        asyncio.ensure_future(rounds.make_file(TARGET, file.direct, changefeed="c", account="a"))
        for file in same_dispatcher(3)
    ]
    failures = [(await answer).failure for answer in answers]
    assert [type(failure) for failure in failures] == [Unavailable] * 3
    assert "before it was not written" in str(failures[2])
    failing.clear()
    for file in same_dispatcher(3):
        result = await rounds.make_file(TARGET, file.direct, changefeed="c", account="a")
        assert result.failure is None
    rounds.close()


def same_dispatcher(count: int) -> list[RoundFile]:
    files = train(count, 1000)
    return [
        replace(file, direct=replace(file.direct, file=replace(file.direct.file, dispatcher_id="d")))
        for file in files
    ]
