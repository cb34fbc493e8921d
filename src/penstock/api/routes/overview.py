"""The overview: where changes are, what holds them back, and what mends what is wrong."""

from typing import Annotated

from fastapi import APIRouter, Query

from penstock.api.accounts import Asking
from penstock.api.errors import declared
from penstock.api.service import PREFIX, Shared
from penstock.control.overview.model import Overview
from penstock.control.overview.overview import LIMIT, overview_without_cluster
from penstock.control.overview.overview import overview as overview_of
from penstock.errors import Unavailable

__all__ = ["api"]

api = APIRouter(prefix=PREFIX, tags=["service"])


@api.get("/overview", responses=declared(401, 429, 503))
def overview(
    caller: Asking,
    service: Shared,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Rows of each list; what lags most comes first.")
    ] = LIMIT,
) -> Overview:
    """Show how the deployment does: parts, stages, tables, changefeeds, jobs and problems.

    An account sees its own. While the cluster is away, an admin sees how the parts of `penstock up` do.
    """
    try:
        deployment = service.reach.get()
    except Unavailable as error:
        found = overview_without_cluster(service.settings, str(error)) if caller.admin else None
        if found is None:
            raise
        return found
    return overview_of(deployment, service.rates, account=caller.account, limit=limit)
