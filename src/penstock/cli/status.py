"""`penstock status`: the overview of a deployment, on a terminal or as JSON."""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.clock import SYSTEM
from penstock.control.deployment import open_deployment
from penstock.control.overview.gather import FactsCache
from penstock.control.overview.model import HeldBy, JobRow, Overview
from penstock.control.overview.overview import overview_without_cluster, read_overview
from penstock.control.part_states import PartKind, UpStates
from penstock.errors import PenstockError, Unavailable
from penstock.process import printable
from penstock.settings import Settings

__all__ = ["print_status", "render_overview", "watch_status", "with_local_store"]

_RATE_S = 0.3
_WATCH_S = 2.0
_KV_TIMEOUT_MS = 1_000
_GOOD = frozenset({"running", "normal", "completed", "finished"})


def print_status(settings: Settings, *, as_json: bool, limit: int) -> int:
    """Print the overview of a deployment; return 0 without problems, else 1.

    Raises Unavailable when the cluster does not answer and `penstock up` does not run here.
    """
    overview = _read_overview(settings, limit)
    if as_json or not sys.stdout.isatty():
        print(overview.model_dump_json(indent=2))
    else:
        Console().print(render_overview(overview))
    return 0 if overview.healthy else 1


def _read_overview(settings: Settings, limit: int) -> Overview:
    cache = FactsCache()
    cache.read_counters(settings)
    try:
        with open_deployment(_with_short_timeouts(settings)) as deployment:
            SYSTEM.pause(_RATE_S)  # a rate needs two readings of the counters
            return read_overview(deployment, cache, limit=limit)
    except Unavailable as error:
        overview = overview_without_cluster(settings, str(error))
        if overview is None:
            raise
        return overview


def watch_status(settings: Settings, *, limit: int) -> int:
    """Show the overview every two seconds until interrupted; return the exit code of the last one."""
    cache = FactsCache()
    latest: Overview | None = None
    try:
        with Live(console=Console(), auto_refresh=False, screen=sys.stdout.isatty()) as live:
            for latest in _read_overviews(settings, cache, limit):
                live.update(render_overview(latest), refresh=True)
                SYSTEM.pause(_WATCH_S)
    except KeyboardInterrupt:
        pass
    return 0 if latest is not None and latest.healthy else 1


def _read_overviews(settings: Settings, cache: FactsCache, limit: int) -> Iterator[Overview]:
    """Yield overviews, with or without the cluster, while the cluster answers or `penstock up` runs here."""
    while True:
        try:
            with open_deployment(_with_short_timeouts(settings)) as deployment:
                while True:
                    yield read_overview(deployment, cache, limit=limit)
        except Unavailable as error:
            overview = overview_without_cluster(settings, str(error))
            if overview is None:
                raise
            yield overview


def with_local_store(settings: Settings) -> Settings:
    """Return the settings with the address of the store that `penstock up` runs: its port may be any."""
    try:
        states = UpStates.read(settings.up.data)
    except PenstockError:  # the overview reports it
        states = None
    addrs = tuple(
        part.addr
        for part in (() if states is None else states.parts)
        if part.kind is PartKind.STORE and part.addr is not None
    )
    return settings.model_copy(update={"pd_addrs": addrs}) if addrs else settings


def _with_short_timeouts(settings: Settings) -> Settings:
    """Return the settings with short timeouts, so that the command answers within seconds."""
    kv = settings.kv.model_copy(
        update={"pd_timeout_ms": min(settings.kv.pd_timeout_ms, _KV_TIMEOUT_MS), "backoff_weight": 1}
    )
    return settings.model_copy(update={"kv": kv})


# On a terminal.


def render_overview(overview: Overview) -> RenderableType:
    """Return an overview as tables for a terminal."""
    parts: list[RenderableType] = [_flow(overview), _engines(overview)]
    parts += [
        Text(f"  {stage.stage.value} is held by {_format_holder(stage.held_by)}", style="yellow")
        for stage in overview.stages
        if stage.held_by is not None
    ]
    parts += [_parts(overview), _tables(overview), _feeds(overview), _jobs(overview), _problems(overview)]
    return Group(*parts)


def _flow(overview: Overview) -> Text:
    """Return the stages with their lags and rates, in one line."""
    line = Text()
    for index, stage in enumerate(overview.stages):
        line.append(" → " if index else "")
        line.append(stage.stage.value, style="bold")
        if index:
            style = "yellow" if stage.held_by else "green"
            line.append(
                f" {_format_seconds(stage.lag_s) or '-'}", style="dim" if stage.lag_s is None else style
            )
        if stage.rate is not None:
            line.append(f" {stage.rate:,.0f} rows/s", style="dim")
    return line


def _engines(overview: Overview) -> Text:
    """Return who works on rows, and who did."""
    line = Text("engine ", style="dim")
    line.append(overview.engine, style="green" if overview.engine == "spark" else "yellow")
    if overview.engines is not None:
        line.append(
            f"; rows on Spark {overview.engines.spark:,}, local {overview.engines.local:,}", style="dim"
        )
    return line


def _parts(overview: Overview) -> RenderableType:
    rows = (
        (
            part.name,
            part.state.value,
            _format_duration(overview, part.since),
            part.addr or "",
            str(part.pid or ""),
            str(part.restarts or ""),
            part.error,
        )
        for part in overview.parts
    )
    return _table(("part", "state", "for", "address", "pid", "restarts", "last ended by"), rows, state=1)


def _format_duration(overview: Overview, since: str | None) -> str:
    """Return the time since a moment, as in 2 h 5 min."""
    if since is None:
        return ""
    passed = datetime.fromisoformat(overview.now_time) - datetime.fromisoformat(since)
    seconds = max(0, int(passed.total_seconds()))
    days, hours, minutes = seconds // 86_400, seconds // 3_600, seconds // 60
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def _tables(overview: Overview) -> RenderableType:
    rows = (
        (table.table, _format_seconds(table.lag_s), table.readable_time or "", _format_holder(table.held_by))
        for table in overview.tables
    )
    return _table(
        ("table", "lag", "readable up to", "held by"),
        rows,
        more=overview.totals.tables - len(overview.tables),
    )


def _feeds(overview: Overview) -> RenderableType:
    rows = (
        (
            feed.id,
            feed.state,
            _format_seconds(feed.lag_s),
            "" if feed.spool is None else f"{feed.spool.level:.0%} of {_format_mib(feed.spool.quota_bytes)}",
            feed.error or feed.warning or _format_holder(feed.held_by),
        )
        for feed in overview.changefeeds
    )
    return _table(
        ("changefeed", "state", "lag", "spool", "held by"),
        rows,
        state=1,
        more=overview.totals.changefeeds - len(overview.changefeeds),
    )


def _jobs(overview: Overview) -> RenderableType:
    rows = (
        (job.job, job.consumer or "", job.state, _format_seconds(job.lag_s), job.lacks or "", _why(job))
        for job in overview.jobs
    )
    return _table(
        ("job", "consumer", "state", "lag", "lag reason", "error"),
        rows,
        state=2,
        more=overview.totals.jobs - len(overview.jobs),
    )


def _why(job: JobRow) -> str:
    return job.error or job.lacks_because or ""


def _problems(overview: Overview) -> RenderableType:
    if overview.healthy:
        return Text(f"no problems, {overview.now_time}", style="green")
    text = Text()
    for problem in overview.problems:
        text.append(f"{printable(problem.message)}\n", style="bold red")
        text.append(f"  {printable(problem.remedy)}\n")
    more = overview.totals.problems - len(overview.problems)
    text.append(
        f"{overview.totals.problems} problems{f', {more} not shown' if more else ''}, {overview.now_time}"
    )
    return text


def _table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, state: int | None = None, more: int = 0
) -> RenderableType:
    """Return a table without its empty columns."""
    lines = list(rows)
    if not lines:
        return Text(f"no {heads[0]}s", style="dim")
    used = [column for column in range(len(heads)) if any(row[column] for row in lines)]
    table = Table(caption=f"and {more} more" if more else None)
    for column in used:
        table.add_column(heads[column], overflow="fold")
    for row in lines:
        cells = [Text(printable(cell)) for cell in row]
        if state is not None:
            cells[state].stylize("green" if row[state] in _GOOD else "yellow")
        table.add_row(*(cells[column] for column in used))
    return table


def _format_holder(holder: HeldBy | None) -> str:
    return "" if holder is None else printable(f"{holder.kind.value} {holder.name}: {holder.detail}")


def _format_seconds(lag_s: float | None) -> str:
    return "" if lag_s is None else f"{lag_s:.1f} s"


def _format_mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"
