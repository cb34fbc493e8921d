"""Work spread over executors: one Spark task for each piece of work, and small answers back."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyspark import inheritable_thread_target

from penstock.spark.errors import one_line, spark_errors
from penstock.spark.workerprocess import task_begins

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

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
