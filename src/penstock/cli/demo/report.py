"""What a demonstration came to: numbers, files, answers, and whether targets equal their source."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.demo.display import StageProgress, told_ms
from penstock.cli.demo.targets import DemoAnswer, DemoPlace
from penstock.cli.sizes import size

__all__ = ["DemoVerified", "Report", "print_report"]

_NAME_CHARS = 34


@dataclass(frozen=True, slots=True)
class DemoVerified:
    """Whether a target is what its source says, of so many rows; what differs, in one line."""

    title: str
    same: bool
    rows: int
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it."""

    seconds: float
    rows: int
    first_rows: int
    commits: int
    stages: Sequence[StageProgress]
    places: Sequence[DemoPlace]
    asked: str
    answers: Sequence[DemoAnswer]
    schema_changes: Sequence[str]
    verified: Sequence[DemoVerified]

    @property
    def good(self) -> bool:
        """Whether every target is what its source says."""
        return bool(self.verified) and all(each.same for each in self.verified)


def print_report(report: Report, console: Console) -> None:
    """Show it."""
    console.print(_workload(report))
    console.print(_targets(report))
    for answer in report.answers:
        console.print(_found(report.asked, answer))
    console.print(_conclusion(report))


def _workload(report: Report) -> Table:
    table = Table(title="Workload", show_header=False, title_justify="left")
    per_s = (report.rows - report.first_rows) / max(report.seconds, 0.001)
    table.add_row("rows written", f"{report.rows:,} in {report.commits:,} transactions")
    table.add_row(
        "in a second", f"{per_s:,.0f}, over {report.seconds:.0f} s, after the first {report.first_rows:,}"
    )
    captured = report.stages[0]
    table.add_row("rows captured", f"{captured.rows:,}")
    for each in report.schema_changes:
        table.add_row("schema changed while it ran", Text(each))
    return table


def _targets(report: Report) -> Table:
    table = Table(
        title="Stages and targets, with lags from commit on", title_justify="left", box=SIMPLE, pad_edge=False
    )
    for heading in ("", "rows", "lag p50", "lag p99", "files", "size", "source"):
        left = heading in {"", "source"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "source")
    kept = {each.title: each for each in report.places}
    verified = {each.title: each for each in report.verified}
    for stage in report.stages:
        place = kept.get(stage.name)
        table.add_row(
            stage.name,
            f"{stage.rows:,}",
            told_ms(stage.p50_ms),
            told_ms(stage.p99_ms),
            f"{place.files:,}" if place else "",
            size(place.nbytes) if place else "",
            _verdict(verified.get(stage.name)),
        )
    return table


def _verdict(verified: DemoVerified | None) -> Text:
    if verified is None:
        return Text("")
    if verified.same:
        return Text(f"equal: {verified.rows:,}", "green")
    return Text(f"differs: {verified.differs}", "bold red")


def _found(asked: str, answer: DemoAnswer) -> Table:
    title = f"{answer.title}, {answer.lag_s:.1f} s old: “{asked}”"
    table = Table(title=title, title_justify="left", show_header=False)
    for row in answer.rows:
        score = next((value for name, value in row.items() if name in {"_score", "_distance"}), None)
        shown = f"{score:.2f}" if isinstance(score, float) else ""
        table.add_row(
            shown, Text(_cut(str(row.get("name")))), Text(str(row.get("description")), overflow="fold")
        )
    return table


def _cut(text: str) -> str:
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}…"


def _conclusion(report: Report) -> Text:
    if report.good:
        return Text(f"all {len(report.verified)} targets equal their source", "bold green")
    wrong = ", ".join(each.title for each in report.verified if not each.same) or "no target was compared"
    return Text(f"not as it should be: {wrong}", "bold red")
