"""JSON views of jobs. They never contain a secret or a value of a row."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.changefeeds.sink_uri import mask_uri
from penstock.control.display import format_ms, format_ts
from penstock.jobs.consumer import hidden_options
from penstock.jobs.freshness import Freshness
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.usage import Usage
from penstock.secret_masks import MASK
from penstock.verify.results import LastVerification
from penstock.verify.target import TargetRepair, TargetVerifyReport

__all__ = ["job_details", "job_summary", "repair_details", "report_details", "usage_rows"]


def job_summary(
    job: Job, freshness: Freshness | None = None, verified: LastVerification | None = None
) -> dict[str, Any]:
    """Return the state of a job, its watermark and its last error.

    With `freshness`, the watermark is the one computed from its table's progress, and the lag and its reason
    are added; without, the watermark is the one in the job log. `verified` is the result of the runner's last
    comparison of the target with its source.
    """
    watermark = job.watermark if freshness is None else freshness.watermark
    fresh: dict[str, Any] = {"watermark": watermark, "watermark_time": format_ts(watermark)}
    if freshness is not None:
        fresh["lag_s"] = round(freshness.lag_s, 3) if watermark else None
        fresh["lacks"] = None if freshness.reason is None else freshness.reason.value
        fresh["lacks_because"] = freshness.message or None
    return {
        "job": str(job.id),
        "consumer": job.spec.consumer,
        "trigger": job.spec.job_type,
        "state": _state(job),
        **fresh,
        "verified": None if verified is None else _verification(verified),
        "error_code": job.status.error_code,
        "error": job.status.error_msg,
    }


def job_details(
    job: Job,
    freshness: Freshness | None = None,
    verified: LastVerification | None = None,
    *,
    allowed_code: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the summary of a job and all that the job log has of it, with secrets masked.

    All options of a consumer that is not Penstock's own are masked, unless its module is in `allowed_code`:
    only its class says which of them are secrets, and showing a job must not run code.
    """
    status = job.status
    return {
        **job_summary(job, freshness, verified),
        "paused": job.spec.paused,
        "failures": status.failures,
        "account": job.account,
        "table_id": job.key.table_id,
        "job_id": job.key.job_id,
        "created": format_ms(job.create_at),
        "iteration": {
            "from_ts": status.from_ts,
            "to_ts": status.to_ts,
            "started": format_ms(status.start_at) if status.start_at else None,
            "ended": format_ms(status.end_at) if status.end_at else None,
        },
        "spec": _spec(job, allowed_code),
    }


def report_details(report: TargetVerifyReport) -> dict[str, Any]:
    """Return the result of comparing a target with its source."""
    counts = report.counts
    return {
        "job": str(report.job),
        "same": report.same,
        "at_ts": report.at_ts,
        "at_time": format_ts(report.at_ts),
        "source_rows": report.source_rows,
        "target_rows": report.target_rows,
        "missing": counts.missing,
        "different": counts.different,
        "extra": counts.extra,
        "duplicates": counts.duplicates,
        "digests_of_keys": report.samples,
    }


def repair_details(job_id: JobId, repair: TargetRepair) -> dict[str, Any]:
    """Return the action that a repair took, and the differences found before it."""
    answer = {"job": str(job_id), "action": repair.action.value, "table_id": repair.table_id}
    report = {} if repair.report is None else report_details(repair.report)
    return answer | {name: value for name, value in report.items() if name not in {"job", "same"}}


def _verification(last: LastVerification) -> dict[str, Any]:
    return {
        "same": last.same,
        "ended": format_ms(last.ended_ms),
        "at_ts": last.at_ts,
        "at_time": format_ts(last.at_ts),
        "differences": last.counts.total,
        "error": last.error,
    }


def _state(job: Job) -> str:
    """Return `paused` for a paused job that would otherwise wait for its next iteration; else its state."""
    waiting = job.state in {JobState.COMPLETED, JobState.CANCELED}
    return "paused" if job.spec.paused and waiting else job.state.name.lower()


def _spec(job: Job, allowed_code: Sequence[str]) -> dict[str, Any]:
    tree = job.spec.dump()
    consumer = tree.get("detail", {}).get("consumer", {})
    if "options" in consumer:
        hidden = hidden_options(job.spec.detail.consumer, allowed_code)
        consumer["options"] = {
            name: MASK if name in hidden else _mask_address(value)
            for name, value in consumer["options"].items()
        }
    return tree


def _mask_address(value: str) -> str:
    """Return an option's value, without the credentials of a URI."""
    return mask_uri(value) if "://" in value else value


def usage_rows(usage: Mapping[str, Usage]) -> list[dict[str, Any]]:
    """Return the resources that each account has used."""
    return [
        {
            "account": account,
            "rows": used.rows,
            "bytes": used.nbytes,
            "task_seconds": round(used.task_seconds, 3),
        }
        for account, used in sorted(usage.items())
    ]
