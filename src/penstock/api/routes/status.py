"""Whether the API answers, whether it can work, what it measures, and who asks.

The overview: where changes are, what holds them back, and what mends what is wrong.

One page of metrics for a whole deployment: Prometheus needs one address, whatever runs behind it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from penstock.api.deployment import PREFIX, Shared
from penstock.api.errors import declared
from penstock.api.models import HealthModel, Me, Readiness
from penstock.api.security import Admin, Asking
from penstock.control.overview.model import Overview
from penstock.control.overview.overview import LIMIT, overview_without_cluster
from penstock.control.overview.overview import overview as overview_of
from penstock.control.overview.part_metrics import pages
from penstock.control.part_states import PartKind, PartStatus, UpStates
from penstock.errors import Unavailable

__all__ = ["PROBES", "UP", "UP_MEANING", "api", "federated", "joined", "root"]


OWN = "api"
UP = "penstock_part_up"
UP_MEANING = "1 when the metrics of a part could be read, else 0."
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = ("", "_bucket", "_sum", "_count")


@dataclass(slots=True)
class _Family:
    """What is said of one metric, and its samples, of all pages."""

    described: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def federated(own: bytes, parts: Sequence[PartStatus]) -> bytes:
    """This process's page (`own`) together with those of the parts, which are asked at once.

    Every sample gets the label `part`; each family is described once. `penstock_part_up` says whose page
    could be read. All in the Prometheus text format.
    """
    others = [part for part in parts if part.kind is not PartKind.API]
    return joined({OWN: own.decode(), **pages(others)}).encode()


def joined(texts: Mapping[str, str | None]) -> str:
    """One page of many, by part; None: it could not be read."""
    families: dict[str, _Family] = {}
    for part, text in texts.items():
        if text is not None:
            _add(families, part, text.split("\n"))
    lines = [
        f"# HELP {UP} {UP_MEANING}",
        f"# TYPE {UP} gauge",
        *(f"{UP}{{{_label(part)}}} {int(text is not None)}" for part, text in texts.items()),
    ]
    for family in families.values():
        lines += family.described.values()
        lines += family.samples
    return "\n".join(lines) + "\n"


def _add(families: dict[str, _Family], part: str, lines: Iterable[str]) -> None:
    label = _label(part)
    current = ""
    for line in lines:
        if line.startswith("# "):
            said = line.split(" ", 3)
            if len(said) > 2 and said[1] in ("HELP", "TYPE"):
                current = said[2]
                families.setdefault(current, _Family()).described.setdefault(said[1], line)
            continue
        if found := _NAME.match(line):
            name = found[0]
            if name.removeprefix(current) not in _SUFFIXES:
                current = name
            sample = _labelled(name, line[found.end() :], label)
            families.setdefault(current, _Family()).samples.append(sample)


def _labelled(name: str, rest: str, label: str) -> str:
    """A sample with one more label; one that it has already becomes `exported_part`, as with Prometheus."""
    if not rest.startswith("{"):
        return f"{name}{{{label}}}{rest}"
    if 'part="' in rest:
        rest = _LABEL.sub(lambda found: f"exported_{found[0]}" if found[1] == "part" else found[0], rest)
    return f"{name}{{{label}}}{rest[2:]}" if rest.startswith("{}") else f"{name}{{{label},{rest[1:]}"


def _label(part: str) -> str:
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'part="{escaped}"'


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
