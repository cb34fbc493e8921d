"""`penstock status`: how a deployment does, on a terminal or as JSON."""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.clock import SYSTEM
from penstock.control.deployment import deployed
from penstock.control.overview.gather import Rates
from penstock.control.overview.model import HeldBy, Overview
from penstock.control.overview.overview import overview, overview_without_cluster
from penstock.control.part_states import PartKind, UpStates
from penstock.errors import PenstockError, Unavailable
from penstock.settings import Settings

__all__ = ["at_hand", "shown", "status", "watch"]

_RATE_S = 0.3
_WATCH_S = 2.0
_KV_TIMEOUT_MS = 1_000
_GOOD = frozenset({"running", "normal", "completed", "finished"})


def status(settings: Settings, *, as_json: bool, limit: int) -> int:
    """Print how a deployment does; 0 when it is well, else 1.

    Raises Unavailable when the cluster does not answer and nothing is known to run.
    """
    found = _look(settings, limit)
    if as_json or not sys.stdout.isatty():
        print(found.model_dump_json(indent=2))
    else:
        Console().print(shown(found))
    return 0 if found.healthy else 1


def _look(settings: Settings, limit: int) -> Overview:
    rates = Rates()
    rates.read(settings)
    try:
        with deployed(_hasty(settings)) as deployment:
            SYSTEM.pause(_RATE_S)  # so that there are rates
            return overview(deployment, rates, limit=limit)
    except Unavailable as error:
        found = overview_without_cluster(settings, str(error))
        if found is None:
            raise
        return found


def watch(settings: Settings, *, limit: int) -> int:
    """Show it again and again until it is interrupted; then as `status`."""
    rates = Rates()
    latest: Overview | None = None
    try:
        with Live(console=Console(), auto_refresh=False, screen=sys.stdout.isatty()) as live:
            for latest in _looks(settings, rates, limit):
                live.update(shown(latest), refresh=True)
                SYSTEM.pause(_WATCH_S)
    except KeyboardInterrupt:
        pass
    return 0 if latest is not None and latest.healthy else 1


def _looks(settings: Settings, rates: Rates, limit: int) -> Iterator[Overview]:
    """One overview after another, whether the cluster answers or not, as long as something is known."""
    while True:
        try:
            with deployed(_hasty(settings)) as deployment:
                while True:
                    yield overview(deployment, rates, limit=limit)
        except Unavailable as error:
            found = overview_without_cluster(settings, str(error))
            if found is None:
                raise
            yield found


def at_hand(settings: Settings) -> Settings:
    """The settings with the address of the store that `penstock up` runs: its port may be any free one."""
    try:
        states = UpStates.read(settings.up.data)
    except PenstockError:  # the overview says so
        states = None
    addrs = tuple(
        part.addr
        for part in (() if states is None else states.parts)
        if part.kind is PartKind.STORE and part.addr is not None
    )
    return settings.model_copy(update={"pd_addrs": addrs}) if addrs else settings


def _hasty(settings: Settings) -> Settings:
    """Who asks how things are does not wait for long."""
    kv = settings.kv.model_copy(
        update={"pd_timeout_ms": min(settings.kv.pd_timeout_ms, _KV_TIMEOUT_MS), "backoff_weight": 1}
    )
    return settings.model_copy(update={"kv": kv})


# On a terminal.


def shown(found: Overview) -> RenderableType:
    """An overview for people."""
    parts: list[RenderableType] = [_flow(found)]
    parts += [
        Text(f"  {stage.stage.value} is held by {_held(stage.held_by)}", style="yellow")
        for stage in found.stages
        if stage.held_by is not None
    ]
    parts += [_parts(found), _tables(found), _feeds(found), _jobs(found), _problems(found)]
    return Group(*parts)


def _flow(found: Overview) -> Text:
    """The stages with how far each is behind, in one line."""
    line = Text()
    for place, stage in enumerate(found.stages):
        line.append(" → " if place else "")
        line.append(stage.stage.value, style="bold")
        if place:
            style = "yellow" if stage.held_by else "green"
            line.append(f" {_seconds(stage.lag_s) or '-'}", style="dim" if stage.lag_s is None else style)
        if stage.rate is not None:
            line.append(f" {stage.rate:,.0f} rows/s", style="dim")
    return line


def _parts(found: Overview) -> RenderableType:
    rows = (
        (
            each.name,
            each.state.value,
            _duration(found, each.since),
            each.addr or "",
            str(each.pid or ""),
            str(each.restarts or ""),
            each.error,
        )
        for each in found.parts
    )
    return _table(("part", "state", "for", "address", "pid", "restarts", "last ended by"), rows, state=1)


def _duration(found: Overview, since: str | None) -> str:
    """How long something is as it is."""
    if since is None:
        return ""
    passed = datetime.fromisoformat(found.now_time) - datetime.fromisoformat(since)
    seconds = max(0, int(passed.total_seconds()))
    days, hours, minutes = seconds // 86_400, seconds // 3_600, seconds // 60
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def _tables(found: Overview) -> RenderableType:
    rows = (
        (each.table, _seconds(each.lag_s), each.readable_time or "", _held(each.held_by))
        for each in found.tables
    )
    return _table(
        ("table", "lag", "readable up to", "held by"), rows, more=found.totals.tables - len(found.tables)
    )


def _feeds(found: Overview) -> RenderableType:
    rows = (
        (
            each.id,
            each.state,
            _seconds(each.lag_s),
            "" if each.spool is None else f"{each.spool.level:.0%} of {_size(each.spool.quota_bytes)}",
            each.error or _held(each.held_by),
        )
        for each in found.changefeeds
    )
    return _table(
        ("changefeed", "state", "lag", "spool", "held by"),
        rows,
        state=1,
        more=found.totals.changefeeds - len(found.changefeeds),
    )


def _jobs(found: Overview) -> RenderableType:
    rows = (
        (each.job, each.consumer or "", each.state, _seconds(each.lag_s), each.lacks or "", each.error)
        for each in found.jobs
    )
    return _table(
        ("job", "consumer", "state", "lag", "lacks", "error"),
        rows,
        state=2,
        more=found.totals.jobs - len(found.jobs),
    )


def _problems(found: Overview) -> RenderableType:
    if found.healthy:
        return Text(f"all is well, {found.now_time}", style="green")
    told = Text()
    for each in found.problems:
        told.append(f"{each.message}\n", style="bold red")
        told.append(f"  {each.remedy}\n")
    more = found.totals.problems - len(found.problems)
    told.append(f"{found.totals.problems} problems{f', {more} not shown' if more else ''}, {found.now_time}")
    return told


def _table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, state: int | None = None, more: int = 0
) -> RenderableType:
    """A table without the columns in which nothing is."""
    every = list(rows)
    if not every:
        return Text(f"no {heads[0]}s", style="dim")
    used = [place for place in range(len(heads)) if any(row[place] for row in every)]
    table = Table(caption=f"and {more} more" if more else None)
    for place in used:
        table.add_column(heads[place], overflow="fold")
    for row in every:
        cells = [Text(cell) for cell in row]
        if state is not None:
            cells[state].stylize("green" if row[state] in _GOOD else "yellow")
        table.add_row(*(cells[place] for place in used))
    return table


def _held(by: HeldBy | None) -> str:
    return "" if by is None else f"{by.kind.value} {by.name}: {by.detail}"


def _seconds(lag_s: float | None) -> str:
    return "" if lag_s is None else f"{lag_s:.1f} s"


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"
