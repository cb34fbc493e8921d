"""Routes of health, readiness, metrics, the caller and the overview.

`/metrics` joins the pages of all parts of the deployment, so that Prometheus needs one address only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from penstock.api.deployment import PREFIX, SharedState
from penstock.api.errors import problem_responses
from penstock.api.models import HealthModel, Me, Readiness
from penstock.api.security import Admin, Authenticated
from penstock.control.overview.model import Overview
from penstock.control.overview.overview import LIMIT, overview_without_cluster, read_overview
from penstock.control.overview.part_metrics import read_pages
from penstock.control.part_states import PartKind, PartStatus, UpStates
from penstock.errors import Unavailable

__all__ = ["PROBES", "UP", "UP_MEANING", "api", "federate_metrics", "join_pages", "root"]


OWN = "api"
UP = "penstock_part_up"
UP_MEANING = "1 when the metrics of a part could be read, else 0."
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = ("", "_bucket", "_sum", "_count")


@dataclass(slots=True)
class _MetricFamily:
    """The HELP and TYPE lines of one metric, and its samples of all pages."""

    described: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def federate_metrics(own: bytes, parts: Sequence[PartStatus]) -> bytes:
    """Return this process's page (`own`) joined with the pages of the parts, which are read at once.

    Every sample gets the label `part`; each family is described once. `penstock_part_up` says whose page
    could be read. All pages are in the Prometheus text format.
    """
    others = [part for part in parts if part.kind is not PartKind.API]
    return join_pages({OWN: own.decode(), **read_pages(others)}).encode()


def join_pages(texts: Mapping[str, str | None]) -> str:
    """Join the pages of parts into one; a page is None when it could not be read."""
    families: dict[str, _MetricFamily] = {}
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


def _add(families: dict[str, _MetricFamily], part: str, lines: Iterable[str]) -> None:
    label = _label(part)
    current = ""
    for line in lines:
        if line.startswith("# "):
            words = line.split(" ", 3)
            if len(words) > 2 and words[1] in ("HELP", "TYPE"):
                current = words[2]
                families.setdefault(current, _MetricFamily()).described.setdefault(words[1], line)
            continue
        if found := _NAME.match(line):
            name = found[0]
            if name.removeprefix(current) not in _SUFFIXES:
                current = name
            sample = _add_label(name, line[found.end() :], label)
            families.setdefault(current, _MetricFamily()).samples.append(sample)


def _add_label(name: str, rest: str, label: str) -> str:
    """Add a label to a sample; an existing label `part` becomes `exported_part`, as in Prometheus."""
    if not rest.startswith("{"):
        return f"{name}{{{label}}}{rest}"
    if 'part="' in rest:
        rest = _LABEL.sub(lambda found: f"exported_{found[0]}" if found[1] == "part" else found[0], rest)
    return f"{name}{{{label}}}{rest[2:]}" if rest.startswith("{}") else f"{name}{{{label},{rest[1:]}"


def _label(part: str) -> str:
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'part="{escaped}"'


PROBES = ("/health", "/ready")
"""Paths without a token and without a rate limit."""

root = APIRouter(tags=["service"])
api = APIRouter(prefix=PREFIX, tags=["service"])


@root.get("/health")
async def health() -> HealthModel:
    """Say that the process answers."""
    return HealthModel(status="ok")


@root.get(
    "/ready", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready"}}
)
def ready(state: SharedState, response: Response) -> Readiness:
    """Say whether the API can serve requests: whether the cluster answers."""
    try:
        state.pulse.deployment()
    except Unavailable:
        response.status_code = 503
        return Readiness(ready=False, reasons=["the cluster does not answer; check that its stores run"])
    return Readiness(ready=True, reasons=[])


@root.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"},
        **problem_responses(401, 403, 429),
    },
)
def metrics(_caller: Admin, state: SharedState) -> Response:
    """Return the metrics of every part of the deployment, for Prometheus."""
    states = UpStates.read(state.settings.up.data)
    page = federate_metrics(generate_latest(), states.parts if states is not None else ())
    return Response(page, media_type=CONTENT_TYPE_LATEST)


@api.get("/me", responses=problem_responses(401, 429))
def me(caller: Authenticated) -> Me:
    """Return the account of the caller."""
    return Me(account=caller.name, admin=caller.admin)


@api.get("/overview", responses=problem_responses(401, 429, 503))
def overview(
    caller: Authenticated,
    state: SharedState,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Rows of each list; the largest lag comes first.")
    ] = LIMIT,
) -> Overview:
    """Show the state of the deployment: parts, stages, tables, changefeeds, jobs and problems.

    An account sees its own. While the cluster is away, an admin sees the parts of `penstock up`.
    """
    try:
        deployment = state.reach.get()
    except Unavailable as error:
        local = overview_without_cluster(state.settings, str(error)) if caller.admin else None
        if local is None:
            raise
        return local
    return read_overview(deployment, state.facts, account=caller.account, limit=limit)
