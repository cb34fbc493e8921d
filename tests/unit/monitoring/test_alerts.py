"""Rules for Prometheus: each is tried with metrics that are well, and with metrics that are not."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    Matcher,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
    parse,
)
from typer.main import get_command

from monitoring.alerts import ALERTS, RUNBOOK, Alert, alert_rules, scrape_config
from monitoring.declared import metrics_by_sample
from penstock.cli.main import app

ROOT = Path(__file__).parents[3]
BY_NAME = {alert.name: alert for alert in ALERTS}


Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
"""Values by their labels."""

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_SUMS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_AGGREGATED: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": len,
    "avg": lambda values: sum(values) / len(values),
}


@dataclass(frozen=True, slots=True)
class Looks:
    """Two pages of metrics. Of a range, the first is of its beginning and the second of now."""

    before: str
    now: str

    def value(self, node: Expr) -> Vector:
        """What an expression gives now; a constant has no labels."""
        match node:
            case ParenExpr(expr=inner):
                return self.value(inner)
            case NumberLiteral(val=value):
                return {frozenset(): value}
            case VectorSelector():
                return _selected(self.now, node)
            case Call(args=[MatrixSelector() as selector]) if node.func.name in ("increase", "rate"):
                return self._grown(selector, per_second=node.func.name == "rate")
            case AggregateExpr(op=how, expr=value, modifier=by):
                return _aggregated(str(how), tuple(by.labels if by else ()), self.value(value))
            case BinaryExpr(op=sign, lhs=left, rhs=right):
                constant = isinstance(right, NumberLiteral)
                return _combined(str(sign), self.value(left), self.value(right), constant)
            case _:
                raise AssertionError(f"rules do not use {node}")

    def _grown(self, selector: MatrixSelector, *, per_second: bool) -> Vector:
        before, now = (_selected(page, selector.vector_selector) for page in (self.before, self.now))
        seconds = selector.range.total_seconds() if per_second else 1
        return {
            labels: (value - before[labels]) / seconds for labels, value in now.items() if labels in before
        }


def _selected(page: str, selector: VectorSelector) -> Vector:
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == selector.name
        and all(_matches(sample.labels.get(each.name, ""), each) for each in selector.matchers.matchers)
    }


def _matches(value: str, matcher: Matcher) -> bool:
    if matcher.op in (MatchOp.Equal, MatchOp.NotEqual):
        return (value == matcher.value) == (matcher.op == MatchOp.Equal)
    return bool(re.fullmatch(matcher.value, value)) == (matcher.op == MatchOp.Re)


def _aggregated(how: str, by: tuple[str, ...], values: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in values.items():
        groups.setdefault(frozenset(each for each in labels if each[0] in by), []).append(value)
    return {labels: _AGGREGATED[how](group) for labels, group in groups.items()}


def _combined(sign: str, left: Vector, right: Vector, constant: bool) -> Vector:
    found: Vector = {}
    for labels, value in left.items():
        other = right.get(frozenset() if constant else labels)
        if sign == "unless" or other is None:
            if sign == "unless" and other is None:
                found[labels] = value
        elif sign == "and" or (sign in _COMPARISONS and _COMPARISONS[sign](value, other)):
            found[labels] = value
        elif sign in _SUMS:
            found[labels] = _SUMS[sign](value, other)
    return found


@dataclass(frozen=True)
class Case:
    """A sample as it was, and as it is when all is well and when it is not."""

    alert: str
    sample: str
    well: float
    bad: float
    before: float = 0
    beside: str = ""


CASES = [
    Case("PenstockPartDown", 'penstock_part_up{part="jobs"}', 1, 0),
    Case("PenstockPullerBehind", 'penstock_subscription_client_resolved_ts_lag{part="capture-1"}', 60, 61),
    Case("PenstockCaptureBehind", 'penstock_eventstore_resolved_lag_seconds{part="capture-1"}', 60, 61),
    Case("PenstockStreamsCongested", 'penstock_store_cdc_congested_total{part="store"}', 10, 11, 7),
    Case(
        "PenstockFlushesFail",
        'penstock_eventstore_flush_failures_total{part="capture-1",reason="unavailable"}',
        105,
        106,
        100,
    ),
    Case(
        "PenstockUpkeepFails",
        'penstock_eventstore_upkeep_failures_total{part="a",duty="merge",reason="x"}',
        5,
        6,
    ),
    Case(
        "PenstockRowsWereNeverCaptured", 'penstock_eventstore_unknown_rows_total{part="capture-1"}', 4, 5, 4
    ),
    Case("PenstockChangefeedBehind", 'penstock_sink_checkpoint_lag_seconds{changefeed="all"}', 300, 301),
    Case("PenstockChangefeedFails", 'penstock_sink_errors_total{changefeed="all",stage="write"}', 3, 4),
    Case(
        "PenstockSpoolFull",
        'penstock_sink_spool_bytes{changefeed="all"}',
        99,
        100,
        beside='penstock_sink_spool_mark_bytes{changefeed="all",mark="high"} 100\n'
        'penstock_sink_spool_mark_bytes{changefeed="all",mark="low"} 80\n',
    ),
    Case("PenstockChangefeedStuck", 'penstock_sink_oldest_unflushed_age_seconds{changefeed="all"}', 900, 901),
    Case("PenstockChangefeedLeftRowsOut", 'penstock_sink_stale_rows_total{changefeed="all"}', 2, 3, 2),
    Case("PenstockNobodyRunsJobs", 'penstock_jobs_runner{part="jobs"}', 1, 0),
    Case("PenstockJobBehind", 'penstock_jobs_watermark_lag_seconds{job="shop.items/copy"}', 900, 901),
    Case("PenstockJobsInError", 'penstock_jobs_jobs{state="error"}', 0, 1),
    Case("PenstockTargetDiffers", 'penstock_jobs_differences{job="shop.items/copy"}', 0, 1),
    Case("PenstockJobsRetry", 'penstock_jobs_endings_total{how="retried"}', 10, 11),
    Case("PenstockJobsRefused", 'penstock_jobs_refused_iterations_total{part="jobs"}', 10, 11),
    Case("PenstockConsumersHang", 'penstock_jobs_abandoned_consumers{part="jobs"}', 0, 1),
    Case("PenstockApiFails", 'penstock_api_requests_total{method="GET",route="/",status="503"}', 30, 31),
    Case("PenstockTracesAreLost", 'penstock_tracing_spans_total{part="jobs",outcome="failed"}', 0, 1),
]


def test_every_rule_is_tried() -> None:
    assert sorted(case.alert for case in CASES) == sorted(BY_NAME)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_a_rule_is_quiet_while_all_is_well_and_speaks_when_it_is_not(case: Case) -> None:
    alert = BY_NAME[case.alert]
    node = parse(alert.expression)
    before, well, bad = (
        f"{case.sample} {each}\n{case.beside}" for each in (case.before, case.well, case.bad)
    )
    assert Looks(before, well).value(node) == {}
    (labels,) = Looks(before, bad).value(node)
    told = {label for label, _ in labels}
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary)) <= told


def test_a_rule_about_states_leaves_the_others_alone() -> None:
    for alert, sample in (
        ("PenstockJobsInError", 'penstock_jobs_jobs{state="completed"}'),
        ("PenstockJobsRetry", 'penstock_jobs_endings_total{how="completed"}'),
        ("PenstockApiFails", 'penstock_api_requests_total{method="GET",route="/",status="404"}'),
        ("PenstockTracesAreLost", 'penstock_tracing_spans_total{part="jobs",outcome="sent"}'),
    ):
        node = parse(BY_NAME[alert].expression)
        assert Looks(f"{sample} 0\n", f"{sample} 1000\n").value(node) == {}


def test_the_files_for_prometheus_are_what_the_code_says() -> None:
    folder = ROOT / "deploy" / "prometheus"
    assert yaml.safe_load((folder / "alerts.yml").read_text()) == alert_rules()
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    assert config == scrape_config("127.0.0.1:8300")
    assert [(folder / each).is_file() for each in config["rule_files"]] == [True]


def test_every_rule_has_a_section_that_says_what_to_do() -> None:
    headings = [
        line.removeprefix("## ").lower()
        for line in (ROOT / RUNBOOK).read_text().splitlines()
        if line.startswith("## ")
    ]
    assert [f"{RUNBOOK}#{heading}" for heading in headings] == [
        rule["annotations"]["runbook_url"] for group in alert_rules()["groups"] for rule in group["rules"]
    ]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_the_commands_and_metrics_that_a_remedy_names_are_there(alert: Alert) -> None:
    known = metrics_by_sample()
    for named in re.findall(r"`(penstock[^`]*)`", alert.remedy + alert.meaning):
        words = named.split()
        if len(words) == 1:
            assert any(sample.startswith(words[0]) for sample in known), named
            continue
        command = get_command(app)
        for word in words[1:]:
            if not hasattr(command, "commands"):
                break
            command = command.commands[word]


def test_expressions_give_what_prometheus_would_say() -> None:
    looks = Looks('a{x="1"} 10\na{x="2"} 4\n', 'a{x="1"} 40\na{x="2"} 4\nb{x="1"} 8\n')
    one, two = frozenset({("x", "1")}), frozenset({("x", "2")})
    assert looks.value(parse("increase(a[5m])")) == {one: 30, two: 0}
    assert looks.value(parse("rate(a[1m])")) == {one: 0.5, two: 0}
    assert looks.value(parse("a > 4")) == {one: 40}
    assert looks.value(parse('sum(a{x=~"1|2"})')) == {frozenset(): 44}
    assert looks.value(parse("a / b")) == {one: 5}
    assert looks.value(parse("a unless b")) == {two: 4}
    assert looks.value(parse("a and b")) == {one: 40}
    assert looks.value(parse('max by (x) (a{x!="1"}) + 1')) == {two: 5}
