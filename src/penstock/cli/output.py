"""What commands share: loading the settings, printing answers as JSON or as tables, sizes as text."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.process import printable

if TYPE_CHECKING:
    from penstock.changefeeds.model import ChangefeedRecord
    from penstock.settings import Settings

__all__ = [
    "GIB",
    "MIB",
    "MetricsAddr",
    "format_size",
    "load_settings",
    "print_facts",
    "print_feeds",
    "print_jobs",
    "print_json",
    "print_rows",
    "print_search",
]


MetricsAddr = Annotated[
    str | None,
    typer.Option(help="Address to serve metrics on, as in 127.0.0.1:9100; port 0 takes a free port."),
]


def load_settings(
    config: Path | None, pd: list[str] | None = None, *, metrics_addr: str | None = None
) -> "Settings":
    """Return the settings of a file, or the defaults, overridden by the options given here."""
    from penstock import settings
    from penstock.settings import Settings

    loaded = settings.load(config) if config is not None else settings.with_tokens(Settings())
    given: dict[str, Any] = {"pd_addrs": tuple(pd)} if pd else {}
    if metrics_addr is not None:
        given["metrics_addr"] = metrics_addr
    return loaded.model_copy(update=given)


def print_json(tree: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(tree, indent=2))


_CELL_CHARS = 60


def print_feeds(feeds: "list[ChangefeedRecord]") -> None:
    """Print changefeeds as a table."""
    from penstock.control.changefeeds import changefeed_summary  # imports Arrow, which is slow

    table = Table("changefeed", "state", "checkpoint", "lag", "error")
    for feed in feeds:
        row = changefeed_summary(feed)
        cells = (row["id"], row["state"], row["checkpoint_time"], f"{row['lag_s']} s", row["error"])
        table.add_row(*(Text(_format_value(cell)) for cell in cells))
    Console().print(table)


def print_jobs(rows: list[dict[str, Any]]) -> None:
    """Print jobs as a table, without the fields for programs."""
    hidden = {"watermark", "error_code"}
    visible = ({name: row[name] for name in row if name not in hidden} for row in rows)
    print_rows([{**row, "verified": _format_verification(row["verified"])} for row in visible])


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table, with the field names as headings."""
    table = _table_of(map(_heading, rows[0] if rows else ()))
    for row in rows:
        table.add_row(*(Text(_format_value(value)) for value in row.values()))
    Console().print(table if rows else "none")


def print_facts(facts: dict[str, Any]) -> None:
    """Print the facts of one object, a line for each."""
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(_heading(name), Text(_format_value(value)))
    Console().print(table)


def _table_of(names: Iterable[str]) -> Table:
    """Return an empty table with these headings, which are shown as they are."""
    table = Table()
    for name in names:
        table.add_column(Text(printable(name)))
    return table


def _format_verification(verified: dict[str, Any] | None) -> str:
    """Return the result of the last comparison of a target with its source, and when it ended."""
    if verified is None:
        return ""
    results = {True: "same", False: f"{verified['differences']} differences", None: "failed"}
    return f"{results[verified['same']]} at {verified['ended']}"


def _heading(name: str) -> str:
    return printable(name.replace("_", " "))


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(
            f"{_heading(name)} {_format_value(item)}" for name, item in value.items() if _format_value(item)
        )
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    return printable(str(value))


def print_search(answer: dict[str, Any]) -> None:
    """Print the rows that a search found, and below them how fresh they are."""
    rows = answer["rows"]
    table = _table_of(rows[0] if rows else ())
    for row in rows:
        table.add_row(*(Text(_cut(str(cell))) for cell in row.values()))
    console = Console()
    console.print(table if rows else "nothing found")
    building = "" if answer["complete"] else "; the index is being rebuilt"
    console.print(f"fresh as of {answer['watermark_time']}, {answer['lag_s']:.1f} s ago{building}")


def _cut(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"


MIB = 1 << 20
GIB = 1 << 30
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def format_size(nbytes: float) -> str:
    """Return a number of bytes as text, as in 1.5 GiB."""
    step = 0
    while abs(nbytes) >= 1024 and step < len(_UNITS) - 1:
        nbytes /= 1024
        step += 1
    return f"{nbytes:,.0f} {_UNITS[step]}" if step == 0 or nbytes >= 100 else f"{nbytes:.1f} {_UNITS[step]}"
