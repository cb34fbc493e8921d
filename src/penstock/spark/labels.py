"""What Spark knows of our jobs: a description, a tag by which they are ended, and the pool of an account.

Each account has its own scheduler pool, so that the jobs of one account do not starve those of another. Tags
work on Spark Connect too; descriptions and pools are left out there.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.spark.jvm import find_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "JobProgress",
    "enter_pool",
    "interrupt_jobs",
    "label_jobs",
    "label_thread",
    "read_progress",
    "without_tags",
]

_log = logging.getLogger(__name__)

_POOL = "spark.scheduler.pool"
_DESCRIPTION = "spark.job.description"
_JOB_RUNNING = "RUNNING"


def enter_pool(spark: "SparkSession", account: str) -> None:
    """Run all jobs that this thread starts from now on in the account's pool.

    Spark Connect has no pools: there it does nothing, and says so once.
    """
    context = find_context(spark)
    if context is not None:
        context.setLocalProperty(_POOL, account)
    else:
        _warn_of_connect()


@contextmanager
def label_jobs(spark: "SparkSession", what: str, *, tag: str, account: str = "") -> Iterator[None]:
    """Run the jobs that this thread starts inside the block under a description and a tag.

    They run in the account's pool, if one is named. `interrupt_jobs` ends them by the tag.
    Spark Connect has tags only.
    """
    context = find_context(spark)
    labels = {_DESCRIPTION: what} | ({_POOL: account} if account else {})
    before: dict[str, str | None] = {}
    if context is not None:
        before = {name: context.getLocalProperty(name) for name in labels}
        for name, value in labels.items():
            context.setLocalProperty(name, value)
    elif account:
        _warn_of_connect()
    tags = _tags(spark)
    tags.add(tag)
    try:
        yield
    finally:
        with suppress(Exception):  # the session has died: the block has raised that, or will not notice
            tags.remove(tag)
            for name, earlier in before.items():
                # Spark takes None as "not set", though its annotation does not say so.
                context.setLocalProperty(name, earlier)  # type: ignore[union-attr,arg-type]


def label_thread(spark: "SparkSession", what: str, *, tag: str) -> None:
    """Run all jobs that this thread starts from now on under a description and a tag.

    The tag is their group too, for `read_progress`. Spark Connect has tags only.
    """
    context = find_context(spark)
    if context is not None:
        context.setJobGroup(tag, what)
    _tags(spark).add(tag)


class JobProgress(NamedTuple):
    """How far the jobs of a group are: it changes whenever one begins or one of their tasks completes."""

    jobs: int
    completed_tasks: int
    waits_for_cores: bool
    """Whether some run, and none of their tasks does."""


def read_progress(spark: "SparkSession", group: str) -> JobProgress | None:
    """Return the progress of the jobs of a group; None when Spark cannot tell.

    Spark Connect cannot, and neither can a session that died.
    """
    context = find_context(spark)
    if context is None:
        return None
    try:
        tracker = context.statusTracker()
        numbers = tracker.getJobIdsForGroup(group)
        jobs = [job for number in numbers if (job := tracker.getJobInfo(number)) is not None]
        completed = active = 0
        for job in jobs:
            for stage_id in job.stageIds:
                stage = tracker.getStageInfo(stage_id)
                completed += 0 if stage is None else stage.numCompletedTasks
                active += 0 if stage is None else stage.numActiveTasks
    except Exception:  # noqa: BLE001 - whatever Java answers when it ends
        return None
    waits = any(job.status == _JOB_RUNNING for job in jobs) and not active
    return JobProgress(len(numbers), completed, waits)


@contextmanager
def without_tags(spark: "SparkSession") -> Iterator[None]:
    """Run the jobs of the block without the tags of this thread: they are others' work too."""
    tags = _tags(spark)
    before = list(tags.get())  # a set of Java, which is gone when the session dies
    for tag in before:
        tags.remove(tag)
    try:
        yield
    finally:
        with suppress(Exception):  # the session has died
            for tag in before:
                tags.add(tag)


def interrupt_jobs(spark: "SparkSession", tag: str) -> None:
    """End all jobs with the tag, on the cluster too. Raises nothing: a session that died runs none."""
    with suppress(Exception):
        _tags(spark).interrupt(tag)


class _Tags(NamedTuple):
    """The tags of the calling thread's jobs."""

    add: Callable[[str], None]
    remove: Callable[[str], None]
    get: Callable[[], set[str]]
    interrupt: Callable[[str], object]


def _tags(spark: "SparkSession") -> _Tags:
    """Return the context's tags: by those of a session only the thread that set them can end jobs.

    Spark Connect has no context, and lets every thread end jobs by the session's tags.
    """
    context = find_context(spark)
    if context is None:
        return _Tags(spark.addTag, spark.removeTag, spark.getTags, spark.interruptTag)
    return _Tags(context.addJobTag, context.removeJobTag, context.getJobTags, context.cancelJobsWithTag)


@cache
def _warn_of_connect() -> None:
    _log.warning("Spark Connect has no scheduler pools: jobs of all accounts share it as its server decides")
