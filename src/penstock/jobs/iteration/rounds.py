"""Reads the ranges of all iterations in as few Spark jobs as possible: one job is a round.

A round has one stage. Its work travels as rows of a small frame, and the function is always the same, so the
plan is the same each time. A task reads the parts of several ranges with some threads, and answers with
their changes in order. No part waits for another one that is slower: large parts have jobs of their own, and
a task leaves parts unfinished when none of its parts has ended for a while; they are read again among the
slow ones.

`ReadQueue` decides what goes together, and is pure. `ReadRounds` starts the jobs and answers those who wait.
`PartWork` is what an executor does with a part.
"""

import logging
import pickle
import sys
import tempfile
import threading
import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.plan import ChangesPartition
from penstock.clock import SYSTEM
from penstock.errors import Aborted, PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.iteration.ordering import BatchProjection, ConsumerBatch, iter_in_order
from penstock.spark.errors import first_line, translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs
from penstock.spark.parallelism import default_parallelism, work_frame, work_session
from penstock.spark.tasks import begin_task, spread

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import SparkSession

_log = logging.getLogger(__name__)

ANSWER_BYTES = 8 << 20
"""A task ends a part after about so many bytes, where a reader can resume; another task reads the rest."""
LARGE_BYTES = 1 << 20
"""A part of so many expected bytes has a job of its own: others would wait while it is read."""
_ROUND_BYTES = 16 << 20
_TASK_BYTES = 256 << 10
_PART_COST = 16 << 10  # what a part without rows costs, in bytes that are read in the same time
_GATHER_S = 0.02  # for which the first part of a round waits for others
_GATHER_MAX_S = 0.25  # for which it waits for ranges that are being planned
_TRIES_MAX = 3
_WARM_TASKS_MAX = 256
_ANSWER = "answer binary"


class ReadLane(IntEnum):
    """Which rounds a part may be in, by how long it takes. Slow parts share a task, and so one core."""

    SMALL = 0
    SLOW = 1
    LARGE = 2


@dataclass(frozen=True, slots=True)
class ReadLaneRules:
    """How the rounds of a lane are made: their most jobs at once, parts in a job, and threads of a task.

    A task waits for `patience_s` without the end of any part. A job has one task unless it may `spread`.
    """

    patience_s: float
    jobs: int
    parts: int
    threads: int
    spread: bool = False


_LANES = {
    ReadLane.SMALL: ReadLaneRules(2.0, jobs=2, parts=1024, threads=8, spread=True),
    # The last job of these is for an account that has none.
    ReadLane.SLOW: ReadLaneRules(30.0, jobs=2, parts=256, threads=32),
    ReadLane.LARGE: ReadLaneRules(900.0, jobs=9, parts=1, threads=1),
}
_JOBS_MAX = sum(rules.jobs for rules in _LANES.values())


@dataclass(frozen=True, slots=True)
class PartWork:
    """A part of a range, for an executor: its changes in `columns` of `schema`, which include the key's."""

    part: ChangesPartition
    schema: SchemaVersion
    columns: tuple[str, ...]
    answer_bytes: int = ANSWER_BYTES

    def read(self) -> "PartAnswer":
        """Read the part; read it again if the capture that has it gives it up meanwhile."""
        try:
            return self._read()
        except Unavailable:
            return self._read()

    def _read(self) -> "PartAnswer":
        from penstock.spark.tables import require_storage  # here: the driver has no use for it

        for partition in self.part.table.partitions:
            require_storage(partition.storage, partition.table_id)
        projection = BatchProjection(self.schema, self.columns, impossible_dates=True)
        with self.part.collect() as handle, tempfile.TemporaryDirectory(prefix="penstock-range-") as folder:
            source = _Bounded(handle, self.part, self.answer_bytes)
            with closing(iter_in_order(source, projection, Path(folder))) as ordered:
                batches = [batch for batch in ordered if batch.rows]
        return PartAnswer(
            _pack([batch.inserts for batch in batches]),
            _pack([batch.deletes for batch in batches]),
            sum(batch.rows for batch in batches),
            source.resume_ts,
        )


class _Bounded:
    """Yields the batches of a part; ends after some bytes, once a reader can resume from `resume_ts`."""

    def __init__(self, batches: Iterable[ChangeBatch], part: ChangesPartition, nbytes_max: int) -> None:
        self._batches = batches
        self._part = part
        self._nbytes_max = nbytes_max
        self.resume_ts: int | None = None

    def __iter__(self) -> Iterator[ChangeBatch]:
        nbytes = 0
        for batch in self._batches:
            yield batch
            nbytes += batch.data.nbytes + batch.tombstones.nbytes
            resumable = batch.hint is Hint.TAIL_DONE and self._part.from_ts < batch.complete_ts
            if resumable and batch.complete_ts < self._part.to_ts and nbytes >= self._nbytes_max:
                self.resume_ts = batch.complete_ts
                return


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """The changes of a part, packed; with `resume_ts` those up to that timestamp, and others follow."""

    inserts: bytes
    deletes: bytes
    rows: int
    resume_ts: int | None = None

    def batches(self) -> list[ConsumerBatch]:
        """Return the changes in order."""
        pairs = zip(_unpack(self.inserts), _unpack(self.deletes), strict=True)
        return [ConsumerBatch(inserts, deletes) for inserts, deletes in pairs]


def _pack(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(out.getvalue())


def _unpack(packed: bytes) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(packed)) if packed else []


@dataclass(eq=False, slots=True)
class RoundPart:
    """A part that somebody waits for; `account` is whose share of rounds it takes."""

    account: str
    work: PartWork
    nbytes: int
    """About how many bytes are expected."""
    answer: "Future[PartAnswer]" = field(default_factory=Future)
    tries: int = 0
    slow: bool = False
    seconds: float = 0.0
    """How long tasks have worked on it."""

    @property
    def lane(self) -> ReadLane:
        """The rounds that it may be in."""
        if self.nbytes >= LARGE_BYTES:
            return ReadLane.LARGE
        return ReadLane.SLOW if self.slow else ReadLane.SMALL


@dataclass(frozen=True, slots=True)
class ReadRound:
    """Parts that one job reads, divided among its tasks."""

    tasks: tuple[tuple[RoundPart, ...], ...]
    lane: ReadLane

    @property
    def parts(self) -> list[RoundPart]:
        """All its parts, in the order of their numbers."""
        return [part for task in self.tasks for part in task]


class ReadQueue:
    """Parts that wait for a job, by lane and account. Decides which of them the next job reads. Pure.

    Jobs of slow and of large parts hold a core for long. So an account that has one of these leaves the last
    one of the lane to others, and once there are several accounts it leaves a core to them.
    """

    def __init__(self) -> None:
        self._waiting: dict[ReadLane, OrderedDict[str, deque[RoundPart]]] = {
            lane: OrderedDict() for lane in ReadLane
        }
        self._running = dict.fromkeys(ReadLane, 0)
        self._held: Counter[str] = Counter()  # jobs of slow and large parts, by account
        self._accounts: set[str] = set()  # all that have come

    def __len__(self) -> int:
        return sum(len(queue) for accounts in self._waiting.values() for queue in accounts.values())

    def add(self, part: RoundPart) -> None:
        """Queue a part."""
        self._accounts.add(part.account)
        self._waiting[part.lane].setdefault(part.account, deque()).append(part)

    def take(self, cores: int) -> ReadRound | None:
        """Return the next job; None when nothing waits, or enough jobs run."""
        for lane, rules in _LANES.items():
            if self._running[lane] >= rules.jobs:
                continue
            parts = self._take_allowed(lane, cores)
            if parts:
                self._running[lane] += 1
                self._held.update(_holders(parts, lane))
                wanted = max(-(-len(parts) // rules.threads), sum(map(_weight, parts)) // _TASK_BYTES, 1)
                tasks = min(wanted, cores) if rules.spread else 1
                return ReadRound(spread(parts, tasks, weight=_weight), lane)
        return None

    def _take_allowed(self, lane: ReadLane, cores: int) -> list[RoundPart]:
        """Take parts of the accounts that may have another job of the lane."""
        accounts = self._waiting[lane]
        refused = (
            {}
            if lane is ReadLane.SMALL
            else {
                account: accounts.pop(account)
                for account in list(accounts)
                if self._held[account] and not self._may_hold_more(account, lane, cores)
            }
        )
        parts = self._take_parts(accounts, _LANES[lane].parts)
        accounts.update(refused)
        return parts

    def _may_hold_more(self, account: str, lane: ReadLane, cores: int) -> bool:
        most = max(1, cores - 1) if len(self._accounts) > 1 else sys.maxsize
        return self._held[account] < most and self._running[lane] < _LANES[lane].jobs - 1

    def _take_parts(self, accounts: OrderedDict[str, deque[RoundPart]], count_max: int) -> list[RoundPart]:
        """Take parts in turns of the accounts, so that none fills a round alone while others wait."""
        parts: list[RoundPart] = []
        nbytes = 0
        while accounts and len(parts) < count_max and nbytes < _ROUND_BYTES:
            account, queue = accounts.popitem(last=False)
            part = queue.popleft()
            if queue:
                accounts[account] = queue
            if not part.answer.cancelled():
                parts.append(part)
                nbytes += part.nbytes
        return parts

    def finish(self, round_: ReadRound) -> None:
        """Say that a job has ended."""
        self._running[round_.lane] -= 1
        self._held.subtract(_holders(round_.parts, round_.lane))

    def take_all(self) -> list[RoundPart]:
        """Take everything that waits."""
        parts = [part for accounts in self._waiting.values() for queue in accounts.values() for part in queue]
        for accounts in self._waiting.values():
            accounts.clear()
        return parts


def _holders(parts: Iterable[RoundPart], lane: ReadLane) -> set[str]:
    """Return the accounts that hold a core for long by a job of these parts."""
    return set() if lane is ReadLane.SMALL else {part.account for part in parts}


def _weight(part: RoundPart) -> int:
    return part.nbytes + _PART_COST


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """What became of a part in a task: its changes, its error, or neither when it took too long."""

    number: int
    seconds: float
    answer: PartAnswer | None = None
    failure: PenstockError | None = None


@dataclass(frozen=True)
class ReadTask:
    """The parts of one task, each with its number in the round."""

    works: tuple[tuple[int, PartWork], ...]
    patience_s: float
    threads: int

    def run(self) -> Iterator[TaskAnswer]:
        """Read the parts, several at a time; yield the answer of each as it ends.

        Parts are left unfinished when none has ended for `patience_s`.
        """
        began_at: dict[int, float] = {}

        def read(number: int, work: PartWork) -> TaskAnswer:
            began_at[number] = SYSTEM.monotonic()
            answer, failure = None, None
            try:
                answer = work.read()
            except PenstockError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - it fails its own part only
                failure = _unexpected(work, error)
            return TaskAnswer(number, SYSTEM.monotonic() - began_at[number], answer, failure)

        pool = ThreadPoolExecutor(min(self.threads, len(self.works)), "penstock-round")
        running = {pool.submit(read, *work): work[0] for work in self.works}
        while running:
            done, _ = wait(running, timeout=self.patience_s, return_when=FIRST_COMPLETED)
            if not done:
                break
            for future in done:
                del running[future]
                yield future.result()
        for future, number in running.items():
            seconds = 0.0 if future.cancel() else SYSTEM.monotonic() - began_at[number]
            yield TaskAnswer(number, seconds)
        pool.shutdown(wait=False)


def _unexpected(work: PartWork, error: Exception) -> PenstockError:
    """Log where an error was raised, and return one without its words: those of a library may quote rows."""
    table, kind = work.schema.name, type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("a range could not be read", extra={"table": table, "error": kind, "traceback": where})
    return PenstockError(f"{table}: {kind} in a Spark task; the log of the executor says where")


class WarmUpRead:
    """What a task of a round needs before its first part, in the place of a ReadTask."""

    def run(self) -> Iterator[TaskAnswer]:
        """Import what reads ranges, and what writes frames."""
        import penstock.changes.net_change
        import penstock.spark.tables  # noqa: F401 - in the worker

        return iter(())


def run_tasks(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Run the tasks in the rows of a frame; yield a row for each answer."""
    begin_task()
    for batch in batches:
        for packed in batch.column(0):
            # Pickled by our own driver, for our own executors.
            task: ReadTask | WarmUpRead = pickle.loads(packed.as_buffer())  # noqa: S301 - see above
            for answer in task.run():
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)], pa.binary())], ["answer"])


def _run_packed(spark: "SparkSession", packed: Sequence[bytes]) -> list[TaskAnswer]:
    answers = work_frame(work_session(spark), packed).mapInArrow(run_tasks, _ANSWER).toArrow()
    # Pickled by our own executors.
    return [pickle.loads(answer) for answer in answers.column(0).to_pylist()]  # noqa: S301 - see above


def warm_up(spark: "SparkSession") -> None:
    """Run a round without parts: its Python workers, Arrow and Spark's generated code are then there."""
    tasks = min(default_parallelism(spark), _WARM_TASKS_MAX)
    tag = f"penstock-{SYSTEM.unique_id()}"
    with translate_spark_errors(), label_jobs(spark, "jobs: warm up", tag=tag):
        _run_packed(spark, [pickle.dumps(WarmUpRead())] * tasks)


class ReadJobs(Protocol):
    """Runs the jobs of rounds. `cores` is how many tasks run at the same time, as far as it is known."""

    cores: int

    def run(self, round_: ReadRound, tag: str) -> list[TaskAnswer]:
        """Run a job to its end on this thread; return an answer for each part of the round."""

    def interrupt(self, tag: str) -> None:
        """End a job early."""


class SparkReadJobs:
    """Implements ReadJobs with Spark. `session` returns a session that lives; it may block.

    `session` raises Unavailable while there is none.
    """

    def __init__(self, session: "Callable[[], SparkSession]") -> None:
        self._session = session
        self._last: SparkSession | None = None
        self.cores = 1

    def run(self, round_: ReadRound, tag: str) -> list[TaskAnswer]:
        """Run a job of one stage, whose tasks are rows of a local frame."""
        spark = self._last = self._session()
        self.cores = default_parallelism(spark)
        rules = _LANES[round_.lane]
        number = 0
        rows: list[bytes] = []
        for parts in round_.tasks:
            works = tuple((number + place, part.work) for place, part in enumerate(parts))
            number += len(parts)
            rows.append(pickle.dumps(ReadTask(works, rules.patience_s, rules.threads)))
        tables = {part.work.schema.name for part in round_.parts}
        accounts = {part.account for part in round_.parts}
        what = f"jobs: read {min(tables)}" if len(tables) == 1 else f"jobs: read {len(tables)} tables"
        account = min(accounts) if len(accounts) == 1 else ""
        with translate_spark_errors(), label_jobs(spark, what, tag=tag, account=account):
            return _run_packed(spark, rows)

    def interrupt(self, tag: str) -> None:
        """End a job on the cluster."""
        if self._last is not None:
            interrupt_jobs(self._last, tag)


class ReadRounds:
    """Reads parts for all iterations of a process, on threads of its own. Thread-safe.

    A job that fails because Spark does is repeated, with a new session if the last one died.
    """

    def __init__(self, jobs: ReadJobs, *, gather_s: float = _GATHER_S) -> None:
        self._jobs = jobs
        self._gather_s = gather_s
        self._changed = threading.Condition()
        self._queue = ReadQueue()
        self._expected = 0
        self._tags: set[str] = set()
        self._closed = False
        self._pool = ThreadPoolExecutor(_JOBS_MAX, thread_name_prefix="penstock-round-job")
        self._thread = threading.Thread(target=self._dispatch, name="penstock-rounds", daemon=True)
        self._thread.start()

    def submit(self, part: RoundPart) -> None:
        """Read a part in one of the next jobs; its `answer` gets the changes, or the error."""
        with self._changed:
            if self._closed:
                _fail(part, Aborted("the runner ends"))
                return
            self._queue.add(part)
            self._changed.notify_all()

    def expect(self, ranges: int) -> None:
        """Let the next round wait a moment for ranges that are being planned; negative: they were."""
        with self._changed:
            self._expected += ranges
            self._changed.notify_all()

    def close(self) -> None:
        """End the jobs that run, and fail what waits with Aborted."""
        with self._changed:
            self._closed = True
            waiting = self._queue.take_all()
            tags = list(self._tags)
            self._changed.notify_all()
        for part in waiting:
            _fail(part, Aborted("the runner ends"))
        for tag in tags:
            self._jobs.interrupt(tag)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _dispatch(self) -> None:
        while self._gather():
            with self._changed:
                while (round_ := self._queue.take(self._jobs.cores)) is not None:
                    tag = f"penstock-{SYSTEM.unique_id()}"
                    self._tags.add(tag)
                    self._pool.submit(self._run, round_, tag)
                if not self._closed and len(self._queue):
                    self._changed.wait()  # for the end of a job

    def _gather(self) -> bool:
        """Wait for a first part, and a moment for others; return False when this is closed."""
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

    def _run(self, round_: ReadRound, tag: str) -> None:
        answers: list[TaskAnswer] = []
        failure: PenstockError | None = None
        try:
            answers = self._jobs.run(round_, tag)
        except PenstockError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - Spark throws for reasons of its own, which may pass
            failure = Unavailable(f"Spark failed: {first_line(error)}; the iteration is retried")
        again = self._settle(round_, answers, failure)
        with self._changed:
            self._tags.discard(tag)
            self._queue.finish(round_)
            for part in again:
                if not self._closed:
                    self._queue.add(part)
            self._changed.notify_all()
        if self._closed:
            for part in again:
                _fail(part, Aborted("the runner ends"))

    def _settle(
        self, round_: ReadRound, answers: Sequence[TaskAnswer], failure: PenstockError | None
    ) -> list[RoundPart]:
        """Give everybody who waits an answer; return the parts to read again."""
        parts = round_.parts
        again: list[RoundPart] = []
        answered = {answer.number: answer for answer in answers}
        for number, part in enumerate(parts):
            found = answered.get(number)
            if found is not None:
                part.seconds += found.seconds
            if found is not None and found.answer is not None:
                with suppress(InvalidStateError):  # nobody waits for it any more
                    part.answer.set_result(found.answer)
                continue
            error = found.failure if found is not None else failure
            slow = found is not None and error is None
            part.tries += 1
            part.slow |= slow
            if part.answer.cancelled():
                continue
            if part.tries < _TRIES_MAX and (slow or (found is None and isinstance(error, Unavailable))):
                again.append(part)
                continue
            _fail(
                part, error or Unavailable(f"{part.work.schema.name} cannot be read in time; it is retried")
            )
        return again


def _fail(part: RoundPart, error: PenstockError) -> None:
    with suppress(InvalidStateError):  # nobody waits for it any more
        part.answer.set_exception(error)


def resume(part: RoundPart, resume_ts: int) -> RoundPart:
    """Return what is left of a part after an answer that ended at `resume_ts`."""
    work = replace(part.work, part=replace(part.work.part, from_ts=resume_ts))
    return RoundPart(part.account, work, max(part.nbytes, ANSWER_BYTES))
