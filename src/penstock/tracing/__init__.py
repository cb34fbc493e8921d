"""OpenTelemetry traces of changes from their commit to their targets, without a trace context on the wire.

The commit timestamp of a transaction determines whether it is traced, the id of its trace and the ids of its
spans. So every process computes the same answers alone. Hooks check `tracing.current` once per batch:

    if tracing.current is not None:
        ...
"""

from penstock.clock import SYSTEM, Clock
from penstock.extras import import_with_extra
from penstock.settings import TracingSettings
from penstock.tracing.sampling import Sampling, Stage
from penstock.tracing.tracer import StageRecorder, Tracer

__all__ = [
    "Sampling",
    "Stage",
    "StageRecorder",
    "Tracer",
    "TracingScope",
    "configure",
    "current",
    "require_packages",
]

current: Tracer | None = None
"""The tracer of this process; None when nothing is traced."""


class TracingScope:
    """A context in which this process traces. Its end sends waiting spans, for a few seconds at most."""

    def __init__(self, tracer: Tracer | None) -> None:
        self.tracer = tracer

    def __enter__(self) -> Tracer | None:
        return self.tracer

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the spans that wait and stop tracing. Further calls do nothing."""
        global current  # noqa: PLW0603 - one tracer per process is the point
        if self.tracer is not None and current is self.tracer:
            current = None
            self.tracer.close()


def require_packages(settings: TracingSettings) -> None:
    """Raise Invalid when settings ask for traces and the packages that send them are missing."""
    if settings.endpoint is not None and settings.sample > 0:
        import_with_extra("penstock.tracing.otlp", needed_by="tracing")


def configure(
    settings: TracingSettings, *, cluster_id: int, service: str, instance: str = "", clock: Clock = SYSTEM
) -> TracingScope:
    """Trace in this process until the returned scope is closed; trace nothing without an endpoint.

    An endpoint that does not answer is no error: its spans are lost and counted. Raises Invalid when the
    packages that send spans are missing.
    """
    global current  # noqa: PLW0603 - one tracer per process is the point
    if settings.endpoint is None or settings.sample == 0:
        return TracingScope(None)
    assert current is None, "a process has one tracer"
    require_packages(settings)
    from penstock.tracing.otlp import OtlpExport

    export = OtlpExport(settings.endpoint, settings.headers, service=service, instance=instance)
    current = Tracer(Sampling.of(cluster_id, settings.sample), export, clock=clock)
    return TracingScope(current)
