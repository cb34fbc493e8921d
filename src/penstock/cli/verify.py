"""`penstock verify`: targets compared with their sources, one after the other."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.output import print_json
from penstock.control.deployment import deployed
from penstock.control.verify import TargetReport, Tell, VerifyOptions, verify_targets
from penstock.settings import Settings

__all__ = ["verify"]

_DIFFERS, _FAILED = 1, 2
_COLUMNS = ("source_rows", "target_rows", "missing", "different", "extra", "duplicates")


def verify(settings: Settings, targets: Sequence[str], options: VerifyOptions, *, as_json: bool) -> int:
    """Compare targets and print what was found; the exit code: 1 when one differs, 2 when one failed."""
    with deployed(settings) as deployment, _progress(sys.stderr.isatty()) as tell:
        reports = verify_targets(deployment, targets, options, tell=tell)
    if as_json or not sys.stdout.isatty():
        print_json([each.shown() for each in reports])
    else:
        _print(reports)
    if any(each.same is False for each in reports):
        return _DIFFERS
    return _FAILED if any(each.error for each in reports) else 0


@contextmanager
def _progress(wanted: bool) -> Iterator[Tell]:
    """Says on a terminal how far it has come."""
    if not wanted:
        yield lambda _target, _what, _rows: None
        return
    with Console(stderr=True).status("") as status:

        def tell(target: str, what: str, rows: int) -> None:
            status.update(Text(f"{target} {what}{f': {rows:,} rows' if rows else ''}"))

        yield tell


def _print(reports: Sequence[TargetReport]) -> None:
    table = Table("target", "result", *(name.replace("_", " ") for name in _COLUMNS), "note")
    for report in reports:
        shown = report.shown()
        rows = shown.get("tables") or [shown]
        for row in rows:
            name = f"{report.target} {row['table']}" if "table" in row else report.target
            cells = [str(row.get(column, "")) for column in _COLUMNS]
            table.add_row(Text(name), _result(row), *cells, Text(_note(row)))
    Console().print(table if reports else "there is nothing to compare")


def _result(row: dict[str, Any]) -> str:
    return {True: "[green]same", False: "[red]differs", None: "[yellow]not compared"}[row["same"]]


def _note(row: dict[str, Any]) -> str:
    said = (row.get("error"), row.get("note"), *row.get("faults", ()))
    return "; ".join(each for each in said if each)
