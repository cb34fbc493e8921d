"""Reads the metrics pages of a deployment's parts at once, and takes from them row rates and spool levels."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from prometheus_client import Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.control.overview.model import FlowStage, RowsByEngine, SpoolLevel
from penstock.control.part_states import PartStatus
from penstock.errors import Invalid
from penstock.settings.network import reachable_host, split_address

__all__ = [
    "Growth",
    "MetricSample",
    "count_abandoned",
    "count_rows",
    "parse_page",
    "parts_starting_spark",
    "parts_without_executors",
    "parts_without_spark",
    "read_pages",
    "spool_levels",
]


_THREADS_MAX = 16
_PAGE_BYTES_MAX = 16 << 20
_CHUNK_BYTES = 1 << 16


def read_pages(
    parts: Sequence[PartStatus], *, timeout_s: float = 2.0, clock: Clock = SYSTEM
) -> dict[str, str | None]:
    """Return each part's metrics page in the Prometheus text format, by the part's name.

    The page is None when the part serves none, or does not answer in full within about `timeout_s`. Never
    raises.
    """
    addrs = {part.name: part.metrics_addr for part in parts if part.metrics_addr is not None}
    pages: dict[str, str | None] = {part.name: None for part in parts}
    if not addrs:
        return pages
    with ThreadPoolExecutor(min(len(addrs), _THREADS_MAX), "penstock-pages") as pool:
        read = pool.map(lambda addr: _read(addr, timeout_s, clock), addrs.values())
        pages.update(zip(addrs, read, strict=True))
    return pages


def _read(addr: str, timeout_s: float, clock: Clock) -> str | None:
    deadline = clock.monotonic() + timeout_s
    try:
        host, port = split_address(addr)
        connection = HTTPConnection(reachable_host(host), port, timeout=timeout_s)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
            answer = connection.getresponse()
            if answer.status != 200:
                return None
            page = bytearray()
            while chunk := answer.read(_CHUNK_BYTES):
                page += chunk
                if len(page) > _PAGE_BYTES_MAX or clock.monotonic() > deadline:
                    return None
            return page.decode()
        finally:
            connection.close()
    except (OSError, HTTPException, UnicodeDecodeError, Invalid):
        return None


WINDOW_S = 10.0
"""A rate is the growth over at most this long."""

_STORED = "stored"


class MetricSample(NamedTuple):
    """One series: the name of its metric, and its label values ordered by label name."""

    name: str
    labels: tuple[str, ...] = ()


def _name(metric: Counter | Gauge) -> str:
    """Return the name of the metric's samples."""
    (family,) = metric.describe()
    return f"{family.name}_total" if isinstance(metric, Counter) else str(family.name)


_ROWS: Mapping[FlowStage, str] = {
    FlowStage.CAPTURE: _name(metrics.EVENTSTORE_ROWS_TOTAL),
    FlowStage.STORE: _name(metrics.EVENTSTORE_FLUSHED_ROWS_TOTAL),
    FlowStage.CHANGEFEEDS: _name(metrics.SINK_ROWS_TOTAL),
    FlowStage.JOBS: _name(metrics.JOBS_USAGE_ROWS_TOTAL),
}
_SPOOLED, _MARKS = _name(metrics.SINK_SPOOL_BYTES), _name(metrics.SINK_SPOOL_MARK_BYTES)
_NO_SPARK = _name(metrics.SPARK_SESSION_MISSING)
_NO_EXECUTORS = _name(metrics.SPARK_EXECUTORS_MISSING)
_SPARK_STARTS = _name(metrics.SPARK_SESSION_STARTING)
_ABANDONED = _name(metrics.JOBS_ABANDONED_CONSUMERS)
_BY_ENGINE = _name(metrics.ROWS_TOTAL)
_NEEDED = (
    *_ROWS.values(),
    _SPOOLED,
    _MARKS,
    _NO_SPARK,
    _NO_EXECUTORS,
    _SPARK_STARTS,
    _ABANDONED,
    _BY_ENGINE,
)


def parse_page(text: str) -> dict[MetricSample, float]:
    """Return the samples of a page that the overview needs; raise ValueError when it is not a metrics page.

    Other lines are skipped before parsing: a page has thousands, and parsing them would take long.
    """
    lines = "\n".join(line for line in text.split("\n") if line.startswith(_NEEDED))
    return {
        MetricSample(sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(lines + "\n")
        for sample in family.samples
        if sample.name in _NEEDED
    }


def count_abandoned(pages: Mapping[str, Mapping[MetricSample, float]]) -> int:
    """Return how many consumers of jobs were canceled and have not returned."""
    return int(sum(page.get(MetricSample(_ABANDONED), 0.0) for page in pages.values()))


def count_rows(pages: Mapping[str, Mapping[MetricSample, float]]) -> RowsByEngine | None:
    """Return the rows that each engine has worked on since its process started; None without any page."""
    if not pages:
        return None
    rows = {"spark": 0.0, "local": 0.0}
    for page in pages.values():
        for sample, value in page.items():
            if sample.name == _BY_ENGINE:
                engine, _stage = sample.labels
                rows[engine] = rows.get(engine, 0.0) + value
    return RowsByEngine(spark=int(rows["spark"]), local=int(rows["local"]))


def spool_levels(pages: Mapping[str, Mapping[MetricSample, float]]) -> dict[str, SpoolLevel]:
    """Return the spool levels that the pages of parts report, by changefeed."""
    levels: dict[str, SpoolLevel] = {}
    for page in pages.values():
        for sample, nbytes in page.items():
            if sample.name != _SPOOLED:
                continue
            (feed,) = sample.labels
            quota, high, low = (
                page.get(MetricSample(_MARKS, (feed, mark)), 0.0) for mark in ("quota", "high", "low")
            )
            if quota:
                levels[feed] = SpoolLevel(
                    bytes=int(nbytes),
                    quota_bytes=int(quota),
                    level=round(nbytes / quota, 4),
                    high=round(high / quota, 4),
                    low=round(low / quota, 4),
                )
    return levels


def parts_starting_spark(pages: Mapping[str, Mapping[MetricSample, float]]) -> frozenset[str]:
    """Return the parts whose Spark session starts."""
    return frozenset(part for part, page in pages.items() if page.get(MetricSample(_SPARK_STARTS)))


def parts_without_executors(pages: Mapping[str, Mapping[MetricSample, float]]) -> frozenset[str]:
    """Return the parts whose Spark jobs wait for executors."""
    return frozenset(part for part, page in pages.items() if page.get(MetricSample(_NO_EXECUTORS)))


def parts_without_spark(pages: Mapping[str, Mapping[MetricSample, float]]) -> frozenset[str]:
    """Return the parts that need a Spark session and have none."""
    return frozenset(part for part, page in pages.items() if page.get(MetricSample(_NO_SPARK)))


@dataclass(slots=True)
class Growth:
    """The growth of counters across restarts of the processes that count. Pure.

    A counter that is lower than before restarted with its process, so all of its value is growth. The first
    page of a part adds no growth, because nothing says how fast its counters grew.
    """

    _seen: dict[str, dict[MetricSample, float]] = field(default_factory=dict)
    _grown: dict[MetricSample, float] = field(default_factory=dict)
    _history: deque[tuple[float, dict[MetricSample, float]]] = field(default_factory=deque)

    def add(self, at: float, pages: Mapping[str, Mapping[MetricSample, float]]) -> None:
        """Add the pages of the parts that answered, read at `at` on the monotonic clock."""
        for part, page in pages.items():
            before = self._seen.get(part)
            counts = {sample: value for sample, value in page.items() if sample.name in _ROWS.values()}
            for sample, value in counts.items():
                known = self._grown.setdefault(sample, 0.0)
                if before is not None:
                    last = before.get(sample, 0.0)
                    self._grown[sample] = known + (value - last if value >= last else value)
            self._seen[part] = counts
        self._history.append((at, dict(self._grown)))
        while len(self._history) > 2 and self._history[1][0] <= at - WINDOW_S:
            self._history.popleft()

    def rate(
        self, stage: FlowStage, *, feeds: Collection[str] | None = None, account: str | None = None
    ) -> float | None:
        """Return the rows per second of a stage, of some changefeeds or of one account; None when unknown.

        The stages of captures have no rate for one account, because captures serve all accounts together.
        """
        name = _ROWS.get(stage)
        if name is None or len(self._history) < 2:
            return None
        if account is not None and stage in {FlowStage.CAPTURE, FlowStage.STORE}:
            return None
        (then, old), (now, new) = self._history[0], self._history[-1]
        counted = [sample for sample in new if sample.name == name]
        if stage is FlowStage.CAPTURE:
            counted = [sample for sample in counted if sample.labels == (_STORED,)]
        elif stage is FlowStage.CHANGEFEEDS and feeds is not None:
            counted = [sample for sample in counted if sample.labels[0] in feeds]
        elif stage is FlowStage.JOBS and account is not None:
            counted = [sample for sample in counted if sample.labels == (account,)]
        if not counted or now <= then:
            return None
        return round(sum(new[sample] - old.get(sample, 0.0) for sample in counted) / (now - then), 3)
