"""Whether a target is what its source says, and what to do where it is not.

The source is read as of the target's watermark, so that the job may go on meanwhile. When the target moves
between two steps, everything begins again with the watermark that it has then.

Whether the targets of jobs are what their sources say, and what brings them back to that.

care = TargetVerification(Jobs(client), source, settings)
report = care.verify(JobId.parse("shop.orders/search"))
if not report.same:
    care.repair(JobId.parse("shop.orders/search"))
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
from penstock.changes.columns import choose_columns, key_names
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.columnar.row_hash import Hashes
from penstock.columnar.spill_queue import SpillTable
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.follow.source import ScanSource, TableScan
from penstock.jobs.api import Jobs, consumer_of
from penstock.jobs.consumer import Comparable, Consumer, is_comparable
from penstock.jobs.job import ErrorCode, Job, JobId, JobState
from penstock.kv import Transaction
from penstock.kv.transact import transact
from penstock.settings import Settings
from penstock.verify.compare import Comparison, Counts, added_samples

__all__ = ["RepairAction", "TargetRepair", "TargetVerification", "TargetVerifyReport", "Verifier"]


T = TypeVar("T")

_log = logging.getLogger(__name__)
_TRIES = 5
_MEND_ROWS = 50_000
_MEND_BYTES = 64 << 20
_MEND_MAX = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVerifyReport:
    """What a comparison found, of a target whose watermark is `at_ts`."""

    job: JobId
    at_ts: int
    source_rows: int
    target_rows: int
    counts: Counts
    samples: dict[str, list[str]] = field(repr=False)
    """Digests of some keys, by how they differ; no values."""

    @property
    def same(self) -> bool:
        """Whether the target is f(source at its watermark)."""
        return not self.counts.total


class _Moment(NamedTuple):
    """At which watermark a target is compared, and the scan of the source as it was then."""

    at_ts: int
    scan: TableScan


class _Remedy(NamedTuple):
    """What has to be done about the differences."""

    put: Hashes
    removed: pa.Table


class Verifier:
    """Compares one target with its source, and mends it; blocks. Files are below `folder`.

    `log_ts` is asked for the target's watermark where the target does not know it itself; `same_ts` for the
    newest timestamp at which the source is what it was at one, because there history is surely kept;
    `proceed` before each batch is read: what it raises ends the comparison. Every method raises StaleRead
    when the source cannot be read at the target's watermark any more, Unavailable when the target never
    stayed where it was for long enough.
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
            raise Invalid(self._rebuild(f"a target of consumer {job.spec.consumer} cannot be compared"))
        self._consumer = consumer
        self._target = cast("Comparable", consumer)
        self._source = source
        self._folder = folder
        self._log_ts = log_ts
        self._same_ts = same_ts
        self._proceed = proceed

    def verify(self) -> TargetVerifyReport:
        """Compare; nothing is changed."""
        return self._again_when_fenced(self._verify)

    def repair(self) -> TargetVerifyReport:
        """Compare, and make the target what it should be; the report says what it was before."""
        return self._again_when_fenced(self._repair)

    def _again_when_fenced(self, work: Callable[[_Moment], T]) -> T:
        for _ in range(_TRIES):
            moment = self._moment()
            try:
                return work(moment)
            except Fenced:
                _log.info(
                    "the target moved meanwhile; it is compared again", extra={"job": str(self._job.id)}
                )
        raise Unavailable(
            f"the target of job {self._job.id} moved on each time before it was compared; pause the job, and"
            " try again"
        )

    def _moment(self) -> _Moment:
        committed_ts = self._consumer.committed_ts()
        at_ts = self._log_ts() if committed_ts is None else committed_ts
        if not at_ts:
            raise Invalid(
                f"job {self._job.id} has not finished its first iteration; there is nothing to compare"
            )
        return _Moment(at_ts, self._source.scan(self._job.key.table_id, 0, self._same_ts(at_ts), ReadLimit()))

    def _verify(self, moment: _Moment) -> TargetVerifyReport:
        with self._compared(moment) as comparison:
            return self._report(moment, comparison)[0]

    def _repair(self, moment: _Moment) -> TargetVerifyReport:
        with self._compared(moment) as comparison:
            report, remedy = self._report(moment, comparison)
            self._mend(remedy, comparison, moment)
        return report

    def _compared(self, moment: _Moment) -> Comparison:
        keys = len(key_names(moment.scan.schema.table))
        shape = self._target.expected(pa.RecordBatch.from_pylist([], self._columns(moment))).schema
        comparison = Comparison(shape, keys, self._folder)
        try:
            comparison.find(self._each(self._target.present(moment.at_ts)))
            comparison.expect(map(self._target.expected, self._rows(moment)))
        except BaseException:
            comparison.close()
            raise
        return comparison

    def _rows(self, moment: _Moment) -> Iterator[pa.RecordBatch]:
        """The source at the target's watermark, as the consumer gets it."""
        columns = self._columns(moment)
        with self._source.open(moment.scan, columns.names) as changes:
            for batch in self._each(changes):
                yield batch.data.select(columns.names).cast(columns)

    def _each(self, batches: Iterator[T]) -> Iterator[T]:
        for batch in batches:
            self._proceed()
            yield batch

    def _columns(self, moment: _Moment) -> pa.Schema:
        return choose_columns(moment.scan.schema.table, self._job.spec.detail.consumer.columns)

    def _report(self, moment: _Moment, comparison: Comparison) -> tuple[TargetVerifyReport, _Remedy]:
        counts, put = Counts(), [np.zeros(0, np.uint64)]
        samples: dict[str, list[str]] = {}
        removed = SpillTable(comparison.key_schema, self._folder / "removed.arrow")
        for part in comparison.differences():
            counts += part.counts
            put.append(part.put)
            for batch in part.removed.to_batches():
                removed.add(batch)
            samples = added_samples(samples, part.samples)
        report = TargetVerifyReport(
            job=self._job.id,
            at_ts=moment.at_ts,
            source_rows=comparison.rows[0],
            target_rows=comparison.rows[1],
            counts=counts,
            samples=samples,
        )
        return report, _Remedy(np.sort(np.concatenate(put)), removed.finish())

    def _mend(self, remedy: _Remedy, comparison: Comparison, moment: _Moment) -> None:
        """Rows that are in the way go first. Several commits: each leaves the target better than before."""
        if len(remedy.put) > _MEND_MAX:
            raise Invalid(
                self._rebuild(f"{len(remedy.put)} rows of job {self._job.id} are missing or different")
            )
        nothing = self._columns(moment).empty_table()
        for start in range(0, remedy.removed.num_rows, _MEND_ROWS):
            leaving = remedy.removed.slice(start, _MEND_ROWS).combine_chunks()
            self._target.repair(nothing, leaving, moment.at_ts)
        brought = 0
        for rows in _in_chunks(self._chosen(remedy.put, comparison, moment)):
            brought += rows.num_rows
            self._target.repair(rows, comparison.key_schema.empty_table(), moment.at_ts)
        if brought < len(remedy.put):
            raise Invalid(self._rebuild(f"rows of job {self._job.id} cannot be found by their keys"))

    def _chosen(self, wanted: Hashes, comparison: Comparison, moment: _Moment) -> Iterator[pa.RecordBatch]:
        """Rows of the source whose keys have one of these hashes; one more than needed does no harm.

        Where the target has other keys than the source, it is asked for them: only then, because what it
        makes of whole rows may cost much.
        """
        for shown in (_as_it_is, self._target.expected):
            missing = np.ones(len(wanted), np.bool_)
            for batch in self._rows(moment) if len(wanted) else ():
                hashes = comparison.key_hashes(shown(batch))
                places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
                found = wanted[places] == hashes
                missing[places[found]] = False
                if found.any():
                    yield batch.filter(pa.array(found))
            wanted = wanted[missing]

    def _rebuild(self, why: str) -> str:
        return f"{why}; fill the target anew with `penstock job repair --rebuild {self._job.id}`"


def _as_it_is(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def _in_chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if (
            sum(each.num_rows for each in held) >= _MEND_ROWS
            or sum(each.nbytes for each in held) >= _MEND_BYTES
        ):
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


_ONLY_ANEW = {ErrorCode.SCHEMA, ErrorCode.TABLE_GONE, ErrorCode.TARGET_DIFFERS}
"""After these there is nothing to compare with."""
_PATIENCE_S = 15.0
_AGAIN_S = 0.1


class RepairAction(StrEnum):
    """What a repair did."""

    NOTHING = "nothing"
    MENDED = "mended"
    REBUILD = "rebuild"
    """The next iteration fills the target anew."""


class TargetRepair(NamedTuple):
    """What a repair did to a job, and what the comparison had found, if there was one."""

    action: RepairAction
    job: Job
    report: TargetVerifyReport | None


class TargetVerification:
    """Verifies and repairs targets, in any process; blocks. Files for comparisons go below `TMPDIR`.

    Every method raises Invalid when there is no such job, or its target cannot be compared.
    """

    def __init__(self, jobs: Jobs, source: ScanSource, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        self._jobs = jobs
        self._source = source
        self._settings = settings
        self._clock = clock

    def verify(self, job_id: JobId, *, proceed: Callable[[], None] = lambda: None) -> TargetVerifyReport:
        """Compare a job's target with its source as of the target's watermark. See Verifier."""
        return self._compared(self._jobs.get_job(job_id), lambda verifier: verifier.verify(), proceed)

    def repair(self, job_id: JobId, *, rebuild: bool = False) -> TargetRepair:
        """Mend a job's target, or have it filled anew where nothing else helps; let the job go on.

        A job whose table was truncated is registered for the table that there is now.
        """
        job = self._jobs.get_job(job_id)
        if rebuild or job.status.error_code in _ONLY_ANEW or self._is_stranded(job):
            anew = self._committed(lambda txn: self._jobs.rebuild_job(txn, job_id))
            return TargetRepair(RepairAction.REBUILD, anew, None)
        report = self._compared(job, lambda verifier: verifier.repair())
        if job.state is JobState.ERROR:
            job = self._committed(lambda txn: self._jobs.resume_job(txn, job_id))
        return TargetRepair(RepairAction.NOTHING if report.same else RepairAction.MENDED, job, report)

    def _committed(self, change: Callable[[Transaction], Job]) -> Job:
        return transact(self._jobs.log.client.begin, change, clock=self._clock)

    def _is_stranded(self, job: Job) -> bool:
        """Whether the table of that name is another one by now, or gone."""
        try:
            return self._jobs.log.catalog.table_info(job.id.table_name).id != job.key.table_id
        except Invalid:
            return True

    def _compared(
        self,
        job: Job,
        work: Callable[[Verifier], TargetVerifyReport],
        proceed: Callable[[], None] = lambda: None,
    ) -> TargetVerifyReport:
        if self._is_stranded(job):
            raise Invalid(
                f"the table of job {job.id} was truncated or dropped; fill the target anew with"
                f" `penstock job repair {job.id}`, or unregister the job"
            )
        with TemporaryDirectory(prefix="penstock-verify-") as folder:
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
        """The newest timestamp at which a table is what it was at another one.

        Waits a while for whoever reads the table to have come so far; then reading it says what is wrong.
        """
        deadline = self._clock.monotonic() + _PATIENCE_S
        while self._clock.monotonic() < deadline:
            look = eventloop.run(self._source.read_progress([table_id])).get(table_id)
            if look is not None and look.readable_ts >= at_ts:
                return look.readable_ts if look.changed_ts <= at_ts else at_ts
            self._clock.pause(_AGAIN_S)
        return at_ts
