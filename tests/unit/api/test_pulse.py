"""Whether the cluster answers: asked by one at a time, and not more often than it needs to be."""

import asyncio
from typing import Any

import pytest

from penstock.api.deployment import HealthPulse
from penstock.errors import Unavailable
from penstock.settings import Settings
from penstock.testing.clock import ManualClock


class Cluster:
    """A deployment with a client; counts how often that is asked, and says what is wrong."""

    settings = Settings()

    def __init__(self) -> None:
        self.asked = 0
        self.failure: Exception | None = None
        self.client = self

    def get(self) -> Any:
        return self

    def close(self) -> None:
        pass

    async def timestamp(self) -> int:
        self.asked += 1
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        if self.failure is not None:
            raise self.failure
        return 1


def test_many_requests_cost_one_question_a_second() -> None:
    cluster, clock = Cluster(), ManualClock()
    pulse = HealthPulse(cluster, clock=clock)
    for _ in range(100):
        assert pulse.deployment() is cluster
    assert cluster.asked == 1
    clock.advance(1.0)
    pulse.deployment()
    assert cluster.asked == 2


@pytest.mark.parametrize("failure", [Unavailable("no placement driver answers"), TimeoutError()])
def test_a_silent_cluster_is_told_at_once_to_all_and_seen_again(failure: Exception) -> None:
    cluster, clock = Cluster(), ManualClock()
    pulse = HealthPulse(cluster, clock=clock)
    cluster.failure = failure
    for _ in range(50):
        with pytest.raises(Unavailable):
            pulse.deployment()
    assert cluster.asked == 1
    cluster.failure = None
    clock.advance(1.0)
    assert pulse.deployment() is cluster
