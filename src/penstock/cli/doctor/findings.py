"""The findings of checks: what was found, how bad it is, and how to fix it; as JSON and on a terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError

__all__ = [
    "CheckResult",
    "Finding",
    "bad",
    "finding_details",
    "from_error",
    "is_healthy",
    "ok",
    "print_findings",
    "warn",
]


class CheckResult(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works now, or will once a part runs; worth knowing."""
    BAD = "bad"
    """It cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. It contains no secret."""

    name: str
    verdict: CheckResult
    what: str
    remedy: str = ""


def ok(name: str, what: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(name, CheckResult.OK, what)


def warn(name: str, what: str, remedy: str) -> Finding:
    """Return a finding that is worth knowing, with a remedy."""
    return Finding(name, CheckResult.WARN, what, remedy)


def bad(name: str, what: str, remedy: str) -> Finding:
    """Return a finding that keeps Penstock from working, with a remedy."""
    return Finding(name, CheckResult.BAD, what, remedy)


def from_error(name: str, error: PenstockError) -> Finding:
    """Return the bad finding of an error, whose message ends with the remedy after a semicolon."""
    what, _, remedy = str(error).rpartition("; ")
    return bad(name, what or remedy, remedy if what else "see docs/configuration.md")


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Return whether no finding is bad."""
    return all(finding.verdict is not CheckResult.BAD for finding in findings)


def finding_details(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON."""
    return {
        "name": finding.name,
        "verdict": finding.verdict.value,
        "what": finding.what,
        "remedy": finding.remedy,
    }


_STYLES = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.BAD: "bold red"}


def print_findings(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print a line for each finding, with its remedy below, and a conclusion at the end."""
    console = console or Console()
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        verdict = Text(finding.verdict.value, _STYLES[finding.verdict])
        table.add_row(verdict, Text(finding.name), Text(finding.what))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", "dim"))
    console.print(table)
    console.print(_conclusion(findings))


def _conclusion(findings: Sequence[Finding]) -> Text:
    count = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in CheckResult}
    if not is_healthy(findings):
        return Text(f"{count[CheckResult.BAD]} to fix", _STYLES[CheckResult.BAD])
    if count[CheckResult.WARN]:
        return Text(f"nothing is wrong; warnings: {count[CheckResult.WARN]}", _STYLES[CheckResult.WARN])
    return Text("everything is fine", _STYLES[CheckResult.OK])
