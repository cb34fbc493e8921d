"""The dashboard for Grafana: a chosen overview, then every declared metric, part by part."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monitoring.declared import DeclaredMetric, Kind, metrics_by_family, require_declared

__all__ = ["OVERVIEW", "Panel", "Query", "dashboard", "panel_of"]

_COLUMNS = 24
_HEIGHT = 8
_PART_FILTER = 'part=~"$part"'
_INTERVAL = "[$__rate_interval]"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """A line of a panel, and its legend."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel with some lines; `unit` is Grafana's name of the unit."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    log_scale: bool = False


OVERVIEW = (
    Panel(
        title="Parts",
        description="The parts whose metrics could be read.",
        queries=(Query("penstock_part_up", "{{part}}"),),
        kind="stat",
        width=8,
    ),
    Panel(
        title="Lag by stage",
        description="The lag of each stage behind the clock. Check the first stage that lags.",
        queries=(
            Query("max(penstock_subscription_client_resolved_ts_lag)", "pulled"),
            Query("max(penstock_eventstore_resolved_lag_seconds)", "captured"),
            Query("max by (changefeed) (penstock_sink_checkpoint_lag_seconds)", "changefeed {{changefeed}}"),
            Query("max by (job) (penstock_jobs_watermark_lag_seconds)", "job {{job}}"),
        ),
        unit="s",
        width=16,
        log_scale=True,
    ),
    Panel(
        title="Rows by stage",
        description="Rows that pass each stage per second.",
        queries=(
            Query(f"sum(rate(penstock_kvclient_pull_event_count_total{_INTERVAL}))", "pulled"),
            Query(f'sum(rate(penstock_eventstore_rows_total{{outcome="stored"}}{_INTERVAL}))', "captured"),
            Query(f"sum(rate(penstock_eventstore_flushed_rows_total{_INTERVAL}))", "in objects"),
            Query(f"sum(rate(penstock_sink_rows_total{_INTERVAL}))", "in files of changefeeds"),
            Query(f"sum(rate(penstock_jobs_usage_rows_total{_INTERVAL}))", "given to consumers"),
        ),
        unit="rowsps",
        width=12,
    ),
    Panel(
        title="Failures",
        description="Failures per second, by place; most are retried.",
        queries=(
            Query(f"sum(rate(penstock_kvclient_event_feed_error_count_total{_INTERVAL}))", "change streams"),
            Query(f"sum(rate(penstock_eventstore_flush_failures_total{_INTERVAL}))", "flushes"),
            Query(f"sum(rate(penstock_eventstore_upkeep_failures_total{_INTERVAL}))", "upkeep"),
            Query(
                f"sum by (changefeed) (rate(penstock_sink_errors_total{_INTERVAL}))",
                "changefeed {{changefeed}}",
            ),
            Query(
                f'sum(rate(penstock_jobs_endings_total{{how=~"retried|failed|permanent"}}{_INTERVAL}))',
                "jobs",
            ),
            Query(f'sum(rate(penstock_api_requests_total{{status=~"5.."}}{_INTERVAL}))', "API"),
        ),
        unit="ops",
        width=12,
    ),
    Panel(
        title="Spool of changefeeds",
        description="Encoded bytes that are not on the remote yet, and the mark above which reading stops.",
        queries=(
            Query("sum by (changefeed) (penstock_sink_spool_bytes)", "{{changefeed}}"),
            Query('max by (changefeed) (penstock_sink_spool_mark_bytes{mark="high"})', "{{changefeed}} high"),
        ),
        unit="bytes",
    ),
    Panel(
        title="Jobs by state",
        description="Jobs in error need to be resumed or repaired.",
        queries=(Query("sum by (state) (penstock_jobs_jobs)", "{{state}}"),),
    ),
    Panel(
        title="Commits",
        description="Duration of commits, as their clients see it.",
        queries=tuple(
            Query(
                f"histogram_quantile({share}, sum by (le)"
                f' (rate(penstock_kv_txn_cmd_duration_seconds_bucket{{type="commit"}}{_INTERVAL})))',
                name,
            )
            for share, name in ((0.5, "p50"), (0.99, "p99"))
        ),
        unit="s",
        log_scale=True,
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard; raise Invalid when a line names a metric that is not declared."""
    panels: list[dict[str, Any]] = []
    row = _row(1, "Overview", 0)
    panels += [row, *_place_panels(OVERVIEW, first_id=2, top=1)]
    top = 1 + max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    number = 100
    for family, metrics in metrics_by_family().items():
        row = _row(number, family.value, top)
        row["collapsed"] = True
        row["panels"] = list(_place_panels(map(panel_of, metrics), first_id=number + 1, top=top + 1))
        panels.append(row)
        number, top = number + 100, top + 1
    return {
        "uid": "penstock",
        "title": "Penstock",
        "description": "Changes from their commit to their targets.",
        "tags": ["penstock", "cdc"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def panel_of(metric: DeclaredMetric) -> Panel:
    """Return the panel of a metric: rates of counters, quantiles of histograms, values of gauges."""
    queries: tuple[Query, ...]
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels)
    if metric.kind is Kind.COUNTER:
        by = _by(*metric.labels, *(() if metric.labels else ("part",)))
        rate = f"sum{by} (rate({metric.name}{{{_PART_FILTER}}}{_INTERVAL}))"
        queries = (Query(rate, legend or "{{part}}"),)
    elif metric.kind is Kind.HISTOGRAM:
        rate = f"sum{_by('le', *metric.labels)} (rate({metric.name}_bucket{{{_PART_FILTER}}}{_INTERVAL}))"
        queries = tuple(
            Query(f"histogram_quantile({share}, {rate})", f"{name} {legend}".strip())
            for share, name in ((0.5, "p50"), (0.99, "p99"))
        )
    else:
        queries = (Query(f"{metric.name}{{{_PART_FILTER}}}", f"{{{{part}}}} {legend}".strip()),)
    return Panel(
        title=_title(metric),
        description=f"{metric.meaning} ({metric.name})",
        queries=queries,
        unit=_unit(metric),
        log_scale=metric.kind is Kind.HISTOGRAM,
    )


def _by(*labels: str) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _title(metric: DeclaredMetric) -> str:
    name = metric.name.removeprefix("penstock_").removesuffix("_total").replace("_", " ")
    return name[0].upper() + name[1:]


def _unit(metric: DeclaredMetric) -> str:
    name = metric.name.removesuffix("_total")
    if metric.kind is Kind.COUNTER:
        if name.endswith("_bytes"):
            return "Bps"
        if name.endswith("_seconds"):
            return "s"  # seconds of work per second
        return "rowsps" if name.endswith("_rows") else "ops"
    if metric.meaning.startswith("Nanoseconds"):
        return "ns"
    if name.endswith(("_seconds", "_lag")) or metric.meaning.startswith("Seconds"):
        return "s"
    return "bytes" if name.endswith("_bytes") else "short"


def _place_panels(panels: Iterable[Panel], *, first_id: int, top: int) -> Iterator[dict[str, Any]]:
    """Yield panels side by side, row after row."""
    left = 0
    for number, panel in enumerate(panels):
        if left + panel.width > _COLUMNS:
            left, top = 0, top + _HEIGHT
        for query in panel.queries:
            require_declared(query.expression)
        yield _render_panel(panel, first_id + number, {"x": left, "y": top, "w": panel.width, "h": _HEIGHT})
        left += panel.width


def _render_panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit} if panel.log_scale else {"unit": panel.unit, "min": 0}
    options: dict[str, Any] = {"tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "stat":
        colours = [{"value": None, "color": "red"}, {"value": 1, "color": "green"}]
        up = {"0": {"text": "down"}, "1": {"text": "up"}}
        defaults |= {
            "thresholds": {"mode": "absolute", "steps": colours},
            "mappings": [{"type": "value", "options": up}],
        }
        options = {"colorMode": "background", "graphMode": "none", "textMode": "value_and_name"}
    else:
        scale = {"type": "log", "log": 10} if panel.log_scale else {"type": "linear"}
        defaults["custom"] = {"fillOpacity": 8, "showPoints": "never", "scaleDistribution": scale}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "part",
            "label": "Part",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": "label_values(penstock_part_up, part)", "refId": "part"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]
