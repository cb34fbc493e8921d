"""Waiting for what others do, and what their metrics tell of it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

WAIT_S = 180.0


def counted(metric: Any, suffix: str, **labels: str) -> float:
    """What a metric has come to, over all labels that are not given."""
    return sum(
        float(sample.value)
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(suffix) and labels.items() <= sample.labels.items()
    )


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def wait(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
