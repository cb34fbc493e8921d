"""Findings on a terminal: a line for each, and below those that are not well what mends them."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.doctor.findings import CheckResult, Finding, healthy

__all__ = ["print_findings"]

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
