"""Routes of changefeeds."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from penstock.api.audit import NameObject
from penstock.api.deployment import PREFIX, Deployed, SharedState
from penstock.api.errors import problem_responses
from penstock.api.models import ChangefeedDetail, ChangefeedModel, ChangefeedPatch, FeedId, NewChangefeed
from penstock.api.security import Authenticated, Caller
from penstock.control import changefeeds as control_changefeeds
from penstock.control import tenancy
from penstock.control.changefeeds import changefeed_details, changefeed_summary
from penstock.control.deployment import Deployment
from penstock.settings import ChangefeedSettings

__all__ = ["api"]

api = APIRouter(prefix=f"{PREFIX}/changefeeds", tags=["changefeeds"])

Name = Annotated[
    FeedId,
    Path(
        alias="id",
        description="Name of the changefeed; for admins account.name if it is another account's.",
        examples=["orders"],
    ),
]
_ALWAYS = (400, 401, 429, 503)


@api.get("", response_model=list[ChangefeedModel], responses=problem_responses(401, 429, 503))
def list_changefeeds(deployment: Deployed, caller: Authenticated) -> list[dict[str, Any]]:
    """List changefeeds with their checkpoints."""
    feeds = control_changefeeds.list_changefeeds(deployment, account=caller.account)
    return [changefeed_summary(feed) for feed in feeds]


@api.post(
    "", status_code=201, response_model=ChangefeedDetail, responses=problem_responses(*_ALWAYS, 403, 409, 413)
)
def create_changefeed(
    request: NewChangefeed,
    deployment: Deployed,
    caller: Authenticated,
    state: SharedState,
    name_object: NameObject,
) -> dict[str, Any]:
    """Create a changefeed."""
    name_object(request.id)
    settings = request.settings
    _permit(deployment, caller)(settings)
    with state.readers.reading(caller.name):  # it looks into its sink, which may not answer
        feed = control_changefeeds.create_changefeed(deployment, request.id, settings, account=caller.account)
    return changefeed_details(feed)


@api.get("/{id}", response_model=ChangefeedDetail, responses=problem_responses(*_ALWAYS, 404))
def get_changefeed(name: Name, deployment: Deployed, caller: Authenticated) -> dict[str, Any]:
    """Show the state and the settings of a changefeed, with secrets masked."""
    return changefeed_details(control_changefeeds.get_changefeed(deployment, name, account=caller.account))


@api.patch(
    "/{id}", response_model=ChangefeedDetail, responses=problem_responses(*_ALWAYS, 403, 404, 409, 413)
)
def update_changefeed(
    name: Name, patch: ChangefeedPatch, deployment: Deployed, caller: Authenticated, state: SharedState
) -> dict[str, Any]:
    """Change a paused changefeed; fields that are left out stay as they are."""
    permit = _permit(deployment, caller)
    with state.readers.reading(caller.name):  # it looks into a new sink
        feed = control_changefeeds.update_changefeed(
            deployment, name, patch.changes, account=caller.account, permit=permit
        )
    return changefeed_details(feed)


@api.delete(
    "/{id}", status_code=204, response_class=Response, responses=problem_responses(*_ALWAYS, 404, 409)
)
def remove_changefeed(name: Name, deployment: Deployed, caller: Authenticated) -> None:
    """Remove a changefeed; its files stay."""
    control_changefeeds.remove_changefeed(deployment, name, account=caller.account)


@api.post("/{id}/pause", response_model=ChangefeedDetail, responses=problem_responses(*_ALWAYS, 404, 409))
def pause_changefeed(name: Name, deployment: Deployed, caller: Authenticated) -> dict[str, Any]:
    """Pause a changefeed. No change is lost: `resume` continues from its checkpoint."""
    return changefeed_details(control_changefeeds.pause_changefeed(deployment, name, account=caller.account))


@api.post("/{id}/resume", response_model=ChangefeedDetail, responses=problem_responses(*_ALWAYS, 404, 409))
def resume_changefeed(name: Name, deployment: Deployed, caller: Authenticated) -> dict[str, Any]:
    """Resume a changefeed that was paused or has failed."""
    return changefeed_details(control_changefeeds.resume_changefeed(deployment, name, account=caller.account))


def _permit(deployment: Deployment, caller: Caller) -> Callable[[ChangefeedSettings], None]:
    """Return a check that raises TenantRefused for settings that the caller may not have.

    A database that it loses meanwhile does no harm: changefeeds see only what their account owns.
    """
    if caller.account is None:
        return lambda _: None
    databases = deployment.catalog.owned_databases(caller.account)
    return partial(tenancy.check_feed, tenancy.Tenant.of(caller.account, databases, caller.targets))
