"""The state that requests share, and the deployment of the API, whose cluster may be away at any time."""

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request

from penstock import eventloop
from penstock.api.errors import ProblemError
from penstock.api.middleware import Readers
from penstock.api.security import Authenticated
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment, open_deployment
from penstock.control.overview.gather import FactsCache
from penstock.control.search_workers import SearchWorkers
from penstock.errors import Unavailable
from penstock.jobs.scheduler.scheduler import USAGE_INTERVAL_S
from penstock.jobs.usage import Usage, UsageMeter
from penstock.settings import Settings
from penstock.worker_processes import WorkerProcesses

__all__ = [
    "PREFIX",
    "ApiState",
    "Deployed",
    "HealthPulse",
    "LateDeployment",
    "OpenDeployment",
    "Reach",
    "ReadMeter",
    "SharedState",
    "refuse_unknown_parameters",
]


_RETRY_S = 1.0
_ANSWER_S = 3.0


class Reach(Protocol):
    """Gives requests the deployment. Thread-safe."""

    settings: Settings

    def get(self) -> Deployment:
        """Return the deployment; raise Unavailable while its cluster does not answer. Blocks."""

    def close(self) -> None:
        """Close the deployment, if this opened it."""


class OpenDeployment:
    """A deployment that the caller has opened, and closes."""

    def __init__(self, deployment: Deployment) -> None:
        self.settings = deployment.settings
        self._deployment = deployment

    def get(self) -> Deployment:
        """Return the deployment."""
        return self._deployment

    def close(self) -> None:
        """Do nothing: the deployment belongs to the caller."""


class LateDeployment:
    """Connects on first use, and again at least a second after a failure."""

    def __init__(self, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = ExitStack()
        self._deployment: Deployment | None = None
        self._failure: Unavailable | None = None
        self._failed_at = 0.0

    def get(self) -> Deployment:
        """Return the deployment; connect when that has not succeeded yet. Raises Unavailable."""
        with self._lock:
            if self._deployment is not None:
                return self._deployment
            if self._failure is not None and self._clock.monotonic() < self._failed_at + _RETRY_S:
                raise Unavailable(str(self._failure))
            try:
                self._deployment = self._closing.enter_context(open_deployment(self.settings))
            except Unavailable as error:
                self._failure, self._failed_at = error, self._clock.monotonic()
                raise
            return self._deployment

    def close(self) -> None:
        """Close the deployment."""
        with self._lock:
            self._closing.close()
            self._deployment = None


class HealthPulse:
    """Whether the cluster answers, checked at most once a second. Thread-safe: one thread checks for all.

    A client waits long for a silent cluster, because it may come back. With this check a request is refused
    at once instead, and threads do not pile up.
    """

    def __init__(self, reach: Reach, *, clock: Clock = SYSTEM) -> None:
        self._reach = reach
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_at: float | None = None
        self._failure: str | None = None

    def deployment(self) -> Deployment:
        """Return the deployment; raise Unavailable when its cluster does not answer. Blocks for seconds."""
        with self._lock:
            if self._checked_at is None or self._clock.monotonic() >= self._checked_at + _RETRY_S:
                self._failure = self._check()
                self._checked_at = self._clock.monotonic()
            if self._failure is not None:
                raise Unavailable(self._failure)
        return self._reach.get()

    def _check(self) -> str | None:
        """Return why the cluster does not answer; None when it does."""
        try:
            client = self._reach.get().client
            eventloop.run(asyncio.wait_for(client.timestamp(), _ANSWER_S))
        except TimeoutError:
            return f"the cluster gave no timestamp within {_ANSWER_S:g} s; check that its stores run"
        except Unavailable as error:
            return str(error)
        return None


class ReadMeter:
    """Charges reads to the usage of accounts; the store gets it some seconds later. Thread-safe."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._lock = threading.Lock()
        self._meter: UsageMeter | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    def charge(self, account: str, usage: Usage) -> None:
        """Count what a read has used."""
        with self._lock:
            if self._meter is None:
                try:
                    self._meter = UsageMeter(self._reach.get().blocking_client)
                except Unavailable:
                    return  # a read without a cluster has read nothing
            self._meter.add(account, usage)
            if self._timer is None and not self._closed:
                self._timer = threading.Timer(USAGE_INTERVAL_S, self._flush)
                self._timer.daemon = True
                self._timer.start()

    def _flush(self) -> None:
        with self._lock:
            self._timer, meter = None, self._meter
        if meter is not None:
            meter.flush()

    def close(self) -> None:
        """Write what is counted; nothing is written later."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
        self._flush()


PREFIX = "/api/v1"
"""The prefix of every route but those of probes, metrics and pages."""


@dataclass(frozen=True, slots=True)
class ApiState:
    """What all requests of the application share."""

    settings: Settings
    reach: Reach
    pulse: HealthPulse
    readers: Readers
    searches: SearchWorkers
    comparisons: WorkerProcesses
    """Those of tenants' targets."""
    usage: ReadMeter
    facts: FactsCache
    clock: Clock

    def close(self) -> None:
        """End the processes of searches and comparisons, and write the usage of reads. Blocks."""
        self.searches.close()
        self.comparisons.close()
        self.usage.close()


def refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that a route does not declare: most often they are misspelt."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    unknown = sorted(request.query_params.keys() - known)
    if unknown:
        remedy = f"use {', '.join(sorted(known))}" if known else "this path takes none"
        raise ProblemError(400, f"query parameter {unknown[0][:64]} is unknown; {remedy}")


def _state_of(request: Request) -> ApiState:
    state: ApiState = request.app.state.service
    return state


SharedState = Annotated[ApiState, Depends(_state_of)]


def _deployment_of(state: SharedState, _caller: Authenticated) -> Deployment:
    return state.pulse.deployment()


Deployed = Annotated[Deployment, Depends(_deployment_of)]
"""The deployment, for requests with a token. Raises Unavailable while its cluster does not answer."""
