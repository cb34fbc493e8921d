"""The metrics that there are, by the part of Penstock that they are of."""

import re
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.metrics import MetricWrapperBase

from penstock import metrics
from penstock.api.routes import status
from penstock.errors import Invalid

__all__ = ["Declared", "Family", "Kind", "declared", "families", "require_declared", "samples"]


class Kind(StrEnum):
    """What a metric is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(StrEnum):
    """Of what a metric is, in the order of the flow."""

    DEPLOYMENT = "Deployment"
    KV = "Client"
    STORE = "Embedded store"
    PULLER = "Log puller"
    EVENTSTORE = "Event store"
    CHANGES = "Changes"
    SINK = "Changefeeds"
    JOBS = "Jobs"
    API = "HTTP API"
    TRACING = "Traces"


_NAMES = re.compile(r"\b(?:penstock|process)_\w+")
_PREFIXES = {
    "penstock_part_": Family.DEPLOYMENT,
    "process_": Family.DEPLOYMENT,
    "penstock_kv_": Family.KV,
    "penstock_store_": Family.STORE,
    "penstock_log_puller_": Family.PULLER,
    "penstock_kvclient_": Family.PULLER,
    "penstock_subscription_client_": Family.PULLER,
    "penstock_eventstore_": Family.EVENTSTORE,
    "penstock_changes_": Family.CHANGES,
    "penstock_sink_": Family.SINK,
    "penstock_jobs_": Family.JOBS,
    "penstock_api_": Family.API,
    "penstock_tracing_": Family.TRACING,
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A metric; `name` is as Prometheus shows it, without the endings of a histogram's samples."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]

    @property
    def family(self) -> Family:
        """Of what it is."""
        return next(family for prefix, family in _PREFIXES.items() if self.name.startswith(prefix))

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


_PROCESS = (  # of prometheus_client itself
    Declared("process_cpu_seconds_total", Kind.COUNTER, "Processor time that a process has used.", ()),
    Declared("process_resident_memory_bytes", Kind.GAUGE, "Memory that a process has.", ()),
    Declared("process_open_fds", Kind.GAUGE, "Files and connections that a process has open.", ()),
)


def declared() -> list[Declared]:
    """Every metric, in the order in which they are declared; first those of each process."""
    found = [_read(each) for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    return [Declared(status.UP, Kind.GAUGE, status.UP_MEANING, ("part",)), *_PROCESS, *found]


def families() -> dict[Family, list[Declared]]:
    """The metrics of each family."""
    found: dict[Family, list[Declared]] = {family: [] for family in Family}
    for each in declared():
        found[each.family].append(each)
    return found


def samples() -> dict[str, Declared]:
    """The metric of each sample, by the sample's name."""
    return {name: each for each in declared() for name in each.samples}


def require_declared(expression: str) -> None:
    """Raise Invalid when an expression names a sample that there is not."""
    known = samples()
    for name in _NAMES.findall(expression):
        if name not in known:
            raise Invalid(f"{expression}: there is no metric {name}")


def _read(metric: MetricWrapperBase) -> Declared:
    (described,) = metric.describe()
    kind = Kind(described.type)
    name = f"{described.name}_total" if kind is Kind.COUNTER else described.name
    return Declared(name, kind, described.documentation, tuple(metric._labelnames))
