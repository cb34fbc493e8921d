"""Search: what the index of a job finds, and how fresh that is."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from penstock.api.deployment import PREFIX, ApiState, Deployed, Shared
from penstock.api.errors import declared
from penstock.api.models import SearchAnswer, SearchRequest
from penstock.api.routes.jobs import OfJob, OfTable, job_id_of
from penstock.api.security import Asking, Caller
from penstock.control import search
from penstock.control.deployment import Deployment

__all__ = ["api"]

api = APIRouter(prefix=f"{PREFIX}/search", tags=["search"])

_PROBLEMS = (400, 401, 404, 429, 503)


@api.get("/{table}/{job}", response_model=SearchAnswer, responses=declared(*_PROBLEMS))
def by_words(
    table: OfTable,
    job: OfJob,
    deployment: Deployed,
    caller: Asking,
    service: Shared,
    q: Annotated[str, Query(description="What texts should say.", min_length=1, max_length=10_000)],
    k: Annotated[int, Query(description="How many rows.", ge=1, le=10_000)] = 10,
    where: Annotated[
        str | None,
        Query(
            alias="filter",
            max_length=16_384,
            description="SQL condition that rows have to meet, as in price < 100.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None, Query(description="Column to show; may be repeated. All by default.")
    ] = None,
    *,
    every: Annotated[bool, Query(alias="all", description="Only rows that have all of the words.")] = False,
) -> dict[str, Any]:
    """Ask the index of a job by words; the best rows come first."""
    question = SearchRequest(words=q, k=k, filter=where, columns=columns, all=every)
    return _found(deployment, caller, service, (table, job), question)


@api.post("/{table}/{job}", response_model=SearchAnswer, responses=declared(*_PROBLEMS, 413))
def by_question(
    table: OfTable, job: OfJob, wish: SearchRequest, deployment: Deployed, caller: Asking, service: Shared
) -> dict[str, Any]:
    """Ask the index of a job by words or by a vector; the best rows come first."""
    return _found(deployment, caller, service, (table, job), wish)


def _found(
    deployment: Deployment, caller: Caller, service: ApiState, of: tuple[str, str], wish: SearchRequest
) -> dict[str, Any]:
    job_id = job_id_of(deployment, caller, *of)
    options = search.SearchOptions(
        words=wish.words,
        vector=wish.vector,
        k=min(wish.k, service.settings.api.rows_max),
        where=wish.filter,
        columns=None if wish.columns is None else tuple(wish.columns),
        every=wish.all,
    )
    with service.readers.reading(caller.name):
        return search.found(deployment, job_id, options, account=caller.account)
