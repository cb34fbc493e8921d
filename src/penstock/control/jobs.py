"""What people do with jobs.

Jobs with how fresh they are: what a new one is, all of them, and everything of one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from penstock import eventloop
from penstock import settings as files
from penstock.clock import SYSTEM
from penstock.control import job_views
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ts
from penstock.control.verify import last_results
from penstock.durations import parse_duration
from penstock.errors import AlreadyExists, Invalid, PenstockError
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.api import Jobs, check_spec, no_such_job, placed
from penstock.jobs.freshness import Freshness, FreshnessReader, freshness_of
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.spec import JobSpec, UpdateOptions
from penstock.kv import Transaction
from penstock.kv.transact import retried
from penstock.settings import Settings

__all__ = [
    "committed",
    "listed",
    "parsed_options",
    "parsed_state",
    "register",
    "registered",
    "spec_of",
    "status",
    "unregister",
    "update",
]


T = TypeVar("T")


def committed(jobs: Jobs, work: Callable[[Transaction], T]) -> T:
    """Run a transaction, again when another one was faster."""

    def attempt() -> T:
        with jobs.log.client.begin() as txn:
            return work(txn)

    return retried(attempt, clock=SYSTEM)


def spec_of(path: Path | None, given: dict[str, Any]) -> JobSpec:
    """A spec: what a file says, and over it what was given as options; raise Invalid for a wrong part."""
    origin = "the job's options" if path is None else str(path)
    stated = JobSpec() if path is None else JobSpec.parse(_read(path), origin=origin)
    return stated.merged(JobSpec.parse(given, origin="the job's options"))


def _read(path: Path) -> Any:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"spec file {path} cannot be read ({error.strerror}); check --spec") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}" if where else ""
        raise Invalid(f"spec file {path} is not valid YAML{at}; mend its syntax") from None
    if tree is not None and not isinstance(tree, dict):
        raise Invalid(f"spec file {path} must be a mapping of keys to values, not a {type(tree).__name__}")
    return files.expand(tree or {})


def parsed_options(pairs: list[str]) -> dict[str, str]:
    """Options given as name=value; raise Invalid for one that is not, without showing it."""
    found: dict[str, str] = {}
    for place, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise Invalid(f"--option number {place} is not name=value; write --option uri=/data/index")
        if name in found:
            raise Invalid(f"--option {name} is given twice; give it once")
        found[name] = value
    return {name: str(files.expand(value)) for name, value in found.items()}


def parsed_state(name: str | None) -> JobState | None:
    """A state by its name; raise Invalid when there is none."""
    known = {state.name.lower(): state for state in JobState}
    if name is not None and name not in known:
        raise Invalid(f"there is no state {name!r}; there are {', '.join(known)}")
    return None if name is None else known[name]


def register(jobs: Jobs, loaded: Settings, job_id: JobId, spec: JobSpec) -> Job:
    """Add a job after everything was checked; raise Invalid when it cannot work, AlreadyExists.

    Relative paths among its options are relative to this process's folder, and are kept absolute.
    """
    spec = placed(spec)
    check_spec(job_id, spec, _schema(jobs, job_id), loaded)

    def work(txn: Transaction) -> Job:
        if not jobs.register_job(txn, job_id, spec):
            raise AlreadyExists(f"there is a job {job_id} already; `penstock job update {job_id}` changes it")
        return jobs.get_job(job_id, txn=txn)

    return committed(jobs, work)


def update(jobs: Jobs, loaded: Settings, job_id: JobId, spec: JobSpec, *, interrupt: bool) -> Job:
    """Change a job's spec after it was checked; other columns mean that its target is filled anew."""
    if spec == JobSpec() and not interrupt:
        raise Invalid(f"nothing of job {job_id} is to be changed; give an option, or --spec")

    def work(txn: Transaction) -> Job:
        before = jobs.get_job(job_id, txn=txn)
        newer = placed(spec, before.spec)
        merged = before.spec.merged(newer)
        if merged.consumer != before.spec.consumer:
            raise Invalid(
                f"job {job_id} has the consumer {before.spec.consumer}, which cannot be changed; register"
                " another job"
            )
        check_spec(job_id, merged, _schema(jobs, before.id), loaded, change=newer)
        return jobs.update_job_spec(txn, job_id, newer, UpdateOptions(interrupt=interrupt))

    return committed(jobs, work)


def unregister(jobs: Jobs, job_id: JobId) -> None:
    """Drop a job; raise NotFound when there is none."""
    if not committed(jobs, lambda txn: jobs.unregister_job(txn, job_id)):
        raise no_such_job(job_id)


def _schema(jobs: Jobs, job_id: JobId) -> SchemaVersion:
    """The table of a job as it is now; raise Invalid when there is none."""
    table = jobs.log.catalog.table_info(job_id.table_name)
    return SchemaVersion(since_ts=0, version=0, table=table, database=job_id.database)


def registered(
    deployment: Deployment, job_id: JobId, spec: JobSpec, *, account: str | None = None
) -> dict[str, Any]:
    """Register a job; all that is known of it then."""
    job = register(deployment.jobs(account), deployment.settings, job_id, spec)
    return {
        **job_views.everything(job, _freshness(deployment, [job])[0]),
        "captured": bool(deployment.looks([job.key.table_id])),
    }


def listed(
    deployment: Deployment, state: JobState | None, *, account: str | None = None
) -> list[dict[str, Any]]:
    """How every job does."""
    jobs = deployment.jobs(account).get_jobs(state)
    found = _freshness(deployment, jobs)
    verified = last_results(deployment, jobs)
    return [
        job_views.summary(job, each, verified.get(job.key)) for job, each in zip(jobs, found, strict=True)
    ]


def status(
    deployment: Deployment,
    job_id: JobId,
    *,
    wait_for: str | None = None,
    timeout: str = "60s",
    account: str | None = None,
) -> dict[str, Any]:
    """All that is known of a job, once its target has everything up to `wait_for`: a timestamp, or `now`."""
    wanted_ts = None if wait_for is None else _timestamp(wait_for)
    timeout_s = parse_duration(timeout)
    jobs = deployment.jobs(account)
    desk = FreshnessReader(
        jobs.get_job, deployment.source, deployment.settings.jobs, attended=deployment.attended
    )
    if wait_for is not None:
        eventloop.run(desk.wait_for(job_id, wanted_ts or None, timeout_s=timeout_s))
    job = jobs.get_job(job_id)
    verified = last_results(deployment, [job]).get(job.key)
    facts = job_views.everything(job, _freshness(deployment, [job])[0], verified)
    return {**facts, **_coverage(desk, job_id)}


def _timestamp(text: str) -> int:
    """A timestamp; 0 for now."""
    if text == "now":
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"{text!r} is no timestamp; write now, or a number as `penstock job status` shows them")
    return int(text)


def _freshness(deployment: Deployment, jobs: Sequence[Job]) -> list[Freshness]:
    now_ts = deployment.now_ts()
    looks = deployment.looks({job.key.table_id for job in jobs})
    attended = eventloop.run(deployment.attended())
    span_s = deployment.settings.jobs.span_s
    return [
        freshness_of(job, looks.get(job.key.table_id), now_ts=now_ts, span_s=span_s, attended=attended)
        for job in jobs
    ]


def _coverage(desk: FreshnessReader, job_id: JobId) -> dict[str, Any]:
    """How much of its source a target has; why nobody knows, where that is so."""
    try:
        found = eventloop.run(desk.coverage(job_id))
    except PenstockError as error:
        return {"coverage": None, "coverage_unknown": str(error)}
    return {
        "coverage": round(found.share, 6),
        "source_rows": found.rows,
        "missing_changes": found.missing,
        "oldest_missing_ts": found.oldest_ts,
        "oldest_missing_time": shown_ts(found.oldest_ts or 0),
    }
