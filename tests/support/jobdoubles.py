"""What iterations are tested with: a log in memory, a table as their source, a copy as their target.

Everything else of an iteration is real. `fault` is told what is about to happen, and may raise, or wait.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.changes import ChangesHandle, collect_changes
from penstock.changes.collect import open_range
from penstock.changes.columns import key_names, list_read_columns
from penstock.changes.limits import ChangeCounts, ReadLimit
from penstock.clock import SYSTEM
from penstock.errors import Fenced
from penstock.eventstore.read.object_scan import HandleRange
from penstock.eventstore.sides import COMMIT_TS
from penstock.follow.source import ReadableRange, TableScan
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log.transitions import Transition
from penstock.jobs.spec import JobSpec
from penstock.testing.consumers import Fault, no_fault
from penstock.testing.versions import Row, Snapshot
from support.tableworld import TableWorld

__all__ = ["Copy", "MemoryLog", "MemoryTxn", "WorldSource", "consumer_of", "iteration_of", "job_row", "until"]

_WAIT_S = 120.0  # Spark may have to start first, on a machine with much other work
_LOOK_S = 0.002


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition; fail when that takes long."""
    deadline = SYSTEM.monotonic() + _WAIT_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, "waited in vain"
        SYSTEM.pause(_LOOK_S)


def job_row(
    name: str,
    consumer: str = "copy",
    *,
    account: str = "sys",
    watermark: int = 0,
    table_id: int = 1,
    detail: Mapping[str, Any] | None = None,
    committed_ts: int = 0,
    resync_ts: int = 0,
    begun_ts: int = 0,
) -> Job:
    """Return a job that waits for its next iteration."""
    info = {"consumer": consumer}
    tree = {"detail": {"consumer": info}} if detail is None else {"detail": {"consumer": info, **detail}}
    return Job(
        key=JobKey(0, table_id, name, 1),
        id=JobId("shop", "items", name),
        account=account,
        spec=JobSpec.parse(tree),
        state=JobState.COMPLETED,
        watermark=watermark,
        status=JobStatus(committed_ts=committed_ts, resync_ts=resync_ts, begun_ts=begun_ts),
        create_at=0,
    )


def iteration_of(*jobs: Job, from_ts: int = 0, to_ts: int, number: int = 1) -> Iteration:
    """Return an iteration of these jobs, which are all on one table."""
    return Iteration(
        id=f"iteration-{number}", table_id=jobs[0].key.table_id, from_ts=from_ts, to_ts=to_ts, jobs=jobs
    )


@dataclass
class MemoryTxn:
    """Writes that happen together, or not at all when one of them is refused."""

    _writes: list[Callable[[], Callable[[], object]]] = field(default_factory=list)

    def add(self, write: Callable[[], Callable[[], object]]) -> None:
        """A write: it checks whether it may happen, and gives back what does it."""
        self._writes.append(write)

    def commit(self) -> None:
        """Let all of it happen; raises what a write is refused with."""
        for happen in [write() for write in self._writes]:
            happen()


class MemoryLog:
    """Rows of jobs, changed by compare-and-set; implements IterationLog. `written` are all rows ever."""

    def __init__(self, *jobs: Job, fault: Fault = no_fault) -> None:
        self.rows = {job.key: job for job in jobs}
        self.written: list[Job] = []
        self.fault = fault
        self._lock = threading.Lock()

    def row(self, name: str) -> Job:
        """Return the job of that name."""
        return next(job for job in self.rows.values() if job.key.job_name == name)

    def states(self, name: str) -> list[JobState]:
        """Return what was written of a job, one after the other."""
        return [job.state for job in self.written if job.key.job_name == name]

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Run the work in one transaction of the log in memory."""
        self.fault("transact")
        with self._lock:
            return [self._change(job.key, job.status.lsn, transition) for job, transition in changes]

    def change(self, txn: Any, key: JobKey, lsn: int | None, transition: Transition) -> Job:
        """Change the row of a job if it is unchanged; the transaction is a MemoryTxn."""
        self.fault("change")
        if self._row_if_unchanged(key, lsn) is None:
            raise Fenced("the row is another one")

        def write() -> Callable[[], object]:
            if self._row_if_unchanged(key, lsn) is None:
                raise Fenced("the row is another one by now")
            return lambda: self._put(transition(self.rows[key]))

        txn.add(write)
        return transition(self.rows[key])

    def touch(self, name: str, transition: Transition) -> Job:
        """Somebody else changes a row."""
        job = self.row(name)
        with self._lock:
            self._put(transition(job))
        return self.row(name)

    def _row_if_unchanged(self, key: JobKey, lsn: int | None) -> Job | None:
        row = self.rows.get(key)
        return row if row is not None and row.live and lsn in {None, row.status.lsn} else None

    def _change(self, key: JobKey, lsn: int | None, transition: Transition) -> Job | None:
        row = self._row_if_unchanged(key, lsn)
        return None if row is None else self._put(transition(row))

    def _put(self, job: Job) -> Job:
        self.rows[job.key] = job
        self.written.append(job)
        return job


class WorldSource:
    """The one table of a TableWorld as a ScanSource; `scans` and `opens` are the ranges that were read."""

    def __init__(self, world: TableWorld, *, fault: Fault = no_fault, batch_rows: int = 8192) -> None:
        self.world = world
        self.fault = fault
        self.batch_rows = batch_rows
        self.scans: list[TableScan] = []
        self.opens: list[tuple[TableScan, Collection[str] | None]] = []
        self.gone_because: str | None = None

    async def now_ts(self) -> int:
        """Return the current timestamp of the world."""
        return self.world.ts

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return up to where tables can be read."""
        return {number: ReadableRange(self.world.ts, self.world.ts) for number in table_ids}

    def why_gone(self, table_id: int, account: str = "sys") -> str | None:
        """Return why a table is not there."""
        del table_id, account
        return self.gone_because

    def scan(self, table_id: int, from_ts: int, to_ts: int, limit: ReadLimit) -> TableScan:
        """Return a scan of a range of a table."""
        del table_id
        self.fault("scan")
        view = self.world.view()
        states = open_range(view, from_ts, to_ts)
        counts = ChangeCounts(states, from_ts, to_ts, HandleRange())
        end_ts = counts.last_admitted_ts(limit) if from_ts else to_ts
        rows, nbytes = counts.weigh(end_ts)
        versions = states[0].schemas(from_ts, end_ts)
        scan = TableScan(
            view=view,
            from_ts=from_ts,
            to_ts=end_ts,
            schema=versions[-1],
            rows=rows,
            nbytes=nbytes,
            before=versions[0] if from_ts else None,
        )
        self.scans.append(scan)
        return scan

    def open(
        self, scan: TableScan, columns: Collection[str] | None, *, impossible_dates: bool = False
    ) -> ChangesHandle:
        """Open a scan with some columns; record the call in `opens`."""
        self.fault("open")
        self.opens.append((scan, columns))
        names = None
        if columns is not None:
            keys = [name for name in key_names(scan.schema.table) if not name.startswith("_")]
            versions = self.world.schemas.versions(self.world.ids[0], scan.from_ts, scan.to_ts)
            names = sorted(list_read_columns(versions, scan.schema, [*keys, *columns]))
        handle = collect_changes(
            scan.view,
            scan.from_ts,
            scan.to_ts,
            columns=names,
            batch_rows=self.batch_rows,
            impossible_dates=impossible_dates,
        )
        return ChangesHandle(batch for batch in self._watch(handle))

    def _watch(self, handle: ChangesHandle) -> Any:
        with handle:
            for batch in handle:
                self.fault("batch")
                yield batch

    async def hold(self, needed: Mapping[int, int]) -> None:
        """Hold the history of tables from timestamps on."""
        del needed

    async def close(self) -> None:
        """Close the source."""


@dataclass
class Copy:
    """A target with transactions: rows by key, and the watermark that came with them."""

    rows: Snapshot = field(default_factory=dict)
    ts: int = 0
    commits: list[int] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def consumer(self, fault: Fault = no_fault) -> type[Consumer]:
        """Return a consumer class that writes this copy, with a compare before each set."""
        target = self

        class _Copying(Consumer):
            def committed_ts(self) -> int | None:
                fault("committed_ts")
                return target.ts

            def consume(self, data: DataRetriever) -> None:
                fault("begin")
                before = target.ts if data.data_type is DataType.SNAPSHOT else data.from_ts
                rows = {} if data.data_type is DataType.SNAPSHOT else dict(target.rows)
                while True:
                    inserts, deletes, no_more_data = data.next()
                    fault("next")
                    _apply(rows, data.keys, inserts.to_pylist(), deletes.to_pylist())
                    if no_more_data:
                        break
                fault("commit")
                with target.lock:
                    if target.ts != before:
                        raise Fenced(f"the target is at {target.ts}, not {before}")
                    target.rows, target.ts, target.columns = rows, data.to_ts, data.columns.names
                    target.commits.append(data.to_ts)
                fault("committed")

        return _Copying


def _apply(rows: Snapshot, keys: Sequence[str], inserts: Iterable[Row], deletes: Iterable[Row]) -> None:
    """Apply changes by time, at one time the deletes first."""
    gone = [(row[COMMIT_TS], 0, row) for row in deletes]
    come = [(row[COMMIT_TS], 1, row) for row in inserts]
    for _, comes, row in sorted(gone + come, key=lambda step: step[:2]):
        key = tuple(row[name] for name in keys)
        rows.pop(key, None)
        if comes:
            rows[key] = {name: cell for name, cell in row.items() if not name.startswith("_")}


def consumer_of(consume: Callable[[JobContext, DataRetriever], None]) -> type[Consumer]:
    """Return a consumer class that calls this function."""

    class _Consuming(Consumer):
        def consume(self, data: DataRetriever) -> None:
            consume(self.job, data)

    return _Consuming


class TaggedSession:
    """A Spark session that runs nothing, and knows the tags of its jobs."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.interrupted: set[str] = set()

    def addTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.remove(tag)

    def getTags(self) -> set[str]:  # noqa: N802 - Spark's name
        return self.tags

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.interrupted.add(tag)
