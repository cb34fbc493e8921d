"""What people are shown of jobs: never a secret, never a row's value."""

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from penstock.changefeeds.sink_uri import is_secret, mask_uri
from penstock.control.display import shown_ms, shown_ts
from penstock.errors import Invalid
from penstock.jobs.consumer import find_consumer
from penstock.jobs.freshness import Freshness
from penstock.jobs.job import Job, JobState
from penstock.jobs.usage import Usage
from penstock.verify.results import LastVerification
from penstock.verify.target import TargetVerifyReport

__all__ = ["everything", "reported", "summary", "used"]

_MASK = "***"


def summary(
    job: Job, freshness: Freshness | None = None, verified: LastVerification | None = None
) -> dict[str, Any]:
    """How a job does; how fresh its target is, by a look at its table, or else as the log has it.

    `verified` is what the runner found when it last compared the target with its source.
    """
    watermark = job.watermark if freshness is None else freshness.watermark
    fresh: dict[str, Any] = {"watermark": watermark, "watermark_time": shown_ts(watermark)}
    if freshness is not None:
        fresh["lag_s"] = round(freshness.lag_s, 3) if watermark else None
        fresh["lacks"] = None if freshness.reason is None else freshness.reason.value
    return {
        "job": str(job.id),
        "consumer": job.spec.consumer,
        "trigger": job.spec.job_type,
        "state": _state(job),
        **fresh,
        "verified": None if verified is None else _verified(verified),
        "error_code": job.status.error_code,
        "error": job.status.error_msg,
    }


def everything(
    job: Job, freshness: Freshness | None = None, verified: LastVerification | None = None
) -> dict[str, Any]:
    """All that the log has of a job, without its secrets."""
    status = job.status
    return {
        **summary(job, freshness, verified),
        "paused": job.spec.paused,
        "failures": status.failures,
        "account": job.account,
        "table_id": job.key.table_id,
        "job_id": job.key.job_id,
        "created": shown_ms(job.create_at),
        "iteration": {
            "from_ts": status.from_ts,
            "to_ts": status.to_ts,
            "started": shown_ms(status.start_at) if status.start_at else None,
            "ended": shown_ms(status.end_at) if status.end_at else None,
        },
        "spec": _spec(job),
    }


def reported(report: TargetVerifyReport) -> dict[str, Any]:
    """What a comparison found."""
    counts = report.counts
    return {
        "job": str(report.job),
        "same": report.same,
        "at_ts": report.at_ts,
        "at_time": shown_ts(report.at_ts),
        "source_rows": report.source_rows,
        "target_rows": report.target_rows,
        "missing": counts.missing,
        "different": counts.different,
        "extra": counts.extra,
        "duplicates": counts.duplicates,
        "digests_of_keys": report.samples,
    }


def _verified(last: LastVerification) -> dict[str, Any]:
    return {
        "same": last.same,
        "ended": shown_ms(last.ended_ms),
        "at_ts": last.at_ts,
        "at_time": shown_ts(last.at_ts),
        "differences": last.counts.total,
        "error": last.error,
    }


def _state(job: Job) -> str:
    """A pause is what keeps a job back, unless it runs still or would not run anyway."""
    waits = job.state in {JobState.COMPLETED, JobState.CANCELED}
    return "paused" if job.spec.paused and waits else job.state.name.lower()


def _spec(job: Job) -> dict[str, Any]:
    tree = job.spec.dump()
    consumer = tree.get("detail", {}).get("consumer", {})
    if "options" in consumer:
        public = _public_options(job.spec.consumer)
        consumer["options"] = {
            name: _shown(value) if name in public and not is_secret(name) else _MASK
            for name, value in consumer["options"].items()
        }
    return tree


def _public_options(name: str) -> set[str]:
    """Options whose values may be shown: what the consumer declares and does not keep as a secret."""
    try:
        declared = find_consumer(name).options_type
    except Invalid:  # it is not installed here
        return set()
    fields = declared.model_fields if declared is not None else {}
    return {
        field.alias or option
        for option, field in fields.items()
        if SecretStr.__name__ not in str(field.annotation)
    }


def _shown(value: str) -> str:
    return mask_uri(value) if "://" in value else value


def used(usage: Mapping[str, Usage]) -> list[dict[str, Any]]:
    """What accounts have used."""
    return [
        {
            "account": account,
            "rows": each.rows,
            "bytes": each.nbytes,
            "task_seconds": round(each.task_seconds, 3),
        }
        for account, each in sorted(usage.items())
    ]
