"""Answers on a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.changefeeds.model import ChangefeedRecord
from penstock.control.changefeeds import summary

__all__ = ["print_facts", "print_feeds", "print_found", "print_jobs", "print_rows"]

_CELL_CHARS = 60


def print_feeds(found: list[ChangefeedRecord]) -> None:
    """Changefeeds on a terminal."""
    table = Table("changefeed", "state", "checkpoint", "lag", "error")
    for feed in found:
        row = summary(feed)
        table.add_row(row["id"], row["state"], row["checkpoint_time"], f"{row['lag_s']} s", row["error"])
    Console().print(table)


def print_jobs(rows: list[dict[str, Any]]) -> None:
    """Jobs on a terminal."""
    hidden = {"watermark", "error_code"}
    shown = ({name: row[name] for name in row if name not in hidden} for row in rows)
    print_rows([{**row, "verified": _told_verified(row["verified"])} for row in shown])


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Things of one kind on a terminal, a line for each."""
    table = Table(*(_heading(name) for name in (rows[0] if rows else {})))
    for row in rows:
        table.add_row(*(Text(_told(value)) for value in row.values()))
    Console().print(table if rows else "none")


def print_facts(facts: dict[str, Any]) -> None:
    """One thing on a terminal, a line for each fact."""
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(_heading(name), Text(_told(value)))
    Console().print(table)


def _told_verified(verified: dict[str, Any] | None) -> str:
    """When a target was last compared with its source, and whether it was the same."""
    if verified is None:
        return ""
    found = {True: "same", False: f"{verified['differences']} differences", None: "failed"}
    return f"{found[verified['same']]} at {verified['ended']}"


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _told(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{_heading(name)} {_told(each)}" for name, each in value.items() if _told(each))
    if isinstance(value, list):
        return ", ".join(map(_told, value))
    return str(value)


def print_found(answer: dict[str, Any]) -> None:
    """Rows on a terminal, with how fresh they are below."""
    rows = answer["rows"]
    table = Table(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*(Text(_cut(str(cell))) for cell in row.values()))
    console = Console()
    console.print(table if rows else "nothing found")
    building = "" if answer["complete"] else "; the index is built anew meanwhile"
    console.print(f"fresh as of {answer['watermark_time']}, {answer['lag_s']:.1f} s ago{building}")


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"
