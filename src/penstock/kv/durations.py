"""How long the commands of transactions take."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock import metrics
from penstock.clock import Clock


@contextmanager
def timed(clock: Clock, command: str) -> Iterator[None]:
    """Observe the duration of a block as one command, whether it succeeds or fails."""
    began = clock.monotonic()
    try:
        yield
    finally:
        seconds = clock.monotonic() - began
        metrics.KV_TXN_CMD_DURATION_SECONDS.labels(command, "general").observe(seconds)
