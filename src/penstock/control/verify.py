"""`penstock verify`: whether targets of jobs and directories of changefeeds are what their sources say.

The tables of a deployment as a comparison reads them: at a timestamp, and what changed after one.

Whether the target of a job is what its source says, and what brings it back to that.
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
from penstock.changefeeds.sinks.storage.options import SinkOptions, sink_options
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.control import changefeeds
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ts
from penstock.control.job_views import reported
from penstock.durations import parse_duration
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import find_consumer, is_comparable
from penstock.jobs.freshness import FreshnessReader
from penstock.jobs.job import Job, JobId, JobKey
from penstock.jobs.log.job_log import JobLog
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import parse_changefeed
from penstock.tables.kv_scan import ranges_of, scan_of
from penstock.verify.directory import FeedFacts, FeedReport, FeedVerifier, TableReport, directory_reader
from penstock.verify.results import LastVerification, Outcomes
from penstock.verify.target import TargetVerification, TargetVerifyReport

__all__ = [
    "DeploymentTables",
    "TargetReport",
    "Tell",
    "VerifyOptions",
    "last_results",
    "repair",
    "verify",
    "verify_targets",
]


_PATIENCE_S = 15.0
_TABLES_AGAIN_S = 0.1


class DeploymentTables:
    """Implements SourceTables. Rows come from the event store, or from the cluster where that has none."""

    def __init__(self, deployment: Deployment, *, clock: Clock = SYSTEM) -> None:
        self._deployment = deployment
        self._clock = clock

    def tables(self, at_ts: int) -> Sequence[SchemaVersion]:
        """See SourceTables. Raises Invalid when the cluster has collected what it was then."""
        schema = self._deployment.catalog.schema(at_ts)
        return [
            SchemaVersion(0, 0, table, database.name)
            for database in schema.databases.values()
            for table in schema.tables[database.id].values()
            if table.is_base_table
        ]

    def rows(self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See SourceTables."""
        captured = self._captured(schema, at_ts, columns)
        try:
            first = next(captured, None)
        except (StaleRead, Unavailable) as error:
            yield from self._stored(schema, at_ts, columns, error)
        else:
            yield from () if first is None else chain([first], captured)

    def touched(
        self, schema: SchemaVersion, after_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """See SourceTables. Raises Unavailable when nobody captures the table up to now."""
        source, table_id = self._deployment.source, schema.table.id
        to_ts = self._deployment.now_ts()
        if self._same_ts(table_id, after_ts, upto_ts=to_ts) >= to_ts:
            return
        from_ts = after_ts
        while from_ts < to_ts:
            scan = source.scan(table_id, from_ts, to_ts, ReadLimit())
            with source.open(scan, columns) as changes:
                for batch in changes:
                    yield batch.data.select(columns)
                    yield batch.tombstones.select(columns)
            from_ts = scan.to_ts

    def _captured(
        self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        source, table_id = self._deployment.source, schema.table.id
        scan = source.scan(table_id, 0, self._same_ts(table_id, at_ts, upto_ts=at_ts), ReadLimit())
        with source.open(scan, columns) as changes:
            for batch in changes:
                yield batch.data.select(columns)

    def _stored(
        self, schema: SchemaVersion, at_ts: int, columns: Sequence[str], why: StaleRead | Unavailable
    ) -> Iterator[pa.RecordBatch]:
        """The same rows out of the cluster; if they are gone there too, raise why they are not captured."""
        cluster = ClusterRef.of(self._deployment.settings)
        try:
            place = self._deployment.catalog.schema(at_ts).place(schema.name)
            scan = scan_of(cluster, place, at_ts, columns)
            for part in ranges_of(cluster.client(), scan):
                yield from part.read()
        except Invalid:
            raise why from None

    def _same_ts(self, table_id: int, at_ts: int, *, upto_ts: int) -> int:
        """The newest timestamp at which a table is what it was at `at_ts`, known up to `upto_ts` at least.

        There history is surely kept. Waits a while for whoever reads the table to have come so far.
        """
        deadline = self._clock.monotonic() + _PATIENCE_S
        while self._clock.monotonic() < deadline:
            look = self._deployment.looks([table_id]).get(table_id)
            if look is None:
                return at_ts
            if look.readable_ts >= upto_ts:
                return look.readable_ts if look.changed_ts <= at_ts else at_ts
            self._clock.pause(_TABLES_AGAIN_S)
        return at_ts


def verify(deployment: Deployment, job_id: JobId, *, account: str | None = None) -> TargetVerifyReport:
    """Compare a job's target with its source."""
    return _care(deployment, account).verify(job_id)


def repair(
    deployment: Deployment, job_id: JobId, *, rebuild: bool, account: str | None = None
) -> dict[str, Any]:
    """Mend a job's target, or have it filled anew; what was done, and what was found before."""
    done = _care(deployment, account).repair(job_id, rebuild=rebuild)
    answer = {"job": str(job_id), "action": done.action.value, "table_id": done.job.key.table_id}
    found = {} if done.report is None else reported(done.report)
    return answer | {name: value for name, value in found.items() if name not in {"job", "same"}}


def _care(deployment: Deployment, account: str | None) -> TargetVerification:
    return TargetVerification(deployment.jobs(account), deployment.source, deployment.settings)


_FEED_PREFIX = "changefeed:"
_VERIFY_AGAIN_S = 0.5

Tell = Callable[[str, str, int], None]
"""Hears of progress: the target, what of it is read, and how many rows were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Which moment a target has to have reached before it is compared; None: as it is."""

    at: str | None = None
    """A timestamp, or `now`."""
    timeout: str = "60s"


@dataclass(frozen=True, slots=True)
class TargetReport:
    """What became of one comparison: a report, why there is none, or why there need not be one."""

    target: str
    report: TargetVerifyReport | FeedReport | None = None
    error: str = ""
    note: str = ""

    @property
    def same(self) -> bool | None:
        """Whether nothing differs; None when nobody knows."""
        return None if self.report is None else self.report.same

    def shown(self) -> dict[str, Any]:
        """As JSON has it: no values of rows, no secrets."""
        facts: dict[str, Any] = {"target": self.target, "same": self.same}
        if isinstance(self.report, TargetVerifyReport):
            facts |= {name: each for name, each in reported(self.report).items() if name not in {"job"}}
        elif self.report is not None:
            facts |= {
                "at_ts": self.report.at_ts,
                "at_time": shown_ts(self.report.at_ts),
                "tables": [_shown_table(each) for each in self.report.tables],
            }
        return {**facts, "note": self.note or None, "error": self.error or None}


def verify_targets(
    deployment: Deployment,
    targets: Sequence[str],
    options: VerifyOptions,
    *,
    account: str | None = None,
    tell: Tell = lambda _target, _what, _rows: None,
) -> list[TargetReport]:
    """Compare targets, by default all, one after the other; one that fails does not stop the others.

    A target is a job, `database.table/job`, or `changefeed:NAME`. Raises Invalid when one is written
    otherwise or is not there, before anything is compared.
    """
    at_ts = _at_ts(deployment, options.at)
    timeout_s = parse_duration(options.timeout)
    found = _named(deployment, targets, account) if targets else _all(deployment, account)
    work = _Comparing(deployment, at_ts, timeout_s, account, tell)
    return [work.compared(each, named=bool(targets)) for each in found]


def last_results(deployment: Deployment, jobs: Iterable[Job]) -> dict[JobKey, LastVerification]:
    """What the runner found when it last verified these jobs; those that it never has are left out."""
    return Outcomes(JobLog(deployment.face, catalog=deployment.catalog)).read(job.key for job in jobs)


def _at_ts(deployment: Deployment, text: str | None) -> int | None:
    if text is None:
        return None
    if text == "now":
        return deployment.now_ts()
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"{text!r} is no timestamp; write now, or a number as `penstock status` shows them")
    return int(text)


def _named(
    deployment: Deployment, targets: Sequence[str], account: str | None
) -> list[Job | ChangefeedRecord]:
    jobs = deployment.jobs(account)
    return [
        changefeeds.get(deployment, each.removeprefix(_FEED_PREFIX), account=account)
        if each.startswith(_FEED_PREFIX)
        else jobs.get_job(JobId.parse(each))
        for each in dict.fromkeys(targets)
    ]


def _all(deployment: Deployment, account: str | None) -> list[Job | ChangefeedRecord]:
    return [*deployment.jobs(account).get_jobs(None), *changefeeds.listed(deployment, account=account)]


@dataclass(frozen=True, slots=True)
class _Comparing:
    """Compares targets of a deployment once they have reached `at_ts`."""

    deployment: Deployment
    at_ts: int | None
    timeout_s: float
    account: str | None
    tell: Tell
    clock: Clock = field(default=SYSTEM)

    def compared(self, target: Job | ChangefeedRecord, *, named: bool) -> TargetReport:
        """Compare one; `named`: somebody asked for this one."""
        name = str(target.id) if isinstance(target, Job) else f"{_FEED_PREFIX}{target.info.id}"
        self.tell(name, "", 0)
        try:
            if isinstance(target, ChangefeedRecord):
                return TargetReport(name, self._feed(target, partial(self.tell, name)))
            if not named and not is_comparable(find_consumer(target.spec.consumer)):
                note = f"a target of consumer {target.spec.consumer} has no rows that could be read"
                return TargetReport(name, note=note)
            return TargetReport(name, self._job(target.id))
        except PenstockError as error:
            return TargetReport(name, error=str(error))

    def _job(self, job_id: JobId) -> TargetVerifyReport:
        if self.at_ts is not None:
            deployment = self.deployment
            desk = FreshnessReader(
                deployment.jobs(self.account).get_job,
                deployment.source,
                deployment.settings.jobs,
                attended=deployment.attended,
            )
            eventloop.run(desk.wait_for(job_id, self.at_ts, timeout_s=self.timeout_s))
        return verify(self.deployment, job_id, account=self.account)

    def _feed(self, feed: ChangefeedRecord, tell: Callable[[str, int], None]) -> FeedReport:
        settings = parse_changefeed(feed.info.settings, origin=f"changefeed {feed.info.id}")
        options = sink_options(settings)
        if self.at_ts is not None:
            self._wait(feed, options, self.at_ts)
        now = changefeeds.get(self.deployment, feed.info.id)  # it may have begun at another place meanwhile
        facts = FeedFacts(
            name=feed.info.id,
            tables=settings.tables,
            start_ts=now.start_ts,
            snapshot=now.begins_with_rows,
        )
        source = DeploymentTables(self.deployment, clock=self.clock)
        with TemporaryDirectory(prefix="penstock-verify-") as folder:
            return FeedVerifier(facts, options, source, Path(folder), tell=tell).verify()

    def _wait(self, feed: ChangefeedRecord, options: SinkOptions, at_ts: int) -> None:
        """Wait until the directory is complete up to a timestamp; Unavailable when that takes too long."""
        reader = directory_reader(options)
        deadline = self.clock.monotonic() + self.timeout_s
        while (reached := _checkpoint(reader.checkpoint)) < at_ts:
            if not changefeeds.get(self.deployment, feed.info.id).runnable:
                raise Invalid(
                    f"changefeed {feed.info.id} does not go on from {reached}; let it with"
                    f" `penstock changefeed resume {feed.info.id}`, or compare it without --at"
                )
            if self.clock.monotonic() >= deadline:
                raise Unavailable(
                    f"changefeed {feed.info.id} has come to {reached}, not to {at_ts}, after"
                    f" {self.timeout_s:g} s; wait longer with --timeout"
                )
            self.clock.pause(_VERIFY_AGAIN_S)


def _checkpoint(read: Callable[[], int]) -> int:
    """That of a directory; 0 before it has one."""
    try:
        return read()
    except Invalid:
        return 0


def _shown_table(table: TableReport) -> dict[str, Any]:
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
