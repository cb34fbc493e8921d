"""The declared metrics, by the part of Penstock that they belong to."""

import re
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.metrics import MetricWrapperBase

from penstock import metrics
from penstock.api.routes import status
from penstock.errors import Invalid

__all__ = [
    "DeclaredMetric",
    "Family",
    "Kind",
    "declared_metrics",
    "metrics_by_family",
    "metrics_by_sample",
    "require_declared",
]


class Kind(StrEnum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(StrEnum):
    """The part of Penstock that a metric belongs to, in the order of the flow."""

    DEPLOYMENT = "Deployment"
    KV = "Client"
    STORE = "Embedded store"
    PULLER = "Log puller"
    EVENTSTORE = "Event store"
    CHANGES = "Changes"
    SINK = "Changefeeds"
    JOBS = "Jobs"
    SPARK = "Spark"
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
    "penstock_rows_": Family.SPARK,
    "penstock_spark_": Family.SPARK,
    "penstock_api_": Family.API,
    "penstock_tracing_": Family.TRACING,
}


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A metric; `name` is that of Prometheus, without the suffixes of a histogram's samples."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]

    @property
    def family(self) -> Family:
        """The part that it belongs to, by the prefix of its name."""
        return next(family for prefix, family in _PREFIXES.items() if self.name.startswith(prefix))

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


_PROCESS = (  # declared by prometheus_client
    DeclaredMetric("process_cpu_seconds_total", Kind.COUNTER, "Processor time that a process has used.", ()),
    DeclaredMetric("process_resident_memory_bytes", Kind.GAUGE, "Resident memory of a process.", ()),
    DeclaredMetric("process_open_fds", Kind.GAUGE, "Open files and connections of a process.", ()),
)


def declared_metrics() -> list[DeclaredMetric]:
    """Return every metric: first those of each process, then ours in the order of declaration."""
    ours = [_read(metric) for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
    return [DeclaredMetric(status.UP, Kind.GAUGE, status.UP_MEANING, ("part",)), *_PROCESS, *ours]


def metrics_by_family() -> dict[Family, list[DeclaredMetric]]:
    """Return the metrics of each family."""
    by_family: dict[Family, list[DeclaredMetric]] = {family: [] for family in Family}
    for metric in declared_metrics():
        by_family[metric.family].append(metric)
    return by_family


def metrics_by_sample() -> dict[str, DeclaredMetric]:
    """Return the metric of each sample, by the name of the sample."""
    return {name: metric for metric in declared_metrics() for name in metric.samples}


def require_declared(expression: str) -> None:
    """Raise Invalid when an expression names a sample that no metric has."""
    known = metrics_by_sample()
    for name in _NAMES.findall(expression):
        if name not in known:
            raise Invalid(
                f"{expression} names a metric {name}, which is not declared; correct the expression"
            )


def _read(metric: MetricWrapperBase) -> DeclaredMetric:
    (described,) = metric.describe()
    kind = Kind(described.type)
    name = f"{described.name}_total" if kind is Kind.COUNTER else described.name
    return DeclaredMetric(name, kind, described.documentation, tuple(metric._labelnames))
