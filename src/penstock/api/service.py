"""What requests share, and how routes ask for it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from penstock.api.accounts import Asking
from penstock.api.deployment import HealthPulse, Reach
from penstock.api.errors import ProblemError
from penstock.api.middleware import Readers
from penstock.clock import Clock
from penstock.control.deployment import Deployment
from penstock.control.overview.gather import Rates
from penstock.settings import Settings

__all__ = ["PREFIX", "ApiState", "Deployed", "Shared", "only_declared"]

PREFIX = "/api/v1"
"""Where every route is, but those of probes, metrics and pages."""


@dataclass(frozen=True, slots=True)
class ApiState:
    """One for the whole application."""

    settings: Settings
    reach: Reach
    pulse: HealthPulse
    readers: Readers
    rates: Rates
    clock: Clock


def only_declared(request: Request) -> None:
    """Refuse what a route does not know among the query's parameters: most often it is misspelt."""
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    unknown = sorted(request.query_params.keys() - known)
    if unknown:
        there = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise ProblemError(400, f"query.{unknown[0][:64]} is unknown; {there}")


def _shared(request: Request) -> ApiState:
    found: ApiState = request.app.state.service
    return found


Shared = Annotated[ApiState, Depends(_shared)]


def _deployed(service: Shared, _caller: Asking) -> Deployment:
    return service.pulse.deployment()


Deployed = Annotated[Deployment, Depends(_deployed)]
"""The deployment, for those who have a token; Unavailable is raised while its cluster does not answer."""
