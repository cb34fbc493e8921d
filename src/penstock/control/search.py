"""Search the index of a job, and say how fresh the answer is."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.clock import physical_ms
from penstock.consumers.search_index.search import SearchResult, search
from penstock.control.deployment import Deployment
from penstock.control.display import format_ts, json_value
from penstock.errors import Invalid
from penstock.jobs.job import JobId

__all__ = ["SearchOptions", "parse_vector", "search_index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """One search, by words or by a vector; `every` requires all of the words."""

    words: str | None
    vector: Sequence[float] | None
    k: int
    where: str | None
    columns: tuple[str, ...] | None
    every: bool


def search_index(
    deployment: Deployment,
    job_id: JobId,
    options: SearchOptions,
    *,
    account: str | None = None,
    run: Callable[..., SearchResult] | None = None,
) -> dict[str, Any]:
    """Search the index of a job in this process, or by `run`, which takes the arguments of `search`.

    Raises Invalid when the job has no such index, Unavailable while the index is not built yet.
    """
    job = deployment.jobs(account).get_job(job_id)
    result = (run or partial(search, settings=deployment.settings))(
        job,
        options.words,
        vector=options.vector,
        k=options.k,
        filter=options.where,
        columns=options.columns,
        every=options.every,
    )
    now_ts = deployment.now_ts()
    watermark = _watermark(deployment, job.key.table_id, result.watermark)
    return {
        "job": str(job_id),
        "watermark": watermark,
        "watermark_time": format_ts(watermark),
        "lag_s": max(0.0, (physical_ms(now_ts) - physical_ms(watermark)) / 1000),
        "complete": result.complete,
        "rows": [{name: json_value(cell) for name, cell in row.items()} for row in result.rows.to_pylist()],
    }


def _watermark(deployment: Deployment, table_id: int, watermark: int) -> int:
    """Return the timestamp up to which the answer is complete.

    That is the watermark of the index, or a later one when the table has not changed since.
    """
    progress = deployment.readable_ranges([table_id]).get(table_id)
    if progress is None or progress.changed_ts > watermark:
        return watermark
    return max(watermark, progress.readable_ts)


def parse_vector(text: str) -> list[float]:
    """Parse numbers separated by commas, with or without brackets, or read them from @FILE."""
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"vector file {path} cannot be read; check --vector") from error
    try:
        numbers = json.loads(f"[{text.strip().removeprefix('[').removesuffix(']')}]")
        vector = [float(number) for number in numbers]
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise Invalid("--vector is not a list of numbers; write 0.1,0.2,0.3 or @file.json") from None
    if not vector:
        raise Invalid("--vector is empty; write 0.1,0.2,0.3 or @file.json")
    return vector
