"""What `penstock up` shows: coloured lines on a terminal, log lines elsewhere."""

import json
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.markup import escape

from penstock.control.part_states import PartKind, PartStatus, UpStates
from penstock.process import printable
from penstock.settings.network import read_token

__all__ = [
    "Display",
    "LogDisplay",
    "TerminalDisplay",
    "forward_line",
    "mark_line",
    "ready_summary",
    "sign_in_link",
]

_log = logging.getLogger("penstock.up")


class Display(Protocol):
    """Shows what happens to the parts. Called on the event loop, one call at a time."""

    def show_starting(self, states: UpStates) -> None:
        """Show that the parts are about to be started."""

    def show_ready(self, part: PartStatus, took_s: float) -> None:
        """Show that a part has become ready."""

    def show_exit(self, part: PartStatus, wait_s: float, *, new_reason: bool) -> None:
        """Show that a part ended and will be restarted; `new_reason` when its error is a new one."""

    def show_all_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        """Show that every part has been ready. Called once."""

    def show_stopping(self) -> None:
        """Show that all parts are asked to end."""

    def show_kill(self, part: PartStatus) -> None:
        """Show that a part did not end in time and is killed."""

    def show_stopped(self) -> None:
        """Show that all parts have ended."""


def _names(states: UpStates) -> str:
    return ", ".join(part.name for part in states.parts)


def ready_summary(
    states: UpStates, pd_addrs: tuple[str, ...], token_path: Path | None = None
) -> dict[str, object]:
    """Return the addresses of the cluster, the API and every part, and the file of the admin's token."""
    summary: dict[str, object] = {"pd": list(pd_addrs)}
    for part in states.parts:
        if part.kind is PartKind.API and part.addr is not None:
            summary["api"] = part.addr
            if token_path is not None:
                summary["admin_token_path"] = str(token_path)
    return {**summary, "parts": {part.name: part.addr for part in states.parts}}


def sign_in_link(pages: str, token_path: Path | None) -> str:
    """Return the address of the pages, with the admin's token if it is in a file of the deployment.

    The token is in the fragment, which browsers send to nobody. Print it on a terminal only, never in a log.
    """
    token = read_token(None, token_path, key="secrets_dir")
    return pages if token is None else f"{pages}/#token={token.get_secret_value()}"


class LogDisplay:
    """Writes log lines. With `announce`, prints one line of JSON once everything is ready.

    What is printed here is often kept, so it has the path of the admin's token and not the token.
    """

    def __init__(self, *, announce: bool = False, token_path: Path | None = None) -> None:
        self._announce = announce
        self._token_path = token_path

    def show_starting(self, states: UpStates) -> None:
        """Log the names of the parts."""
        _log.info("starting", extra={"parts": _names(states)})

    def show_ready(self, part: PartStatus, took_s: float) -> None:
        """Log the part with its address and the time it took."""
        facts = {"part": part.name, "pid": part.pid, "addr": part.addr, "took_s": round(took_s, 2)}
        _log.info("part is ready", extra={key: value for key, value in facts.items() if value is not None})

    def show_exit(self, part: PartStatus, wait_s: float, *, new_reason: bool) -> None:
        """Log an error; at debug level when the reason is the same as before."""
        facts = {"part": part.name, "error": part.error, "again_s": wait_s, "restarts": part.restarts}
        _log.log(
            logging.ERROR if new_reason else logging.DEBUG, "part ended and will be restarted", extra=facts
        )

    def show_all_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        """Log the addresses, and print them as JSON when announcing."""
        summary = ready_summary(states, pd_addrs, self._token_path)
        facts = {"pd": ",".join(pd_addrs), **({"pages": summary["api"]} if "api" in summary else {})}
        _log.info("everything is ready", extra=facts)
        if self._announce:
            with suppress(BrokenPipeError):  # the starter need not read it
                print(json.dumps(summary), flush=True)

    def show_stopping(self) -> None:
        """Log it."""
        _log.info("stopping all parts")

    def show_kill(self, part: PartStatus) -> None:
        """Log a warning."""
        _log.warning("part did not end in time and is killed", extra={"part": part.name})

    def show_stopped(self) -> None:
        """Log it."""
        _log.info("all parts have stopped")


class TerminalDisplay:
    """Prints a line for each event, in colours where the terminal has them."""

    def __init__(self, console: Console | None = None, *, token_path: Path | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._token_path = token_path

    def show_starting(self, states: UpStates) -> None:
        """Print the names of the parts."""
        self._console.print(f"starting {_names(states)}")

    def show_ready(self, part: PartStatus, took_s: float) -> None:
        """Print the part with its address and the time it took."""
        where = f"  {escape(part.addr)}" if part.addr else ""
        again = f", start {part.restarts + 1}" if part.restarts else ""
        self._console.print(f"[green]✓[/] {part.name:<12} ready{where}  [dim]{took_s:.1f} s{again}[/]")

    def show_exit(self, part: PartStatus, wait_s: float, *, new_reason: bool) -> None:
        """Print the error; nothing when the reason is the same as before."""
        if new_reason:
            line = (
                f"[red]✗[/] {part.name:<12} {escape(printable(part.error))}  [dim]restarts in {wait_s:g} s[/]"
            )
            self._console.print(line)

    def show_all_ready(self, states: UpStates, pd_addrs: tuple[str, ...]) -> None:
        """Print the addresses of the pages, as a link that signs in, and of the cluster."""
        summary = ready_summary(states, pd_addrs)
        self._console.print()
        if "api" in summary:
            link = sign_in_link(str(summary["api"]), self._token_path)
            self._console.print(f"  pages             [bold]{escape(link)}[/]", soft_wrap=True)
        self._console.print(f"  placement driver  {escape(', '.join(pd_addrs))}")
        self._console.print("  [dim]Ctrl-C stops everything.[/]\n")

    def show_stopping(self) -> None:
        """Print it, with how to end at once."""
        self._console.print("\nstopping; press Ctrl-C again to kill everything at once")

    def show_kill(self, part: PartStatus) -> None:
        """Print a warning."""
        self._console.print(f"[yellow]![/] {part.name:<12} did not end in time and is killed")

    def show_stopped(self) -> None:
        """Print it."""
        self._console.print("[green]✓[/] stopped")


def mark_line(part: str, line: str, log_format: str) -> str:
    """Return a line of a part with the part's name: before a text line, as a field in a line of JSON."""
    if log_format != "json":
        return f"{part:<11} | {printable(line)}"
    name = json.dumps(part)
    if line.startswith('{"') and line.endswith("}"):
        return f'{{"part": {name}, {line[1:]}'
    return f'{{"part": {name}, "message": {json.dumps(line)}}}'


def forward_line(part: str, line: str, log_format: str) -> None:
    """Write a line of a part to standard error, in one write."""
    with suppress(OSError, ValueError):  # standard error may be closed
        sys.stderr.write(mark_line(part, line, log_format) + "\n")
        sys.stderr.flush()
