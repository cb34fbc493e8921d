"""Routes of jobs, from registration to repair."""

from contextlib import ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response

from penstock.api.audit import NameObject
from penstock.api.deployment import PREFIX, Deployed, SharedState
from penstock.api.errors import ProblemError, problem_responses
from penstock.api.models import (
    JobDetail,
    JobPatch,
    JobSummary,
    NewJob,
    RepairAnswer,
    RepairRequest,
    VerifyAnswer,
)
from penstock.api.security import Authenticated, Caller
from penstock.control import jobs as control_jobs
from penstock.control import tenancy
from penstock.control.deployment import Deployment
from penstock.control.job_views import job_details, repair_details, report_details
from penstock.control.tables import find_table
from penstock.control.verify import repair_target, verify_target
from penstock.jobs.api import no_such_job
from penstock.jobs.job import Job, JobId, JobState
from penstock.kv import Transaction

__all__ = ["OfJob", "OfTable", "api", "job_id_of"]

api = APIRouter(prefix=f"{PREFIX}/jobs", tags=["jobs"])

OfTable = Annotated[
    str,
    Path(description="The table, as database.table.", pattern=r"^[^./]+\.[^/]+$", examples=["shop.orders"]),
]
OfJob = Annotated[
    str,
    Path(
        description="Name of the job.",
        pattern=r"^[A-Za-z0-9_]+([.-]?[A-Za-z0-9_]+)*$",
        examples=["search"],
    ),
]
StateFilter = Annotated[
    str | None,
    Query(
        description="Only jobs in this state.",
        pattern=f"^({'|'.join(state.name.lower() for state in JobState)})$",
    ),
]
_ALWAYS = (400, 401, 429, 503)


@api.get("", response_model=list[JobSummary], responses=problem_responses(*_ALWAYS))
def list_jobs(deployment: Deployed, caller: Authenticated, state: StateFilter = None) -> list[dict[str, Any]]:
    """List jobs with the freshness of their targets."""
    return control_jobs.list_jobs(deployment, control_jobs.parse_state(state), account=caller.account)


@api.post(
    "", status_code=201, response_model=JobDetail, responses=problem_responses(*_ALWAYS, 403, 404, 409, 413)
)
def register_job(
    request: NewJob, deployment: Deployed, caller: Authenticated, name_object: NameObject
) -> dict[str, Any]:
    """Register a job. It first copies all rows of its table, then applies the changes."""
    name_object(request.job)
    job_id = JobId.parse(request.job)
    find_table(deployment, job_id.table_name, account=caller.account)
    if (tenant := _tenant(deployment, caller)) is not None:
        tenancy.check_job(tenant, request.spec)
    return control_jobs.register_job(deployment, job_id, request.spec, account=caller.account)


@api.get("/{table}/{job}", response_model=JobDetail, responses=problem_responses(*_ALWAYS, 404))
def get_job(
    table: OfTable, job: OfJob, deployment: Deployed, caller: Authenticated, state: SharedState
) -> dict[str, Any]:
    """Show the state, freshness and spec of a job, with secrets masked.

    The coverage of its target is a read; it is unknown while too many reads of the account run.
    """
    job_id = job_id_of(deployment, caller, table, job)
    with ExitStack() as closing:
        busy = ""
        try:
            closing.enter_context(state.readers.reading(caller.name))
        except ProblemError as problem:
            busy = problem.detail
        return control_jobs.read_job_status(deployment, job_id, account=caller.account, no_coverage=busy)


@api.patch(
    "/{table}/{job}", response_model=JobDetail, responses=problem_responses(*_ALWAYS, 403, 404, 409, 413)
)
def update_job(
    table: OfTable, job: OfJob, patch: JobPatch, deployment: Deployed, caller: Authenticated
) -> dict[str, Any]:
    """Change a job; what is left out stays. The change applies from the next iteration on."""
    job_id = job_id_of(deployment, caller, table, job)

    def permit(txn: Transaction, before: Job) -> None:
        if (tenant := _tenant(deployment, caller, txn.start_ts)) is not None:
            tenancy.check_job_change(tenant, before, patch.spec)

    changed = control_jobs.update_job(
        deployment.jobs(caller.account),
        deployment.settings,
        job_id,
        patch.spec,
        interrupt=patch.interrupt,
        permit=permit,
    )
    return job_details(changed, allowed_code=deployment.settings.jobs.allowed_code)


@api.delete(
    "/{table}/{job}",
    status_code=204,
    response_class=Response,
    responses=problem_responses(*_ALWAYS, 404, 409),
)
def unregister_job(table: OfTable, job: OfJob, deployment: Deployed, caller: Authenticated) -> None:
    """Unregister a job; its target stays as it is."""
    control_jobs.unregister_job(deployment.jobs(caller.account), job_id_of(deployment, caller, table, job))


@api.post("/{table}/{job}/pause", response_model=JobDetail, responses=problem_responses(*_ALWAYS, 404, 409))
def pause_job(table: OfTable, job: OfJob, deployment: Deployed, caller: Authenticated) -> dict[str, Any]:
    """Pause a job: start no more iterations. A running iteration runs to its end."""
    job_id = job_id_of(deployment, caller, table, job)
    jobs = deployment.jobs(caller.account)
    changed: Job = control_jobs.run_transaction(jobs, lambda txn: jobs.pause_job(txn, job_id))
    return job_details(changed, allowed_code=deployment.settings.jobs.allowed_code)


@api.post("/{table}/{job}/resume", response_model=JobDetail, responses=problem_responses(*_ALWAYS, 404, 409))
def resume_job(table: OfTable, job: OfJob, deployment: Deployed, caller: Authenticated) -> dict[str, Any]:
    """Resume a job that is paused or was stopped by an error."""
    job_id = job_id_of(deployment, caller, table, job)
    jobs = deployment.jobs(caller.account)
    changed: Job = control_jobs.run_transaction(jobs, lambda txn: jobs.resume_job(txn, job_id))
    return job_details(changed, allowed_code=deployment.settings.jobs.allowed_code)


@api.post(
    "/{table}/{job}/verify", response_model=VerifyAnswer, responses=problem_responses(*_ALWAYS, 404, 409, 410)
)
def verify_job(
    table: OfTable, job: OfJob, deployment: Deployed, caller: Authenticated, state: SharedState
) -> dict[str, Any]:
    """Compare a job's target with its source, at the target's watermark."""
    job_id = job_id_of(deployment, caller, table, job)
    with state.readers.reading(caller.name) as cost:
        report = verify_target(deployment, job_id, account=caller.account, processes=state.comparisons)
        cost.rows, cost.nbytes = report.rows, report.nbytes
        return report_details(report)


@api.post(
    "/{table}/{job}/repair",
    response_model=RepairAnswer,
    responses=problem_responses(*_ALWAYS, 404, 409, 410, 413),
)
def repair_job(
    table: OfTable,
    job: OfJob,
    deployment: Deployed,
    caller: Authenticated,
    state: SharedState,
    request: Annotated[RepairRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Repair the rows of a job's target that differ, or fill the target again from the start."""
    job_id = job_id_of(deployment, caller, table, job)
    rebuild = request is not None and request.rebuild
    with state.readers.reading(caller.name) as cost:
        repair = repair_target(
            deployment, job_id, rebuild=rebuild, account=caller.account, processes=state.comparisons
        )
        if repair.report is not None:
            cost.rows, cost.nbytes = repair.report.rows, repair.report.nbytes
        return repair_details(job_id, repair)


def job_id_of(deployment: Deployment, caller: Caller, table: str, job: str) -> JobId:
    """Return the id of a job.

    Raises NotFound, as for a missing job, when its database belongs to another account.
    """
    job_id = JobId.parse(f"{table}/{job}")
    if caller.account is not None:
        owners = deployment.catalog.owned_databases()
        named = {name.lower(): owner.name for name, owner in owners.items()}
        if named.get(job_id.database.lower(), caller.account) != caller.account:
            raise no_such_job(job_id)
    return job_id


def _tenant(deployment: Deployment, caller: Caller, at_ts: int | None = None) -> tenancy.Tenant | None:
    """Return the tenant that a caller is, with what it owns at a timestamp, or now; None for an admin."""
    if caller.account is None:
        return None
    databases = deployment.catalog.owned_databases(caller.account, at_ts)
    return tenancy.Tenant.of(caller.account, databases, caller.targets)
