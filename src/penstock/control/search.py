"""`penstock search`: what the index of a job finds, and how fresh that is."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.clock import physical_ms
from penstock.consumers.search_index.search import search
from penstock.control.deployment import Deployment
from penstock.control.display import plain, shown_ts
from penstock.errors import Invalid
from penstock.jobs.job import JobId

__all__ = ["SearchOptions", "found", "parsed_vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is asked."""

    words: str | None
    vector: Sequence[float] | None
    k: int
    where: str | None
    columns: tuple[str, ...] | None
    every: bool


def found(
    deployment: Deployment, job_id: JobId, options: SearchOptions, *, account: str | None = None
) -> dict[str, Any]:
    """Ask the index of a job; raise Invalid when that cannot be, Unavailable while it is not built."""
    job = deployment.jobs(account).get_job(job_id)
    result = search(
        job,
        options.words,
        vector=options.vector,
        k=options.k,
        filter=options.where,
        columns=options.columns,
        every=options.every,
        settings=deployment.settings,
    )
    now_ts = deployment.now_ts()
    watermark = _watermark(deployment, job.key.table_id, result.watermark)
    return {
        "job": str(job_id),
        "watermark": watermark,
        "watermark_time": shown_ts(watermark),
        "lag_s": max(0.0, (physical_ms(now_ts) - physical_ms(watermark)) / 1000),
        "complete": result.complete,
        "rows": [{name: plain(cell) for name, cell in row.items()} for row in result.rows.to_pylist()],
    }


def _watermark(deployment: Deployment, table_id: int, watermark: int) -> int:
    """Up to when rows have everything: that of the index, and on as far as its table has not changed."""
    look = deployment.looks([table_id]).get(table_id)
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
