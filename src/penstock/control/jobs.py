"""Operations on jobs: read a spec, register, change and drop a job, list jobs with their freshness.

The first functions work on `Jobs` in a transaction; `register_job`, `list_jobs` and `read_job_status` take a
deployment and return JSON views.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.control import job_views
from penstock.control.deployment import Deployment
from penstock.control.display import format_ts
from penstock.control.tenancy import check_quota
from penstock.control.verify import read_last_results
from penstock.durations import parse_duration
from penstock.errors import AlreadyExists, Invalid, PenstockError
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.api import Jobs, check_spec, make_paths_absolute, no_such_job
from penstock.jobs.freshness import Freshness, FreshnessReader, freshness_of
from penstock.jobs.job import Job, JobId, JobKey, JobState
from penstock.jobs.spec import JobSpec, UpdateOptions
from penstock.kv import Transaction
from penstock.kv.transact import transact
from penstock.settings import Settings, expand

__all__ = [
    "add_job",
    "list_jobs",
    "parse_options",
    "parse_state",
    "read_job_status",
    "read_spec",
    "register_job",
    "run_transaction",
    "unregister_job",
    "update_job",
]


T = TypeVar("T")

_QUOTAS = b"penstock/jobs/quota/"
"""Rows by account, which everybody writes who counts an account's jobs and adds one."""


def run_transaction(jobs: Jobs, work: Callable[[Transaction], T]) -> T:
    """Run a transaction; run it again after a conflict with another one."""
    return transact(jobs.log.client.begin, work, clock=SYSTEM)


def read_spec(path: Path | None, given: dict[str, Any]) -> JobSpec:
    """Return the spec of a file, overridden by the options `given`; raise Invalid when either is wrong."""
    origin = "the job's options" if path is None else str(path)
    in_file = JobSpec() if path is None else JobSpec.parse(_read_spec_file(path), origin=origin)
    return in_file.merge(JobSpec.parse(given, origin="the job's options"))


def _read_spec_file(path: Path) -> Any:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"spec file {path} cannot be read ({error.strerror}); check --spec") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}" if where else ""
        raise Invalid(f"spec file {path} is not valid YAML{at}; correct its syntax") from None
    if tree is not None and not isinstance(tree, dict):
        raise Invalid(f"spec file {path} must be a mapping of keys to values, not a {type(tree).__name__}")
    return _expand_spec(tree or {})


def _expand_spec(tree: dict[str, Any]) -> Any:
    """Expand a spec, except for the options of its consumer, in which references are kept for the runner."""
    detail = tree.get("detail")
    consumer = detail.get("consumer") if isinstance(detail, dict) else None
    if not isinstance(detail, dict) or not isinstance(consumer, dict) or "options" not in consumer:
        return expand(tree)
    bare = {key: value for key, value in consumer.items() if key != "options"}
    expanded: dict[str, Any] = expand({**tree, "detail": {**detail, "consumer": bare}})
    expanded["detail"]["consumer"]["options"] = consumer["options"]
    return expanded


def parse_options(pairs: list[str]) -> dict[str, str]:
    """Parse options of the form name=value; raise Invalid for another form, without showing the value.

    References to secrets are kept: the process that runs the job resolves them.
    """
    options: dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise Invalid(f"--option number {number} is not name=value; write --option uri=/data/index")
        if name in options:
            raise Invalid(f"--option {name} is given twice; give it once")
        options[name] = value
    return options


def parse_state(name: str | None) -> JobState | None:
    """Return the state of a name; raise Invalid when there is none."""
    known = {state.name.lower(): state for state in JobState}
    if name is not None and name not in known:
        raise Invalid(f"there is no state {name!r}; there are {', '.join(known)}")
    return None if name is None else known[name]


def add_job(
    jobs: Jobs,
    loaded: Settings,
    job_id: JobId,
    spec: JobSpec,
    *,
    check: Callable[[Transaction], object] | None = None,
) -> Job:
    """Check a job and add it; `check` is called in the transaction that adds it, and may raise.

    Raises Invalid when the job cannot work, AlreadyExists when its table has a job of that name. Relative
    paths among its options are relative to this process's folder, and are kept absolute.
    """
    spec = make_paths_absolute(spec, allowed_code=loaded.jobs.allowed_code)
    check_spec(job_id, spec, _schema(jobs, job_id), loaded)

    def add(txn: Transaction) -> Job:
        if check is not None:
            check(txn)
        if not jobs.register_job(txn, job_id, spec):
            raise AlreadyExists(f"job {job_id} exists already; change it with `penstock job update {job_id}`")
        return jobs.get_job(job_id, txn=txn)

    return run_transaction(jobs, add)


def update_job(
    jobs: Jobs,
    loaded: Settings,
    job_id: JobId,
    spec: JobSpec,
    *,
    interrupt: bool,
    permit: Callable[[Transaction, Job], None] | None = None,
) -> Job:
    """Check and change the spec of a job.

    A change of columns makes the job fill its target again from the start. `interrupt` ends the running
    iteration, so that the change applies at once. `permit` is called with the job before the change, in the
    transaction of the change, and raises when the caller may not make it.
    """
    if spec == JobSpec() and not interrupt:
        raise Invalid(f"no change is given for job {job_id}; give an option, or --spec")

    def change(txn: Transaction) -> Job:
        before = jobs.get_job(job_id, txn=txn)
        if permit is not None:
            permit(txn, before)
        newer = make_paths_absolute(spec, before.spec, allowed_code=loaded.jobs.allowed_code)
        merged = before.spec.merge(newer)
        if merged.consumer != before.spec.consumer:
            raise Invalid(
                f"the consumer of job {job_id} is {before.spec.consumer} and cannot be changed; register"
                " another job"
            )
        check_spec(job_id, merged, _schema(jobs, before.id), loaded, change=newer)
        return jobs.update_job_spec(txn, job_id, newer, UpdateOptions(interrupt=interrupt))

    return run_transaction(jobs, change)


def unregister_job(jobs: Jobs, job_id: JobId) -> None:
    """Drop a job; raise NotFound when it does not exist."""
    if not run_transaction(jobs, lambda txn: jobs.unregister_job(txn, job_id)):
        raise no_such_job(job_id)


def _schema(jobs: Jobs, job_id: JobId) -> SchemaVersion:
    """Return the current schema of a job's table; raise Invalid when the table does not exist."""
    table = jobs.log.catalog.table_info(job_id.table_name)
    return SchemaVersion(since_ts=0, version=0, table=table, database=job_id.database)


def register_job(
    deployment: Deployment, job_id: JobId, spec: JobSpec, *, account: str | None = None
) -> dict[str, Any]:
    """Register a job; return its details and whether its table is captured.

    Raises TenantRefused when the account has as many jobs as it may have.
    """
    jobs = deployment.jobs(account)
    known = None if account is None else deployment.settings.api.accounts.get(account)
    if account is None or known is None:
        job = add_job(jobs, deployment.settings, job_id, spec)
    else:
        check = partial(_check_quota, jobs, account, known.jobs_max)
        jobs.log.forget(run_transaction(jobs, check))  # before its target is asked
        job = add_job(jobs, deployment.settings, job_id, spec, check=check)
    progress = deployment.readable_ranges([job.key.table_id]).get(job.key.table_id)
    return {
        **job_views.job_details(
            job, _read_freshness(deployment, [job])[0], allowed_code=deployment.settings.jobs.allowed_code
        ),
        "captured": progress is not None and progress.refusal is None,
    }


def _check_quota(jobs: Jobs, account: str, most: int, txn: Transaction) -> list[JobKey]:
    """Raise TenantRefused for one job too many, in a transaction that adds one; two never both fit.

    Return the oldest dropped jobs, which are to be forgotten: a day's loop leaves no pile of rows.
    """
    found = jobs.get_jobs(dropped=True, txn=txn)
    check_quota(account, "jobs", sum(job.live for job in found), most)
    txn.put(_QUOTAS + account.encode(), b"%d" % txn.start_ts)  # conflicts with others of the account
    dropped = sorted((job for job in found if not job.live), key=lambda job: job.drop_at or 0)
    return [job.key for job in dropped[: max(0, len(dropped) - max(most, 1))]]


def list_jobs(
    deployment: Deployment, state: JobState | None, *, account: str | None = None
) -> list[dict[str, Any]]:
    """Return the summary of every job, or of those in one state."""
    jobs = deployment.jobs(account).get_jobs(state)
    fresh = _read_freshness(deployment, jobs)
    verified = read_last_results(deployment, jobs)
    return [
        job_views.job_summary(job, freshness, verified.get(job.key))
        for job, freshness in zip(jobs, fresh, strict=True)
    ]


def read_job_status(
    deployment: Deployment,
    job_id: JobId,
    *,
    wait_for: str | None = None,
    timeout: str = "60s",
    account: str | None = None,
    no_coverage: str = "",
) -> dict[str, Any]:
    """Return the details of a job and the coverage of its target.

    With `wait_for`, a timestamp or `now`, first wait until the target has every change up to it. With
    `no_coverage`, which says why, its coverage is not looked for: that reads from storage.
    """
    wait_ts = None if wait_for is None else _parse_timestamp(wait_for)
    timeout_s = parse_duration(timeout)
    jobs = deployment.jobs(account)
    reader = FreshnessReader(
        jobs.get_job, deployment.source, deployment.settings.jobs, attended=deployment.has_runner
    )
    if wait_for is not None:
        eventloop.run(reader.wait_for(job_id, wait_ts or None, timeout_s=timeout_s))
    job = jobs.get_job(job_id)
    verified = read_last_results(deployment, [job]).get(job.key)
    freshness = _read_freshness(deployment, [job])[0]
    allowed_code = deployment.settings.jobs.allowed_code
    facts = job_views.job_details(job, freshness, verified, allowed_code=allowed_code)
    return {**facts, **(_unknown_coverage(no_coverage) if no_coverage else _read_coverage(reader, job_id))}


def _parse_timestamp(text: str) -> int:
    """Return the timestamp that a text names; 0 for `now`."""
    if text == "now":
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Invalid(
            f"{text!r} is not a timestamp; write now, or a number as `penstock job status` shows them"
        )
    return int(text)


def _read_freshness(deployment: Deployment, jobs: Sequence[Job]) -> list[Freshness]:
    now_ts = deployment.now_ts()
    ranges = deployment.readable_ranges({job.key.table_id for job in jobs})
    attended = eventloop.run(deployment.has_runner())
    span_s = deployment.settings.jobs.span_s
    return [
        freshness_of(job, ranges.get(job.key.table_id), now_ts=now_ts, span_s=span_s, attended=attended)
        for job in jobs
    ]


def _read_coverage(reader: FreshnessReader, job_id: JobId) -> dict[str, Any]:
    """Return how much of its source a target has, or why that cannot be found out."""
    try:
        coverage = eventloop.run(reader.coverage(job_id))
    except PenstockError as error:
        return _unknown_coverage(str(error))
    return {
        "coverage": round(coverage.share, 6),
        "source_rows": coverage.rows,
        "missing_changes": coverage.missing,
        "oldest_missing_ts": coverage.oldest_ts,
        "oldest_missing_time": format_ts(coverage.oldest_ts or 0),
    }


def _unknown_coverage(why: str) -> dict[str, Any]:
    return {"coverage": None, "coverage_unknown": why}
