"""What happens, while it happens: a live table on a terminal, else a line every few seconds.

What a demonstration came to: numbers, files, answers, and whether targets equal their source.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.demo.lags import Arrivals
from penstock.cli.demo.scene import DemoAnswer, DemoPlace
from penstock.cli.output import size
from penstock.clock import Clock

__all__ = [
    "DemoProgress",
    "DemoVerified",
    "LiveShow",
    "Pace",
    "PlainShow",
    "Report",
    "Show",
    "StageProgress",
    "print_report",
    "progress_of",
    "show_on",
    "told_ms",
]


_LINE_S = 5.0
_PACE_S = 3.0
_EVENTS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far one stage is."""

    name: str
    rows: int
    lag_ms: int
    """How long commits take now: those that arrived last, or one that is on its way for longer."""
    p50_ms: int | None
    p99_ms: int | None


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """Everything that is shown while it runs."""

    elapsed_s: float
    rows: int
    rows_per_s: float
    files: int
    stages: Sequence[StageProgress]


def progress_of(stage: Arrivals, at_ms: int) -> StageProgress:
    """How far a stage is at a wall time."""
    lag_ms = max(stage.latest_ms or 0, stage.oldest_ms(at_ms))
    return StageProgress(stage.name, stage.rows, lag_ms, stage.lag_ms(0.5), stage.lag_ms(0.99))


class Pace:
    """Rows in a second, over the last few of them."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_s(self, rows: int, at_s: float) -> float:
        """The pace, now that there are so many rows."""
        self._seen.append((at_s, rows))
        while len(self._seen) > 2 and at_s - self._seen[0][0] > _PACE_S:
            self._seen.popleft()
        began_s, before = self._seen[0]
        return (rows - before) / (at_s - began_s) if at_s > began_s else 0.0


class Show(Protocol):
    """Who shows it. Used as a context; for one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def tell(self, text: str) -> None:
        """Something has happened, or begins."""

    def update(self, progress: DemoProgress) -> None:
        """This is how far everything is now."""


def show_on(console: Console, clock: Clock) -> Show:
    """What fits a console."""
    return LiveShow(console) if console.is_terminal else PlainShow(console, clock)


class PlainShow:
    """Lines: what happens, and how far everything is every few seconds."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._said_at = clock.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, text: str) -> None:
        """See Show."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, progress: DemoProgress) -> None:
        """See Show."""
        now = self._clock.monotonic()
        if now - self._said_at >= _LINE_S:
            self._said_at = now
            self.tell(line_of(progress))


def line_of(progress: DemoProgress) -> str:
    """All of it in one line."""
    stages = ", ".join(f"{each.name} {told_ms(each.lag_ms)}" for each in progress.stages)
    return (
        f"{progress.elapsed_s:4.0f} s  {progress.rows:,} rows written ({progress.rows_per_s:,.0f}/s),"
        f" {progress.files:,} files; behind: {stages}"
    )


class LiveShow:
    """A table that changes in its place, with what happened last below it."""

    def __init__(self, console: Console) -> None:
        self._events: list[str] = []
        self._progress: DemoProgress | None = None
        self._live = Live(console=console, refresh_per_second=5, transient=True, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tell(self, text: str) -> None:
        """See Show."""
        self._events.append(text)
        self._live.update(self._drawn())

    def update(self, progress: DemoProgress) -> None:
        """See Show."""
        self._progress = progress
        self._live.update(self._drawn())

    def _drawn(self) -> RenderableType:
        events = [Text(f"• {each}", "dim") for each in self._events[-_EVENTS_SHOWN:]]
        return Group(*([] if self._progress is None else [_table(self._progress)]), *events)


def _table(progress: DemoProgress) -> Table:
    written = f"{progress.rows:,} rows written, {progress.rows_per_s:,.0f}/s, in {progress.files:,} files"
    table = Table(title=f"{progress.elapsed_s:.0f} s: {written}", title_justify="left")
    for heading in ("stage", "rows there", "behind", "lag p50", "lag p99"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for each in progress.stages:
        lags = (told_ms(value) for value in (each.lag_ms, each.p50_ms, each.p99_ms))
        table.add_row(each.name, f"{each.rows:,}", *lags)
    return table


def told_ms(value: int | None) -> str:
    """A duration, as in 1.2 s."""
    if value is None:
        return "-"
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"


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
