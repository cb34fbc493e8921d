"""How many tasks run at once, and how work gets a task for each of its pieces.

The number of tasks is asked for each job, because executors come and go.

Code in the driver asks the session. Reads are planned in processes that Spark starts beside the driver, which
cannot ask it: there a thread of the driver asks, and keeps the answer in a file that those processes read.
"""

import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.clock import SYSTEM
from penstock.spark.jvm import find_context, parse_master
from penstock.spark.tasks import Parallelism

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "default_parallelism",
    "keep_parallelism",
    "reachable_tasks",
    "user_session",
    "work_frame",
    "work_session",
]

_GIVEN = "spark.default.parallelism"
_LEAF = "spark.sql.leafNodeDefaultParallelism"
_LEAF_TASKS = 1 << 20  # no frame of work has so many rows
_REACHABLE_MAX = 1024
_NO_LIMIT = (1 << 31) - 1  # what Spark takes for its own default
_UNLIMITED_TASKS = 64
"""Tasks of a job that can have as many executors as it wants: more of them cost more than they save."""
_ASK_S = 2.0
"""Seconds between the questions of the thread; Spark itself waits one second before it asks for executors."""


class _Conf(Protocol):
    def __call__(self, key: str, default: str, /) -> str | None: ...


def reachable_tasks(conf: _Conf) -> int:
    """Return how many tasks dynamic allocation can grow to; 0 when it is off.

    It grows with the tasks that wait: a job that is divided for the executors of now would never get more.
    Without a limit, as Spark has it by default, there is one of our own.
    """
    if conf("spark.dynamicAllocation.enabled", "false") != "true" or conf(_GIVEN, ""):
        return 0
    executors = int(conf("spark.dynamicAllocation.maxExecutors", "") or _NO_LIMIT)
    if executors >= _NO_LIMIT:
        return _UNLIMITED_TASKS
    given = conf("spark.executor.cores", "")
    if not given and (conf("spark.master", "") or "").startswith("spark://"):
        return max(_UNLIMITED_TASKS, min(_REACHABLE_MAX, executors))  # an executor has its worker's cores
    cores = int(given or 1)
    return min(_REACHABLE_MAX, executors * max(1, cores // int(conf("spark.task.cpus", "1") or 1)))


def default_parallelism(spark: "SparkSession") -> int:
    """Return how many tasks of a session run at once, now or when dynamic allocation has grown.

    Of a session of Spark Connect the server knows it, which is asked now and then. Ask again before each job.
    """
    context = find_context(spark)
    if context is not None:
        return max(context.defaultParallelism, reachable_tasks(spark.conf.get))
    known = _of_servers.get(spark)
    now = SYSTEM.monotonic()
    if known is None or now >= known[1] + _SERVER_S:
        known = max(_ask_server(spark), reachable_tasks(spark.conf.get)), now
        _of_servers[spark] = known
    return known[0]


def _ask_server(spark: "SparkSession") -> int:
    """Return into how many tasks the server divides a range, by its plan: nothing else says so."""
    (plan,) = spark.sql("EXPLAIN SELECT id FROM range(1000000)").first() or ("",)
    found = _SPLITS.search(plan)
    return max(1, int(found[1])) if found else os.cpu_count() or 1


_SERVER_S = 10.0
_SPLITS = re.compile(r"splits=(\d+)")  # of Spark's operator Range
_of_servers: "weakref.WeakKeyDictionary[SparkSession, tuple[int, float]]" = weakref.WeakKeyDictionary()


_work_sessions: "weakref.WeakKeyDictionary[SparkSession, SparkSession]" = weakref.WeakKeyDictionary()
_users: "weakref.WeakKeyDictionary[SparkSession, weakref.ref[SparkSession]]" = weakref.WeakKeyDictionary()
"""Whose session each of `_work_sessions` was made for."""


def work_session(spark: "SparkSession") -> "SparkSession":
    """Return a session of our own on the same context, where a frame has a task for each of its rows.

    Spark would divide the rows of a small frame among as many tasks as run now. The configuration that says
    so belongs to a session, and that of the user stays as it is. Frames of this session are for our jobs
    only. On Spark Connect it is the session itself: tags of jobs belong to a session there.
    """
    if find_context(spark) is None:
        return spark
    with _lock:
        own = _work_sessions.get(spark)
        if own is None:
            own = spark.newSession()
            own.conf.set(_LEAF, _LEAF_TASKS)
            _work_sessions[spark] = own
            _users[own] = weakref.ref(spark)
        return own


def user_session(spark: "SparkSession") -> "SparkSession | None":
    """Return the session for which a `work_session` was made, None when that is gone; any other as it is.

    A session that creates a frame becomes the active one, and so does ours.
    """
    user = _users.get(spark)
    return spark if user is None else user()


def work_frame(spark: "SparkSession", packed: Sequence[bytes]) -> "DataFrame":
    """Return a frame of the column `work`, with a row and a task for each piece of work.

    Tasks start in the order of the rows. In a `work_session` that needs no shuffle, however many there are.
    """
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    # A batch for each row: a frame that is too large for a plan has a task for each batch.
    rows = pa.table({"work": pa.array(packed, pa.binary()), "task": pa.array(range(len(packed)), pa.int32())})
    frame = spark.createDataFrame(pa.Table.from_batches(rows.to_batches(max_chunksize=1), rows.schema))
    if len(packed) > _leaf_tasks(spark):
        frame = frame.repartitionById(len(packed), F.col("task"))
    return frame.select("work")


def _leaf_tasks(spark: "SparkSession") -> int:
    """Return among how many tasks Spark divides the rows of a small frame, at most."""
    given = spark.conf.get(_LEAF, None)
    if given is not None:
        return int(given)
    context = find_context(spark)
    return context.defaultParallelism if context is not None else 1  # what Connect's server has is not known


_kept: "weakref.WeakKeyDictionary[SparkContext, Parallelism]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def keep_parallelism(spark: "SparkSession") -> Parallelism:
    """Return what a session's reads are planned with; follows the executors of a cluster until it ends.

    The tasks of a local master, and what is known of a session of Spark Connect, do not change.
    """
    context = find_context(spark)
    tasks = default_parallelism(spark)
    if context is None or _is_local(context):
        return Parallelism(tasks)
    with _lock:
        known = _kept.get(context)
        if known is None:
            folder = TemporaryDirectory(prefix="penstock-parallelism-", ignore_cleanup_errors=True)
            path = Path(folder.name, "tasks")
            _write(path, tasks)
            following = threading.Thread(
                target=_follow,
                args=(lambda: default_parallelism(spark), path, folder),
                name="penstock-parallelism",
                daemon=True,
            )
            known = _kept[context] = Parallelism(tasks, str(path))
            following.start()
        return known


def _is_local(context: "SparkContext") -> bool:
    master = context.master or ""
    return master.startswith("local") and parse_master(master).in_process


def _follow(ask: Callable[[], int], path: Path, folder: "TemporaryDirectory[str]") -> None:
    """Write the number down whenever it changes; end with the session."""
    written = 0
    never = threading.Event()
    with folder:
        while True:
            try:
                tasks = ask()
            except Exception:  # noqa: BLE001 - the session has ended, in whatever way
                return
            if tasks != written:
                _write(path, tasks)
                written = tasks
            never.wait(_ASK_S)


def _write(path: Path, tasks: int) -> None:
    """Replace the file, so that nobody reads half of it."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(str(tasks), encoding="ascii")
    unfinished.replace(path)
