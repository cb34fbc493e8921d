"""What commands that answer have in common: their settings, and how they say things.

Answers on a terminal.

Sizes for people.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from penstock.changefeeds.model import ChangefeedRecord
    from penstock.settings import Settings

__all__ = [
    "GIB",
    "MIB",
    "MetricsAddr",
    "load",
    "print_facts",
    "print_feeds",
    "print_found",
    "print_jobs",
    "print_json",
    "print_rows",
    "size",
]


MetricsAddr = Annotated[
    str | None, typer.Option(help="Where to show metrics, as in 127.0.0.1:9100; port 0 takes a free one.")
]


def load(config: Path | None, pd: list[str] | None = None, *, metrics_addr: str | None = None) -> "Settings":
    """The settings that a command works with: of a file, or the defaults; what is given comes first."""
    from penstock import settings
    from penstock.settings import Settings

    loaded = settings.load(config) if config is not None else Settings()
    given: dict[str, Any] = {"pd_addrs": tuple(pd)} if pd else {}
    if metrics_addr is not None:
        given["metrics_addr"] = metrics_addr
    return loaded.model_copy(update=given)


def print_json(tree: Any) -> None:
    """One value, for people and machines."""
    print(json.dumps(tree, indent=2))


_CELL_CHARS = 60


def print_feeds(found: "list[ChangefeedRecord]") -> None:
    """Changefeeds on a terminal."""
    from penstock.control.changefeeds import summary  # which brings Arrow

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


MIB = 1 << 20
GIB = 1 << 30
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(nbytes: float) -> str:
    """As in 1.5 GiB."""
    step = 0
    while abs(nbytes) >= 1024 and step < len(_UNITS) - 1:
        nbytes /= 1024
        step += 1
    return f"{nbytes:,.0f} {_UNITS[step]}" if step == 0 or nbytes >= 100 else f"{nbytes:.1f} {_UNITS[step]}"
