"""Rules for Prometheus: what somebody should be told of, and what to do then."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from monitoring.declared import require_declared

__all__ = ["ALERTS", "RUNBOOK", "Alert", "Severity", "rules", "scraping"]

RUNBOOK = "docs/reference/alerts.md"


class Severity(StrEnum):
    """Who should hear of it."""

    CRITICAL = "critical"
    """Somebody, now: changes do not arrive."""
    WARNING = "warning"
    """Somebody, today: changes arrive late, or soon will."""
    INFO = "info"
    """Whoever looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule. It is about what `expression` gives, once that has gone on for `lasting`."""

    name: str
    expression: str
    lasting: str
    severity: Severity
    summary: str
    """What is so, for a person who is woken up; {{ $labels.x }} names what it is about."""
    meaning: str
    remedy: str

    @property
    def runbook(self) -> str:
        """Where its section is."""
        return f"{RUNBOOK}#{self.name.lower()}"


ALERTS = (
    Alert(
        name="PenstockPartDown",
        expression="penstock_part_up == 0",
        lasting="1m",
        severity=Severity.CRITICAL,
        summary="Part {{ $labels.part }} does not show its metrics",
        meaning="The part has ended and is not up again, or hangs.",
        remedy="`penstock status` shows its last error and how often it was started again; the log of"
        " `penstock up` has its last lines. `penstock doctor` checks the machine.",
    ),
    Alert(
        name="PenstockPullerBehind",
        expression="penstock_subscription_client_resolved_ts_lag > 60",
        lasting="5m",
        severity=Severity.WARNING,
        summary="The change streams of {{ $labels.part }} are {{ $value | humanizeDuration }} behind",
        meaning="A region does not say how far it is: a store is away, or a transaction holds its locks.",
        remedy="`penstock status` names the region or the lock. A lock of a client that is gone is resolved"
        " by itself within a minute; one of a transaction that runs for long goes with that transaction.",
    ),
    Alert(
        name="PenstockCaptureBehind",
        expression="penstock_eventstore_resolved_lag_seconds > 60",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary="A table of {{ $labels.part }} is {{ $value | humanizeDuration }} behind",
        meaning="Nobody can read the newest changes of that table: changefeeds and jobs wait.",
        remedy="When change streams are behind too, mend that first. Else the disk of `capture.data` is slow"
        " or full, or one capture has too much: look at `penstock_eventstore_wal_write_seconds`, and start"
        " another capture.",
    ),
    Alert(
        name="PenstockStreamsCongested",
        expression="sum by (part) (increase(penstock_store_cdc_congested_total[15m])) > 3",
        lasting="5m",
        severity=Severity.WARNING,
        summary="{{ $labels.part }} ends change streams because their readers are slow",
        meaning="A capture reads slower than the store sends; each such end costs a scan.",
        remedy="Give the capture more processors, or start another one.",
    ),
    Alert(
        name="PenstockFlushesFail",
        expression="sum by (part, reason) (increase(penstock_eventstore_flush_failures_total[15m])) > 5",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Flushes of {{ $labels.part }} fail: {{ $labels.reason }}",
        meaning="Object storage does not take objects (`unavailable`), or captures fight over tables"
        " (`fenced`). Nothing is lost: rows stay in the log, which grows.",
        remedy="Check that `capture.storage` answers and may be written to: `penstock doctor` tries it. With"
        " `fenced`, see that no two captures have the same id.",
    ),
    Alert(
        name="PenstockUpkeepFails",
        expression="sum by (part, duty) (increase(penstock_eventstore_upkeep_failures_total[1h])) > 5",
        lasting="15m",
        severity=Severity.WARNING,
        summary="{{ $labels.duty }} of {{ $labels.part }} fails again and again",
        meaning="Objects are not merged, or history is not collected: reads become slower, storage grows.",
        remedy="The log says why. Usually it is object storage.",
    ),
    Alert(
        name="PenstockRowsWereNeverCaptured",
        expression="sum by (part) (increase(penstock_eventstore_unknown_rows_total[1h])) > 0",
        lasting="0s",
        severity=Severity.WARNING,
        summary="{{ $labels.part }} has met deletes of rows that were never captured",
        meaning="Rows that were there before the capture began were changed; a snapshot of that table was not"
        " loaded, or its history was collected too early.",
        remedy="Compare with the source: `penstock verify`.",
    ),
    Alert(
        name="PenstockChangefeedBehind",
        expression="max by (changefeed) (penstock_sink_checkpoint_lag_seconds) > 300",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary="Changefeed {{ $labels.changefeed }} is {{ $value | humanizeDuration }} behind",
        meaning="Consumers of its files do not see newer changes.",
        remedy="`penstock changefeed query NAME` shows its error. Without one: a capture that is behind,"
        " a remote that is slow (`penstock_sink_flush_duration_seconds`), or too few executors"
        " (`penstock_sink_encode_duration_seconds`).",
    ),
    Alert(
        name="PenstockChangefeedFails",
        expression="sum by (changefeed, stage) (increase(penstock_sink_errors_total[15m])) > 3",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Changefeed {{ $labels.changefeed }} fails at {{ $labels.stage }}",
        meaning="It begins again from its checkpoint each time, and will give up.",
        remedy="`penstock changefeed query NAME` shows the error; most often the remote refuses to be written"
        " to.",
    ),
    Alert(
        name="PenstockSpoolFull",
        expression="sum by (changefeed) (penstock_sink_spool_bytes)"
        ' >= max by (changefeed) (penstock_sink_spool_mark_bytes{mark="high"})',
        lasting="10m",
        severity=Severity.WARNING,
        summary="The spool of changefeed {{ $labels.changefeed }} is full",
        meaning="Changes are encoded faster than the remote takes them; nothing more is read until it has.",
        remedy="Check the remote, and how long files take: `penstock_sink_flush_duration_seconds`. More"
        " `worker-count` lets more requests overlap.",
    ),
    Alert(
        name="PenstockChangefeedStuck",
        expression="max by (changefeed) (penstock_sink_oldest_unflushed_age_seconds) > 900",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Changefeed {{ $labels.changefeed }} holds changes for {{ $value | humanizeDuration }}",
        meaning="What was encoded does not come to the remote; once the spool is full, nothing more is read.",
        remedy="Check the remote; then `penstock_sink_flush_count_total` with reason `error`.",
    ),
    Alert(
        name="PenstockChangefeedLeftRowsOut",
        expression="sum by (changefeed) (increase(penstock_sink_stale_rows_total[1h])) > 0",
        lasting="0s",
        severity=Severity.WARNING,
        summary="Changefeed {{ $labels.changefeed }} left rows out",
        meaning="The remote has a newer version of their table than the changefeed: somebody else writes to"
        " the same place, or it was set back.",
        remedy="Give each changefeed its own place. Compare with the source: `penstock verify"
        " changefeed:NAME`.",
    ),
    Alert(
        name="PenstockNobodyRunsJobs",
        expression="sum(penstock_jobs_runner) == 0",
        lasting="2m",
        severity=Severity.CRITICAL,
        summary="No process runs jobs",
        meaning="Processes that could are there, and none has the lease: the cluster does not answer, or they"
        " have just changed.",
        remedy="The log of `penstock job run` says what it waits for.",
    ),
    Alert(
        name="PenstockJobBehind",
        expression="max by (job) (penstock_jobs_watermark_lag_seconds) > 900",
        lasting="10m",
        severity=Severity.WARNING,
        summary="Job {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
        meaning="Its target does not have newer changes. A job with a trigger of its own may have to wait.",
        remedy="`penstock job status JOB` shows its last error and what it waits for;"
        " `penstock_jobs_queue_wait_seconds` whether there are too few workers.",
    ),
    Alert(
        name="PenstockJobsInError",
        expression='sum by (state) (penstock_jobs_jobs{state="error"}) > 0',
        lasting="5m",
        severity=Severity.CRITICAL,
        summary="{{ $value }} jobs have stopped with an error",
        meaning="They are not tried again before somebody has mended them.",
        remedy="`penstock job list` shows which; `penstock job status JOB` why. Mend the cause, then"
        " `penstock job repair JOB` or `penstock job resume JOB`.",
    ),
    Alert(
        name="PenstockTargetDiffers",
        expression="max by (job) (penstock_jobs_differences) > 0",
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="{{ $value }} rows in the target of job {{ $labels.job }} are not those of its source",
        meaning="The job was compared with its source on schedule. It goes on; what differs stays so.",
        remedy="`penstock job repair JOB` mends it. Somebody else who writes to the target will do so again.",
    ),
    Alert(
        name="PenstockJobsRetry",
        expression='sum by (how) (increase(penstock_jobs_endings_total{how=~"retried|failed"}[15m])) > 10',
        lasting="5m",
        severity=Severity.WARNING,
        summary="Iterations of jobs end badly: {{ $labels.how }}",
        meaning="Targets or sources do not answer; what failed is tried again with all of its changes.",
        remedy="`penstock job list` shows the errors.",
    ),
    Alert(
        name="PenstockJobsRefused",
        expression="sum by (part) (increase(penstock_jobs_refused_iterations_total[15m])) > 10",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Iterations find no room in the queue",
        meaning="More jobs are due than workers can do.",
        remedy="More `jobs.workers`, or triggers that are due less often.",
    ),
    Alert(
        name="PenstockConsumersHang",
        expression="sum by (part) (penstock_jobs_abandoned_consumers) > 0",
        lasting="15m",
        severity=Severity.WARNING,
        summary="{{ $value }} consumers go on although their jobs were canceled",
        meaning="Each keeps a thread and its memory; what it writes does not count.",
        remedy="Give the consumer timeouts of its own; restart the runner to be rid of them.",
    ),
    Alert(
        name="PenstockApiFails",
        expression='sum(rate(penstock_api_requests_total{status=~"5.."}[5m])) > 0.1',
        lasting="5m",
        severity=Severity.WARNING,
        summary="The API answers with errors of its own",
        meaning="Requests fail for a reason that is not the caller's.",
        remedy="`/ready` says what is missing; the log of the API has each error.",
    ),
    Alert(
        name="PenstockTracesAreLost",
        expression='sum by (part) (increase(penstock_tracing_spans_total{outcome!="sent"}[15m])) > 0',
        lasting="15m",
        severity=Severity.INFO,
        summary="{{ $labels.part }} cannot send all traces",
        meaning="The endpoint does not take them, or there are too many. Nothing else is disturbed.",
        remedy="Check `tracing.endpoint` and its headers; lower `tracing.sample`.",
    ),
)


def rules() -> dict[str, Any]:
    """The file of rules; raise Invalid when one asks for a metric that there is not."""
    for alert in ALERTS:
        require_declared(alert.expression)
    return {
        "groups": [
            {
                "name": "penstock",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.lasting,
                        "labels": {"severity": alert.severity.value},
                        "annotations": {
                            "summary": alert.summary,
                            "description": alert.meaning,
                            "runbook_url": alert.runbook,
                        },
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }


def scraping(addr: str) -> dict[str, Any]:
    """How Prometheus finds the metrics of a deployment at the API's address, and these rules."""
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {
                "job_name": "penstock",
                "honor_labels": True,
                "static_configs": [{"targets": [addr]}],
            }
        ],
    }
