"""Verifies the targets of jobs against their sources, and repairs them.

    verification = TargetVerification(Jobs(client), source, settings)
    report = verification.verify(JobId.parse("shop.orders/search"))
    if not report.same:
        verification.repair(JobId.parse("shop.orders/search"))

The source is read at the target's watermark, so that the job may go on meanwhile. When the target moves
between two steps, the comparison begins again with the new watermark.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa

from penstock import eventloop
from penstock.changes.columns import choose_columns, key_names, own_columns
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.columnar.row_hash import Hashes
from penstock.columnar.spill_queue import SpillTable
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.follow.source import ScanSource, TableScan
from penstock.jobs.api import Jobs, consumer_of
from penstock.jobs.consumer import Comparable, Consumer, is_comparable, keeps_impossible_dates, secrets_of
from penstock.jobs.job import ErrorCode, Job, JobId, JobState
from penstock.kv import Transaction
from penstock.kv.transact import transact
from penstock.settings import Settings
from penstock.verify.compare import Comparison, Counts, merge_samples

__all__ = ["RepairAction", "TargetRepair", "TargetVerification", "TargetVerifyReport", "Verifier"]


T = TypeVar("T")

_log = logging.getLogger(__name__)

_REBUILD_CODES = {ErrorCode.SCHEMA, ErrorCode.TABLE_GONE, ErrorCode.TARGET_DIFFERS}
"""A job that stopped with one of these errors has no target that could be compared: it is filled anew."""
_PROGRESS_WAIT_S = 15.0  # for the source to be readable up to the target's watermark
_PROGRESS_POLL_S = 0.1
_TRIES = 5  # of a comparison whose target moves meanwhile
_REPAIR_ROWS = 50_000  # of one commit to the target
_REPAIR_BYTES = 64 << 20
_REPAIR_MAX = 5_000_000  # rows; a target with more of them missing or different is filled anew


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVerifyReport:
    """The result of a comparison of a target whose watermark is `at_ts`."""

    job: JobId
    at_ts: int
    source_rows: int
    target_rows: int
    counts: Counts
    samples: dict[str, list[str]] = field(repr=False)
    """Digests of some keys, by how their rows differ; no values."""
    nbytes: int = 0
    """Bytes of the rows of both sides that were compared."""

    @property
    def rows(self) -> int:
        """Rows of both sides that were compared."""
        return self.source_rows + self.target_rows

    @property
    def same(self) -> bool:
        """Whether the target has exactly the rows that its consumer makes of the source at the watermark."""
        return not self.counts.total


class RepairAction(StrEnum):
    """What a repair did; the values are those of the API's answers."""

    NOTHING = "nothing"
    REPAIRED = "mended"
    """Rows were written or removed."""
    REBUILD = "rebuild"
    """The next iteration fills the target anew."""


class TargetRepair(NamedTuple):
    """What a repair did, the job's table after it, and the comparison before it, if there was one."""

    action: RepairAction
    table_id: int
    report: TargetVerifyReport | None


class TargetVerification:
    """Verifies and repairs the targets of jobs, in any process. Blocks.

    Files of comparisons go below `scratch`, by default `TMPDIR`. Every method raises Invalid when there is no
    such job, or its target cannot be compared.
    """

    def __init__(
        self,
        jobs: Jobs,
        source: ScanSource,
        settings: Settings,
        *,
        scratch: Path | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._jobs = jobs
        self._scratch = scratch
        self._source = source
        self._settings = settings
        self._clock = clock

    def verify(self, job_id: JobId, *, proceed: Callable[[], None] = lambda: None) -> TargetVerifyReport:
        """Compare a job's target with its source at the target's watermark.

        `proceed` is called before each batch, and what it raises ends the comparison. Raises StaleRead when
        the source cannot be read at the watermark any more, Unavailable when the target moves on each time.
        """
        return self._run_verifier(self._jobs.get_job(job_id), lambda verifier: verifier.verify(), proceed)

    def repair(
        self, job_id: JobId, *, rebuild: bool = False, proceed: Callable[[], None] = lambda: None
    ) -> TargetRepair:
        """Repair a job's target, or have it filled anew when nothing else helps; let the job go on.

        A job whose table was truncated is registered for the table that has its name now.
        """
        job = self._jobs.get_job(job_id)
        if rebuild or job.status.error_code in _REBUILD_CODES or self._is_stranded(job):
            rebuilt = self._transact(lambda txn: self._jobs.rebuild_job(txn, job_id))
            return TargetRepair(RepairAction.REBUILD, rebuilt.key.table_id, None)
        report = self._run_verifier(job, lambda verifier: verifier.repair(), proceed)
        if job.state is JobState.ERROR:
            job = self._transact(lambda txn: self._jobs.resume_job(txn, job_id))
        action = RepairAction.NOTHING if report.same else RepairAction.REPAIRED
        return TargetRepair(action, job.key.table_id, report)

    def _transact(self, change: Callable[[Transaction], Job]) -> Job:
        return transact(self._jobs.log.client.begin, change, clock=self._clock)

    def _is_stranded(self, job: Job) -> bool:
        """Return whether the job's table was dropped, or another table has its name now."""
        try:
            return self._jobs.log.catalog.table_info(job.id.table_name).id != job.key.table_id
        except Invalid:
            return True

    def _run_verifier(
        self,
        job: Job,
        work: Callable[["Verifier"], TargetVerifyReport],
        proceed: Callable[[], None] = lambda: None,
    ) -> TargetVerifyReport:
        if self._is_stranded(job):
            raise Invalid(
                f"the table of job {job.id} was truncated or dropped; fill the target anew with"
                f" `penstock job repair {job.id}`, or unregister the job"
            )
        mask = secrets_of(job.spec.detail.consumer, self._settings.jobs.allowed_code)
        with mask.in_errors(), TemporaryDirectory(prefix="penstock-verify-", dir=self._scratch) as folder:
            consumer = consumer_of(job, self._settings, Path(folder, "consumer"))
            try:
                return work(
                    Verifier(
                        job,
                        consumer,
                        self._source,
                        Path(folder),
                        log_ts=lambda: self._jobs.get_job(job.id).status.committed_ts,
                        same_ts=lambda at_ts: self._same_ts(job.key.table_id, at_ts),
                        proceed=proceed,
                    )
                )
            finally:
                consumer.close()

    def _same_ts(self, table_id: int, at_ts: int) -> int:
        """Return the newest timestamp at which a table has the rows that it had at `at_ts`.

        Waits a while until the table can be read up to `at_ts`. After that it returns `at_ts`: the read of
        the table then says what is wrong.
        """
        deadline = self._clock.monotonic() + _PROGRESS_WAIT_S
        while self._clock.monotonic() < deadline:
            progress = eventloop.run(self._source.read_progress([table_id])).get(table_id)
            if progress is not None and progress.readable_ts >= at_ts:
                return progress.readable_ts if progress.changed_ts <= at_ts else at_ts
            self._clock.pause(_PROGRESS_POLL_S)
        return at_ts


class _SourceSnapshot(NamedTuple):
    """The watermark at which a target is compared, and the scan of the source with the same rows."""

    at_ts: int
    scan: TableScan


class _Remedy(NamedTuple):
    """What makes the target the same: hashes of keys whose rows it gets, and keys whose rows go first."""

    put: Hashes
    removed: pa.Table


class Verifier:
    """Compares one target with its source, and repairs it. Blocks; files are below `folder`.

    `log_ts` returns the target's watermark when the target does not know it itself. `same_ts` returns the
    newest timestamp at which the source has the rows that it had at another one: there, history is surely
    kept. `proceed` is called before each batch, and what it raises ends the comparison. Every method raises
    StaleRead when the source cannot be read at the target's watermark any more, Unavailable when the target
    moves on each time.
    """

    def __init__(
        self,
        job: Job,
        consumer: Consumer,
        source: ScanSource,
        folder: Path,
        *,
        log_ts: Callable[[], int],
        same_ts: Callable[[int], int],
        proceed: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        if not is_comparable(consumer):
            raise Invalid(
                self._rebuild_message(f"a target of consumer {job.spec.consumer} cannot be compared")
            )
        self._consumer = consumer
        self._target = cast("Comparable", consumer)
        self._source = source
        self._folder = folder
        self._log_ts = log_ts
        self._same_ts = same_ts
        self._proceed = proceed

    def verify(self) -> TargetVerifyReport:
        """Compare the target with its source; nothing is changed."""
        return self._retry_when_fenced(self._verify)

    def repair(self) -> TargetVerifyReport:
        """Compare, and make the target the same as its source; the report has the differences before that."""
        return self._retry_when_fenced(self._repair)

    def _retry_when_fenced(self, work: Callable[[_SourceSnapshot], T]) -> T:
        for _ in range(_TRIES):
            snapshot = self._fix_snapshot()
            try:
                return work(snapshot)
            except Fenced:
                _log.info(
                    "the target moved during the comparison; it is compared again",
                    extra={"job": str(self._job.id)},
                )
        raise Unavailable(
            f"the target of job {self._job.id} moved on each time before it was compared; pause the job, and"
            " try again"
        )

    def _fix_snapshot(self) -> _SourceSnapshot:
        committed_ts = self._consumer.committed_ts()
        at_ts = self._log_ts() if committed_ts is None else committed_ts
        if not at_ts:
            raise Invalid(
                f"job {self._job.id} has not finished its first iteration; there is nothing to compare"
            )
        scan = self._source.scan(self._job.key.table_id, 0, self._same_ts(at_ts), ReadLimit())
        return _SourceSnapshot(at_ts, scan.check_account(self._job.account))

    def _verify(self, snapshot: _SourceSnapshot) -> TargetVerifyReport:
        with self._compare(snapshot) as comparison:
            return self._report(snapshot, comparison)[0]

    def _repair(self, snapshot: _SourceSnapshot) -> TargetVerifyReport:
        with self._compare(snapshot) as comparison:
            report, remedy = self._report(snapshot, comparison)
            self._apply(remedy, comparison, snapshot)
        return report

    def _compare(self, snapshot: _SourceSnapshot) -> Comparison:
        keys = len(key_names(snapshot.scan.schema.table))
        shape = self._target.expected(pa.RecordBatch.from_pylist([], self._columns(snapshot))).schema
        comparison = Comparison(shape, keys, self._folder)
        try:
            comparison.find(self._check_batches(self._target.present(snapshot.at_ts)))
            comparison.expect(map(self._target.expected, self._rows(snapshot)))
        except BaseException:
            comparison.close()
            raise
        return comparison

    def _rows(self, snapshot: _SourceSnapshot) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the source at the target's watermark, as the consumer gets them."""
        columns = self._columns(snapshot)
        names = choose_columns(snapshot.scan.schema.table, self._job.spec.detail.consumer.columns).names
        dates = keeps_impossible_dates(self._job.spec.detail.consumer)
        with self._source.open(snapshot.scan, names, impossible_dates=dates) as changes:
            for batch in self._check_batches(changes):
                yield batch.data.select(names).rename_columns(columns.names).cast(columns)

    def _check_batches(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield batches; ask `proceed` before each."""
        for batch in batches:
            self._proceed()
            yield batch

    def _columns(self, snapshot: _SourceSnapshot) -> pa.Schema:
        return own_columns(snapshot.scan.schema.table, self._job.spec.detail.consumer.columns)

    def _report(
        self, snapshot: _SourceSnapshot, comparison: Comparison
    ) -> tuple[TargetVerifyReport, _Remedy]:
        counts, put = Counts(), [np.zeros(0, np.uint64)]
        samples: dict[str, list[str]] = {}
        removed = SpillTable(comparison.key_schema, self._folder / "removed.arrow")
        for part in comparison.differences():
            counts += part.counts
            put.append(part.put)
            for batch in part.removed.to_batches():
                removed.add(batch)
            samples = merge_samples(samples, part.samples)
        report = TargetVerifyReport(
            job=self._job.id,
            at_ts=snapshot.at_ts,
            source_rows=comparison.rows[0],
            target_rows=comparison.rows[1],
            counts=counts,
            samples=samples,
            nbytes=comparison.nbytes,
        )
        return report, _Remedy(np.sort(np.concatenate(put)), removed.finish())

    def _apply(self, remedy: _Remedy, comparison: Comparison, snapshot: _SourceSnapshot) -> None:
        """Remove rows, then write rows, in several commits: each leaves fewer differences than before."""
        if len(remedy.put) > _REPAIR_MAX:
            raise Invalid(
                self._rebuild_message(
                    f"{len(remedy.put)} rows of job {self._job.id} are missing or different"
                )
            )
        nothing = self._columns(snapshot).empty_table()
        for start in range(0, remedy.removed.num_rows, _REPAIR_ROWS):
            removed = remedy.removed.slice(start, _REPAIR_ROWS).combine_chunks()
            self._target.repair(nothing, removed, snapshot.at_ts)
        written = 0
        for rows in _in_chunks(self._choose_rows(remedy.put, comparison, snapshot)):
            written += rows.num_rows
            self._target.repair(rows, comparison.key_schema.empty_table(), snapshot.at_ts)
        if written < len(remedy.put):
            raise Invalid(self._rebuild_message(f"rows of job {self._job.id} cannot be found by their keys"))

    def _choose_rows(
        self, wanted: Hashes, comparison: Comparison, snapshot: _SourceSnapshot
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the source whose keys have one of these hashes; a row too many does no harm.

        The target may have other keys than the source. So rows whose keys are not found are searched again as
        the target expects them: only then, because making the target's rows may cost much.
        """
        for as_target in (_identity, self._target.expected):
            missing = np.ones(len(wanted), np.bool_)
            for batch in self._rows(snapshot) if len(wanted) else ():
                hashes = comparison.key_hashes(as_target(batch))
                places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
                found = wanted[places] == hashes
                missing[places[found]] = False
                if found.any():
                    yield batch.filter(pa.array(found))
            wanted = wanted[missing]

    def _rebuild_message(self, why: str) -> str:
        return f"{why}; fill the target anew with `penstock job repair --rebuild {self._job.id}`"


def _identity(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def _in_chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about `_REPAIR_ROWS` rows or `_REPAIR_BYTES` bytes."""
    chunk: list[pa.RecordBatch] = []
    for batch in batches:
        chunk.append(batch)
        if (
            sum(part.num_rows for part in chunk) >= _REPAIR_ROWS
            or sum(part.nbytes for part in chunk) >= _REPAIR_BYTES
        ):
            yield pa.Table.from_batches(chunk)
            chunk = []
    if chunk:
        yield pa.Table.from_batches(chunk)
