"""Routes that search the index of a job."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from penstock.api.deployment import PREFIX, ApiState, Deployed, SharedState
from penstock.api.errors import problem_responses
from penstock.api.models import SearchAnswer, SearchRequest
from penstock.api.routes.jobs import OfJob, OfTable, job_id_of
from penstock.api.security import Authenticated, Caller
from penstock.control.deployment import Deployment
from penstock.control.search import SearchOptions, search_index

__all__ = ["api"]

api = APIRouter(prefix=f"{PREFIX}/search", tags=["search"])

_PROBLEMS = (400, 401, 404, 429, 503)


@api.get("/{table}/{job}", response_model=SearchAnswer, responses=problem_responses(*_PROBLEMS))
def search_by_words(
    table: OfTable,
    job: OfJob,
    deployment: Deployed,
    caller: Authenticated,
    state: SharedState,
    q: Annotated[str, Query(description="The words to search for.", min_length=1, max_length=10_000)],
    k: Annotated[int, Query(description="The number of rows to return.", ge=1, le=10_000)] = 10,
    where: Annotated[
        str | None,
        Query(
            alias="filter",
            max_length=16_384,
            description="An SQL condition on the rows, as in price < 100.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None, Query(description="Column to return; may be repeated. All by default.")
    ] = None,
    *,
    every: Annotated[
        bool, Query(alias="all", description="Only rows that contain all of the words.")
    ] = False,
) -> dict[str, Any]:
    """Search the index of a job by words; the best rows come first."""
    request = SearchRequest(words=q, k=k, filter=where, columns=columns, all=every)
    return _search(deployment, caller, state, (table, job), request)


@api.post("/{table}/{job}", response_model=SearchAnswer, responses=problem_responses(*_PROBLEMS, 413))
def search_by_query(
    table: OfTable,
    job: OfJob,
    request: SearchRequest,
    deployment: Deployed,
    caller: Authenticated,
    state: SharedState,
) -> dict[str, Any]:
    """Search the index of a job by words or by a vector; the best rows come first."""
    return _search(deployment, caller, state, (table, job), request)


def _search(
    deployment: Deployment, caller: Caller, state: ApiState, job: tuple[str, str], request: SearchRequest
) -> dict[str, Any]:
    job_id = job_id_of(deployment, caller, *job)
    options = SearchOptions(
        words=request.words,
        vector=request.vector,
        k=min(request.k, state.settings.api.rows_max),
        where=request.filter,
        columns=None if request.columns is None else tuple(request.columns),
        every=request.all,
    )
    with state.readers.reading(caller.name) as cost:
        found = search_index(deployment, job_id, options, account=caller.account, run=state.searches.search)
        cost.rows = len(found["rows"])
        return found
