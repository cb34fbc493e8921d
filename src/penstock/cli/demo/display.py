"""Shows the demonstration: a live table on a terminal, else a line every few seconds; and its report."""

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
from penstock.cli.output import format_size
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
    "choose_show",
    "format_lag",
    "print_report",
    "stage_progress",
]


_LINE_S = 5.0
_PACE_S = 3.0
_EVENTS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The progress of one stage."""

    name: str
    rows: int
    lag_ms: int
    """The current lag: of the commits that arrived last, or of one that has been on its way for longer."""
    p50_ms: int | None
    p99_ms: int | None


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """What is shown while the demonstration runs."""

    elapsed_s: float
    rows: int
    rows_per_s: float
    files: int
    stages: Sequence[StageProgress]


def stage_progress(stage: Arrivals, at_ms: int) -> StageProgress:
    """Return the progress of a stage at a wall time."""
    lag_ms = max(stage.latest_ms or 0, stage.oldest_ms(at_ms))
    return StageProgress(stage.name, stage.rows, lag_ms, stage.lag_ms(0.5), stage.lag_ms(0.99))


class Pace:
    """Rows per second, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_s(self, rows: int, at_s: float) -> float:
        """Add the number of rows at a time; return the rows per second."""
        self._seen.append((at_s, rows))
        while len(self._seen) > 2 and at_s - self._seen[0][0] > _PACE_S:
            self._seen.popleft()
        first_s, first_rows = self._seen[0]
        return (rows - first_rows) / (at_s - first_s) if at_s > first_s else 0.0


class Show(Protocol):
    """Shows events and progress. A context manager; for one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def announce(self, text: str) -> None:
        """Show an event."""

    def update(self, progress: DemoProgress) -> None:
        """Show the current progress."""


def choose_show(console: Console, clock: Clock) -> Show:
    """Return a live table for a terminal, else plain lines."""
    return LiveShow(console) if console.is_terminal else PlainShow(console, clock)


class PlainShow:
    """Prints events as lines, and the progress every few seconds."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._printed_at = clock.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def announce(self, text: str) -> None:
        """Print the event."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, progress: DemoProgress) -> None:
        """Print a line when the last one is old enough."""
        now = self._clock.monotonic()
        if now - self._printed_at >= _LINE_S:
            self._printed_at = now
            self.announce(format_progress(progress))


def format_progress(progress: DemoProgress) -> str:
    """Return the progress as one line."""
    stages = ", ".join(f"{stage.name} {format_lag(stage.lag_ms)}" for stage in progress.stages)
    return (
        f"{progress.elapsed_s:4.0f} s  {progress.rows:,} rows written ({progress.rows_per_s:,.0f}/s),"
        f" {progress.files:,} files; behind: {stages}"
    )


class LiveShow:
    """A table that is updated in place, with the last events below it."""

    def __init__(self, console: Console) -> None:
        self._events: list[str] = []
        self._progress: DemoProgress | None = None
        self._live = Live(console=console, refresh_per_second=5, transient=True, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def announce(self, text: str) -> None:
        """Show the event below the table."""
        self._events.append(text)
        self._live.update(self._render())

    def update(self, progress: DemoProgress) -> None:
        """Update the table."""
        self._progress = progress
        self._live.update(self._render())

    def _render(self) -> RenderableType:
        events = [Text(f"• {event}", "dim") for event in self._events[-_EVENTS_SHOWN:]]
        return Group(*([] if self._progress is None else [_table(self._progress)]), *events)


def _table(progress: DemoProgress) -> Table:
    written = f"{progress.rows:,} rows written, {progress.rows_per_s:,.0f}/s, in {progress.files:,} files"
    table = Table(title=f"{progress.elapsed_s:.0f} s: {written}", title_justify="left")
    for heading in ("stage", "rows there", "behind", "lag p50", "lag p99"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in progress.stages:
        lags = (format_lag(value) for value in (stage.lag_ms, stage.p50_ms, stage.p99_ms))
        table.add_row(stage.name, f"{stage.rows:,}", *lags)
    return table


def format_lag(value: int | None) -> str:
    """Return a lag in milliseconds as text, as in 1.2 s; None as a dash."""
    if value is None:
        return "-"
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"


_NAME_CHARS = 34


@dataclass(frozen=True, slots=True)
class DemoVerified:
    """The result of comparing a target with its source: the rows compared, and what differs, in one line."""

    title: str
    same: bool
    rows: int
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a demonstration."""

    seconds: float
    rows: int
    first_rows: int
    commits: int
    stages: Sequence[StageProgress]
    places: Sequence[DemoPlace]
    search_words: str
    answers: Sequence[DemoAnswer]
    schema_changes: Sequence[str]
    verified: Sequence[DemoVerified]

    @property
    def all_equal(self) -> bool:
        """Whether every target equals its source."""
        return bool(self.verified) and all(result.same for result in self.verified)


def print_report(report: Report, console: Console) -> None:
    """Print the workload, the targets, the answers of the indexes and a conclusion."""
    console.print(_workload(report))
    console.print(_targets(report))
    for answer in report.answers:
        console.print(_answer_table(report.search_words, answer))
    console.print(_conclusion(report))


def _workload(report: Report) -> Table:
    table = Table(title="Workload", show_header=False, title_justify="left")
    per_s = (report.rows - report.first_rows) / max(report.seconds, 0.001)
    table.add_row("rows written", f"{report.rows:,} in {report.commits:,} transactions")
    table.add_row(
        "rows per second", f"{per_s:,.0f}, over {report.seconds:.0f} s, after the first {report.first_rows:,}"
    )
    captured = report.stages[0]
    table.add_row("rows captured", f"{captured.rows:,}")
    for change in report.schema_changes:
        table.add_row("schema changed while it ran", Text(change))
    return table


def _targets(report: Report) -> Table:
    table = Table(
        title="Stages and targets, with lags from commit on", title_justify="left", box=SIMPLE, pad_edge=False
    )
    for heading in ("", "rows", "lag p50", "lag p99", "files", "size", "source"):
        left = heading in {"", "source"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "source")
    places = {place.title: place for place in report.places}
    verified = {result.title: result for result in report.verified}
    for stage in report.stages:
        place = places.get(stage.name)
        table.add_row(
            stage.name,
            f"{stage.rows:,}",
            format_lag(stage.p50_ms),
            format_lag(stage.p99_ms),
            f"{place.files:,}" if place else "",
            format_size(place.nbytes) if place else "",
            _verdict(verified.get(stage.name)),
        )
    return table


def _verdict(verified: DemoVerified | None) -> Text:
    if verified is None:
        return Text("")
    if verified.same:
        return Text(f"equal: {verified.rows:,}", "green")
    return Text(f"differs: {verified.differs}", "bold red")


def _answer_table(words: str, answer: DemoAnswer) -> Table:
    title = f"{answer.title}, {answer.lag_s:.1f} s old: “{words}”"
    table = Table(title=title, title_justify="left", show_header=False)
    for row in answer.rows:
        score = next((value for name, value in row.items() if name in {"_score", "_distance"}), None)
        score_text = f"{score:.2f}" if isinstance(score, float) else ""
        table.add_row(
            score_text, Text(_cut(str(row.get("name")))), Text(str(row.get("description")), overflow="fold")
        )
    return table


def _cut(text: str) -> str:
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}…"


def _conclusion(report: Report) -> Text:
    if report.all_equal:
        return Text(f"all {len(report.verified)} targets equal their source", "bold green")
    wrong = ", ".join(result.title for result in report.verified if not result.same)
    return Text(f"differs from its source: {wrong}" if wrong else "no target was compared", "bold red")
