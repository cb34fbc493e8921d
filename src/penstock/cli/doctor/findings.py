"""What a check found, how bad that is, and what mends it.

Findings on a terminal: a line for each, and below those that are not well what mends them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError

__all__ = ["CheckResult", "Finding", "bad", "healthy", "ok", "print_findings", "refused", "shown", "warn"]


class CheckResult(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, or will when something that is meant to run does; somebody should know."""
    BAD = "bad"
    """It cannot work like this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check. Nothing in it is a secret."""

    name: str
    verdict: CheckResult
    what: str
    remedy: str = ""


def ok(name: str, what: str) -> Finding:
    """All is well."""
    return Finding(name, CheckResult.OK, what)


def warn(name: str, what: str, remedy: str) -> Finding:
    """Somebody should know."""
    return Finding(name, CheckResult.WARN, what, remedy)


def bad(name: str, what: str, remedy: str) -> Finding:
    """It cannot work like this."""
    return Finding(name, CheckResult.BAD, what, remedy)


def refused(name: str, error: PenstockError) -> Finding:
    """What an error says: its messages end with the remedy."""
    what, _, remedy = str(error).rpartition("; ")
    return bad(name, what or remedy, remedy if what else "see docs/configuration.md")


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is bad."""
    return all(each.verdict is not CheckResult.BAD for each in findings)


def shown(finding: Finding) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "name": finding.name,
        "verdict": finding.verdict.value,
        "what": finding.what,
        "remedy": finding.remedy,
    }


_STYLES = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.BAD: "bold red"}


def print_findings(findings: Sequence[Finding], console: Console | None = None) -> None:
    """All of them, and in the end what they come to."""
    console = console or Console()
    table = Table.grid(padding=(0, 2))
    for each in findings:
        table.add_row(Text(each.verdict.value, _STYLES[each.verdict]), Text(each.name), Text(each.what))
        if each.remedy:
            table.add_row("", "", Text(f"→ {each.remedy}", "dim"))
    console.print(table)
    console.print(_conclusion(findings))


def _conclusion(findings: Sequence[Finding]) -> Text:
    count = {verdict: sum(each.verdict is verdict for each in findings) for verdict in CheckResult}
    if not healthy(findings):
        return Text(f"{count[CheckResult.BAD]} to mend", _STYLES[CheckResult.BAD])
    if count[CheckResult.WARN]:
        return Text(f"nothing is wrong; {count[CheckResult.WARN]} to know of", _STYLES[CheckResult.WARN])
    return Text("all is well", _STYLES[CheckResult.OK])
