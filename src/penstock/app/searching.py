"""`penstock search`: what the index of a job finds, and how fresh that is."""

import json
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock import eventloop
from penstock.app.jobreading import JobReading, reading
from penstock.app.jobviews import shown_ts
from penstock.clock import physical_ms
from penstock.consumers.search import search
from penstock.errors import Invalid
from penstock.jobs.jobid import JobId
from penstock.settings import Settings

__all__ = ["SearchOptions", "found", "print_found"]

_CELL_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is asked."""

    words: str | None
    vector: str | None
    k: int
    where: str | None
    columns: tuple[str, ...] | None
    every: bool


def found(loaded: Settings, job_id: JobId, options: SearchOptions) -> dict[str, Any]:
    """Ask the index of a job; raise Invalid when that cannot be, Unavailable while it is not built."""
    vector = None if options.vector is None else parsed_vector(options.vector)
    with reading(loaded) as opened:
        job = opened.jobs.get_job(job_id)
        result = search(
            job,
            options.words,
            vector=vector,
            k=options.k,
            filter=options.where,
            columns=options.columns,
            every=options.every,
            settings=loaded,
        )
        now_ts = eventloop.run(opened.client.timestamp())
        watermark = _watermark(opened, job.key.table_id, result.watermark)
    return {
        "job": str(job_id),
        "watermark": watermark,
        "watermark_time": shown_ts(watermark),
        "lag_s": max(0.0, (physical_ms(now_ts) - physical_ms(watermark)) / 1000),
        "complete": result.complete,
        "rows": [{name: _plain(cell) for name, cell in row.items()} for row in result.rows.to_pylist()],
    }


def _watermark(opened: JobReading, table_id: int, watermark: int) -> int:
    """Up to when rows have everything: that of the index, and on as far as its table has not changed."""
    look = opened.looks([table_id]).get(table_id)
    return (
        max(watermark, look.readable_ts) if look is not None and look.changed_ts <= watermark else watermark
    )


def parsed_vector(text: str) -> list[float]:
    """Numbers with commas between them, with or without brackets, or @FILE that holds them."""
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"vector file {path} cannot be read; check --vector") from error
    try:
        numbers = json.loads(f"[{text.strip().removeprefix('[').removesuffix(']')}]")
        vector = [float(number) for number in numbers]
    except (ValueError, TypeError):
        raise Invalid("--vector has no numbers; write 0.1,0.2,0.3 or @file.json") from None
    if not vector:
        raise Invalid("--vector is empty; write 0.1,0.2,0.3 or @file.json")
    return vector


def _plain(cell: Any) -> Any:
    """A cell as JSON has it."""
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    return cell if cell is None or isinstance(cell, bool | int | float | str | list) else str(cell)


def print_found(answer: dict[str, Any]) -> None:
    """Rows on a terminal, with how fresh they are below."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
