"""Whether the API answers, whether it can work, what it measures, and who asks."""

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from penstock.api.accounts import Admin, Asking
from penstock.api.errors import declared
from penstock.api.models import HealthModel, Me, Readiness
from penstock.api.routes.federation import federated
from penstock.api.service import PREFIX, Shared
from penstock.control.part_states import UpStates
from penstock.errors import Unavailable

__all__ = ["PROBES", "api", "root"]

PROBES = ("/health", "/ready")
"""Paths that are asked without a token, as often as somebody likes."""

root = APIRouter(tags=["service"])
api = APIRouter(prefix=PREFIX, tags=["service"])


@root.get("/health")
async def health() -> HealthModel:
    """Say that the process answers."""
    return HealthModel(status="ok")


@root.get(
    "/ready", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready"}}
)
def ready(service: Shared, response: Response) -> Readiness:
    """Say whether requests can be carried out: whether the cluster answers."""
    try:
        service.pulse.deployment()
    except Unavailable:
        response.status_code = 503
        return Readiness(ready=False, reasons=["the cluster does not answer; see that its stores run"])
    return Readiness(ready=True, reasons=[])


@root.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"},
        **declared(401, 403, 429),
    },
)
def metrics(_caller: Admin, service: Shared) -> Response:
    """Show the metrics of every part of the deployment, for Prometheus."""
    states = UpStates.read(service.settings.up.data)
    page = federated(generate_latest(), states.parts if states is not None else ())
    return Response(page, media_type=CONTENT_TYPE_LATEST)


@api.get("/me", responses=declared(401, 429))
def me(caller: Asking) -> Me:
    """Say who asks."""
    said: dict[str, Any] = {"account": caller.name, "admin": caller.admin}
    return Me(**said)
