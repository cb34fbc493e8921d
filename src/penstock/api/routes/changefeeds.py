"""Changefeeds: what files are written of which tables."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from penstock.api.deployment import PREFIX, Deployed
from penstock.api.errors import declared
from penstock.api.models import ChangefeedDetail, ChangefeedModel, ChangefeedPatch, FeedName, NewChangefeed
from penstock.api.security import Asking, Caller
from penstock.control import changefeeds, tenancy
from penstock.control.deployment import Deployment
from penstock.settings import ChangefeedSettings, parse_changefeed

__all__ = ["api"]

api = APIRouter(prefix=f"{PREFIX}/changefeeds", tags=["changefeeds"])

Name = Annotated[FeedName, Path(alias="id", description="Name of the changefeed.", examples=["orders"])]
_ALWAYS = (400, 401, 429, 503)


@api.get("", response_model=list[ChangefeedModel], responses=declared(401, 429, 503))
def listed(deployment: Deployed, caller: Asking) -> list[dict[str, Any]]:
    """List changefeeds, with how far each has come."""
    return [changefeeds.summary(feed) for feed in changefeeds.listed(deployment, account=caller.account)]


@api.post("", status_code=201, response_model=ChangefeedDetail, responses=declared(*_ALWAYS, 403, 409, 413))
def create(wish: NewChangefeed, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Create a changefeed."""
    wanted = wish.wanted
    _check(deployment, caller, wanted)
    return changefeeds.everything(changefeeds.add(deployment, wish.id, wanted, account=caller.account))


@api.get("/{id}", response_model=ChangefeedDetail, responses=declared(*_ALWAYS, 404))
def get(name: Name, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Show everything that is known of a changefeed, without its secrets."""
    return changefeeds.everything(changefeeds.get(deployment, name, account=caller.account))


@api.patch("/{id}", response_model=ChangefeedDetail, responses=declared(*_ALWAYS, 403, 404, 409, 413))
def update(name: Name, wish: ChangefeedPatch, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Change a paused changefeed; what is left out stays."""
    known = changefeeds.get(deployment, name, account=caller.account)
    merged = {**known.info.settings, **wish.changes}
    _check(deployment, caller, parse_changefeed(merged, origin=f"changefeed {name}"))
    return changefeeds.everything(changefeeds.change(deployment, name, wish.changes, account=caller.account))


@api.delete("/{id}", status_code=204, response_class=Response, responses=declared(*_ALWAYS, 404, 409))
def remove(name: Name, deployment: Deployed, caller: Asking) -> None:
    """Forget a changefeed; its files stay."""
    changefeeds.remove(deployment, name, account=caller.account)


@api.post("/{id}/pause", response_model=ChangefeedDetail, responses=declared(*_ALWAYS, 404, 409))
def pause(name: Name, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Stop a changefeed where it is; nothing is lost, and `resume` goes on from there."""
    return changefeeds.everything(changefeeds.pause(deployment, name, account=caller.account))


@api.post("/{id}/resume", response_model=ChangefeedDetail, responses=declared(*_ALWAYS, 404, 409))
def resume(name: Name, deployment: Deployed, caller: Asking) -> dict[str, Any]:
    """Let a changefeed go on that was paused or has failed."""
    return changefeeds.everything(changefeeds.resume(deployment, name, account=caller.account))


def _check(deployment: Deployment, caller: Caller, wanted: ChangefeedSettings) -> None:
    if caller.account is not None:
        databases = deployment.catalog.owned_databases(caller.account)
        tenancy.check_feed(tenancy.Tenant.of(caller.account, databases, caller.targets), wanted)
