"""Traces of changes from their commit to their targets, by OpenTelemetry, without a context on the wire.

A transaction's trace is known by its commit timestamp: so is whether it is traced at all, and the ids of its
spans. Every process comes to the same answers alone. Hooks ask `tracing.current`, once a batch:

    if tracing.current is not None:
        ...
"""

from penstock.clock import SYSTEM, Clock
from penstock.settings import TracingSettings
from penstock.tracing.sampling import Sampling, Stage
from penstock.tracing.tracer import StageRecorder, Tracer

__all__ = ["Configured", "Sampling", "Stage", "StageRecorder", "Tracer", "configure", "current"]

current: Tracer | None = None
"""The tracer of this process; None: nothing is traced."""


class Configured:
    """A context: what is under way is sent when it ends, for a few seconds at most."""

    def __init__(self, tracer: Tracer | None) -> None:
        self.tracer = tracer

    def __enter__(self) -> Tracer | None:
        return self.tracer

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Trace no more. May be called again."""
        global current  # noqa: PLW0603 - one tracer per process is the point
        if self.tracer is not None and current is self.tracer:
            current = None
            self.tracer.close()


def configure(
    settings: TracingSettings, *, cluster_id: int, service: str, instance: str = "", clock: Clock = SYSTEM
) -> Configured:
    """Trace in this process from now on, until what is returned is closed; nothing without an endpoint.

    Never fails for an endpoint that does not answer: spans are lost then, and counted.
    """
    global current  # noqa: PLW0603 - one tracer per process is the point
    if settings.endpoint is None or settings.sample == 0:
        return Configured(None)
    assert current is None, "a process has one tracer"
    from penstock.tracing.otlp import OtlpExport

    export = OtlpExport(settings.endpoint, settings.headers, service=service, instance=instance)
    current = Tracer(Sampling.of(cluster_id, settings.sample), export, clock=clock)
    return Configured(current)
