"""What is read from the parts' pages of metrics, and the rates that follow."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from penstock import metrics
from penstock.control.overview.model import FlowStage, RowsByEngine
from penstock.control.overview.part_metrics import (
    Growth,
    MetricSample,
    count_abandoned,
    count_rows,
    parse_page,
    parts_starting_spark,
    parts_without_executors,
    parts_without_spark,
    spool_levels,
)

CAPTURED = MetricSample("penstock_eventstore_rows_total", ("stored",))


def feed_rows(name: str) -> MetricSample:
    return MetricSample("penstock_sink_rows_total", (name,))


def page() -> str:
    """A page as a part shows it, with labels that need care and much that nobody asked for."""
    registry = CollectorRegistry()
    rows = Counter("penstock_eventstore_rows_total", "Rows.", ["outcome"], registry=registry)
    rows.labels("stored").inc(120)
    rows.labels("late").inc(3)
    Counter("penstock_sink_rows_total", "Rows.", ["changefeed"], registry=registry).labels('a"b\\c').inc(7)
    Counter("penstock_sink_rows_of_others_total", "Rows.", registry=registry).inc(9)
    spooled = Gauge("penstock_sink_spool_bytes", "Bytes.", ["changefeed"], registry=registry)
    marks = Gauge("penstock_sink_spool_mark_bytes", "Marks.", ["changefeed", "mark"], registry=registry)
    for feed, nbytes in (("files", 30), ("unmarked", 5)):
        spooled.labels(feed).set(nbytes)
    for mark, nbytes in (("quota", 100), ("high", 80), ("low", 60)):
        marks.labels("files", mark).set(nbytes)
    return generate_latest(registry).decode()


def test_a_page_gives_the_samples_that_are_needed_and_no_others() -> None:
    found = parse_page(page())
    assert found[CAPTURED] == 120
    assert found[feed_rows('a"b\\c')] == 7
    assert {sample.name for sample in found} == {
        "penstock_eventstore_rows_total",
        "penstock_sink_rows_total",
        "penstock_sink_spool_bytes",
        "penstock_sink_spool_mark_bytes",
    }
    assert parse_page("") == {}


def test_a_page_that_is_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="many"):
        parse_page('penstock_sink_rows_total{changefeed="a"} many\n')


def test_a_spool_is_measured_against_its_marks_where_they_are_known() -> None:
    found = spool_levels({"changefeeds": parse_page(page()), "jobs": {}})
    assert list(found) == ["files"]
    level = found["files"]
    assert (level.bytes, level.quota_bytes, level.level, level.high, level.low) == (30, 100, 0.3, 0.8, 0.6)


def test_abandoned_consumers_of_all_parts_are_counted() -> None:
    pages = {
        "jobs": parse_page(
            "# TYPE penstock_jobs_abandoned_consumers gauge\npenstock_jobs_abandoned_consumers 2.0\n"
        ),
        "api": parse_page(""),
    }
    assert count_abandoned(pages) == 2


def engine_page(**rows: int) -> str:
    """A page of a part that has worked on rows; keys are stage and engine."""
    registry = CollectorRegistry()
    counter = Counter("penstock_rows_total", "Rows.", ["stage", "engine"], registry=registry)
    for key, count in rows.items():
        counter.labels(*key.split("_")).inc(count)
    return generate_latest(registry).decode()


def test_rows_are_summed_by_who_worked_on_them() -> None:
    pages = {
        "changefeeds": parse_page(engine_page(read_spark=7, encode_spark=6, write_spark=6, read_local=0)),
        "jobs": parse_page(engine_page(read_spark=1, consume_local=4)),
        "api": {},
    }
    assert count_rows(pages) == RowsByEngine(spark=20, local=4)
    assert count_rows({"api": {}}) == RowsByEngine()
    assert count_rows({}) is None


def test_parts_tell_whether_spark_starts_or_is_lost() -> None:
    gauge = "# TYPE penstock_spark_{0} gauge\npenstock_spark_{0} {1}\n"
    starting, missing, executors = "session_starting", "session_missing", "executors_missing"
    pages = {
        "a": parse_page(gauge.format(starting, 1.0) + gauge.format(missing, 0.0)),
        "b": parse_page(gauge.format(starting, 0.0) + gauge.format(missing, 1.0)),
        "c": parse_page(gauge.format(missing, 0.0) + gauge.format(executors, 1.0)),
    }
    assert parts_without_executors(pages) == {"c"}
    assert parts_starting_spark(pages) == {"a"}
    assert parts_without_spark(pages) == {"b"}


def test_the_names_are_those_of_the_metrics_that_are_declared() -> None:
    shown = generate_latest().decode()
    metrics.SINK_SPOOL_MARK_BYTES.labels("of-a-test", "high").set(1)
    try:
        shown = generate_latest().decode()
    finally:
        metrics.SINK_SPOOL_MARK_BYTES.remove("of-a-test", "high")
    assert 'penstock_sink_spool_mark_bytes{changefeed="of-a-test",mark="high"} 1.0' in shown
    for name in ("eventstore_rows", "eventstore_flushed_rows", "sink_rows", "jobs_usage_rows"):
        assert f"# TYPE penstock_{name}_total counter" in shown


def test_rates_are_of_what_was_counted_between_two_looks() -> None:
    growth = Growth()
    growth.add(10.0, {"capture-1": {CAPTURED: 100}, "capture-2": {CAPTURED: 50}})
    assert growth.rate(FlowStage.CAPTURE) is None
    growth.add(12.0, {"capture-1": {CAPTURED: 300}, "capture-2": {CAPTURED: 70}})
    assert growth.rate(FlowStage.CAPTURE) == 110.0
    assert growth.rate(FlowStage.COMMIT) is None
    assert growth.rate(FlowStage.JOBS) is None


def test_a_part_that_was_started_again_counts_from_nothing_and_one_that_is_new_not_at_all() -> None:
    growth = Growth()
    growth.add(0.0, {"capture-1": {CAPTURED: 1000}})
    growth.add(1.0, {"capture-1": {CAPTURED: 10}, "capture-2": {CAPTURED: 5000}})
    assert growth.rate(FlowStage.CAPTURE) == 10.0
    growth.add(2.0, {"capture-2": {CAPTURED: 5000}})  # the other one is silent
    growth.add(4.0, {"capture-1": {CAPTURED: 30}, "capture-2": {CAPTURED: 5000}})
    assert growth.rate(FlowStage.CAPTURE) == 7.5


def test_a_changefeed_that_begins_counts_from_its_first_row() -> None:
    growth = Growth()
    growth.add(0.0, {"changefeeds": {}})
    growth.add(2.0, {"changefeeds": {feed_rows("mine"): 40, feed_rows("other"): 60}})
    assert growth.rate(FlowStage.CHANGEFEEDS) == 50.0
    assert growth.rate(FlowStage.CHANGEFEEDS, feeds={"mine"}, account="ada") == 20.0
    assert growth.rate(FlowStage.CHANGEFEEDS, feeds=set(), account="ada") is None


def test_an_account_sees_the_rate_of_its_jobs_and_not_what_captures_do_for_all() -> None:
    growth, used = Growth(), "penstock_jobs_usage_rows_total"
    growth.add(0.0, {"jobs": {MetricSample(used, ("ada",)): 0, CAPTURED: 0}})
    growth.add(1.0, {"jobs": {MetricSample(used, ("ada",)): 5, MetricSample(used, ("bob",)): 7, CAPTURED: 9}})
    assert growth.rate(FlowStage.JOBS) == 12.0
    assert growth.rate(FlowStage.JOBS, account="ada") == 5.0
    assert growth.rate(FlowStage.CAPTURE, account="ada") is None


def test_old_looks_are_forgotten_so_that_a_rate_is_of_now() -> None:
    growth = Growth()
    for second in range(100):
        growth.add(float(second), {"c": {CAPTURED: min(second, 50) * 10}})
    assert growth.rate(FlowStage.CAPTURE) == 0.0
