"""Alert rules for Prometheus: when to alert, what it means, and what to do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from monitoring.declared import require_declared

__all__ = ["ALERTS", "RUNBOOK", "Alert", "Severity", "alert_rules", "scrape_config"]

RUNBOOK = "docs/reference/alerts.md"


class Severity(StrEnum):
    """How urgent an alert is."""

    CRITICAL = "critical"
    """Act now: changes do not arrive."""
    WARNING = "warning"
    """Act today: changes arrive late, or soon will."""
    INFO = "info"
    """For information: nothing needs to be done at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule: it fires once `expression` has had results for `lasting`."""

    name: str
    expression: str
    lasting: str
    severity: Severity
    summary: str
    """The problem in one line, for the person on call; {{ $labels.x }} names the object."""
    meaning: str
    remedy: str

    @property
    def runbook(self) -> str:
        """The link to its section."""
        return f"{RUNBOOK}#{self.name.lower()}"


ALERTS = (
    Alert(
        name="PenstockPartDown",
        expression="penstock_part_up == 0",
        lasting="1m",
        severity=Severity.CRITICAL,
        summary="Part {{ $labels.part }} does not serve its metrics",
        meaning="The part has ended and is not running again, or it hangs.",
        remedy="`penstock status` shows its last error and its restarts; the log of"
        " `penstock up` has its last lines. `penstock doctor` checks the machine.",
    ),
    Alert(
        name="PenstockPullerBehind",
        expression="penstock_subscription_client_resolved_ts_lag > 60",
        lasting="5m",
        severity=Severity.WARNING,
        summary="The change streams of {{ $labels.part }} are {{ $value | humanizeDuration }} behind",
        meaning="A region reports no progress: a store is away, or a transaction holds locks.",
        remedy="`penstock status` names the region or the lock. A lock of a client that is gone is resolved"
        " within a minute; a lock of a long transaction stays until that transaction ends.",
    ),
    Alert(
        name="PenstockCaptureBehind",
        expression="penstock_eventstore_resolved_lag_seconds > 60",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary="A table of {{ $labels.part }} is {{ $value | humanizeDuration }} behind",
        meaning="The newest changes of that table cannot be read: changefeeds and jobs wait.",
        remedy="If change streams are behind too, fix that first. Else the disk of `capture.data` is slow"
        " or full, or one capture has too much: check `penstock_eventstore_wal_write_seconds`, and"
        " start another capture.",
    ),
    Alert(
        name="PenstockStreamsCongested",
        expression="sum by (part) (increase(penstock_store_cdc_congested_total[15m])) > 3",
        lasting="5m",
        severity=Severity.WARNING,
        summary="{{ $labels.part }} ends change streams because their readers are slow",
        meaning="A capture reads more slowly than the store sends; each ended stream costs a scan.",
        remedy="Give the capture more processors, or start another capture.",
    ),
    Alert(
        name="PenstockFlushesFail",
        expression="sum by (part, reason) (increase(penstock_eventstore_flush_failures_total[15m])) > 5",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Flushes of {{ $labels.part }} fail: {{ $labels.reason }}",
        meaning="Object storage refuses objects (`unavailable`), or two captures claim the same tables"
        " (`fenced`). Nothing is lost: rows stay in the log, which grows.",
        remedy="Check that `capture.storage` answers and can be written to: `penstock doctor` tries it. For"
        " `fenced`, check that no two captures have the same id.",
    ),
    Alert(
        name="PenstockUpkeepFails",
        expression="sum by (part, duty) (increase(penstock_eventstore_upkeep_failures_total[1h])) > 5",
        lasting="15m",
        severity=Severity.WARNING,
        summary="{{ $labels.duty }} of {{ $labels.part }} fails repeatedly",
        meaning="Objects are not merged, or history is not collected: reads become slower and storage grows.",
        remedy="The log says why. The usual cause is object storage.",
    ),
    Alert(
        name="PenstockRowsWereNeverCaptured",
        expression="sum by (part) (increase(penstock_eventstore_unknown_rows_total[1h])) > 0",
        lasting="0s",
        severity=Severity.WARNING,
        summary="{{ $labels.part }} has received deletes of rows that were never captured",
        meaning="Rows from before the capture began were deleted: the snapshot of that table was not loaded,"
        " or its history was collected too early.",
        remedy="Compare the targets with their sources: `penstock verify`.",
    ),
    Alert(
        name="PenstockChangefeedBehind",
        expression="max by (changefeed) (penstock_sink_checkpoint_lag_seconds) > 300",
        lasting="5m",
        severity=Severity.CRITICAL,
        summary="Changefeed {{ $labels.changefeed }} is {{ $value | humanizeDuration }} behind",
        meaning="Consumers of its files do not see newer changes.",
        remedy="`penstock changefeed query NAME` shows its error. Without an error, a capture is behind,"
        " the remote is slow (`penstock_sink_flush_duration_seconds`), or there are too few executors"
        " (`penstock_sink_encode_duration_seconds`).",
    ),
    Alert(
        name="PenstockChangefeedFails",
        expression="sum by (changefeed, stage) (increase(penstock_sink_errors_total[15m])) > 3",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Changefeed {{ $labels.changefeed }} fails at {{ $labels.stage }}",
        meaning="It restarts from its checkpoint each time, and fails for good after several attempts.",
        remedy="`penstock changefeed query NAME` shows the error; most often the remote refuses writes.",
    ),
    Alert(
        name="PenstockSpoolFull",
        expression="sum by (changefeed) (penstock_sink_spool_bytes)"
        ' >= max by (changefeed) (penstock_sink_spool_mark_bytes{mark="high"})',
        lasting="10m",
        severity=Severity.WARNING,
        summary="The spool of changefeed {{ $labels.changefeed }} is full",
        meaning="Changes are encoded faster than the remote takes them; reading stops until there is room.",
        remedy="Check the remote, and how long files take: `penstock_sink_flush_duration_seconds`. A higher"
        " `worker-count` lets more requests overlap.",
    ),
    Alert(
        name="PenstockChangefeedStuck",
        expression="max by (changefeed) (penstock_sink_oldest_unflushed_age_seconds) > 900",
        lasting="5m",
        severity=Severity.WARNING,
        summary="Changefeed {{ $labels.changefeed }} holds changes for {{ $value | humanizeDuration }}",
        meaning="Encoded changes do not reach the remote; once the spool is full, reading stops.",
        remedy="Check the remote, then `penstock_sink_flush_count_total` with reason `error`.",
    ),
    Alert(
        name="PenstockChangefeedLeftRowsOut",
        expression="sum by (changefeed) (increase(penstock_sink_stale_rows_total[1h])) > 0",
        lasting="0s",
        severity=Severity.WARNING,
        summary="Changefeed {{ $labels.changefeed }} left rows out",
        meaning="The remote has a newer version of the table than the changefeed: another process writes to"
        " the same place, or the changefeed was reset.",
        remedy="Give each changefeed its own address. Compare it with its source: `penstock verify"
        " changefeed:NAME`.",
    ),
    Alert(
        name="PenstockNobodyRunsJobs",
        expression="sum(penstock_jobs_runner) == 0",
        lasting="2m",
        severity=Severity.CRITICAL,
        summary="No process runs jobs",
        meaning="Runners exist, but none has the lease: the cluster does not answer, or the lease is just"
        " changing hands.",
        remedy="The log of `penstock job run` says what it waits for.",
    ),
    Alert(
        name="PenstockJobBehind",
        expression="max by (job) (penstock_jobs_watermark_lag_seconds) > 900",
        lasting="10m",
        severity=Severity.WARNING,
        summary="Job {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
        meaning="Its target does not have newer changes. A job with its own trigger may be waiting for it.",
        remedy="`penstock job status JOB` shows its last error and what it waits for;"
        " `penstock_jobs_queue_wait_seconds` whether there are too few workers.",
    ),
    Alert(
        name="PenstockJobsInError",
        expression='sum by (state) (penstock_jobs_jobs{state="error"}) > 0',
        lasting="5m",
        severity=Severity.CRITICAL,
        summary="{{ $value }} jobs have stopped with an error",
        meaning="They are not retried until they are resumed or repaired.",
        remedy="`penstock job list` shows which; `penstock job status JOB` shows why. Fix the cause, then run"
        " `penstock job repair JOB` or `penstock job resume JOB`.",
    ),
    Alert(
        name="PenstockTargetDiffers",
        expression="max by (job) (penstock_jobs_differences) > 0",
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="{{ $value }} rows in the target of job {{ $labels.job }} differ from its source",
        meaning="The scheduled comparison found differences. The job continues; the differences stay.",
        remedy="Run `penstock job repair JOB`. If another process writes to the target, stop it first.",
    ),
    Alert(
        name="PenstockJobsRetry",
        expression='sum by (how) (increase(penstock_jobs_endings_total{how=~"retried|failed"}[15m])) > 10',
        lasting="5m",
        severity=Severity.WARNING,
        summary="Iterations of jobs fail: {{ $labels.how }}",
        meaning="Targets or sources do not answer; a failed iteration is retried with all of its changes.",
        remedy="`penstock job list` shows the errors.",
    ),
    Alert(
        name="PenstockJobsRefused",
        expression="sum by (part) (increase(penstock_jobs_refused_iterations_total[15m])) > 10",
        lasting="5m",
        severity=Severity.WARNING,
        summary="The queue of iterations is full",
        meaning="More jobs are due than the workers can run.",
        remedy="Raise `jobs.workers`, or use triggers that are due less often.",
    ),
    Alert(
        name="PenstockConsumersHang",
        expression="sum by (part) (penstock_jobs_abandoned_consumers) > 0",
        lasting="15m",
        severity=Severity.WARNING,
        summary="{{ $value }} consumers keep running although their jobs were canceled",
        meaning="Each keeps a thread and its memory; its writes do not count.",
        remedy="Give the consumer timeouts of its own; restart the runner to end them.",
    ),
    Alert(
        name="PenstockApiFails",
        expression='sum(rate(penstock_api_requests_total{status=~"5.."}[5m])) > 0.1',
        lasting="5m",
        severity=Severity.WARNING,
        summary="The API answers with server errors",
        meaning="Requests fail through no fault of the caller.",
        remedy="`/ready` says what is missing; the log of the API has each error.",
    ),
    Alert(
        name="PenstockTracesAreLost",
        expression='sum by (part) (increase(penstock_tracing_spans_total{outcome!="sent"}[15m])) > 0',
        lasting="15m",
        severity=Severity.INFO,
        summary="{{ $labels.part }} cannot send all traces",
        meaning="The endpoint refuses them, or there are too many. Nothing else is affected.",
        remedy="Check `tracing.endpoint` and its headers; lower `tracing.sample`.",
    ),
)


def alert_rules() -> dict[str, Any]:
    """Return the file of rules; raise Invalid when one names a metric that is not declared."""
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


_TOKEN_FILE = "penstock-data/secrets/admin.token"  # noqa: S105 - a path, relative to Prometheus's own file


def scrape_config(addr: str) -> dict[str, Any]:
    """Return the Prometheus configuration that scrapes the API's address and loads these rules."""
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {
                "job_name": "penstock",
                "honor_labels": True,
                "authorization": {"credentials_file": _TOKEN_FILE},
                "static_configs": [{"targets": [addr]}],
            }
        ],
    }
