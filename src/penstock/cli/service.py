"""What services in the foreground have in common: they say when they are ready, and show their metrics."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from penstock.cli.metricserver import MetricServer

__all__ = ["metrics_shown", "say_ready"]


def say_ready(facts: Mapping[str, Any]) -> None:
    """Print one line of JSON, for whoever started the service."""
    with suppress(BrokenPipeError):  # nobody has to read it
        print(json.dumps(facts), flush=True)


@contextmanager
def metrics_shown(addr: str | None) -> Iterator[dict[str, str]]:
    """Show the process's metrics at an address, if one is given; yields what to say of it when ready.

    Raises Invalid when the address cannot be used.
    """
    if addr is None:
        yield {}
        return
    with MetricServer.start(addr, allow_remote=True) as server:
        yield {"metrics": server.addr}
