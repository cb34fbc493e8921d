"""Compares targets of jobs and directories of changefeeds with their sources, and repairs targets.

`verify_targets` is `penstock verify`; `verify_target` and `repair_target` are for one job. `DeploymentTables`
reads the source tables for the comparison of a directory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from penstock import eventloop
from penstock.changefeeds.model import ChangefeedRecord
from penstock.changefeeds.sinks.storage.options import SinkOptions, confined_sink_options
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.control.changefeeds import get_changefeed, list_changefeeds
from penstock.control.deployment import Deployment
from penstock.control.display import format_ts
from penstock.control.job_views import report_details
from penstock.durations import parse_duration
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import Consumer, find_consumer, is_comparable
from penstock.jobs.freshness import FreshnessReader
from penstock.jobs.job import Job, JobId, JobKey
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import parse_changefeed
from penstock.tables.kv_scan import ranges_of, scan_of
from penstock.verify.directory import FeedFacts, FeedReport, FeedVerifier, TableReport, directory_reader
from penstock.verify.isolated import IsolatedVerification
from penstock.verify.results import LastVerification, VerificationResults
from penstock.verify.target import TargetRepair, TargetVerification, TargetVerifyReport
from penstock.worker_processes import WorkerProcesses

__all__ = [
    "DeploymentTables",
    "OnProgress",
    "TargetReport",
    "VerifyOptions",
    "read_last_results",
    "repair_target",
    "verify_target",
    "verify_targets",
]


_FEED_PREFIX = "changefeed:"
_CHECKPOINT_POLL_S = 0.5
_PROGRESS_WAIT_S = 15.0
_PROGRESS_POLL_S = 0.1

OnProgress = Callable[[str, str, int], None]
"""Called with the target, the table or side that is being read, and the rows read so far."""


def verify_target(
    deployment: Deployment,
    job_id: JobId,
    *,
    account: str | None = None,
    processes: WorkerProcesses | None = None,
) -> TargetVerifyReport:
    """Compare a job's target with its source: in one of `processes` if the job is a tenant's."""
    return _verification(deployment, account, processes).verify(job_id)


def repair_target(
    deployment: Deployment,
    job_id: JobId,
    *,
    rebuild: bool,
    account: str | None = None,
    processes: WorkerProcesses | None = None,
) -> TargetRepair:
    """Repair a job's target, or have it filled again from the start when `rebuild` is set."""
    return _verification(deployment, account, processes).repair(job_id, rebuild=rebuild)


def _verification(
    deployment: Deployment, account: str | None, processes: WorkerProcesses | None
) -> TargetVerification | IsolatedVerification:
    jobs = deployment.jobs(account)
    if processes is None:
        return TargetVerification(jobs, deployment.source, deployment.settings)
    return IsolatedVerification(
        jobs, lambda: deployment.source, deployment.settings, processes, account=account
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The moment that a target must reach before it is compared; without `at`, compare it as it is."""

    at: str | None = None
    """A timestamp, or `now`."""
    timeout: str = "60s"


@dataclass(frozen=True, slots=True)
class TargetReport:
    """The outcome of one comparison: a report, the error that prevented it, or a note why none is needed."""

    target: str
    report: TargetVerifyReport | FeedReport | None = None
    error: str = ""
    note: str = ""

    @property
    def same(self) -> bool | None:
        """Whether target and source are the same; None when there is no report."""
        return None if self.report is None else self.report.same

    def details(self) -> dict[str, Any]:
        """Return the outcome as JSON, without values of rows and without secrets."""
        facts: dict[str, Any] = {"target": self.target, "same": self.same}
        if isinstance(self.report, TargetVerifyReport):
            facts |= {name: value for name, value in report_details(self.report).items() if name != "job"}
        elif self.report is not None:
            facts |= {
                "at_ts": self.report.at_ts,
                "at_time": format_ts(self.report.at_ts),
                "tables": [_table_details(table) for table in self.report.tables],
            }
        return {**facts, "note": self.note or None, "error": self.error or None}


def verify_targets(
    deployment: Deployment,
    targets: Sequence[str],
    options: VerifyOptions,
    *,
    account: str | None = None,
    on_progress: OnProgress = lambda _target, _what, _rows: None,
) -> list[TargetReport]:
    """Compare targets one after the other, all when none is named. One failure does not stop the rest.

    A target is a job, `database.table/job`, or `changefeed:NAME`. Raises Invalid when a name has another form
    and NotFound when there is no such target, before anything is compared.
    """
    at_ts = _parse_moment(deployment, options.at)
    timeout_s = parse_duration(options.timeout)
    chosen = _find_targets(deployment, targets, account) if targets else _list_targets(deployment, account)
    comparer = _TargetComparer(deployment, at_ts, timeout_s, account, on_progress)
    return [comparer.compare(target, named=bool(targets)) for target in chosen]


def read_last_results(deployment: Deployment, jobs: Iterable[Job]) -> dict[JobKey, LastVerification]:
    """Return the runner's last verification of each job; a job that it has not verified is left out."""
    return VerificationResults(deployment.jobs().log).read(job.key for job in jobs)


def _parse_moment(deployment: Deployment, text: str | None) -> int | None:
    if text is None:
        return None
    if text == "now":
        return deployment.now_ts()
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"{text!r} is not a timestamp; write now, or a number as `penstock status` shows them")
    return int(text)


def _find_targets(
    deployment: Deployment, targets: Sequence[str], account: str | None
) -> list[Job | ChangefeedRecord]:
    jobs = deployment.jobs(account)
    return [
        get_changefeed(deployment, name.removeprefix(_FEED_PREFIX), account=account)
        if name.startswith(_FEED_PREFIX)
        else jobs.get_job(JobId.parse(name))
        for name in dict.fromkeys(targets)
    ]


def _list_targets(deployment: Deployment, account: str | None) -> list[Job | ChangefeedRecord]:
    return [*deployment.jobs(account).get_jobs(None), *list_changefeeds(deployment, account=account)]


@dataclass(frozen=True, slots=True)
class _TargetComparer:
    """Compares targets of a deployment once they have reached `at_ts`."""

    deployment: Deployment
    at_ts: int | None
    timeout_s: float
    account: str | None
    on_progress: OnProgress
    clock: Clock = field(default=SYSTEM)

    def compare(self, target: Job | ChangefeedRecord, *, named: bool) -> TargetReport:
        """Compare one target. A target that cannot be compared is an error only when it was named."""
        name = str(target.id) if isinstance(target, Job) else f"{_FEED_PREFIX}{target.info.id}"
        self.on_progress(name, "", 0)
        try:
            if isinstance(target, ChangefeedRecord):
                return TargetReport(name, self._compare_feed(target, partial(self.on_progress, name)))
            if not named and not is_comparable(self._consumer_class(target)):
                note = f"a target of consumer {target.spec.consumer} has no rows to read"
                return TargetReport(name, note=note)
            return TargetReport(name, self._compare_job(target.id))
        except PenstockError as error:
            return TargetReport(name, error=str(error))

    def _consumer_class(self, job: Job) -> type[Consumer]:
        return find_consumer(job.spec.consumer, self.deployment.settings.jobs.allowed_code)

    def _compare_job(self, job_id: JobId) -> TargetVerifyReport:
        if self.at_ts is not None:
            deployment = self.deployment
            reader = FreshnessReader(
                deployment.jobs(self.account).get_job,
                deployment.source,
                deployment.settings.jobs,
                attended=deployment.has_runner,
            )
            eventloop.run(reader.wait_for(job_id, self.at_ts, timeout_s=self.timeout_s))
        return verify_target(self.deployment, job_id, account=self.account)

    def _compare_feed(self, feed: ChangefeedRecord, on_progress: Callable[[str, int], None]) -> FeedReport:
        settings = parse_changefeed(feed.info.settings, origin=f"changefeed {feed.info.id}")
        options = confined_sink_options(self.deployment.settings, feed.info.account, settings)
        if self.at_ts is not None:
            self._wait_for_checkpoint(feed, options, self.at_ts)
        now = get_changefeed(self.deployment, feed.info.id)  # it may have been started again meanwhile
        facts = FeedFacts(
            name=feed.info.id,
            tables=settings.tables,
            start_ts=now.start_ts,
            snapshot=now.begins_with_rows,
            left_out={table.name: table.reason for table in now.status.left_out},
            account=feed.info.account,
        )
        source = DeploymentTables(self.deployment, clock=self.clock)
        with TemporaryDirectory(prefix="penstock-verify-") as folder:
            return FeedVerifier(facts, options, source, Path(folder), on_progress=on_progress).verify()

    def _wait_for_checkpoint(self, feed: ChangefeedRecord, options: SinkOptions, at_ts: int) -> None:
        """Wait until the directory is complete up to a timestamp.

        Raises Unavailable after the timeout, Invalid when the changefeed does not run.
        """
        reader = directory_reader(options)
        deadline = self.clock.monotonic() + self.timeout_s
        while (reached := _read_checkpoint(reader.checkpoint)) < at_ts:
            if not get_changefeed(self.deployment, feed.info.id).runnable:
                raise Invalid(
                    f"changefeed {feed.info.id} does not run and is at {reached}; start it with"
                    f" `penstock changefeed resume {feed.info.id}`, or compare it without --at"
                )
            if self.clock.monotonic() >= deadline:
                raise Unavailable(
                    f"changefeed {feed.info.id} is at {reached}, not at {at_ts}, after"
                    f" {self.timeout_s:g} s; wait longer with --timeout"
                )
            self.clock.pause(_CHECKPOINT_POLL_S)


def _read_checkpoint(read: Callable[[], int]) -> int:
    """Return the checkpoint of a directory; 0 before it has one."""
    try:
        return read()
    except Invalid:
        return 0


def _table_details(table: TableReport) -> dict[str, Any]:
    counts = table.counts
    return {
        "table": table.table,
        "same": table.same,
        "compared": table.scope.value,
        "source_rows": table.source_rows,
        "target_rows": table.target_rows,
        "missing": counts.missing,
        "different": counts.different,
        "extra": counts.extra,
        "duplicates": counts.duplicates,
        "digests_of_keys": dict(table.samples),
        "keys_seen": table.keys_seen,
        "keys_moving": table.keys_moving,
        "faults": list(table.faults),
        "note": table.note or None,
    }


class DeploymentTables:
    """Implements SourceTables. Rows come from the event store, or from the cluster when that has none."""

    def __init__(self, deployment: Deployment, *, clock: Clock = SYSTEM) -> None:
        self._deployment = deployment
        self._clock = clock

    def tables(self, at_ts: int) -> Sequence[SchemaVersion]:
        """Return every table that existed at a timestamp and can be read.

        Raises Invalid when the cluster has collected the schema of that time.
        """
        schema = self._deployment.catalog.schema(at_ts)
        owners = self._deployment.catalog.owned_databases(at_ts=at_ts)
        return [
            SchemaVersion(0, 0, table, database.name, owners[database.name].name)
            for database in schema.databases.values()
            for table in schema.tables[database.id].values()
            if table.is_base_table and not table.unreadable
        ]

    def rows(self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table at a timestamp.

        Raises StaleRead or Unavailable when neither the event store nor the cluster has them.
        """
        captured = self._read_captured(schema, at_ts, columns)
        try:
            first = next(captured, None)
        except (StaleRead, Unavailable) as error:
            yield from self._read_cluster(schema, at_ts, columns, error)
        else:
            yield from () if first is None else chain([first], captured)

    def changed_keys(
        self, schema: SchemaVersion, after_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the rows that changed after a timestamp, up to now.

        Raises Unavailable when nobody captures the table up to now.
        """
        source, table_id = self._deployment.source, schema.table.id
        to_ts = self._deployment.now_ts()
        if self._same_ts(table_id, after_ts, upto_ts=to_ts) >= to_ts:
            return
        from_ts = after_ts
        while from_ts < to_ts:
            scan = source.scan(table_id, from_ts, to_ts, ReadLimit())
            with source.open(scan, columns, impossible_dates=True) as changes:
                for batch in changes:
                    yield batch.data.select(columns)
                    yield batch.tombstones.select(columns)
            from_ts = scan.to_ts

    def _read_captured(
        self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        source, table_id = self._deployment.source, schema.table.id
        scan = source.scan(table_id, 0, self._same_ts(table_id, at_ts, upto_ts=at_ts), ReadLimit())
        with source.open(scan, columns, impossible_dates=True) as changes:
            for batch in changes:
                yield batch.data.select(columns)

    def _read_cluster(
        self, schema: SchemaVersion, at_ts: int, columns: Sequence[str], why: StaleRead | Unavailable
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from the cluster; raise `why` when they are gone there too."""
        cluster = ClusterRef.of(self._deployment.settings)
        try:
            place = self._deployment.catalog.schema(at_ts).place(schema.name)
            scan = scan_of(cluster, place, at_ts, columns)
            for part in ranges_of(cluster.client(), scan):
                yield from part.read()
        except Invalid:
            raise why from None

    def _same_ts(self, table_id: int, at_ts: int, *, upto_ts: int) -> int:
        """Return the newest timestamp at which the table is known to equal itself at `at_ts`.

        History is kept longest there. Waits a while until the table is captured up to `upto_ts`; returns
        `at_ts` when it is not.
        """
        deadline = self._clock.monotonic() + _PROGRESS_WAIT_S
        while self._clock.monotonic() < deadline:
            progress = self._deployment.readable_ranges([table_id]).get(table_id)
            if progress is None or progress.refusal is not None:
                return at_ts
            if progress.readable_ts >= upto_ts:
                return progress.readable_ts if progress.changed_ts <= at_ts else at_ts
            self._clock.pause(_PROGRESS_POLL_S)
        return at_ts
