"""Brings pieces of work to executors in as few Spark jobs as possible: one job is a round.

A round has one stage. Its work travels as rows of a small frame, and the function is always the same, so the
plan is the same each time. A task works on several pieces with some threads. No piece waits for others that
are slower: each lane has rounds of its own, and a task leaves pieces unfinished when none of its pieces has
gone on for a while; they are done again in another lane.

`LaneQueue` decides what goes together, and is pure. `Rounds` starts the jobs and answers those who wait,
`SparkRoundJobs` runs them. `run_side_by_side` is what a task does with its pieces. What a piece is, and what
becomes of one that was left or has failed, is up to those who stand on this: files of changefeeds, and ranges
of jobs.
"""

import importlib
import logging
import pickle
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

from penstock.clock import SYSTEM
from penstock.errors import Aborted, PenstockError, Unavailable
from penstock.spark.errors import first_line, hide_worker_traceback, translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs
from penstock.spark.parallelism import default_parallelism, work_frame, work_session
from penstock.spark.tasks import begin_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "LaneQueue",
    "LaneRules",
    "LeftError",
    "Piece",
    "PieceProgress",
    "Round",
    "RoundJobs",
    "Rounds",
    "SparkRoundJobs",
    "Task",
    "TaskResult",
    "WarmUp",
    "answer",
    "fail",
    "run_side_by_side",
    "run_tasks",
    "unexpected_error",
    "warm_up_rounds",
]

_log = logging.getLogger(__name__)

_TIMES_MEDIAN = 3  # so many times the median of its round
_GATHER_MAX_S = 0.25  # for which the first piece of a round waits for others that were announced
_WARM_TASKS_MAX = 256
_ANSWER = "answer binary"

R = TypeVar("R")


class Piece(Protocol):
    """Work that somebody waits for. `account` is whose share of rounds it takes.

    `answer` gets the result or the error; who cancels it does not wait any more.
    """

    account: str
    answer: "Future[Any]"

    @property
    def weight(self) -> int:
        """About how many bytes are expected."""


P = TypeVar("P", bound=Piece)
L = TypeVar("L", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class LaneRules:
    """How the rounds of a lane are made: at most so many jobs at once, and `pieces` of one job.

    A task has `threads`, which is also the number of pieces for which one task is enough: their requests
    overlap. It waits for `patience_s` in which no piece goes on. With `prompt_s` it waits less, once pieces
    have ended: a few times their median, and at least so long, for the end of another one. Of `cores`, a job
    uses `share`. Tasks of a lane that is not `brief` hold a core for long.
    """

    patience_s: float
    threads: int
    jobs: int
    pieces: int
    share: float = 0.0
    prompt_s: float = 0.0
    brief: bool = False

    def tasks(self, cores: int) -> int:
        """Return how many tasks a job has at most."""
        return max(1, int(cores * self.share))


@dataclass(frozen=True, slots=True)
class Round(Generic[L, P]):
    """Pieces that one job works on, divided among its tasks."""

    tasks: tuple[tuple[P, ...], ...]
    lane: L

    @property
    def pieces(self) -> list[P]:
        """All its pieces, in the order of their numbers."""
        return [piece for task in self.tasks for piece in task]


class LaneQueue(ABC, Generic[L, P]):
    """Pieces that wait for a job, by lane and account. Decides which of them the next job works on. Pure.

    Tasks of lanes that are not brief hold a core for long. So an account that has some leaves the last job of
    the lane to others, and once there are several accounts it leaves cores to them.
    """

    def __init__(self, lanes: Mapping[L, LaneRules], *, round_bytes: int, cores_left: int) -> None:
        """Each of several accounts leaves `cores_left` cores to others."""
        self._lane_rules = lanes
        self._round_bytes = round_bytes
        self._cores_left = cores_left
        self._waiting: dict[L, OrderedDict[str, deque[P]]] = {lane: OrderedDict() for lane in lanes}
        self._running = dict.fromkeys(lanes, 0)  # jobs
        self._held: Counter[str] = Counter()  # tasks that hold a core for long, by account
        self._accounts: set[str] = set()  # all that have come

    def __len__(self) -> int:
        return sum(len(queue) for accounts in self._waiting.values() for queue in accounts.values())

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not len(self) and not any(self._running.values())

    @property
    def jobs_max(self) -> int:
        """How many jobs run at the same time at most."""
        return sum(rules.jobs for rules in self._lane_rules.values())

    @abstractmethod
    def add(self, piece: P) -> None:
        """Queue a piece."""

    @abstractmethod
    def take(self, cores: int) -> Round[L, P] | None:
        """Return the next job; None when nothing waits, or enough jobs run."""

    def finish(
        self, round_: Round[L, P], unfinished: Iterable[P] = (), seconds: Mapping[P, float] | None = None
    ) -> None:
        """End a job whose pieces took so many `seconds`. Queue its unfinished pieces again."""
        del seconds
        self._end(round_)
        for piece in unfinished:
            self.add(piece)

    def take_all(self) -> list[P]:
        """Take everything that waits."""
        pieces = [piece for lane in self._waiting.values() for queue in lane.values() for piece in queue]
        for accounts in self._waiting.values():
            accounts.clear()
        return pieces

    def _wait_in(self, lane: L, piece: P) -> None:
        self._accounts.add(piece.account)
        self._waiting[lane].setdefault(piece.account, deque()).append(piece)

    def _begin(self, tasks: tuple[tuple[P, ...], ...], lane: L) -> Round[L, P]:
        round_ = Round(tasks, lane)
        self._running[lane] += 1
        self._held.update(self._count_holders(round_))
        return round_

    def _end(self, round_: Round[L, P]) -> None:
        self._running[round_.lane] -= 1
        self._held.subtract(self._count_holders(round_))

    def _count_holders(self, round_: Round[L, P]) -> Counter[str]:
        """Return how many tasks of a round hold a core for each account."""
        if self._lane_rules[round_.lane].brief:
            return Counter()
        return Counter(account for task in round_.tasks for account in {piece.account for piece in task})

    def _take_allowed(self, lane: L, cores: int) -> list[P]:
        """Take pieces of the accounts that may have another job of the lane."""
        accounts = self._waiting[lane]
        rules = self._lane_rules[lane]
        refused = (
            {}
            if rules.brief
            else {
                account: accounts.pop(account)
                for account in list(accounts)
                if self._held[account] and not self._may_hold_more(account, lane, cores)
            }
        )
        pieces = self._take_turns(lane, rules.pieces)
        accounts.update(refused)
        return pieces

    def _may_hold_more(self, account: str, lane: L, cores: int) -> bool:
        return self._room(account, cores) > 0 and self._running[lane] < self._lane_rules[lane].jobs - 1

    def _room(self, account: str, cores: int) -> int:
        """Return how many more tasks that hold a core an account may have."""
        if len(self._accounts) <= 1:
            return sys.maxsize
        return max(1, cores - self._cores_left) - self._held[account]

    def _take_turns(self, lane: L, count_max: int) -> list[P]:
        """Take pieces in turns of the accounts, so that none fills a round alone while others wait."""
        accounts = self._waiting[lane]
        pieces: list[P] = []
        nbytes = 0
        while accounts and len(pieces) < count_max and nbytes < self._round_bytes:
            account, queue = accounts.popitem(last=False)
            piece = queue.popleft()
            if queue:
                accounts[account] = queue
            if piece.answer.cancelled():
                self._drop(piece)
                continue
            pieces.append(piece)
            nbytes += piece.weight
            follower = self._take_along(lane, piece)
            if follower is not None:
                accounts.setdefault(account, deque()).append(follower)
        return pieces

    def _drop(self, piece: P) -> None:
        """Take note of a piece that nobody waits for any more."""

    def _take_along(self, lane: L, piece: P) -> P | None:
        """Return a piece that may come into the job because of this one."""
        del lane, piece
        return None


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[R]):
    """What became of a piece in a task: its result, or None when the task did not wait for it any longer.

    `seconds` is how long it took or has taken; 0 when it was not begun. `step` is what a piece that was left
    was doing.
    """

    number: int
    result: R | None
    seconds: float
    step: str = ""


class LeftError(Exception):
    """A piece is left: it is done again elsewhere, and this does not count as a try."""


class PieceProgress:
    """A piece that a thread of a task works on, and how far it is. The task says when it is given up."""

    def __init__(self) -> None:
        self.began_at: float | None = None
        self.steps = 0
        self.step = "begun"
        self._given_up = threading.Event()

    def go_on(self, step: str) -> None:
        """Take note of a step; raise LeftError when the task does not wait any longer."""
        if self._given_up.is_set():
            raise LeftError
        self.steps += 1
        self.step = step

    def give_up(self) -> None:
        """End the thread at its next step: whoever does the piece again has the processor for itself."""
        self._given_up.set()


def run_side_by_side(
    works: Mapping[int, Callable[[PieceProgress], R]],
    *,
    threads: int,
    patience_s: float,
    prompt_s: float = 0.0,
) -> Iterator[TaskResult[R]]:
    """Do pieces of work by their numbers, several at a time; yield the result of each as it ends.

    Pieces are left unfinished when none goes on for `patience_s`; with `prompt_s` only their end counts, and
    it waits less once some have ended. Work raises nothing but LeftError: its failures are results.
    """
    following = {number: PieceProgress() for number in works}
    pool = ThreadPoolExecutor(max(1, min(threads, len(works))), "penstock-round")
    running = {
        pool.submit(_run_piece, number, work, following[number]): number for number, work in works.items()
    }
    took: list[float] = []
    while running:
        steps = _count_steps(following, running.values(), prompt_s)
        done, _ = wait(running, timeout=_wait_s(took, patience_s, prompt_s), return_when=FIRST_COMPLETED)
        if not done and _count_steps(following, running.values(), prompt_s) == steps:
            break
        for future in done:
            del running[future]
            ended = future.result()
            if ended.result is not None:
                took.append(ended.seconds)
            yield ended
    for future, number in running.items():
        one = following[number]
        one.give_up()
        now = SYSTEM.monotonic()
        seconds = 0.0 if future.cancel() else now - (one.began_at or now)
        yield TaskResult(number, None, seconds, one.step)
    pool.shutdown(wait=False)


def _run_piece(number: int, work: Callable[[PieceProgress], R], progress: PieceProgress) -> TaskResult[R]:
    at = progress.began_at = SYSTEM.monotonic()
    try:
        result = work(progress)
    except LeftError:
        return TaskResult(number, None, 0.0)
    return TaskResult(number, result, SYSTEM.monotonic() - at)


def _count_steps(following: Mapping[int, PieceProgress], numbers: Iterable[int], prompt_s: float) -> int:
    """Return what says whether pieces go on. Where others wait for the round, only their end counts."""
    return 0 if prompt_s else sum(following[number].steps for number in numbers)


def _wait_s(took: Sequence[float], patience_s: float, prompt_s: float) -> float:
    """Return how long to wait for the next piece."""
    if not prompt_s or not took:
        return patience_s
    return min(patience_s, max(prompt_s, _TIMES_MEDIAN * median(took)))


def unexpected_error(what: str, name: str, error: Exception) -> PenstockError:
    """Log where an error was raised, and return one without its words: those of a library may quote rows."""
    kind = type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error(what, extra={"piece": name, "error": kind, "traceback": where})
    return PenstockError(f"{name}: {kind} in a Spark task; the log of the executor says where")


class Task(Protocol):
    """What a task of a round does. Must be picklable, and harmless to repeat."""

    def run(self) -> Iterable[TaskResult[Any]]:
        """Do the work; the results are picklable."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What a task needs before its first piece, in the place of a Task: modules of ours, by their names."""

    modules: tuple[str, ...]

    def run(self) -> list[TaskResult[Any]]:
        """Import the modules."""
        for name in self.modules:
            importlib.import_module(name)
        return []


def run_tasks(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Run the tasks in the rows of a frame; yield a row for each result."""
    begin_task()
    for batch in batches:
        for packed in batch.column(0):
            with hide_worker_traceback():
                # Pickled by our own driver, for our own executors.
                task: Task = pickle.loads(packed.as_buffer())  # noqa: S301 - see above
                for result in task.run():
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([pickle.dumps(result)], pa.binary())], ["answer"]
                    )


def _run_packed(spark: "SparkSession", packed: Sequence[bytes]) -> list[TaskResult[Any]]:
    """Run one job of pickled tasks; return the results of all."""
    answers = work_frame(work_session(spark), packed).mapInArrow(run_tasks, _ANSWER).toArrow()
    # Pickled by our own executors.
    return [pickle.loads(answer) for answer in answers.column(0).to_pylist()]  # noqa: S301 - see above


def warm_up_rounds(spark: "SparkSession", *, what: str, modules: tuple[str, ...]) -> None:
    """Run a round without pieces: its Python workers, Arrow and Spark's generated code are then there.

    It has a task for each that runs at once, so that each has its worker, which imports `modules`.
    """
    tasks = min(default_parallelism(spark), _WARM_TASKS_MAX)
    tag = f"penstock-{SYSTEM.unique_id()}"
    with translate_spark_errors(), label_jobs(spark, f"{what}: warm up", tag=tag):
        _run_packed(spark, [pickle.dumps(WarmUp(modules))] * tasks)


class RoundJobs(Protocol[L, P]):
    """Runs the jobs of rounds. `cores` is how many tasks run at the same time, as far as it is known."""

    cores: int

    def run(self, round_: Round[L, P], tag: str) -> list[TaskResult[Any]]:
        """Run a job to its end on this thread; return a result for each piece of the round."""

    def interrupt(self, tag: str) -> None:
        """End a job early."""


class SparkRoundJobs(ABC, Generic[L, P]):
    """Implements RoundJobs with Spark: one stage, whose tasks are rows of a local frame.

    `session` returns a Spark session that lives; it may block, and raises Unavailable while there is none.
    """

    def __init__(self, session: "Callable[[], SparkSession]") -> None:
        self._session = session
        self._last: SparkSession | None = None
        self.cores = 1

    def run(self, round_: Round[L, P], tag: str) -> list[TaskResult[Any]]:
        """Run a job to its end; return a result for each piece of the round."""
        spark = self._last = self._session()
        self.cores = default_parallelism(spark)
        what, account = self._describe(round_)
        packed = [pickle.dumps(task) for task in self._tasks(round_)]
        with translate_spark_errors(), label_jobs(spark, what, tag=tag, account=account):
            return _run_packed(spark, packed)

    def interrupt(self, tag: str) -> None:
        """End a job on the cluster."""
        if self._last is not None:
            interrupt_jobs(self._last, tag)

    @abstractmethod
    def _tasks(self, round_: Round[L, P]) -> list[Task]:
        """Return the tasks of a round; its pieces are numbered in their order."""

    @abstractmethod
    def _describe(self, round_: Round[L, P]) -> tuple[str, str]:
        """Return a description of a job, and the account in whose pool it runs; "" if it is of several."""


@dataclass(eq=False, slots=True)
class RunningRound(Generic[L, P]):
    """A round that runs; `ended` is set when it does not any more."""

    round: Round[L, P]
    tag: str
    ended: "Future[None]" = field(default_factory=Future)


class Rounds(ABC, Generic[L, P]):
    """Does pieces of work for everybody in a process, on threads of its own. Thread-safe."""

    def __init__(self, queue: LaneQueue[L, P], jobs: RoundJobs[L, P], *, gather_s: float, ended: str) -> None:
        """The first piece of a round waits `gather_s` for others. `ended` says why close fails what waits."""
        self._queue = queue
        self._jobs = jobs
        self._gather_s = gather_s
        self._ended = ended
        self._changed = threading.Condition()
        self._expected = 0
        self._running: dict[str, RunningRound[L, P]] = {}  # by tag
        self._closed = False
        self._pool = ThreadPoolExecutor(queue.jobs_max, thread_name_prefix="penstock-round-job")
        self._thread = threading.Thread(target=self._dispatch, name="penstock-rounds", daemon=True)
        self._thread.start()

    def submit(self, piece: P) -> None:
        """Work on a piece in one of the next jobs; its `answer` gets the result, or the error."""
        with self._changed:
            if self._closed:
                fail(piece, Aborted(self._ended))
                return
            self._queue.add(piece)
            self._changed.notify_all()

    def expect(self, pieces: int) -> None:
        """Let the next round wait a moment for pieces that come soon; negative: they have come."""
        with self._changed:
            self._expected += pieces
            self._changed.notify_all()

    def close(self) -> None:
        """End the jobs that run, and fail what waits with Aborted."""
        with self._changed:
            self._closed = True
            waiting = self._queue.take_all()
            tags = list(self._running)
            self._changed.notify_all()
        for piece in waiting:
            fail(piece, Aborted(self._ended))
        for tag in tags:
            self._jobs.interrupt(tag)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _job_of(self, piece: P) -> RunningRound[L, P] | None:
        """Return the job that works on a piece now."""
        with self._changed:
            return next((job for job in self._running.values() if piece in job.round.pieces), None)

    def _dispatch(self) -> None:
        while self._gather():
            with self._changed:
                while not self._closed and (round_ := self._queue.take(self._jobs.cores)) is not None:
                    job = RunningRound(round_, f"penstock-{SYSTEM.unique_id()}")
                    self._running[job.tag] = job
                    self._pool.submit(self._run, job)
                if not self._closed and len(self._queue):
                    self._changed.wait()  # for the end of a job

    def _gather(self) -> bool:
        """Wait for a first piece, and a moment for others; return False when this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._queue))
            began_at = SYSTEM.monotonic()
            while not self._closed:
                limit_s = _GATHER_MAX_S if self._expected > 0 else self._gather_s
                left_s = began_at + limit_s - SYSTEM.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return not self._closed

    def _run(self, job: RunningRound[L, P]) -> None:
        results: list[TaskResult[Any]] = []
        failure: PenstockError | None = None
        try:
            results = self._jobs.run(job.round, job.tag)
        except PenstockError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - Spark throws for reasons of its own, which may pass
            failure = Unavailable(f"Spark failed: {first_line(error)}; it is tried again")
        pieces = job.round.pieces
        with self._changed:
            again = self._settle(job.round, {result.number: result for result in results}, failure)
            left = again if self._closed else []
            seconds = {pieces[result.number]: result.seconds for result in results}
            self._queue.finish(job.round, () if self._closed else again, seconds)
            del self._running[job.tag]
            self._changed.notify_all()
        for piece in left:
            fail(piece, Aborted(self._ended))
        job.ended.set_result(None)

    @abstractmethod
    def _settle(
        self,
        round_: Round[L, P],
        results: Mapping[int, TaskResult[Any]],
        failure: PenstockError | None,
    ) -> list[P]:
        """Give everybody who waits for a piece of a job an answer; return the pieces to do again.

        With a `failure` the job as a whole has failed, and there are no results.
        """


def answer(piece: Piece, result: object) -> None:
    """Give a result to whoever waits for a piece."""
    with suppress(InvalidStateError):  # nobody waits for it any more
        piece.answer.set_result(result)


def fail(piece: Piece, error: Exception) -> None:
    """Give an error to whoever waits for a piece."""
    with suppress(InvalidStateError):  # nobody waits for it any more
        piece.answer.set_exception(error)
