"""Makes the files of all changefeeds of a process in as few Spark jobs as possible: one job is a round.

A round has one stage. Its work travels as rows of a small frame, so the plan is the same each time. A task
reads, encodes and writes its files with some threads. A file does not wait for others that are slower: each
lane has rounds of its own, and a dispatcher's next file goes into the lane that its last one was fit for. A
task leaves files unfinished when none of its files has gone on for a while; they are made again in the next
lane.

Files of one dispatcher that are large are made at the same time, by the tasks of one job, which start in
order. A task puts its file when the one before it is on the remote.

`RoundQueue` decides what goes together, and is pure. `Rounds` starts the jobs and answers those who wait,
`SparkJobs` runs them. `RoundTask` is what an executor does.
"""

import asyncio
import logging
import pickle
import sys
import threading
import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.changefeeds.engines.engine import PUT, DirectFile, DirectResult, FileWork
from penstock.clock import SYSTEM
from penstock.errors import PenstockError, Unavailable
from penstock.eventloop import call_in_thread
from penstock.object_storage import REQUEST_S, ObjectStorage, StorageRef, put_timeout_s
from penstock.spark.errors import hide_worker_traceback, translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs
from penstock.spark.parallelism import default_parallelism, work_frame, work_session
from penstock.spark.tasks import begin_task, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

LARGE_BYTES = 16 * 1024 * 1024
"""A file of so many expected bytes has a job of its own: others would wait while it is encoded."""
_ROUND_FILES = 512
_ROUND_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 1024 * 1024
_GATHER_S = 0.05  # for which the first file of a round waits for others
_TRIES_MAX = 4
_FEW_CORES = 2
_FAST_S = 0.5  # a file that takes longer keeps the others of its round waiting
_TIMES_MEDIAN = 3  # so many times the median of its round
_TURN_WAIT_S = 2.0  # at least, for a file that is not the next one
_TURN_POLL_S = 0.02  # between looks for the file before, at first
_TURN_POLL_S_MAX = 0.5
_CANCEL_S = 1.0  # for a job to end by itself after its call was cancelled, and then between interrupts
_SLOW_MAX = 10_000  # dispatchers that are remembered as slow
_WARM_TASKS_MAX = 256
_ANSWER = "answer binary"


class Lane(IntEnum):
    """Which rounds a file may be in, by how long it takes. Files that hang share a task, and so one core."""

    FAST = 0
    SLOW = 1
    STUCK = 2
    LARGE = 3


@dataclass(frozen=True, slots=True)
class LaneRules:
    """How the rounds of a lane are made.

    A task has `threads`, which is also the number of files for which one task is enough: their requests
    overlap. It waits for `patience_s` in which no file goes on. With `prompt_s` it waits less, once files
    have ended: a few times their median, and at least so long, for the end of another one. Of `cores`, a job
    uses `share`.
    """

    patience_s: float
    threads: int
    jobs: int
    share: float = 0.0
    files: int = _ROUND_FILES
    prompt_s: float = 0.0

    def tasks(self, cores: int) -> int:
        """Return how many tasks a job has at most."""
        return max(1, int(cores * self.share))


_MORE_S = 10.0  # for which those that hang wait longer than a request: its own deadline comes first
_LANES = {
    Lane.FAST: LaneRules(2.0, threads=8, jobs=2, share=1.0, prompt_s=0.2),
    # The last job of these is for an account that has none.
    Lane.SLOW: LaneRules(10.0, threads=32, jobs=2, share=0.5),
    Lane.STUCK: LaneRules(REQUEST_S + _MORE_S, threads=32, jobs=2),
    Lane.LARGE: LaneRules(60.0, threads=1, jobs=9, files=1),
}
_JOBS_MAX = sum(rules.jobs for rules in _LANES.values())


@dataclass(eq=False, slots=True)
class RoundFile:
    """A file that somebody waits for. `key` names its dispatcher, `account` whose share it is of."""

    key: str
    account: str
    target: StorageRef
    direct: DirectFile
    tries: int = 0
    cancelled: bool = False

    @property
    def is_large(self) -> bool:
        """Whether a task makes it alone."""
        return self.direct.weight >= LARGE_BYTES

    @property
    def place(self) -> tuple[str, str]:
        """What names it: its dispatcher and its path."""
        return self.key, self.direct.file.data_path


@dataclass(frozen=True, slots=True)
class Round:
    """Files that one job makes, divided among its tasks."""

    tasks: tuple[tuple[RoundFile, ...], ...]
    lane: Lane

    @property
    def files(self) -> list[RoundFile]:
        """All its files."""
        return [file for task in self.tasks for file in task]

    @property
    def rules(self) -> LaneRules:
        """Those of its lane; a request of a large file is not given up before its own deadline."""
        rules = _LANES[self.lane]
        if self.lane < Lane.STUCK:
            return rules
        put_s = put_timeout_s(max(file.direct.weight for file in self.files))
        return replace(rules, patience_s=max(rules.patience_s, put_s + _MORE_S))


class RoundQueue:
    """Files that wait for a job, by lane and account. Decides which of them the next job makes.

    A file that comes after another of its dispatcher goes into the same job as that one, behind it, or into a
    job after that one has ended. So a task waits only for tasks that started before it.

    Large files leave a core to the others, and are large once only: a second try is among those that hang.

    Tasks of files that are not fast hold a core for long. So an account that has some leaves the last job of
    the lane to others, and once there are several accounts it leaves a core to them.
    """

    def __init__(self) -> None:
        self._waiting: dict[Lane, OrderedDict[str, deque[RoundFile]]] = {lane: OrderedDict() for lane in Lane}
        self._lanes: OrderedDict[str, Lane] = OrderedDict()  # of dispatchers that are not fast
        self._running = dict.fromkeys(Lane, 0)  # jobs
        self._large_tasks = 0  # of the jobs that run
        self._held: Counter[str] = Counter()  # tasks of files that are not fast, by account
        self._accounts: set[str] = set()  # all that have come
        self._unfinished: set[tuple[str, str]] = set()  # keys and paths of files that wait or are made
        self._behind: dict[tuple[str, str], RoundFile] = {}  # files by the one that must come before

    def __len__(self) -> int:
        waiting = sum(len(queue) for accounts in self._waiting.values() for queue in accounts.values())
        return waiting + len(self._behind)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not len(self) and not any(self._running.values())

    def add(self, file: RoundFile) -> None:
        """Queue a file."""
        self._accounts.add(file.account)
        before = file.key, file.direct.file.after
        self._unfinished.add(file.place)
        if before in self._unfinished:
            self._behind[before] = file
        else:
            self._waiting[self._lane_of(file)].setdefault(file.account, deque()).append(file)

    def _leave(self, file: RoundFile) -> None:
        """Let the file behind one that is done, failed or cancelled have its turn."""
        self._unfinished.discard(file.place)
        follower = self._behind.pop(file.place, None)
        if follower is not None:
            self.add(follower)

    def _lane_of(self, file: RoundFile) -> Lane:
        known = self._lanes.get(file.key, Lane.FAST)
        if file.is_large:
            return Lane.STUCK if file.tries or known is Lane.STUCK else Lane.LARGE
        return Lane(min(Lane.STUCK, max(file.tries, known)))

    def take(self, cores: int) -> Round | None:
        """Return the next job; None when nothing waits, or enough jobs run."""
        for lane, rules in _LANES.items():
            slots = self._large_slots(cores) if lane is Lane.LARGE else 1
            if self._running[lane] >= rules.jobs or slots <= 0:
                continue
            files = self._take_allowed(lane, cores)
            if files and lane is Lane.LARGE:
                return self._begin(tuple((file,) for file in self._take_train(files[0], slots, cores)), lane)
            if files:
                nbytes = sum(file.direct.weight for file in files)
                tasks = max(-(-len(files) // rules.threads), nbytes // _TASK_BYTES)
                return self._begin(spread(files, min(tasks, rules.tasks(cores)), weight=_weight), lane)
        return None

    def _large_slots(self, cores: int) -> int:
        """Return how many tasks with large files may begin.

        One core is left to the others. Where that would be half of all, it is left while there are others.
        """
        small = any(self._waiting[lane] or self._running[lane] for lane in Lane if lane is not Lane.LARGE)
        slots = cores if cores <= _FEW_CORES and not small else max(1, cores - 1)
        return slots - self._large_tasks

    def _begin(self, tasks: tuple[tuple[RoundFile, ...], ...], lane: Lane) -> Round:
        round_ = Round(tasks, lane)
        self._running[lane] += 1
        self._held.update(_holders(round_))
        if lane is Lane.LARGE:
            self._large_tasks += len(tasks)
        return round_

    def _take_allowed(self, lane: Lane, cores: int) -> list[RoundFile]:
        """Take files of the accounts that may have another job of the lane."""
        accounts = self._waiting[lane]
        refused = (
            {}
            if lane is Lane.FAST
            else {
                account: accounts.pop(account)
                for account in list(accounts)
                if self._held[account] and not self._may_hold_more(account, lane, cores)
            }
        )
        files = self._take_files(lane, _LANES[lane].files)
        accounts.update(refused)
        return files

    def _may_hold_more(self, account: str, lane: Lane, cores: int) -> bool:
        room = self._room(account, cores)
        return room > 0 and self._running[lane] < _LANES[lane].jobs - 1

    def _room(self, account: str, cores: int) -> int:
        """Return how many more tasks that hold a core an account may have.

        Of several accounts each leaves a core to small files, and one to the others.
        """
        return max(1, cores - 2) - self._held[account] if len(self._accounts) > 1 else sys.maxsize

    def _take_files(self, lane: Lane, count_max: int) -> list[RoundFile]:
        """Take files in turns of the accounts, so that none of them fills a round alone while others wait.

        Fast files take the ones behind them along: a task keeps their order, and its threads overlap them.
        """
        accounts = self._waiting[lane]
        files: list[RoundFile] = []
        nbytes = 0
        while accounts and len(files) < count_max and nbytes < _ROUND_BYTES:
            account, queue = accounts.popitem(last=False)
            file = queue.popleft()
            if queue:
                accounts[account] = queue
            if file.cancelled:
                self._leave(file)
            else:
                files.append(file)
                nbytes += file.direct.weight
                follower = self._behind.get(file.place)
                if lane is Lane.FAST and follower is not None and self._lane_of(follower) is lane:
                    accounts.setdefault(account, deque()).append(self._behind.pop(file.place))
        return files

    def _take_train(self, first: RoundFile, slots: int, cores: int) -> list[RoundFile]:
        """Take the files that come after one, each with a task of its own; tasks start in order."""
        train = [first]
        length = min(slots, self._room(first.account, cores))
        while len(train) < length:
            follower = self._behind.get(train[-1].place)
            if follower is None or follower.cancelled or self._lane_of(follower) is not Lane.LARGE:
                break
            train.append(self._behind.pop(train[-1].place))
        return train

    def take_behind(self, place: tuple[str, str]) -> list[RoundFile]:
        """Take the files that come after one, directly or not, and are in no job."""
        taken = []
        while (follower := self._behind.pop(place, None)) is not None:
            place = follower.place
            self._unfinished.discard(place)
            taken.append(follower)
        return taken

    def finish(
        self, round_: Round, unfinished: Iterable[RoundFile], seconds: Mapping[RoundFile, float]
    ) -> None:
        """End a job whose files took so many seconds. Queue its unfinished files again."""
        self._running[round_.lane] -= 1
        self._held.subtract(_holders(round_))
        if round_.lane is Lane.LARGE:
            self._large_tasks -= len(round_.tasks)
        again = set(unfinished)
        fit: dict[str, Lane] = {}  # by dispatcher, what the slowest of its files was fit for
        for file in round_.files:
            took_s = seconds.get(file, 0.0)
            if took_s > 0:  # one that was not begun tells nothing
                fit[file.key] = max(fit.get(file.key, Lane.FAST), _fit_lane(file, took_s, left=file in again))
        for key, lane in fit.items():
            self._lanes.pop(key, None)
            if lane is not Lane.FAST:
                self._lanes[key] = lane
        while len(self._lanes) > _SLOW_MAX:
            self._lanes.popitem(last=False)
        for file in round_.files:
            if file in again:
                self.add(file)
            else:
                self._leave(file)


def _holders(round_: Round) -> Counter[str]:
    """Return how many tasks of a round hold a core for each account."""
    if round_.lane is Lane.FAST:
        return Counter()
    return Counter(account for task in round_.tasks for account in {file.account for file in task})


def _fit_lane(file: RoundFile, seconds: float, *, left: bool) -> Lane:
    if file.is_large:  # how long it takes is a matter of its size
        return Lane.STUCK if left else Lane.FAST
    if seconds <= _FAST_S:
        return Lane.FAST
    return Lane.SLOW if seconds <= _LANES[Lane.SLOW].patience_s else Lane.STUCK


def _weight(file: RoundFile) -> int:
    return max(file.direct.weight, 64 * 1024)  # a tiny file costs its requests


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of a file in a task: its result, or None when the task did not wait for it any longer.

    `seconds` is how long it took or has taken; 0 when it was not begun. `step` is what a file that was left
    was doing.
    """

    number: int
    result: DirectResult | None
    seconds: float
    step: str = ""


class _Making:
    """A file that a thread of a task makes, and how far it is. The task says when it is given up."""

    def __init__(self) -> None:
        self.began_at: float | None = None
        self.steps = 0
        self.step = "begun"
        self._given_up = threading.Event()

    def go_on(self, step: str) -> None:
        """Take note of a step; raise _GivenUpError when the task does not wait any longer."""
        if self._given_up.is_set():
            raise _GivenUpError
        self.steps += 1
        self.step = step

    def give_up(self) -> None:
        """End the thread at its next step: whoever makes the file again has the processor for itself."""
        self._given_up.set()


@dataclass(frozen=True)
class RoundTask:
    """The files of one task, each with its number in the round, and how its rules say to wait.

    `before_that` is the path of the file that comes before the one before the task's, in a train.
    """

    files: tuple[tuple[int, StorageRef, DirectFile], ...]
    patience_s: float
    threads: int
    prompt_s: float = 0.0
    before_that: str = ""

    def run(self) -> list[TaskResult]:
        """Make the files, several at a time; return when all have ended, or none goes on for `patience_s`.

        A file that is left behind may still be written by its thread: whoever makes it again puts the same
        bytes under the same name. A file whose turn does not come within half of that time is not written.
        """
        from penstock.changefeeds.engines.files import make_file  # in the worker only: it loads the codecs

        making = {number: _Making() for number, _, _ in self.files}

        def make(number: int, target: StorageRef, direct: DirectFile) -> TaskResult:
            one = making[number]
            at = one.began_at = SYSTEM.monotonic()
            try:
                result = make_file(direct, target, partial(self._wait_for_turn, began_at=at), one.go_on)
            except (_NoTurnError, _GivenUpError):
                return TaskResult(number, None, 0.0)
            except Exception as error:  # noqa: BLE001 - it fails its own file only
                result = DirectResult(failure=_unexpected(direct, error))
            return TaskResult(number, result, SYSTEM.monotonic() - at)

        pool = ThreadPoolExecutor(min(self.threads, len(self.files)), "penstock-round")
        running = {pool.submit(make, *file): file[0] for file in self.files}
        results: list[TaskResult] = []
        while running:
            steps = self._count_steps(running.values(), making)
            done, _ = wait(running, timeout=self._wait_s(results), return_when=FIRST_COMPLETED)
            if not done and self._count_steps(running.values(), making) == steps:
                break
            for future in done:
                del running[future]
                results.append(future.result())
        for future, number in running.items():
            one = making[number]
            one.give_up()
            now = SYSTEM.monotonic()
            seconds = 0.0 if future.cancel() else now - (one.began_at or now)
            results.append(TaskResult(number, None, seconds, one.step))
        pool.shutdown(wait=False)
        return results

    def _count_steps(self, numbers: Iterable[int], making: Mapping[int, _Making]) -> int:
        """Return what says whether files go on. Where others wait for the round, only their end counts."""
        return 0 if self.prompt_s else sum(making[number].steps for number in numbers)

    def _wait_s(self, ended: Sequence[TaskResult]) -> float:
        """Return how long to wait for the next file."""
        took = [result.seconds for result in ended if result.result is not None]
        if not self.prompt_s or not took:
            return self.patience_s
        return min(self.patience_s, max(self.prompt_s, _TIMES_MEDIAN * median(took)))

    def _wait_for_turn(self, file: FileWork, storage: ObjectStorage, *, began_at: float) -> None:
        """Return when the file before this one is on the remote, so that a reader never meets a hole.

        Only the next file of a train waits long for the one before: the others give their cores back.
        """
        encoded_at, pause_s = SYSTEM.monotonic(), _TURN_POLL_S
        soon_s = max(_TURN_WAIT_S, 2 * (encoded_at - began_at))
        is_next = not self.before_that
        while file.after and not storage.exists(file.after):
            waited_s = SYSTEM.monotonic() - encoded_at
            is_next = is_next or storage.exists(self.before_that)
            if waited_s > self.patience_s / 2 or (not is_next and waited_s > soon_s):
                raise _NoTurnError
            SYSTEM.pause(pause_s)
            pause_s = min(pause_s * 1.5, _TURN_POLL_S_MAX)


class _NoTurnError(Exception):
    """The file before did not come; this one is made again when it is there."""


class _GivenUpError(Exception):
    """The task waits for the file no longer; it has told so, and somebody else makes it."""


def _unexpected(direct: DirectFile, error: Exception) -> PenstockError:
    """Log where an error was raised, and return one without its words: those of a library may quote rows."""
    path, kind = direct.file.data_path, type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("a file could not be made", extra={"path": path, "error": kind, "traceback": where})
    return PenstockError(f"{path}: {kind} in a Spark task; the log of the executor says where")


def _has_hung(task: TaskResult) -> bool:
    """Return whether a request of a file was given up by its own deadline: it is made again elsewhere."""
    failed = task.result is not None and isinstance(task.result.failure, Unavailable)
    return failed and task.seconds >= REQUEST_S


def _exhausted(file: RoundFile, last: TaskResult) -> Unavailable:
    """Return an error that names the file, and what its last try did not get beyond."""
    remedy = "check the remote" if last.step == PUT else "check the event store and the executors"
    return Unavailable(
        f"{file.direct.file.data_path} was not written in {file.tries} tries: after {last.seconds:.0f} s the"
        f" last one was still at '{last.step}'; {remedy}"
    )


def run_tasks(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Run the tasks in the rows of a frame; yield one row with the results of each."""
    begin_task()
    for batch in batches:
        for packed in batch.column(0):
            with hide_worker_traceback():
                # Pickled by our own driver, for our own executors.
                task: RoundTask | WarmUpTask = pickle.loads(packed.as_buffer())  # noqa: S301 - see above
                answer = pickle.dumps(task.run())
            yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], ["answer"])


class RoundJobs(Protocol):
    """Runs the jobs of rounds. `cores` is how many tasks run at the same time, as far as it is known."""

    cores: int

    def run(self, round_: Round, tag: str) -> list[TaskResult]:
        """Run a job to its end on this thread; return a result for each file of the round."""

    def interrupt(self, tag: str) -> None:
        """End a job early."""


class WarmUpTask:
    """What a task of a round needs before its first file, in the place of a RoundTask."""

    def run(self) -> list[TaskResult]:
        """Import what makes files."""
        from penstock.changefeeds.engines import files  # noqa: F401 - in the worker: it loads the codecs

        return []


def warm_up(spark: "SparkSession") -> None:
    """Run a round without files: its Python workers, Arrow and Spark's generated code are then there.

    It has a task for each that runs at once, so that each has its worker.
    """
    tasks = min(default_parallelism(spark), _WARM_TASKS_MAX)
    tag = f"penstock-{SYSTEM.unique_id()}"
    with translate_spark_errors(), label_jobs(spark, "changefeeds: warm up", tag=tag):
        _run_packed(spark, [pickle.dumps(WarmUpTask())] * tasks)


def _run_packed(spark: "SparkSession", packed: Sequence[bytes]) -> list[TaskResult]:
    """Run one job of pickled tasks; return the results of all."""
    answers = work_frame(work_session(spark), packed).mapInArrow(run_tasks, _ANSWER).toArrow()
    # Pickled by our own executors.
    return [
        result
        for answer in answers.column(0).to_pylist()
        for result in pickle.loads(answer)  # noqa: S301 - see above
    ]


class SparkJobs:
    """Implements RoundJobs with Spark: one stage, whose tasks are rows of a local frame.

    `session` returns a Spark session that lives; it may block, and raises Unavailable while there is none.
    """

    def __init__(self, session: "Callable[[], SparkSession]") -> None:
        self._session = session
        self._last: SparkSession | None = None
        self.cores = 1

    def run(self, round_: Round, tag: str) -> list[TaskResult]:
        """Run a job to its end; return a result for each file of the round."""
        spark = self._last = self._session()
        self.cores = default_parallelism(spark)
        number = 0
        rows: list[bytes] = []
        rules = round_.rules
        before_that = ""  # of the first and the second file of a train there is none
        for files in round_.tasks:
            numbered = tuple((number + place, file.target, file.direct) for place, file in enumerate(files))
            task = RoundTask(numbered, rules.patience_s, rules.threads, rules.prompt_s, before_that)
            rows.append(pickle.dumps(task))
            if round_.lane is Lane.LARGE and number > 0:
                before_that = files[0].direct.file.after
            number += len(files)
        first = round_.files[0]
        what = f"changefeeds: {number} files" if number > 1 else f"changefeeds: {first.direct.file.data_path}"
        account = first.account if number == 1 or round_.lane is Lane.LARGE else ""
        with translate_spark_errors(), label_jobs(spark, what, tag=tag, account=account):
            return _run_packed(spark, rows)

    def interrupt(self, tag: str) -> None:
        """End a job on the cluster."""
        if self._last is not None:
            interrupt_jobs(self._last, tag)


@dataclass(eq=False)
class _RunningRound:
    """A round that runs, and its task on the event loop."""

    round: Round
    tag: str
    task: "asyncio.Task[None]" = field(init=False)


class Rounds:
    """Makes files for all changefeeds of a process. For one event loop."""

    def __init__(self, jobs: RoundJobs, *, gather_s: float = _GATHER_S) -> None:
        self._jobs = jobs
        self._gather_s = gather_s
        self._queue = RoundQueue()
        self._waiting: dict[RoundFile, asyncio.Future[DirectResult]] = {}
        self._running: dict[RoundFile, _RunningRound] = {}
        self._gathering: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(_JOBS_MAX, thread_name_prefix="penstock-round-job")

    async def make_file(
        self, target: StorageRef, direct: DirectFile, *, changefeed: str, account: str
    ) -> DirectResult:
        """Make a file on executors; return when it is on the remote, or why it is not.

        A cancelled call waits for the job that makes the file, if one does. After a moment it ends the job on
        the cluster, unless somebody waits for another file of it.
        """
        file = RoundFile(f"{changefeed}/{direct.file.dispatcher_id}", account, target, direct)
        result: asyncio.Future[DirectResult] = asyncio.get_running_loop().create_future()
        self._waiting[file] = result
        self._queue.add(file)
        self._gather()
        try:
            return await result
        except asyncio.CancelledError:
            file.cancelled = True
            job = self._running.get(file)
            if job is not None:
                await self._wait_for_end(job)
            raise
        finally:
            self._waiting.pop(file, None)

    async def _wait_for_end(self, job: _RunningRound) -> None:
        await asyncio.wait([job.task], timeout=_CANCEL_S)
        while not job.task.done():
            if all(file.cancelled for file in job.round.files):
                await call_in_thread(self._jobs.interrupt, job.tag)
            await asyncio.wait([job.task], timeout=_CANCEL_S)

    def close(self) -> None:
        """Start no more jobs."""
        if self._gathering is not None:
            self._gathering.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _gather(self) -> None:
        """Start jobs in a moment: dispatchers whose files are due together come together."""
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(self._gather_s, self._start_jobs)

    def _start_jobs(self) -> None:
        self._gathering = None
        while (round_ := self._queue.take(self._jobs.cores)) is not None:
            job = _RunningRound(round_, f"penstock-{SYSTEM.unique_id()}")
            job.task = asyncio.create_task(self._run(job))
            self._running.update(dict.fromkeys(round_.files, job))

    async def _run(self, job: _RunningRound) -> None:
        files = job.round.files
        loop = asyncio.get_running_loop()
        try:
            ended = await loop.run_in_executor(self._threads, self._jobs.run, job.round, job.tag)
        except Exception as error:  # noqa: BLE001 - whoever waits for a file of this round gets it
            for file in files:
                self._fail(file, error)
                self._fail_behind(file)
            self._queue.finish(job.round, (), {})
        else:
            self._settle(job.round, ended)
        for file in files:
            self._running.pop(file, None)
        if len(self._queue):
            self._gather()

    def _settle(self, round_: Round, ended: Sequence[TaskResult]) -> None:
        """Answer those whose files are done; queue again what the tasks have left.

        What comes after a file that has failed fails too: its turn would not come.
        """
        files = round_.files
        unfinished = []
        failed: set[tuple[str, str]] = set()
        for task in sorted(ended, key=lambda task: task.number):
            file = files[task.number]
            if task.result is not None and not _has_hung(task):
                self._answer(file, task.result)
                if task.result.failure is not None:
                    failed.add(file.place)
                continue
            file.tries += task.seconds > 0
            before = file.direct.file.after
            if file.tries >= _TRIES_MAX and task.result is not None:
                self._answer(file, task.result)
                failed.add(file.place)
            elif file.tries >= _TRIES_MAX:
                self._fail(file, _exhausted(file, task))
                failed.add(file.place)
            elif (file.key, before) in failed:
                self._fail(file, Unavailable(f"{before} before it was not written"))
                failed.add(file.place)
            elif not file.cancelled:
                unfinished.append(file)
        for file in files:
            if file.place in failed:
                self._fail_behind(file)
        self._queue.finish(round_, unfinished, {files[task.number]: task.seconds for task in ended})

    def _fail_behind(self, file: RoundFile) -> None:
        for follower in self._queue.take_behind(file.place):
            before = follower.direct.file.after
            self._fail(follower, Unavailable(f"{before} before it was not written"))

    def _answer(self, file: RoundFile, result: DirectResult) -> None:
        waiting = self._waiting.get(file)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def _fail(self, file: RoundFile, error: Exception) -> None:
        waiting = self._waiting.get(file)
        if isinstance(error, PenstockError):
            self._answer(file, DirectResult(failure=error))
        elif waiting is not None and not waiting.done():
            waiting.set_exception(error)
