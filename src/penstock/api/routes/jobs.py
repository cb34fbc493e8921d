"""Jobs: what follows tables, from its registration to its repair."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response

from penstock.api.deployment import PREFIX, Deployed, Shared
from penstock.api.errors import declared
from penstock.api.models import JobDetail, JobPatch, JobSummary, NewJob, Repaired, RepairRequest, VerifyAnswer
from penstock.api.security import Asking, Caller
from penstock.control import job_views, tables, tenancy
from penstock.control import jobs as freshcalls
from penstock.control import jobs as jobcalls
from penstock.control import verify as targetcalls
from penstock.control.deployment import Deployment
from penstock.jobs.api import no_such_job
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.spec import JobSpec

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
State = Annotated[
    str | None,
    Query(
        description="Only those in a state.",
        pattern=f"^({'|'.join(each.name.lower() for each in JobState)})$",
    ),
]
_ALWAYS = (400, 401, 429, 503)


@api.get("", response_model=list[JobSummary], responses=declared(*_ALWAYS))
def listed(deployment: Deployed, caller: Asking, state: State = None) -> list[dict[str, Any]]:
    """List jobs, with how fresh the target of each is."""
    return freshcalls.listed(deployment, jobcalls.parsed_state(state), account=caller.account)


@api.post("", status_code=201, response_model=JobDetail, responses=declared(*_ALWAYS, 403, 404, 409, 413))
def register(wish: NewJob, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Register a job: it begins with all rows of its table, then follows its changes."""
    job_id = JobId.parse(wish.job)
    tables.find(deployment, job_id.table_name, account=caller.account)
    _check(deployment, caller, wish.spec)
    return freshcalls.registered(deployment, job_id, wish.spec, account=caller.account)


@api.get("/{table}/{job}", response_model=JobDetail, responses=declared(*_ALWAYS, 404))
def get(table: OfTable, job: OfJob, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Show everything that is known of a job, without its secrets."""
    job_id = job_id_of(deployment, caller, table, job)
    return freshcalls.status(deployment, job_id, account=caller.account)


@api.patch("/{table}/{job}", response_model=JobDetail, responses=declared(*_ALWAYS, 403, 404, 409, 413))
def update(
    table: OfTable, job: OfJob, wish: JobPatch, deployment: Deployed, caller: Asking
) -> dict[str, Any]:
    """Change a job: what is left out stays. Takes effect with its next iteration."""
    job_id = job_id_of(deployment, caller, table, job)
    jobs = deployment.jobs(caller.account)
    _check(deployment, caller, jobs.get_job(job_id).spec.merged(wish.spec))
    changed = jobcalls.update(jobs, deployment.settings, job_id, wish.spec, interrupt=wish.interrupt)
    return job_views.everything(changed)


@api.delete(
    "/{table}/{job}", status_code=204, response_class=Response, responses=declared(*_ALWAYS, 404, 409)
)
def unregister(table: OfTable, job: OfJob, deployment: Deployed, caller: Asking) -> None:
    """Forget a job; its target stays as it is."""
    jobcalls.unregister(deployment.jobs(caller.account), job_id_of(deployment, caller, table, job))


@api.post("/{table}/{job}/pause", response_model=JobDetail, responses=declared(*_ALWAYS, 404, 409))
def pause(table: OfTable, job: OfJob, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Begin no more iterations of a job; one that runs comes to its end."""
    job_id = job_id_of(deployment, caller, table, job)
    jobs = deployment.jobs(caller.account)
    changed: Job = jobcalls.committed(jobs, lambda txn: jobs.pause_job(txn, job_id))
    return job_views.everything(changed)


@api.post("/{table}/{job}/resume", response_model=JobDetail, responses=declared(*_ALWAYS, 404, 409))
def resume(table: OfTable, job: OfJob, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Let a job go on that is paused or was stopped by an error."""
    job_id = job_id_of(deployment, caller, table, job)
    jobs = deployment.jobs(caller.account)
    changed: Job = jobcalls.committed(jobs, lambda txn: jobs.resume_job(txn, job_id))
    return job_views.everything(changed)


@api.post("/{table}/{job}/verify", response_model=VerifyAnswer, responses=declared(*_ALWAYS, 404, 409, 410))
def verify(
    table: OfTable, job: OfJob, deployment: Deployed, caller: Asking, service: Shared
) -> dict[str, Any]:
    """Compare a job's target with its source, at the target's watermark."""
    job_id = job_id_of(deployment, caller, table, job)
    with service.readers.reading(caller.name):
        return job_views.reported(targetcalls.verify(deployment, job_id, account=caller.account))


@api.post("/{table}/{job}/repair", response_model=Repaired, responses=declared(*_ALWAYS, 404, 409, 410, 413))
def repair(
    table: OfTable,
    job: OfJob,
    deployment: Deployed,
    caller: Asking,
    service: Shared,
    wish: Annotated[RepairRequest | None, Body()] = None,
) -> dict[str, Any]:
    """Mend a job's target where it differs, or have it filled anew where nothing else helps."""
    job_id = job_id_of(deployment, caller, table, job)
    rebuild = wish is not None and wish.rebuild
    with service.readers.reading(caller.name):
        return targetcalls.repair(deployment, job_id, rebuild=rebuild, account=caller.account)


def job_id_of(deployment: Deployment, caller: Caller, table: str, job: str) -> JobId:
    """What a job is called; raise NotFound when its database is another account's, as if it was not there."""
    job_id = JobId.parse(f"{table}/{job}")
    if caller.account is not None:
        owners = deployment.catalog.owned_databases()
        named = {name.lower(): owner.name for name, owner in owners.items()}
        if named.get(job_id.database.lower(), caller.account) != caller.account:
            raise no_such_job(job_id)
    return job_id


def _check(deployment: Deployment, caller: Caller, spec: JobSpec) -> None:
    if caller.account is not None:
        databases = deployment.catalog.owned_databases(caller.account)
        tenancy.check_job(tenancy.Tenant.of(caller.account, databases, caller.targets), spec)
