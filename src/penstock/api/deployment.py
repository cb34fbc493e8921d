"""The deployment that an API belongs to, which may be away when it starts, and come and go.

What requests share, and how routes ask for it.
"""

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request

from penstock import eventloop
from penstock.api.errors import ProblemError
from penstock.api.middleware import Readers
from penstock.api.security import Asking
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment, deployed
from penstock.control.overview.gather import Rates
from penstock.errors import Unavailable
from penstock.settings import Settings

__all__ = [
    "PREFIX",
    "ApiState",
    "Deployed",
    "HealthPulse",
    "LateDeployment",
    "Reach",
    "Reached",
    "Shared",
    "only_declared",
]


_AGAIN_S = 1.0
_ANSWER_S = 3.0


class Reach(Protocol):
    """How requests come to the deployment. Thread-safe."""

    settings: Settings

    def get(self) -> Deployment:
        """The deployment; raise Unavailable while its cluster does not answer. Blocks."""

    def close(self) -> None:
        """Let go of it."""


class Reached:
    """A deployment that somebody else has opened, and closes."""

    def __init__(self, deployment: Deployment) -> None:
        self.settings = deployment.settings
        self._deployment = deployment

    def get(self) -> Deployment:
        """See Reach."""
        return self._deployment

    def close(self) -> None:
        """See Reach."""


class LateDeployment:
    """Connects when it is first asked, and again a while after that failed."""

    def __init__(self, settings: Settings, *, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = ExitStack()
        self._deployment: Deployment | None = None
        self._failure: Unavailable | None = None
        self._failed_at = 0.0

    def get(self) -> Deployment:
        """See Reach."""
        with self._lock:
            if self._deployment is not None:
                return self._deployment
            if self._failure is not None and self._clock.monotonic() < self._failed_at + _AGAIN_S:
                raise Unavailable(str(self._failure))
            try:
                self._deployment = self._closing.enter_context(deployed(self.settings))
            except Unavailable as error:
                self._failure, self._failed_at = error, self._clock.monotonic()
                raise
            return self._deployment

    def close(self) -> None:
        """See Reach."""
        with self._lock:
            self._closing.close()
            self._deployment = None


class HealthPulse:
    """Whether the cluster answers, as of a second ago at most. For any number of threads: one of them asks.

    A client waits long for a cluster that is silent, which may come back. Whoever asks over HTTP is told
    at once, and threads do not pile up.
    """

    def __init__(self, reach: Reach, *, clock: Clock = SYSTEM) -> None:
        self._reach = reach
        self._clock = clock
        self._turn = threading.Lock()
        self._felt_at: float | None = None
        self._failure: str | None = None

    def deployment(self) -> Deployment:
        """The deployment, whose cluster answers; raise Unavailable when it does not. Blocks for seconds."""
        with self._turn:
            if self._felt_at is None or self._clock.monotonic() >= self._felt_at + _AGAIN_S:
                self._failure = self._felt()
                self._felt_at = self._clock.monotonic()
            if self._failure is not None:
                raise Unavailable(self._failure)
        return self._reach.get()

    def _felt(self) -> str | None:
        """What is wrong; None: nothing."""
        try:
            client = self._reach.get().client
            eventloop.run(asyncio.wait_for(client.timestamp(), _ANSWER_S))
        except TimeoutError:
            return f"the cluster gave no timestamp within {_ANSWER_S:g} s; see that its stores run"
        except Unavailable as error:
            return str(error)
        return None


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
