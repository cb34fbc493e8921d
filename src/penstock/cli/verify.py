"""`penstock verify`: compare targets with their sources and print the results."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.output import print_json
from penstock.control.deployment import open_deployment
from penstock.control.verify import OnProgress, TargetReport, VerifyOptions, verify_targets
from penstock.process import printable
from penstock.settings import Settings

__all__ = ["verify_and_print"]

_DIFFERS, _FAILED = 1, 2
_COLUMNS = ("source_rows", "target_rows", "missing", "different", "extra", "duplicates")


def verify_and_print(
    settings: Settings, targets: Sequence[str], options: VerifyOptions, *, as_json: bool
) -> int:
    """Compare targets and print the results; return 1 when one differs, 2 when one failed, else 0."""
    with open_deployment(settings) as deployment, _progress(sys.stderr.isatty()) as show:
        reports = verify_targets(deployment, targets, options, on_progress=show)
    if as_json or not sys.stdout.isatty():
        print_json([report.details() for report in reports])
    else:
        _print(reports)
    if any(report.same is False for report in reports):
        return _DIFFERS
    return _FAILED if any(report.error for report in reports) else 0


@contextmanager
def _progress(on_terminal: bool) -> Iterator[OnProgress]:
    """Yield a listener that shows the progress on a terminal, or nothing elsewhere."""
    if not on_terminal:
        yield lambda _target, _what, _rows: None
        return
    with Console(stderr=True).status("") as status:

        def show(target: str, what: str, rows: int) -> None:
            status.update(Text(f"{printable(target)} {what}{f': {rows:,} rows' if rows else ''}"))

        yield show


def _print(reports: Sequence[TargetReport]) -> None:
    table = Table("target", "result", *(name.replace("_", " ") for name in _COLUMNS), "note")
    for report in reports:
        details = report.details()
        rows = details.get("tables") or [details]
        for row in rows:
            name = f"{report.target} {row['table']}" if "table" in row else report.target
            cells = [str(row.get(column, "")) for column in _COLUMNS]
            table.add_row(Text(printable(name)), _format_result(row), *cells, Text(_format_note(row)))
    Console().print(table if reports else "there is nothing to compare")


def _format_result(row: dict[str, Any]) -> str:
    return {True: "[green]same", False: "[red]differs", None: "[yellow]not compared"}[row["same"]]


def _format_note(row: dict[str, Any]) -> str:
    notes = (row.get("error"), row.get("note"), *row.get("faults", ()))
    return printable("; ".join(note for note in notes if note))
