"""`penstock verify`: whether targets of jobs and directories of changefeeds are what their sources say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import eventloop
from penstock.changefeeds.model import ChangefeedRecord
from penstock.changefeeds.sinks.storage.options import SinkOptions, sink_options
from penstock.clock import SYSTEM, Clock
from penstock.control import changefeeds, targetcalls
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ts
from penstock.control.job_views import reported
from penstock.control.sourcetables import DeploymentTables
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.jobs.consumer import is_comparable
from penstock.jobs.consumers import find_consumer
from penstock.jobs.durations import parse_duration
from penstock.jobs.freshnessdesk import FreshnessReader
from penstock.jobs.job import Job
from penstock.jobs.jobid import JobId, JobKey
from penstock.jobs.log.job_log import JobLog
from penstock.settings import parse_changefeed
from penstock.verify.directory import FeedFacts, FeedVerifier, directory_reader
from penstock.verify.reports import FeedReport, TableReport
from penstock.verify.results import LastVerification, Outcomes
from penstock.verify.target import TargetVerifyReport

__all__ = ["TargetReport", "VerifyOptions", "last_results", "verify_targets"]

_FEED_PREFIX = "changefeed:"
_AGAIN_S = 0.5

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
        return targetcalls.verify(self.deployment, job_id, account=self.account)

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
            self.clock.pause(_AGAIN_S)


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
