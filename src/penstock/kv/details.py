"""Durations: the parts of one commit, and the commands of transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from penstock import metrics
from penstock.clock import Clock


@dataclass(slots=True)
class CommitDetails:
    """Spans of one commit in seconds, and its size; for slow logs."""

    protocol: str = ""
    get_latest_ts_s: float = 0
    prewrite_s: float = 0
    resolve_lock_s: float = 0  # summed over concurrent batches
    wait_prewrite_binlog_s: float = 0
    get_commit_ts_s: float = 0
    commit_s: float = 0
    local_latch_s: float = 0
    commit_backoff_s: float = 0
    write_keys: int = 0
    write_bytes: int = 0
    prewrite_regions: int = 0
    amended_keys: int = 0
    fell_back_from: str = ""

    def as_fields(self) -> dict[str, float | int | str]:
        """Return what is not zero or empty, by name, as fields of a log line."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if value
        }

    @contextmanager
    def span(self, clock: Clock, name: str) -> Iterator[None]:
        """Add the duration of a block to the span called `name`."""
        began = clock.monotonic()
        try:
            yield
        finally:
            setattr(self, f"{name}_s", getattr(self, f"{name}_s") + clock.monotonic() - began)


_SECONDS = {
    command: metrics.KV_TXN_CMD_DURATION_SECONDS.labels(command, "general")
    for command in ("get", "batch_get", "lock_keys", "commit", "rollback")
}


@contextmanager
def measure_command(clock: Clock, command: str) -> Iterator[None]:
    """Observe the duration of a block as one command, whether it succeeds or fails."""
    began = clock.monotonic()
    try:
        yield
    finally:
        _SECONDS[command].observe(clock.monotonic() - began)
