"""What `penstock up` says: on a terminal for people, elsewhere as log lines."""

import json
import logging
import sys
from contextlib import suppress
from typing import Protocol

from rich.console import Console
from rich.markup import escape

from penstock.control.part_states import PartKind, PartStatus, UpStates

__all__ = ["Display", "LogDisplay", "TerminalDisplay", "marked", "pass_on", "summary"]

_log = logging.getLogger("penstock.up")


class Display(Protocol):
    """Who tells people what happens to the parts. Called on the event loop, one call at a time."""

    def starting(self, states: UpStates) -> None:
        """Parts are about to be started."""

    def ready(self, part: PartStatus, took_s: float) -> None:
        """A part has become ready."""

    def ended(self, part: PartStatus, wait_s: float, *, news: bool) -> None:
        """A part ended and is started again after a wait; `news` when its reason is another than before."""

    def everything_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        """Every part was ready; said once."""

    def stopping(self) -> None:
        """All parts are asked to end."""

    def killed(self, part: PartStatus) -> None:
        """A part did not end in time."""

    def stopped(self) -> None:
        """All parts have ended."""


def _names(states: UpStates) -> str:
    return ", ".join(part.name for part in states.parts)


def summary(states: UpStates, pd_addrs: tuple[str, ...]) -> dict[str, object]:
    """Where everything is."""
    found: dict[str, object] = {"pd": list(pd_addrs)}
    for part in states.parts:
        if part.kind is PartKind.API and part.addr is not None:
            found["api"] = part.addr
    return {**found, "parts": {part.name: part.addr for part in states.parts}}


class LogDisplay:
    """Log lines; when everything is ready, one line of JSON on standard output for who started it."""

    def __init__(self, *, announce: bool = False) -> None:
        self._announce = announce

    def starting(self, states: UpStates) -> None:
        """See Display."""
        _log.info("starting", extra={"parts": _names(states)})

    def ready(self, part: PartStatus, took_s: float) -> None:
        """See Display."""
        facts = {"part": part.name, "pid": part.pid, "addr": part.addr, "took_s": round(took_s, 2)}
        _log.info("part is ready", extra={key: value for key, value in facts.items() if value is not None})

    def ended(self, part: PartStatus, wait_s: float, *, news: bool) -> None:
        """See Display."""
        facts = {"part": part.name, "error": part.error, "again_s": wait_s, "restarts": part.restarts}
        _log.log(logging.ERROR if news else logging.DEBUG, "part ended; it is started again", extra=facts)

    def everything_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        """See Display."""
        found = summary(states, pd_addrs)
        facts = {"pd": ",".join(pd_addrs), **({"pages": found["api"]} if "api" in found else {})}
        _log.info("everything is ready", extra=facts)
        if self._announce:
            with suppress(BrokenPipeError):  # nobody has to read it
                print(json.dumps(found), flush=True)

    def stopping(self) -> None:
        """See Display."""
        _log.info("stopping all parts")

    def killed(self, part: PartStatus) -> None:
        """See Display."""
        _log.warning("part did not end in time and is killed", extra={"part": part.name})

    def stopped(self) -> None:
        """See Display."""
        _log.info("all parts have stopped")


class TerminalDisplay:
    """A line for each thing that happens, in colours where there are any."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def starting(self, states: UpStates) -> None:
        """See Display."""
        self._console.print(f"starting {_names(states)}")

    def ready(self, part: PartStatus, took_s: float) -> None:
        """See Display."""
        where = f"  {escape(part.addr)}" if part.addr else ""
        again = f", start {part.restarts + 1}" if part.restarts else ""
        self._console.print(f"[green]✓[/] {part.name:<12} ready{where}  [dim]{took_s:.1f} s{again}[/]")

    def ended(self, part: PartStatus, wait_s: float, *, news: bool) -> None:
        """See Display."""
        if news:
            line = f"[red]✗[/] {part.name:<12} {escape(part.error)}  [dim]again in {wait_s:g} s[/]"
            self._console.print(line)

    def everything_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        """See Display."""
        found = summary(states, pd_addrs)
        self._console.print()
        if "api" in found:
            self._console.print(f"  pages             [bold]{escape(str(found['api']))}[/]")
        self._console.print(f"  placement driver  {escape(', '.join(pd_addrs))}")
        self._console.print("  [dim]Ctrl-C stops everything.[/]\n")

    def stopping(self) -> None:
        """See Display."""
        self._console.print("\nstopping; Ctrl-C again ends everything at once")

    def killed(self, part: PartStatus) -> None:
        """See Display."""
        self._console.print(f"[yellow]![/] {part.name:<12} did not end in time and is killed")

    def stopped(self) -> None:
        """See Display."""
        self._console.print("[green]✓[/] stopped")


def marked(part: str, line: str, log_format: str) -> str:
    """A line that a part wrote, with the part's name: before it, or in it where it is JSON."""
    if log_format != "json":
        return f"{part:<11} | {line}"
    name = json.dumps(part)
    if line.startswith('{"') and line.endswith("}"):
        return f'{{"part": {name}, {line[1:]}'
    return f'{{"part": {name}, "message": {json.dumps(line)}}}'


def pass_on(part: str, line: str, log_format: str) -> None:
    """Write a line of a part to standard error, whole."""
    with suppress(OSError, ValueError):  # nobody has to read it
        sys.stderr.write(marked(part, line, log_format) + "\n")
        sys.stderr.flush()
