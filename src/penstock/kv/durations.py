"""How long the commands of transactions take."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock import metrics
from penstock.clock import Clock

_SECONDS = {
    command: metrics.KV_TXN_CMD_DURATION_SECONDS.labels(command, "general")
    for command in ("get", "batch_get", "lock_keys", "commit", "rollback")
}


@contextmanager
def timed(clock: Clock, command: str) -> Iterator[None]:
    """Observe the duration of a block as one command, whether it succeeds or fails."""
    began = clock.monotonic()
    try:
        yield
    finally:
        _SECONDS[command].observe(clock.monotonic() - began)
