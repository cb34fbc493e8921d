"""Makes the files of all changefeeds of a process in rounds: one Spark job makes as many as possible.

A task reads, encodes and writes its files with some threads. A file does not wait for others that are
slower: each lane has rounds of its own, and a dispatcher's next file goes into the lane that its last one
was fit for. A task leaves files unfinished when none of its files has gone on for a while; they are made
again in the next lane.

Files of one dispatcher that are large are made at the same time, by the tasks of one job, which start in
order. A task puts its file when the one before it is on the remote.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from statistics import median
from typing import Any

from penstock.changefeeds.engines.engine import PUT, DirectFile, DirectResult, FileWork
from penstock.clock import SYSTEM
from penstock.errors import PenstockError, Unavailable
from penstock.eventloop import call_in_thread
from penstock.object_storage import REQUEST_S, ObjectStorage, StorageRef, put_timeout_s
from penstock.spark.rounds import (
    LaneQueue,
    LaneRules,
    LeftError,
    PieceProgress,
    Round,
    RoundJobs,
    Rounds,
    RunningRound,
    SparkRoundJobs,
    Task,
    TaskResult,
    answer,
    run_side_by_side,
    unexpected_error,
    warm_up_rounds,
)
from penstock.spark.tasks import spread

LARGE_BYTES = 16 * 1024 * 1024
"""A file of so many expected bytes has a job of its own: others would wait while it is encoded."""
_ROUND_FILES = 512
_ROUND_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 1024 * 1024
_GATHER_S = 0.05  # for which the first file of a round waits for others
_TRIES_MAX = 4
_FEW_CORES = 2
_FAST_S = 0.5  # a file that takes longer keeps the others of its round waiting
_PROMPT_S = 0.2  # one that takes no longer does not
_FAST_TIMES = 3  # and one that takes longer than so many times the median of the fast ones does
_FAST_KNOWN = 64  # fast files whose median it is
_TURN_WAIT_S = 2.0  # at least, for a file that is not the next one
_TURN_POLL_S = 0.02  # between looks for the file before, at first
_TURN_POLL_S_MAX = 0.5
_CANCEL_S = 1.0  # for a job to end by itself after its call was cancelled, and then between interrupts
_SLOW_MAX = 10_000  # dispatchers that are remembered as slow
_CORES_LEFT = 2  # by each of several accounts: one to small files, and one to the others

# In the worker: it loads the codecs.
warm_up = partial(warm_up_rounds, what="changefeeds", modules=("penstock.changefeeds.engines.files",))
"""Run a round without files on a session: what makes files is then loaded in its workers."""


class Lane(IntEnum):
    """Which rounds a file may be in, by how long it takes. Files that hang share a task, and so one core."""

    FAST = 0
    SLOW = 1
    STUCK = 2
    LARGE = 3


_MORE_S = 10.0  # for which those that hang wait longer than a request: its own deadline comes first
_LANES = {
    Lane.FAST: LaneRules(
        2.0, threads=8, jobs=2, pieces=_ROUND_FILES, share=1.0, prompt_s=_PROMPT_S, brief=True
    ),
    # The last job of these is for an account that has none.
    Lane.SLOW: LaneRules(10.0, threads=32, jobs=2, pieces=_ROUND_FILES, share=0.5),
    Lane.STUCK: LaneRules(REQUEST_S + _MORE_S, threads=32, jobs=2, pieces=_ROUND_FILES),
    Lane.LARGE: LaneRules(60.0, threads=1, jobs=9, pieces=1),
}


@dataclass(eq=False, slots=True)
class RoundFile:
    """A file that somebody waits for. `key` names its dispatcher, `account` whose share it is of."""

    key: str
    account: str
    target: StorageRef
    direct: DirectFile
    tries: int = 0
    answer: "Future[DirectResult]" = field(default_factory=Future)

    @property
    def weight(self) -> int:
        """About how many bytes are expected."""
        return self.direct.weight

    @property
    def is_large(self) -> bool:
        """Whether a task makes it alone."""
        return self.direct.weight >= LARGE_BYTES

    @property
    def place(self) -> tuple[str, str]:
        """What names it: its dispatcher and its path."""
        return self.key, self.direct.file.data_path


FileRound = Round[Lane, RoundFile]


def rules_of(round_: FileRound) -> LaneRules:
    """Return the rules of a round; a request of a large file is not given up before its own deadline."""
    rules = _LANES[round_.lane]
    if round_.lane < Lane.STUCK:
        return rules
    put_s = put_timeout_s(max(file.weight for file in round_.pieces))
    return replace(rules, patience_s=max(rules.patience_s, put_s + _MORE_S))


class FileQueue(LaneQueue[Lane, RoundFile]):
    """Files that wait for a job, by lane and account. Decides which of them the next job makes.

    A file that comes after another of its dispatcher goes into the same job as that one, behind it, or into a
    job after that one has ended. So a task waits only for tasks that started before it.

    Large files leave a core to the others, and are large once only: a second try is among those that hang.
    """

    def __init__(self) -> None:
        super().__init__(_LANES, round_bytes=_ROUND_BYTES, cores_left=_CORES_LEFT)
        self._lanes: OrderedDict[str, Lane] = OrderedDict()  # of dispatchers that are not fast
        self._large_tasks = 0  # of the jobs that run
        self._took: deque[float] = deque(maxlen=_FAST_KNOWN)  # seconds of the last fast files
        self._unfinished: set[tuple[str, str]] = set()  # keys and paths of files that wait or are made
        self._behind: dict[tuple[str, str], RoundFile] = {}  # files by the one that must come before

    def __len__(self) -> int:
        return super().__len__() + len(self._behind)

    def add(self, piece: RoundFile) -> None:
        """Queue a file."""
        self._accounts.add(piece.account)
        before = piece.key, piece.direct.file.after
        self._unfinished.add(piece.place)
        if before in self._unfinished:
            self._behind[before] = piece
        else:
            self._wait_in(self._lane_of(piece), piece)

    def _drop(self, piece: RoundFile) -> None:
        """Let the file behind one that is done, failed or cancelled have its turn."""
        self._unfinished.discard(piece.place)
        follower = self._behind.pop(piece.place, None)
        if follower is not None:
            self.add(follower)

    def _lane_of(self, file: RoundFile) -> Lane:
        known = self._lanes.get(file.key, Lane.FAST)
        if file.is_large:
            return Lane.STUCK if file.tries or known is Lane.STUCK else Lane.LARGE
        return Lane(min(Lane.STUCK, max(file.tries, known)))

    def take(self, cores: int) -> FileRound | None:
        """Return the next job; None when nothing waits, or enough jobs run."""
        for lane, rules in _LANES.items():
            slots = self._large_slots(cores) if lane is Lane.LARGE else 1
            if self._running[lane] >= rules.jobs or slots <= 0:
                continue
            files = self._take_allowed(lane, cores)
            if files and lane is Lane.LARGE:
                train = self._take_train(files[0], slots, cores)
                self._large_tasks += len(train)
                return self._begin(tuple((file,) for file in train), lane)
            if files:
                nbytes = sum(file.weight for file in files)
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

    def _take_along(self, lane: Lane, piece: RoundFile) -> RoundFile | None:
        """Fast files take the ones behind them along: a task keeps their order, its threads overlap them."""
        follower = self._behind.get(piece.place)
        if lane is not Lane.FAST or follower is None or self._lane_of(follower) is not lane:
            return None
        return self._behind.pop(piece.place)

    def _take_train(self, first: RoundFile, slots: int, cores: int) -> list[RoundFile]:
        """Take the files that come after one, each with a task of its own; tasks start in order."""
        train = [first]
        length = min(slots, self._room(first.account, cores))
        while len(train) < length:
            follower = self._behind.get(train[-1].place)
            if follower is None or follower.answer.cancelled() or self._lane_of(follower) is not Lane.LARGE:
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

    def take_all(self) -> list[RoundFile]:
        """Take everything that waits."""
        behind = list(self._behind.values())
        self._behind.clear()
        return super().take_all() + behind

    def finish(
        self,
        round_: FileRound,
        unfinished: Iterable[RoundFile] = (),
        seconds: Mapping[RoundFile, float] | None = None,
    ) -> None:
        """End a job whose files took so many seconds. Queue its unfinished files again."""
        self._end(round_)
        if round_.lane is Lane.LARGE:
            self._large_tasks -= len(round_.tasks)
        again = set(unfinished)
        self._learn(round_, again, seconds or {})
        for file in round_.pieces:
            if file in again:
                self.add(file)
            else:
                self._drop(file)

    def _learn(self, round_: FileRound, left: set[RoundFile], seconds: Mapping[RoundFile, float]) -> None:
        """Remember what the slowest file of each dispatcher was fit for."""
        fit: dict[str, Lane] = {}
        if round_.lane is Lane.FAST:
            self._took += (took_s for file, took_s in seconds.items() if took_s > 0 and file not in left)
        fast_s = min(_FAST_S, max(_PROMPT_S, _FAST_TIMES * median(self._took))) if self._took else _FAST_S
        for file in round_.pieces:
            took_s = seconds.get(file, 0.0)
            if took_s > 0:  # one that was not begun tells nothing
                lane = _fit_lane(file, took_s, fast_s, left=file in left)
                fit[file.key] = max(fit.get(file.key, Lane.FAST), lane)
        for key, lane in fit.items():
            self._lanes.pop(key, None)
            if lane is not Lane.FAST:
                self._lanes[key] = lane
        while len(self._lanes) > _SLOW_MAX:
            self._lanes.popitem(last=False)


def _fit_lane(file: RoundFile, seconds: float, fast_s: float, *, left: bool) -> Lane:
    if file.is_large:  # how long it takes is a matter of its size
        return Lane.STUCK if left else Lane.FAST
    if seconds <= fast_s:
        return Lane.FAST
    return Lane.SLOW if seconds <= _LANES[Lane.SLOW].patience_s else Lane.STUCK


def _weight(file: RoundFile) -> int:
    return max(file.weight, 64 * 1024)  # a tiny file costs its requests


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

    def run(self) -> list[TaskResult[DirectResult]]:
        """Make the files, several at a time; return when all have ended, or none goes on for `patience_s`.

        A file that is left behind may still be written by its thread: whoever makes it again puts the same
        bytes under the same name. A file whose turn does not come within half of that time is not written.
        """
        works = {number: partial(self._make, target, direct) for number, target, direct in self.files}
        ended = run_side_by_side(
            works, threads=self.threads, patience_s=self.patience_s, prompt_s=self.prompt_s
        )
        return list(ended)

    def _make(self, target: StorageRef, direct: DirectFile, progress: PieceProgress) -> DirectResult:
        from penstock.changefeeds.engines.files import make_file  # in the worker only: it loads the codecs

        turn = partial(self._wait_for_turn, began_at=SYSTEM.monotonic())
        try:
            return make_file(direct, target, turn, progress.go_on)
        except LeftError:
            raise
        except Exception as error:  # noqa: BLE001 - it fails its own file only
            path = direct.file.data_path
            return DirectResult(failure=unexpected_error("a file could not be made", path, error))

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


class _NoTurnError(LeftError):
    """The file before did not come; this one is made again when it is there."""


def _has_hung(task: TaskResult[DirectResult]) -> bool:
    """Return whether a request of a file was given up by its own deadline: it is made again elsewhere."""
    failed = task.result is not None and isinstance(task.result.failure, Unavailable)
    return failed and task.seconds >= REQUEST_S


def _exhausted(file: RoundFile, last: TaskResult[DirectResult]) -> Unavailable:
    """Return an error that names the file, and what its last try did not get beyond."""
    remedy = "check the remote" if last.step == PUT else "check the event store and the executors"
    return Unavailable(
        f"{file.direct.file.data_path} was not written in {file.tries} tries: after {last.seconds:.0f} s the"
        f" last one was still at '{last.step}'; {remedy}"
    )


class SparkFileJobs(SparkRoundJobs[Lane, RoundFile]):
    """Runs the jobs of rounds of files with Spark."""

    def _tasks(self, round_: FileRound) -> list[Task]:
        rules = rules_of(round_)
        number = 0
        tasks: list[Task] = []
        before_that = ""  # of the first and the second file of a train there is none
        for files in round_.tasks:
            numbered = tuple((number + place, file.target, file.direct) for place, file in enumerate(files))
            tasks.append(RoundTask(numbered, rules.patience_s, rules.threads, rules.prompt_s, before_that))
            if round_.lane is Lane.LARGE and number > 0:
                before_that = files[0].direct.file.after
            number += len(files)
        return tasks

    def _describe(self, round_: FileRound) -> tuple[str, str]:
        files = round_.pieces
        several = len(files) > 1
        what = f"changefeeds: {len(files)} files" if several else f"changefeeds: {files[0].place[1]}"
        return what, "" if several and round_.lane is not Lane.LARGE else files[0].account


class FileRounds(Rounds[Lane, RoundFile]):
    """Makes files for all changefeeds of a process."""

    def __init__(self, jobs: RoundJobs[Lane, RoundFile], *, gather_s: float = _GATHER_S) -> None:
        self._files = FileQueue()
        super().__init__(self._files, jobs, gather_s=gather_s, ended="the changefeeds end")

    async def make_file(
        self, target: StorageRef, direct: DirectFile, *, changefeed: str, account: str
    ) -> DirectResult:
        """Make a file on executors; return when it is on the remote, or why it is not.

        A cancelled call waits for the job that makes the file, if one does. After a moment it ends the job on
        the cluster, unless somebody waits for another file of it.
        """
        file = RoundFile(f"{changefeed}/{direct.file.dispatcher_id}", account, target, direct)
        self.submit(file)
        try:
            return await asyncio.wrap_future(file.answer)
        except asyncio.CancelledError:
            file.answer.cancel()
            job = self._job_of(file)
            if job is not None:
                await self._wait_for_end(job)
            raise

    async def _wait_for_end(self, job: RunningRound[Lane, RoundFile]) -> None:
        ended = asyncio.wrap_future(job.ended)
        await asyncio.wait([ended], timeout=_CANCEL_S)
        while not ended.done():
            if all(file.answer.done() for file in job.round.pieces):
                await call_in_thread(self._jobs.interrupt, job.tag)
            await asyncio.wait([ended], timeout=_CANCEL_S)

    def _settle(
        self, round_: FileRound, results: Mapping[int, TaskResult[Any]], failure: PenstockError | None
    ) -> list[RoundFile]:
        """Answer those whose files are done; return what the tasks have left.

        What comes after a file that has failed fails too: its turn would not come.
        """
        files = round_.pieces
        unfinished: list[RoundFile] = []
        failed: set[tuple[str, str]] = set()

        def end(file: RoundFile, result: DirectResult) -> None:
            answer(file, result)
            if result.failure is not None:
                failed.add(file.place)

        if failure is not None:
            for file in files:
                end(file, DirectResult(failure=failure))
        for number, task in sorted(results.items()):
            file = files[number]
            if task.result is not None and not _has_hung(task):
                end(file, task.result)
                continue
            file.tries += task.seconds > 0
            before = file.direct.file.after
            if file.tries >= _TRIES_MAX:
                end(file, task.result or DirectResult(failure=_exhausted(file, task)))
            elif (file.key, before) in failed:
                end(file, _failed_before(before))
            elif not file.answer.cancelled():
                unfinished.append(file)
        for file in files:
            if file.place in failed:
                for follower in self._files.take_behind(file.place):
                    answer(follower, _failed_before(follower.direct.file.after))
        return unfinished


def _failed_before(path: str) -> DirectResult:
    return DirectResult(failure=Unavailable(f"{path} before it was not written"))
