"""Whether a job can do what its spec says, before it is registered. No I/O but the import of its consumer."""

from pathlib import Path
from typing import NoReturn

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import Consumer, JobContext, is_comparable
from penstock.jobs.consumers import find_consumer
from penstock.jobs.job import Job
from penstock.jobs.jobid import JobId, JobKey
from penstock.jobs.runner.custom_triggers import find_trigger
from penstock.jobs.spec import DEFAULT, GREEDY, PERIODIC, JobSpec, Schedule
from penstock.settings import Settings
from penstock.tables.arrow import arrow_schema
from penstock.tables.schema import TableInfo

_BUILT_IN = (DEFAULT, GREEDY, PERIODIC)


def check_spec(
    job_id: JobId,
    spec: JobSpec,
    schema: SchemaVersion,
    settings: Settings,
    *,
    change: JobSpec | None = None,
) -> None:
    """Raise Invalid, in one line that says what to do, when a table cannot have such a job.

    `change` is what is new in the spec of a job that is there: what is left of its former trigger does no
    harm.
    """
    _check_trigger(job_id, spec, (change or spec).trigger.schedule)
    _check_columns(job_id, spec, schema.table)
    if not spec.consumer:
        raise Invalid(f"job {job_id} has no consumer; say which one")
    key = JobKey(account_id=0, table_id=schema.table.id, job_name=job_id.job, job_id=0)
    consumer = make_consumer(job_id, key, "", spec, settings, settings.jobs.data / "none")
    try:
        if spec.verify_s is not None and not is_comparable(consumer):
            raise Invalid(
                f"the target of job {job_id} cannot be compared with its source, since {spec.consumer} does"
                " not read it; leave --verify out, or write never"
            )
        consumer.check(schema)
    finally:
        consumer.close()


def placed(spec: JobSpec, before: JobSpec | None = None) -> JobSpec:
    """A spec whose options name places that are the same for every process: relative paths are made absolute.

    They are relative to this process's folder. `before` is the spec that this one changes: its other options
    say what a place is, and stay as they are. Raises Invalid when there is no such consumer.
    """
    info = spec.detail.consumer
    whole = before.merged(spec) if before is not None else spec
    if not info.options or not whole.consumer:
        return spec
    found = find_consumer(whole.consumer).placed(whole.detail.consumer.options)
    options = {name: found[name] for name in info.options}
    detail = spec.detail.model_copy(update={"consumer": info.model_copy(update={"options": options})})
    return spec.model_copy(update={"detail": detail})


def make_consumer(
    job_id: JobId,
    key: JobKey,
    account: str,
    spec: JobSpec,
    settings: Settings,
    scratch: Path,
    *,
    clock: Clock = SYSTEM,
) -> Consumer:
    """A job's consumer, outside of iterations; raise Invalid when there is none, or an option is wrong."""
    context = JobContext(
        id=job_id,
        key=key,
        account=account,
        info=spec.detail.consumer,
        settings=settings,
        scratch=scratch,
        spark=_no_session,
        clock=clock,
    )
    return find_consumer(spec.consumer)(context)


def consumer_of(job: Job, settings: Settings, scratch: Path) -> Consumer:
    """The consumer of a job that is registered, outside of iterations."""
    return make_consumer(job.id, job.key, job.account, job.spec, settings, scratch)


def _check_trigger(job_id: JobId, spec: JobSpec, schedule: Schedule) -> None:
    if spec.job_type not in _BUILT_IN:
        find_trigger(spec.job_type)
    elif schedule.interval is not None and spec.job_type != PERIODIC:
        raise Invalid(f"job {job_id} is {spec.job_type}, which has no interval; periodic jobs have one")
    if schedule.share and spec.job_type == GREEDY:
        raise Invalid(f"job {job_id} is greedy: it has iterations of its own, and cannot share")


def _check_columns(job_id: JobId, spec: JobSpec, table: TableInfo) -> None:
    there = arrow_schema(table).names
    known = {name.lower() for name in there}
    for name in spec.detail.consumer.columns or ():
        if name.lower() not in known:
            raise Invalid(
                f"job {job_id} wants the column {name!r}, which {job_id.table_name} does not have; it has"
                f" {', '.join(there)}"
            )


def _no_session() -> NoReturn:
    raise Invalid("there is no Spark session outside of the process that runs jobs")
