"""The dashboard for Grafana, and the reference of metrics: nothing is missing, nothing is made up."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitoring.dashboards import OVERVIEW, dashboard, panel_of
from monitoring.declared import DeclaredMetric, Kind, declared_metrics, metrics_by_family

ROOT = Path(__file__).parents[3]


def all_panels(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in tree["panels"]:
        yield panel
        yield from panel.get("panels", ())


def expressions(tree: dict[str, Any]) -> Iterator[str]:
    for panel in all_panels(tree):
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_the_file_is_what_the_code_says() -> None:
    assert json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text()) == dashboard()


def test_every_metric_is_on_the_dashboard_and_in_the_reference() -> None:
    shown = {name for each in expressions(dashboard()) for name in re.findall(r"\w+", each)}
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    for metric in declared_metrics():
        assert shown & set(metric.samples), metric.name
        assert f"| `{metric.name}` | {metric.kind} |" in page


def test_every_metric_is_of_one_family() -> None:
    assert sum(len(found) for found in metrics_by_family().values()) == len(declared_metrics())
    assert all(metrics_by_family().values())


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    tree = dashboard()
    ids = [panel["id"] for panel in all_panels(tree)]
    assert len(ids) == len(set(ids))
    for group in (tree["panels"], *(panel["panels"] for panel in tree["panels"] if panel["type"] == "row")):
        cells = [
            (x, y)
            for panel in group
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells))
        assert all(x < 24 for x, _ in cells)


def test_legends_name_labels_that_the_lines_have() -> None:
    for panel in all_panels(dashboard()):
        for target in panel.get("targets", ()):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b|^penstock_|^process_", target["expr"]), target


def test_the_overview_shows_the_lag_of_every_stage() -> None:
    (lag,) = [panel for panel in OVERVIEW if panel.title == "Lag by stage"]
    assert [query.legend.split()[0] for query in lag.queries] == ["pulled", "captured", "changefeed", "job"]


@pytest.mark.parametrize(
    ("metric", "expression", "unit"),
    [
        (
            DeclaredMetric("x_bytes_total", Kind.COUNTER, "Bytes.", ("a",)),
            'sum by (a) (rate(x_bytes_total{part=~"$part"}[$__rate_interval]))',
            "Bps",
        ),
        (
            DeclaredMetric("x_seconds", Kind.HISTOGRAM, "Time.", ()),
            'histogram_quantile(0.5, sum by (le) (rate(x_seconds_bucket{part=~"$part"}[$__rate_interval])))',
            "s",
        ),
        (DeclaredMetric("x", Kind.GAUGE, "How many.", ("b",)), 'x{part=~"$part"}', "short"),
        (
            DeclaredMetric("x", Kind.HISTOGRAM, "Nanoseconds of it.", ("c",)),
            'histogram_quantile(0.5, sum by (le, c) (rate(x_bucket{part=~"$part"}[$__rate_interval])))',
            "ns",
        ),
    ],
)
def test_a_metric_is_drawn_as_its_kind_asks(metric: DeclaredMetric, expression: str, unit: str) -> None:
    panel = panel_of(metric)
    assert (panel.queries[0].expression, panel.unit) == (expression, unit)
