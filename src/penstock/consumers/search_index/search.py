"""Asking the index of a job, with an answer that says how fresh it is.

found = search(job, "green shoes", k=5, filter="price < 100")
found.rows        # the best rows first, with their _score or _distance
found.watermark   # what they know of: every change up to here
found.lag_s       # how long ago that was
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.consumers.search_index.columns import from_source
from penstock.consumers.search_index.consumer import IndexConsumer
from penstock.consumers.search_index.lance_table import ROWS_ONLY, IndexVersion
from penstock.consumers.search_index.query import SearchQuery, check_filter
from penstock.errors import Invalid, Unavailable
from penstock.jobs.consumer import JobContext, find_consumer
from penstock.jobs.job import Job
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SearchResult", "search"]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Rows that an index found, and how fresh they are."""

    rows: pa.Table = field(repr=False)
    """The best first: columns of the source, and `_score` (more is better) or `_distance` (less is)."""
    watermark: int
    """Every change of the source up to this timestamp is taken into account."""
    lag_s: float
    """How long ago that was."""
    complete: bool
    """False while the index is built anew: the rows are those of the last one that was complete."""


def search(
    job: Job,
    words: str | None = None,
    *,
    vector: Sequence[float] | None = None,
    k: int = 10,
    filter: str | None = None,  # noqa: A002 - what Lance and its users call it
    columns: Sequence[str] | None = None,
    every: bool = False,
    settings: Settings | None = None,
    clock: Clock = SYSTEM,
) -> SearchResult:
    """The `k` best rows for words, or nearest to a vector; `every` wants all words. Blocks.

    `filter` is an SQL condition on columns that rows have to meet. Raises Unavailable while the first build
    has not ended, because an answer would lack rows; Invalid when the job is no index, or cannot be asked
    like this.
    """
    question = SearchQuery(words=words, vector=vector, k=k, every=every)
    if filter is not None:
        check_filter(filter)
    consumer = _consumer(job, settings or Settings(), clock)
    serving = consumer.table.serving()
    if serving is None:
        raise Unavailable(
            f"the index of job {job.id} has not been built yet; wait until its first iteration has completed"
        )
    standing, newest = serving
    rows = _asked(consumer, standing, question, filter, columns)
    watermark = _watermark(job, standing)
    lag_s = max(0, clock.wall_ms() - physical_ms(watermark)) / 1000
    return SearchResult(rows, watermark, lag_s, complete=newest)


def _consumer(job: Job, settings: Settings, clock: Clock) -> IndexConsumer:
    context = JobContext(
        id=job.id,
        key=job.key,
        account=job.account,
        info=job.spec.detail.consumer,
        settings=settings,
        scratch=Path(),
        spark=_no_spark,
        clock=clock,
    )
    kind = find_consumer(job.spec.consumer)
    if not issubclass(kind, IndexConsumer):
        raise Invalid(
            f"job {job.id} feeds {job.spec.consumer}, which is no index; search a fulltext or vector job"
        )
    made: Any = kind
    consumer: IndexConsumer = made(context)
    return consumer


def _asked(
    consumer: IndexConsumer,
    standing: IndexVersion,
    question: SearchQuery,
    where: str | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    there = from_source(standing.dataset.schema).names
    unknown = sorted(set(columns or ()) - set(there))
    if unknown:
        raise Invalid(f"the index has no column {unknown[0]}; it has {', '.join(there)}")
    asked = consumer.ask(standing, question)
    score = asked.pop("score")
    try:
        return standing.dataset.to_table(
            columns=[*(there if columns is None else columns), score],
            filter=f"({where}) AND {ROWS_ONLY}" if where else None,
            prefilter=True,
            **asked,
        )
    except ValueError as error:
        raise Invalid(
            f"the index of job {consumer.job.id} does not understand the filter or the query"
        ) from error


def _watermark(job: Job, standing: IndexVersion) -> int:
    """That of the rows; the log's, where the source has not changed since."""
    rows_ts = standing.marker.watermark
    quiet = rows_ts >= job.status.committed_ts > 0
    return max(rows_ts, job.watermark) if quiet else rows_ts


def _no_spark() -> "SparkSession":
    raise Invalid("searches need no Spark session")
