"""Expressions of rules and of the dashboard: Prometheus reads them, and they ask only for what there is."""

import pytest
from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
    parse,
)

from monitoring.alerts import ALERTS, Alert, alert_rules
from monitoring.dashboards import OVERVIEW, Panel, dashboard, panel_of
from monitoring.declared import Kind, declared_metrics, metrics_by_sample, require_declared
from penstock.errors import Invalid

KNOWN = metrics_by_sample()
EVERYWHERE = {"instance", "part"}
"""Labels that whoever gathers the metrics adds."""


def check(text: str) -> None:
    """Raise ValueError when an expression asks for something that there is not.

    A name has to be a sample's, a label one of its own; rates are of what only grows, and of nothing else.
    """
    match parse(text.replace("$__rate_interval", "5m").replace("$__range", "5m")):
        case MatrixSelector():
            raise ValueError(f"{text}: a range is for rate and increase only")
        case expression:
            labels(expression)


def labels(node: Expr) -> frozenset[str]:
    """The labels that the samples of a node have, once all of it is checked."""
    match node:
        case NumberLiteral():
            return frozenset()
        case ParenExpr(expr=inner):
            return labels(inner)
        case VectorSelector():
            return selected(node, Kind.GAUGE)
        case MatrixSelector(vector_selector=selector):
            return selected(selector, Kind.COUNTER, Kind.HISTOGRAM)
        case Call(args=arguments):
            found = frozenset[str]().union(*map(labels, arguments))
            if node.func.name == "histogram_quantile" and "le" not in found:
                raise ValueError("a quantile needs the label le")
            return found - {"le"} if node.func.name == "histogram_quantile" else found
        case AggregateExpr(expr=value, modifier=modifier):
            by = frozenset(modifier.labels if modifier else ())
            if unknown := by - labels(value):
                raise ValueError(f"there is no label {min(unknown)}")
            return by
        case BinaryExpr(lhs=left, rhs=right):
            sides = {labels(each) for each in (left, right) if not isinstance(each, NumberLiteral)}
            if len(sides) > 1:
                raise ValueError("both sides need the same labels; aggregate them by those")
            return next(iter(sides), frozenset())
        case _:
            raise ValueError(f"{node} is not checked")


def selected(selector: VectorSelector, *kinds: Kind) -> frozenset[str]:
    metric = KNOWN.get(selector.name or "")
    if metric is None:
        raise ValueError(f"there is no metric {selector.name}")
    found = frozenset(metric.labels) | EVERYWHERE | ({"le"} if selector.name.endswith("_bucket") else set())
    for matcher in selector.matchers.matchers:
        if matcher.name not in found:
            raise ValueError(f"{selector.name} has no label {matcher.name}")
    if metric.kind not in kinds:
        is_gauge = metric.kind is Kind.GAUGE
        raise ValueError(f"{selector.name} {'is a gauge' if is_gauge else 'only grows; show its rate'}")
    return found


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_rule_asks_for_what_there_is(alert: Alert) -> None:
    check(alert.expression)


@pytest.mark.parametrize(
    "panel", [*OVERVIEW, *map(panel_of, declared_metrics())], ids=lambda panel: panel.title
)
def test_a_panel_asks_for_what_there_is(panel: Panel) -> None:
    for query in panel.queries:
        check(query.expression)


def test_nothing_is_made_that_asks_for_a_metric_which_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = metrics_by_sample()
    del gone["penstock_part_up"]
    monkeypatch.setattr("monitoring.declared.metrics_by_sample", lambda: gone)
    for make in (alert_rules, dashboard):
        with pytest.raises(Invalid, match="names a metric penstock_part_up, which is not declared"):
            make()


@pytest.mark.parametrize("text", ["penstock_gone_total > 0", "rate(penstock_sink_rows[5m])", "process_x"])
def test_a_name_that_is_no_samples_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"names a metric \w+, which is not declared"):
        require_declared(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "penstock_part_up ==",
        "penstock_part_up 1",
        "sum(penstock_part_up",
        "sum by part (penstock_part_up)",
        'penstock_part_up{part="a}',
        "penstock_part_up{part=a}",
        "penstock_part_up[5 m]",
        "rate(penstock_sink_rows_total[5m], 2)",
    ],
)
def test_what_prometheus_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("penstock_gone_total > 0", "penstock_gone_total"),
        ("penstock_sink_rows > 0", "penstock_sink_rows"),
        ('penstock_jobs_jobs{how="x"}', "label how"),
        ("sum by (changefeed) (penstock_jobs_jobs)", "label changefeed"),
        ("rate(penstock_jobs_jobs[5m])", "gauge"),
        ("penstock_sink_rows_total", "only grows"),
        ("penstock_sink_rows_total[5m]", "range"),
        ("sum(penstock_sink_rows_total[5m])", "got matrix"),
        ("penstock_sink_rows_total[5m] > 1", "instant vector"),
        ("rate(sum(penstock_jobs_jobs))", "got vector"),
        ("histogram_quantile(0.5, sum(rate(penstock_eventstore_flush_seconds_bucket[5m])))", "le"),
        ("histogram_quantile(0.5, sum by (le) (rate(penstock_eventstore_flush_seconds[5m])))", "no metric"),
        ("penstock_jobs_jobs / penstock_sink_spool_bytes", "same labels"),
    ],
)
def test_what_asks_for_something_that_there_is_not_is_refused(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check(text)


@pytest.mark.parametrize(
    "text",
    [
        "penstock_part_up == 0",
        'sum by (part, state) (penstock_jobs_jobs{state!="paused"}) > 0',
        "histogram_quantile(0.9, sum by (le) (rate(penstock_eventstore_flush_seconds_bucket[$__range])))",
        "rate(penstock_eventstore_flush_seconds_sum[5m]) / rate(penstock_eventstore_flush_seconds_count[5m])",
    ],
)
def test_what_there_is_may_be_asked_for(text: str) -> None:
    check(text)
