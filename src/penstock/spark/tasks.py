"""Work spread over executors: one Spark task for each piece of work, and small answers back.

The Python processes in which Spark runs tasks. It keeps them from one task to the next.

Dividing pieces of work among tasks, so that no task has much more than the others. Pure.

Mapping the batches of a DataFrame whose columns may be called anything.

The progress of a bulk job, on the terminal.
"""

import gc
import heapq
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.spark.errors import one_line, spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Progress", "map_in_arrow", "run_on_executors", "spread", "task_begins"]


_WARM = 2  # the task before which a process has its modules

_begun = 0


def task_begins() -> None:
    """Leave what the first task of this process has loaded out of collections of garbage.

    Spark collects the garbage of the whole process after each task, which with our modules and those that
    they need takes as long as reading a million rows. What is there before the second task has survived one
    such collection. Done once: later garbage is collected as ever.
    """
    global _begun  # noqa: PLW0603 - it is about the process
    _begun += 1
    if _begun == _WARM:
        gc.freeze()


R_co = TypeVar("R_co", covariant=True)

Progress = Callable[[int, int], None]
"""Told how many of how many pieces are done."""

_JOBS = 16  # that all pieces are divided among; what progress is told in
_JOBS_AT_ONCE = 8  # so that the last task of a job does not keep the others waiting
_PIECES_MIN = 4
_NAMES = ["number", "answer"]
_SCHEMA = "number long, answer binary"


class Work(Protocol[R_co]):
    """A piece of work. Must be picklable, and harmless to repeat: Spark may run it twice, also at once."""

    def run(self) -> R_co:
        """Do it, in whatever process; the answer is picklable and small."""


def run_on_executors(
    spark: "SparkSession", pieces: Sequence[Work[R_co]], *, progress: Progress | None = None
) -> list[R_co]:
    """Run every piece as a task of its own and return the answers, in the order of the pieces.

    Raises the PenstockError that a piece raised, after the jobs in flight have ended.
    """
    from pyspark import inheritable_thread_target

    told = progress or (lambda _done, _all: None)
    size = max(_PIECES_MIN, -(-len(pieces) // _JOBS))
    parts = [pieces[start : start + size] for start in range(0, len(pieces), size)]
    answers: list[list[R_co]] = [[] for _ in parts]
    told(0, len(pieces))
    with ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="penstock-spark-job") as pool:
        job = inheritable_thread_target(spark)(_job)  # jobs keep this thread's pool and tags
        running = {pool.submit(job, spark, part): number for number, part in enumerate(parts)}
        done = 0
        try:
            for future in as_completed(running):
                number = running[future]
                answers[number] = future.result()
                done += len(parts[number])
                told(done, len(pieces))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [answer for part in answers for answer in part]


def _job(spark: "SparkSession", pieces: Sequence[Work[R_co]]) -> list[R_co]:
    """One Spark job."""
    shipped = tuple(pieces)

    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        task_begins()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with one_line():
                    answer = pickle.dumps(shipped[number].run())
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number]), pa.array([answer], pa.binary())], _NAMES
                )

    with spark_errors():
        found = spark.range(0, len(shipped), 1, len(shipped)).mapInArrow(run, _SCHEMA).toArrow()
    by_number = dict(zip(*(found[name].to_pylist() for name in _NAMES), strict=True))
    # What is unpickled here was pickled by our own code on our own executors.
    return [pickle.loads(by_number[number]) for number in range(len(shipped))]  # noqa: S301 - see above


T = TypeVar("T")


def spread(pieces: Iterable[T], tasks: int, *, weight: Callable[[T], int]) -> tuple[tuple[T, ...], ...]:
    """At most so many groups, none of them empty; each keeps the order of its pieces.

    The heaviest pieces are placed first, each where there is least.
    """
    listed = list(pieces)
    heap = [(0, group) for group in range(min(tasks, len(listed)))]
    group_of = [0] * len(listed)
    for place in sorted(range(len(listed)), key=lambda each: -weight(listed[each])):
        load, group = heap[0]
        heapq.heapreplace(heap, (load + max(1, weight(listed[place])), group))
        group_of[place] = group
    groups: list[list[T]] = [[] for _ in heap]
    for place, piece in enumerate(listed):
        groups[group_of[place]].append(piece)
    return tuple(tuple(group) for group in groups)


def map_in_arrow(
    frame: "DataFrame",
    work: "Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]",
    schema: "StructType | str",
) -> "DataFrame":
    """`mapInArrow`, which alone fails for columns with dots and quotes in their names: it looks them up."""
    names = frame.columns

    def renamed(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        task_begins()
        yield from work(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(renamed, schema)


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """Show a bar for a job that is given the result as its `progress`; nothing where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
