"""Expressions: read strictly, and checked against the metrics that there are."""

import pytest

from penstock.app.monitoring.declared import samples
from penstock.app.monitoring.promql import (
    Aggregation,
    Binary,
    Call,
    Number,
    Selector,
    check,
    parse,
)
from penstock.errors import Invalid

KNOWN = samples()


def test_an_expression_is_read_as_it_is_meant() -> None:
    found = parse('sum by (how) (increase(penstock_jobs_endings_total{how=~"a|b"}[15m])) * 2 > 1 + 3')
    selector = Selector("penstock_jobs_endings_total", (("how", "=~", "a|b"),), "15m")
    sums = Aggregation("sum", ("how",), Call("increase", (selector,)))
    assert found == Binary(">", Binary("*", sums, Number(2.0)), Binary("+", Number(1.0), Number(3.0)))


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
        "penstock_part_up @ 5",
        "rate(penstock_sink_rows_total[5m], 2)",
        "5m",
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse(text)


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
        ("sum(penstock_sink_rows_total[5m])", "range"),
        ("penstock_sink_rows_total[5m] > 1", "range"),
        ("rate(sum(penstock_jobs_jobs))", "a range"),
        ("histogram_quantile(0.5, sum(rate(penstock_eventstore_flush_seconds_bucket[5m])))", "le"),
        ("histogram_quantile(0.5, sum by (le) (rate(penstock_eventstore_flush_seconds[5m])))", "no metric"),
        ("penstock_jobs_jobs / penstock_sink_spool_bytes", "same labels"),
    ],
)
def test_what_asks_for_something_that_there_is_not_is_refused(text: str, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        check(text, KNOWN)


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
    check(text, KNOWN)
