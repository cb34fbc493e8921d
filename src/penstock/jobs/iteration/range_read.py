"""The changes of a range, read by rounds on Spark, part by part and in order.

A small range is one part. A larger one is divided, and only a few of its parts are in memory or under way at
a time. `EarlyReads` begins to read small ranges while their iterations wait for a worker, so that all tables
that are due share a round.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

from penstock.changes.columns import choose_columns, key_names
from penstock.changes.options import ChangeOptions
from penstock.changes.plan import ChangesPartition, plan_changes
from penstock.errors import Aborted, PenstockError
from penstock.follow.scans import change_options
from penstock.follow.source import ScanSource, TableScan
from penstock.jobs.iteration.caps import caps_of
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.iteration.ordering import ConsumerBatch
from penstock.jobs.iteration.rounds import LARGE_BYTES, PartWork, ReadRounds, RoundPart, resume
from penstock.jobs.job import Job, JobKey
from penstock.settings import JobsSettings

_log = logging.getLogger(__name__)

SMALL_ROWS = 16 * 1024
"""A range of so many changes is one part."""
_PART_ROWS = 64 * 1024
_PART_BYTES = 4 << 20  # of objects, which are compressed
_PARTS_AHEAD = 2  # parts of a range that are under way, or in memory, beside the one that is given out


def union_columns(scan: TableScan, jobs: Sequence[Job]) -> list[str] | None:
    """Return the columns that any of the jobs selects, beside the key's; None: all."""
    selections = [job.spec.detail.consumer.columns for job in jobs]
    if any(selection is None for selection in selections):
        return None
    table = scan.schema.table
    names = {name for selection in selections for name in selection or ()}
    keys = key_names(table)
    return [name for name in choose_columns(table, names).names if name not in keys]


class RangeRead:
    """One range that is being read. `batches` is for one thread, `close` for any."""

    def __init__(self, rounds: ReadRounds, parts: Sequence[RoundPart]) -> None:
        self._rounds = rounds
        self._waiting = deque(parts)
        self._begun: deque[RoundPart] = deque()
        self._closed = False
        self.seconds = 0.0
        """How long tasks have worked on it."""
        self._begin_parts()

    def _begin_parts(self) -> None:
        while self._waiting and len(self._begun) < _PARTS_AHEAD and not self._closed:
            part = self._waiting.popleft()
            self._begun.append(part)
            self._rounds.submit(part)

    def batches(self) -> Iterator[ConsumerBatch]:
        """Yield all changes in order. Raises the error of a part, and Aborted once this is closed."""
        while self._begun:
            part = self._begun[0]
            try:
                answer = part.answer.result()
            except CancelledError:
                raise Aborted("the range is not read any further") from None
            self.seconds += part.seconds
            self._begun.popleft()
            if answer.resume_ts is not None:
                rest = resume(part, answer.resume_ts)
                self._begun.appendleft(rest)
                self._rounds.submit(rest)
            self._begin_parts()
            if self._closed:
                raise Aborted("the range is not read any further")
            yield from answer.batches()

    def close(self) -> None:
        """Give up what is not read yet. May be called twice."""
        self._closed = True
        for part in tuple(self._begun):
            part.answer.cancel()


class RoundReader:
    """Begins to read ranges. Thread-safe."""

    def __init__(self, rounds: ReadRounds) -> None:
        self.rounds = rounds

    def begin(self, scan: TableScan, columns: Collection[str] | None, account: str) -> RangeRead:
        """Begin to read a range; `columns` are those beside the key's, None for all. Blocks for planning.

        Raises StaleRead when the history of the range is gone, Unavailable when storage or the capture does
        not answer.
        """
        names = tuple(choose_columns(scan.schema.table, columns).names)
        parts = _plan_parts(scan, columns)
        # Nobody has counted the rows of a part that is not flushed: all parts of a large range are large.
        nbytes = scan.nbytes if len(parts) == 1 else LARGE_BYTES
        works = (PartWork(part, scan.schema, names) for part in parts)
        return RangeRead(self.rounds, [RoundPart(account, work, nbytes) for work in works])


def is_small(scan: TableScan) -> bool:
    """Return whether a range is read as one part, in a job with others."""
    return not scan.snapshot and scan.rows <= SMALL_ROWS and scan.nbytes < LARGE_BYTES


def _plan_parts(scan: TableScan, columns: Collection[str] | None) -> list[ChangesPartition]:
    options = change_options(scan.view, scan, columns)
    options["impossible_dates"] = True  # a job that has no such dates hides them
    if is_small(scan):  # without planning, which reads more of the table's metadata
        whole = ChangesPartition(
            table=scan.view,
            from_ts=scan.from_ts,
            to_ts=scan.to_ts,
            options=ChangeOptions(**options),
            rows=scan.rows,
        )
        return [whole]
    return plan_changes(
        scan.view,
        scan.from_ts,
        scan.to_ts,
        partition_rows=_PART_ROWS,
        partition_bytes=_PART_BYTES,
        **options,
    )


@dataclass(frozen=True, slots=True)
class EarlyRead:
    """A range that was begun before its iteration."""

    scan: TableScan
    read: RangeRead


_RANGES_MAX = 1024
_BYTES_MAX = 64 << 20
_PLANNERS = 4
_BATCH_JOBS_MAX = 100_000  # jobs that are remembered as taking batches


class EarlyReads:
    """Reads small ranges while their iterations wait. Thread-safe; nothing here fails an iteration.

    Only jobs whose last iteration took batches are read for: others take DataFrames. What is held is bounded:
    beyond that, ranges are read when their iterations run.
    """

    def __init__(self, reader: RoundReader, source: ScanSource, settings: JobsSettings) -> None:
        self._reader = reader
        self._source = source
        self._settings = settings
        self._lock = threading.Lock()
        self._early: dict[str, Future[EarlyRead | None]] = {}
        self._nbytes: dict[str, int] = {}
        self._batch_jobs: OrderedDict[JobKey, None] = OrderedDict()
        self._planners = ThreadPoolExecutor(_PLANNERS, thread_name_prefix="penstock-read-ahead")

    def note_batches(self, key: JobKey, *, batches: bool) -> None:
        """Remember whether a job takes batches."""
        with self._lock:
            self._batch_jobs.pop(key, None)
            if batches:
                self._batch_jobs[key] = None
            while len(self._batch_jobs) > _BATCH_JOBS_MAX:
                self._batch_jobs.popitem(last=False)

    def begin(self, iteration: Iteration) -> None:
        """Begin to read for an iteration that waits, unless it is a first sync. Does not block."""
        with self._lock:
            taken = any(job.key in self._batch_jobs for job in iteration.jobs)
            full = len(self._early) >= _RANGES_MAX or sum(self._nbytes.values()) >= _BYTES_MAX
            if iteration.first or not taken or full or iteration.id in self._early:
                return
            self._reader.rounds.expect(1)
            self._early[iteration.id] = self._planners.submit(self._begin, iteration)

    def _begin(self, iteration: Iteration) -> EarlyRead | None:
        try:
            caps = caps_of(iteration, self._settings)
            scan = self._source.scan(iteration.table_id, iteration.from_ts, caps.to_ts, caps.limit)
            if not is_small(scan):
                return None
            with self._lock:
                if iteration.id in self._early:  # else it was taken or dropped meanwhile
                    self._nbytes[iteration.id] = scan.nbytes
            columns = union_columns(scan, iteration.jobs)
            return EarlyRead(scan, self._reader.begin(scan, columns, iteration.account))
        except PenstockError as error:  # the iteration meets it too, if it is still there then
            _log.debug("a range was not read ahead", extra={"error": str(error)})
            return None
        finally:
            self._reader.rounds.expect(-1)

    def take(self, iteration_id: str) -> EarlyRead | None:
        """Return what was begun for an iteration; None when it is to be read now."""
        with self._lock:
            early = self._early.pop(iteration_id, None)
            self._nbytes.pop(iteration_id, None)
        return None if early is None else early.result()

    def drop(self, iteration_id: str) -> None:
        """Give up what was begun for an iteration. Does not block."""
        with self._lock:
            early = self._early.pop(iteration_id, None)
            self._nbytes.pop(iteration_id, None)
        if early is not None:
            early.add_done_callback(_close)

    def close(self) -> None:
        """Give up everything."""
        for iteration_id in list(self._early):
            self.drop(iteration_id)
        self._planners.shutdown(wait=False)


def _close(early: "Future[EarlyRead | None]") -> None:
    found = early.result()
    if found is not None:
        found.read.close()
