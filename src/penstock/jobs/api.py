"""What people do with jobs: register, change, pause and unregister them, and read their status.

    jobs = Jobs(client)
    with client.begin() as txn:
        jobs.register_job(txn, JobId.parse("shop.orders/search"), JobSpec.parse({...}))
    jobs.get_job_status(JobId.parse("shop.orders/search"))

Changes are part of the caller's transaction: they happen when it commits, together with whatever else it
writes. Conflict, at once or at the commit, means: run the transaction again.

`check_spec` finds out before the registration whether a job can do what its spec says. It does no I/O except
the import of the consumer and the reading of secrets that its options refer to.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Conflict, Fenced, Invalid, NotFound
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import (
    Consumer,
    JobContext,
    find_consumer,
    is_comparable,
    open_consumer,
    resolve_info,
    secrets_of,
)
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log.job_log import JobLog
from penstock.jobs.log.job_rows import LOG_NAME
from penstock.jobs.log.transitions import Transition, drop_job, resume_job, resync_job, update_spec
from penstock.jobs.runner.custom_triggers import find_trigger
from penstock.jobs.spec import DEFAULT, GREEDY, PERIODIC, JobSpec, Schedule, TriggerSpec, UpdateOptions
from penstock.kv import Client, Transaction
from penstock.secret_keys import Keyring
from penstock.secret_references import UnresolvedReference, has_reference
from penstock.settings import Settings
from penstock.tables.arrow import arrow_schema
from penstock.tables.catalog import Catalog
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot
from penstock.tables.system_tables import is_system
from penstock.targets import TenantTargets

_log = logging.getLogger(__name__)

_PAUSED = JobSpec(trigger=TriggerSpec(paused=True))


class _SourceTable(NamedTuple):
    """The table that a job's name refers to, and the account that owns it."""

    account_id: int
    account: str
    table_id: int
    id: JobId
    """The job's name, in which database and table are spelled as in the schema."""


class Jobs:
    """The jobs of a cluster, or of one account; for any number of threads.

    A job belongs to its table, and is found by the name that the table has now. A job whose table was dropped
    or truncated is stranded: it is found by the name under which it was registered, unless the table that has
    the name now has such a job too. Options are sealed with `keys`, by default those of the deployment in the
    working directory. Every method raises Unavailable, and Invalid when the database belongs to another
    account.
    """

    def __init__(
        self,
        client: Client,
        *,
        account: str | None = None,
        catalog: Catalog | None = None,
        keys: Keyring | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.log = JobLog(client, catalog=catalog, keys=keys, clock=clock)
        self._account = account

    def register_job(self, txn: Transaction, job_id: JobId, spec: JobSpec) -> bool:
        """Add a job; return False, with nothing changed, when there is one of that name.

        Raises Invalid when there is no such table, or the spec names no consumer.
        """
        return self._register(txn, job_id, spec, confined=self._account is not None)

    def _register(self, txn: Transaction, job_id: JobId, spec: JobSpec, *, confined: bool | None) -> bool:
        source = self._source(txn, job_id)
        if source is None:
            self.log.catalog.table_info(job_id.table_name, txn.start_ts)  # raises, naming what exists
            raise Invalid(f"{job_id.table_name} has no rows to follow; name a table")
        if not spec.consumer:
            raise Invalid(f"the spec of job {job_id} names no consumer; set detail.consumer.consumer")
        job = replace(_new_job(source, spec, at=_now_ms(txn)), confined=confined)
        return self.log.add(txn, job) is not None

    def unregister_job(self, txn: Transaction, job_id: JobId) -> bool:
        """Drop a job, and stranded jobs of its name; return False when there is none.

        Rows stay for a day, targets for good.
        """
        source = self._source(txn, job_id)
        found = self._find_stranded(txn, job_id)
        if source is not None:
            found += self._find_live(txn, source)
        for job in found:
            self._change(txn, job, drop_job(at=_now_ms(txn)))
        if found or source is None:
            return bool(found)
        return self.log.scrub(txn, source.account_id, source.table_id, job_id.job)

    def update_job_spec(
        self, txn: Transaction, job_id: JobId, spec: JobSpec, options: UpdateOptions | None = None
    ) -> Job:
        """Change a job's spec, except for the fields that are empty in the new one; return the changed job.

        A new trigger takes effect after the current iteration. With `interrupt` the iteration is canceled.
        With other columns it is canceled too, and the target is filled again. Raises Invalid when there is no
        such job.
        """
        interrupt = options is not None and options.interrupt
        update = update_spec(spec, interrupt=interrupt, at=_now_ms(txn))
        if self._account is not None:  # an admin's later change does not free the rest of the spec
            return self._change(txn, self._get(txn, job_id), lambda job: replace(update(job), confined=True))
        return self._change(txn, self._get(txn, job_id), update)

    def pause_job(self, txn: Transaction, job_id: JobId) -> Job:
        """Begin no more iterations; a running one is completed. Raises Invalid when there is no such job."""
        return self._change(
            txn, self._get(txn, job_id), update_spec(_PAUSED, interrupt=False, at=_now_ms(txn))
        )

    def resume_job(self, txn: Transaction, job_id: JobId) -> Job:
        """Continue a job that is paused or stopped by an error; raise Invalid when there is no such job."""
        return self._change(txn, self._get(txn, job_id), resume_job)

    def rebuild_job(self, txn: Transaction, job_id: JobId) -> Job:
        """Fill the target again with all rows, and clear the error that stopped the job.

        A job whose table was truncated is registered again for the table of that name. Raises Invalid when
        there is no such job, or its table is gone.
        """
        job = self._get(txn, job_id)
        source = self._source(txn, job_id)
        if source is None:
            raise Invalid(f"the table of job {job_id} is gone; unregister the job")
        if source.table_id == job.key.table_id:
            return self._change(txn, job, partial(resync_job, upto_ts=txn.start_ts))
        if source.account != job.account:
            raise Invalid(
                f"the name {job_id.table_name} went from account {job.account} to {source.account};"
                " unregister the job, and register another one with a target of that account"
            )
        self.unregister_job(txn, job_id)
        self._register(txn, job_id, job.spec, confined=job.confined)
        return self._get(txn, job_id)

    def get_job(self, job_id: JobId, *, txn: Transaction | None = None) -> Job:
        """Return a job as it is now, or as a transaction sees it; raise Invalid when there is none."""
        if txn is not None:
            return self._get(txn, job_id)
        with self.log.client.begin() as own:
            return self._get(own, job_id)

    def get_job_status(self, job_id: JobId, *, txn: Transaction | None = None) -> JobStatus:
        """Return a job's latest iteration; raise Invalid when there is no such job."""
        return self.get_job(job_id, txn=txn).status

    def get_jobs(
        self, state: JobState | None = None, *, dropped: bool = False, txn: Transaction | None = None
    ) -> list[Job]:
        """Return all jobs, or those in a state, by name; with `dropped` also dropped ones in the log."""
        if txn is None:
            with self.log.client.begin() as own:
                return self.get_jobs(state, dropped=dropped, txn=own)
        names = _table_names(self.log.catalog.schema(txn.start_ts))
        found = [
            _with_current_name(job, names)
            for job in self.log.list_jobs(txn)
            if (dropped or job.live) and state in {None, job.state} and self._account in {None, job.account}
        ]
        return sorted(found, key=lambda job: (job.id, job.key))

    def _get(self, txn: Transaction, job_id: JobId) -> Job:
        job = self._find(txn, job_id)
        if job is None:
            raise no_such_job(job_id)
        return job

    def _find(self, txn: Transaction, job_id: JobId) -> Job | None:
        """Return the live job of that name."""
        source = self._source(txn, job_id)
        found = [] if source is None else self._find_live(txn, source)
        return next(iter(found or self._find_stranded(txn, job_id)), None)

    def _find_live(self, txn: Transaction, source: _SourceTable) -> list[Job]:
        """Return the live job of that table and name, if there is one."""
        named = self.log.find_named(txn, source.account_id, source.table_id, source.id.job)
        return [replace(job, id=source.id) for job in named if job.live]

    def _find_stranded(self, txn: Transaction, job_id: JobId) -> list[Job]:
        """Return the live jobs that were registered under that name and whose table is gone, newest first."""
        names = _table_names(self.log.catalog.schema(txn.start_ts))
        places = {
            (key.account_id, key.table_id)
            for key in self.log.keys(txn)
            if key.job_name == job_id.job and key.table_id not in names
        }
        found = [
            job
            for account_id, table_id in places
            for job in self.log.find_named(txn, account_id, table_id, job_id.job)
            if job.live and _fold_case(job.id) == _fold_case(job_id) and self._account in {None, job.account}
        ]
        return sorted(found, key=lambda job: (job.create_at, job.key), reverse=True)

    def _source(self, txn: Transaction, job_id: JobId) -> _SourceTable | None:
        """Return the table that a job's name refers to, if there is such a table."""
        schema = self.log.catalog.schema(txn.start_ts)
        database = schema.databases.get(job_id.database.lower())
        table = None if database is None else schema.tables[database.id].get(job_id.table.lower())
        if database is None or table is None or not table.is_base_table:
            return None
        owner = self.log.catalog.account_of(database.name, txn.start_ts)
        if self._account is not None and (self._account != owner.name or is_system(database.name)):
            raise Invalid(f"database {database.name} belongs to another account than {self._account}")
        if f"{database.name}.{table.name}".lower() == LOG_NAME:
            raise Invalid(f"jobs cannot follow {LOG_NAME}: each iteration would be its next change")
        return _SourceTable(owner.id, owner.name, table.id, JobId(database.name, table.name, job_id.job))

    def _change(self, txn: Transaction, job: Job, transition: Transition) -> Job:
        try:
            return replace(self.log.change(txn, job.key, None, transition), id=job.id)
        except Fenced as error:
            raise Conflict(
                f"job {job.id} was changed by another transaction; run the transaction again"
            ) from error


def no_such_job(job_id: JobId) -> NotFound:
    """Return the error for a job that does not exist, or belongs to another account."""
    return NotFound(f"there is no job {job_id}; `penstock job list` shows those there are")


def _new_job(source: _SourceTable, spec: JobSpec, *, at: int) -> Job:
    """Return a job before its first iteration; the log assigns its id."""
    return Job(
        key=JobKey(source.account_id, source.table_id, source.id.job, 0),
        id=source.id,
        account=source.account,
        spec=spec,
        state=JobState.COMPLETED,
        watermark=0,
        status=JobStatus(),
        create_at=at,
    )


def _now_ms(txn: Transaction) -> int:
    return physical_ms(txn.start_ts)


def _table_names(schema: SchemaSnapshot) -> dict[int, tuple[str, str]]:
    """Return the names of every table and its database, by table id."""
    return {
        table.id: (database.name, table.name)
        for database in schema.databases.values()
        for table in schema.tables[database.id].values()
    }


def _with_current_name(job: Job, names: dict[int, tuple[str, str]]) -> Job:
    """Return the job under the name that its table has now."""
    database, table = names.get(job.key.table_id, (job.id.database, job.id.table))
    return replace(job, id=JobId(database, table, job.id.job))


def _fold_case(job_id: JobId) -> tuple[str, str, str]:
    return job_id.database.lower(), job_id.table.lower(), job_id.job


_BUILT_IN = (DEFAULT, GREEDY, PERIODIC)


def check_spec(
    job_id: JobId,
    spec: JobSpec,
    schema: SchemaVersion,
    settings: Settings,
    *,
    change: JobSpec | None = None,
) -> None:
    """Raise Invalid when a table cannot have such a job; the message is one line and says what to do.

    `change` holds the fields that are new in the spec of an existing job. Only these are checked for the
    trigger: leftovers of the former trigger do no harm.
    """
    _check_trigger(job_id, spec, (change or spec).trigger.schedule, settings.jobs.allowed_code)
    _check_columns(job_id, spec, schema.table)
    if not spec.consumer:
        raise Invalid(f"job {job_id} has no consumer; set detail.consumer.consumer")
    with secrets_of(spec.detail.consumer, settings.jobs.allowed_code).in_errors():
        _check_consumer(job_id, spec, schema, settings)


def _check_consumer(job_id: JobId, spec: JobSpec, schema: SchemaVersion, settings: Settings) -> None:
    key = JobKey(account_id=0, table_id=schema.table.id, job_name=job_id.job, job_id=0)
    try:
        consumer = make_consumer(job_id, key, "", spec, settings, settings.jobs.data / "none")
    except UnresolvedReference as error:  # only the runner has to have its secrets
        _log.warning(
            "the options of a job are left for the runner to check",
            extra={"job": str(job_id), "reason": str(error)},
        )
        return
    try:
        if spec.verify_s is not None and not is_comparable(consumer):
            raise Invalid(
                f"the target of job {job_id} cannot be compared with its source because consumer"
                f" {spec.consumer} cannot read its target; leave --verify out, or set it to never"
            )
        consumer.check(schema)
    finally:
        consumer.close()


def make_paths_absolute(
    spec: JobSpec, before: JobSpec | None = None, *, allowed_code: Sequence[str] = ()
) -> JobSpec:
    """Return a spec in whose options all paths are absolute, so that they are the same for every process.

    Relative paths refer to the working directory of this process. A path with a reference stays as it is: the
    process that runs the job resolves it. `before` is the spec that this one changes:
    its options say which options are paths, and stay as they are. Raises Invalid when there is no such
    consumer.
    """
    info = spec.detail.consumer
    whole = before.merge(spec) if before is not None else spec
    if not info.options or not whole.consumer:
        return spec
    known = whole.detail.consumer.options
    plain = {name: value for name, value in known.items() if not has_reference(value)}
    found = {**known, **find_consumer(whole.consumer, allowed_code).absolute_options(plain)}
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
    tenant: TenantTargets | None = None,
    clock: Clock = SYSTEM,
) -> Consumer:
    """Make a job's consumer outside of iterations; raise Invalid when there is none or an option is wrong.

    Raises UnresolvedReference when an option refers to a secret that this process does not have.
    """
    context = JobContext(
        id=job_id,
        key=key,
        account=account,
        info=resolve_info(spec.detail.consumer, tenant),
        settings=settings,
        scratch=scratch,
        spark=_no_session,
        tenant=tenant,
        clock=clock,
    )
    return open_consumer(context)


def consumer_of(job: Job, settings: Settings, scratch: Path) -> Consumer:
    """Make the consumer of a registered job, for use outside of an iteration."""
    tenant = TenantTargets.of(settings, job.account, recorded=job.confined)
    return make_consumer(job.id, job.key, job.account, job.spec, settings, scratch, tenant=tenant)


def _check_trigger(job_id: JobId, spec: JobSpec, schedule: Schedule, allowed_code: tuple[str, ...]) -> None:
    if spec.job_type not in _BUILT_IN:
        find_trigger(spec.job_type, allowed_code)
    elif schedule.interval is not None and spec.job_type != PERIODIC:
        raise Invalid(
            f"job {job_id} is {spec.job_type}, which has no interval; leave it out, or make the job periodic"
        )
    if schedule.share and spec.job_type == GREEDY:
        raise Invalid(
            f"job {job_id} is greedy and cannot share iterations; leave share out, or choose another type"
        )


def _check_columns(job_id: JobId, spec: JobSpec, table: TableInfo) -> None:
    names = arrow_schema(table).names
    known = {name.lower() for name in names}
    for name in spec.detail.consumer.columns or ():
        if name.lower() not in known:
            raise Invalid(
                f"job {job_id} selects the column {name!r}, which {job_id.table_name} does not have; choose"
                f" from {', '.join(names)}"
            )


def _no_session() -> NoReturn:
    raise Invalid("there is no Spark session outside of the process that runs jobs; use it in consume only")
