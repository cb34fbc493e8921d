"""The pages of metrics that the parts of a deployment show, read all at once.

What the parts' metrics say of the flow: how many rows pass in a second, and how full spools are.
"""

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
from penstock.control.overview.model import FlowStage, SpoolLevel
from penstock.control.part_states import PartStatus
from penstock.errors import Invalid
from penstock.settings.network import asked_host, parted

__all__ = ["Growth", "MetricSample", "pages", "read_page", "spools"]


_AT_ONCE_MAX = 16
_PAGE_BYTES_MAX = 16 << 20
_CHUNK_BYTES = 1 << 16


def pages(
    parts: Sequence[PartStatus], *, timeout_s: float = 2.0, clock: Clock = SYSTEM
) -> dict[str, str | None]:
    """Each part's metrics in the Prometheus text format, by its name.

    None for a part that shows none, or does not answer in full within about `timeout_s`; never raises.
    """
    shown = {part.name: part.metrics_addr for part in parts if part.metrics_addr is not None}
    found: dict[str, str | None] = {part.name: None for part in parts}
    if not shown:
        return found
    with ThreadPoolExecutor(min(len(shown), _AT_ONCE_MAX), "penstock-pages") as pool:
        read = pool.map(lambda addr: _read(addr, timeout_s, clock), shown.values())
        found.update(zip(shown, read, strict=True))
    return found


def _read(addr: str, timeout_s: float, clock: Clock) -> str | None:
    deadline = clock.monotonic() + timeout_s
    try:
        host, port = parted(addr)
        connection = HTTPConnection(asked_host(host), port, timeout=timeout_s)
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
"""Over how long a rate is taken, at most."""

_STORED = "stored"


class MetricSample(NamedTuple):
    """A series: its metric's name, and the values of its labels in the order of the labels' names."""

    name: str
    labels: tuple[str, ...] = ()


def _name(metric: Counter | Gauge) -> str:
    """What its samples are called."""
    (family,) = metric.describe()
    return f"{family.name}_total" if isinstance(metric, Counter) else str(family.name)


_ROWS: Mapping[FlowStage, str] = {
    FlowStage.CAPTURE: _name(metrics.EVENTSTORE_ROWS_TOTAL),
    FlowStage.STORE: _name(metrics.EVENTSTORE_FLUSHED_ROWS_TOTAL),
    FlowStage.CHANGEFEEDS: _name(metrics.SINK_ROWS_TOTAL),
    FlowStage.JOBS: _name(metrics.JOBS_USAGE_ROWS_TOTAL),
}
_SPOOLED, _MARKS = _name(metrics.SINK_SPOOL_BYTES), _name(metrics.SINK_SPOOL_MARK_BYTES)
_WANTED = (*_ROWS.values(), _SPOOLED, _MARKS)


def read_page(text: str) -> dict[MetricSample, float]:
    """Those samples of a page that the overview needs; raise ValueError when it is no such page.

    A page has thousands of others: reading them all would be most of the work.
    """
    lines = "\n".join(line for line in text.split("\n") if line.startswith(_WANTED))
    return {
        MetricSample(each.name, tuple(each.labels[name] for name in sorted(each.labels))): each.value
        for family in text_string_to_metric_families(lines + "\n")
        for each in family.samples
        if each.name in _WANTED
    }


def spools(pages: Mapping[str, Mapping[MetricSample, float]]) -> dict[str, SpoolLevel]:
    """The spools of changefeeds, by their names, as the pages of parts have them."""
    found: dict[str, SpoolLevel] = {}
    for page in pages.values():
        for sample, nbytes in page.items():
            if sample.name != _SPOOLED:
                continue
            (feed,) = sample.labels
            quota, high, low = (
                page.get(MetricSample(_MARKS, (feed, mark)), 0.0) for mark in ("quota", "high", "low")
            )
            if quota:
                found[feed] = SpoolLevel(
                    bytes=int(nbytes),
                    quota_bytes=int(quota),
                    level=round(nbytes / quota, 4),
                    high=round(high / quota, 4),
                    low=round(low / quota, 4),
                )
    return found


@dataclass(slots=True)
class Growth:
    """By how much counters grow, whatever becomes of the processes that count. Pure.

    A counter that is lower than before was begun anew, with its process: all of it is growth. One of a part
    that was not seen before tells nothing of how fast it grew.
    """

    _seen: dict[str, dict[MetricSample, float]] = field(default_factory=dict)
    _grown: dict[MetricSample, float] = field(default_factory=dict)
    _history: deque[tuple[float, dict[MetricSample, float]]] = field(default_factory=deque)

    def add(self, at: float, pages: Mapping[str, Mapping[MetricSample, float]]) -> None:
        """Take the pages of parts that answered, at a moment of the monotonic clock."""
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
        """Rows in a second; None where nobody knows. Of some changefeeds, or of one account, where given.

        Captures serve all accounts together: what they do says nothing of one.
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
        return round(sum(new[each] - old.get(each, 0.0) for each in counted) / (now - then), 3)
