"""Work on executors: tasks with small answers, pieces of work divided among tasks, and mapped batches.

Spark keeps the Python processes in which it runs tasks from one task to the next; `begin_task` makes that
cheap.
"""

import gc
import heapq
import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.clock import SYSTEM
from penstock.spark.errors import hide_worker_traceback, translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

__all__ = ["Parallelism", "Progress", "begin_task", "map_in_arrow", "run_on_executors", "spread"]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How many tasks run at once, for a process that cannot ask the session. Can be pickled."""

    tasks: int
    """The answer when the file is not there."""
    path: str | None = None

    def ask(self) -> int:
        """Return the number as it is now."""
        if self.path is not None:
            with suppress(OSError, ValueError):  # the session has ended, or its driver is on another machine
                return max(1, int(Path(self.path).read_text(encoding="ascii")))
        return self.tasks


T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Progress = Callable[[int, int], None]
"""Called with the number of tasks that are done, and the number of all."""

_JOBS = 16  # Spark jobs among which all tasks are divided: progress comes in such steps
_JOBS_AT_ONCE = 8  # so that the last task of a job does not keep other jobs waiting
_TASKS_MIN = 4  # of one Spark job
_INTERRUPT_S = 1.0  # between two interrupts of the jobs of a call that failed
_INTERRUPTS_S = 10.0  # for all of them
_NAMES = ["number", "answer"]
_SCHEMA = "number long, answer binary"


class Work(Protocol[R_co]):
    """The work of a task. Must be picklable, and harmless to repeat: Spark may run it twice, also at once."""

    def run(self) -> R_co:
        """Do the work, in whatever process; the answer is picklable and small."""


def run_on_executors(
    spark: "SparkSession", works: Sequence[Work[R_co]], *, progress: Progress | None = None
) -> list[R_co]:
    """Run every work as a task of its own; return the answers in the order of `works`.

    Raises the PenstockError that a task raised. The jobs in flight are ended before, on the cluster too;
    also when the caller is interrupted. Jobs that do not end within ten seconds, as when Java hangs, are left
    to whoever ends the session.
    """
    from pyspark import inheritable_thread_target

    report = progress or (lambda _done, _all: None)
    size = max(_TASKS_MIN, -(-len(works) // _JOBS))
    parts = [works[start : start + size] for start in range(0, len(works), size)]
    answers: list[list[R_co]] = [[] for _ in parts]
    tag = f"penstock-{SYSTEM.unique_id()}"
    report(0, len(works))
    pool = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="penstock-spark-job")
    job = inheritable_thread_target(spark)(_run_job)  # jobs keep this thread's pool and tags
    running = {pool.submit(job, spark, part, tag): number for number, part in enumerate(parts)}
    done = 0
    try:
        for future in as_completed(running):
            number = running[future]
            answers[number] = future.result()
            done += len(parts[number])
            report(done, len(works))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _end_jobs(spark, tag, running)
        raise
    pool.shutdown()
    return [answer for part in answers for answer in part]


def _end_jobs(spark: "SparkSession", tag: str, running: "Iterable[Future[Any]]") -> None:
    """Interrupt the jobs that run, until all have ended; return after ten seconds whatever they do.

    On a thread of its own, because a Java that hangs does not answer an interrupt either.
    """
    gives_up = threading.Event()

    def interrupt() -> None:
        while (under_way := [job for job in running if not job.done()]) and not gives_up.is_set():
            interrupt_jobs(spark, tag)  # again for a job that had not begun
            wait(under_way, timeout=_INTERRUPT_S)

    thread = threading.Thread(target=interrupt, name="penstock-interrupt", daemon=True)
    thread.start()
    thread.join(_INTERRUPTS_S)
    gives_up.set()
    if thread.is_alive():
        _log.warning("Spark does not end the jobs of a call that failed; they may go on for a while")


def _run_job(spark: "SparkSession", works: Sequence[Work[R_co]], tag: str) -> list[R_co]:
    """Run one Spark job with a task for each work."""
    shipped = tuple(works)

    def run(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        begin_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with hide_worker_traceback():
                    answer = pickle.dumps(shipped[number].run())
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number]), pa.array([answer], pa.binary())], _NAMES
                )

    what = f"{type(shipped[0]).__name__} of Penstock"
    with translate_spark_errors(), label_jobs(spark, what, tag=tag):
        table = spark.range(0, len(shipped), 1, len(shipped)).mapInArrow(run, _SCHEMA).toArrow()
    by_number = dict(zip(*(table[name].to_pylist() for name in _NAMES), strict=True))
    # The answers were pickled by our own code on our own executors.
    return [pickle.loads(by_number[number]) for number in range(len(shipped))]  # noqa: S301 - see above


def spread(pieces: Iterable[T], tasks: int, *, weight: Callable[[T], int]) -> tuple[tuple[T, ...], ...]:
    """Divide pieces of work into at most `tasks` groups of about the same weight. Pure.

    No group is empty, and each keeps the order of its pieces. The heaviest pieces are placed first, each in
    the group with the least weight.
    """
    ordered = list(pieces)
    heap = [(0, group) for group in range(min(tasks, len(ordered)))]
    group_of = [0] * len(ordered)
    for place in sorted(range(len(ordered)), key=lambda place: -weight(ordered[place])):
        load, group = heap[0]
        heapq.heapreplace(heap, (load + max(1, weight(ordered[place])), group))
        group_of[place] = group
    groups: list[list[T]] = [[] for _ in heap]
    for place, piece in enumerate(ordered):
        groups[group_of[place]].append(piece)
    return tuple(tuple(group) for group in groups)


def map_in_arrow(
    frame: "DataFrame",
    work: "Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]",
    schema: "StructType | str",
) -> "DataFrame":
    """Map the batches of a frame whose columns may have any names.

    Spark's `mapInArrow` resolves names as SQL and fails for dots and quotes in them: columns get plain names
    first.
    """
    names = frame.columns

    def work_with_names(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        begin_task()
        yield from work(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(work_with_names, schema)


_WARM_TASK = 2  # by then a process has imported its modules
_tasks_begun = 0


def begin_task() -> None:
    """Keep the garbage collector from walking over what the first task of this process has loaded.

    Spark collects the garbage of the whole process after each task; with our modules and their dependencies
    that takes as long as reading a million rows. Objects that exist before the second task have survived one
    such collection, and are frozen. This happens once: later garbage is collected as usual.
    """
    global _tasks_begun  # noqa: PLW0603 - it is about the process
    _tasks_begun += 1
    if _tasks_begun == _WARM_TASK:
        gc.freeze()
