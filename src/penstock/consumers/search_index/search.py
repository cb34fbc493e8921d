"""Searches in the index of a job; an answer says how fresh it is.

found = search(job, "green shoes", k=5, filter="price < 100")
found.rows        # the best rows first, with their _score or _distance
found.watermark   # every change up to here is included
found.lag_s       # how long ago that was
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.consumers.search_index.query import SearchQuery
from penstock.errors import Invalid, Unavailable
from penstock.jobs.consumer import JobContext, find_consumer, open_consumer, resolve_info, secrets_of
from penstock.jobs.job import Job
from penstock.settings import Settings
from penstock.targets import TenantTargets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.consumers.search_index.consumer import IndexConsumer
    from penstock.consumers.search_index.lance_table import IndexVersion

__all__ = ["SearchResult", "search"]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Rows that an index found, and how fresh they are."""

    rows: pa.Table = field(repr=False)
    """The best first: columns of the source, and `_score` (more is better) or `_distance` (less is better).
    """
    watermark: int
    """Every change of the source up to this timestamp is included."""
    lag_s: float
    """How long ago that was."""
    complete: bool
    """False while the index is rebuilt: the rows are those of the last complete version."""


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
    """Return the `k` best rows for words, or nearest to a vector; `every` requires all words. Blocks.

    `filter` is an SQL condition on columns, of comparisons, IN, BETWEEN, LIKE, IS, AND, OR and NOT. Raises
    Unavailable until the first build has ended, because rows would be missing. Raises Invalid when the job is
    no index, or cannot answer such a query.
    """
    query = SearchQuery(words=words, vector=vector, k=k, every=every)
    settings = settings or Settings()
    with secrets_of(job.spec.detail.consumer, settings.jobs.allowed_code).in_errors():
        return _search(job, query, filter, columns, settings, clock)


def _search(
    job: Job,
    query: SearchQuery,
    where: str | None,
    columns: Sequence[str] | None,
    settings: Settings,
    clock: Clock,
) -> SearchResult:
    consumer = _consumer(job, settings, clock)
    serving = consumer.table.serving()
    if serving is None:
        raise Unavailable(
            f"the index of job {job.id} has not been built yet; wait until its first iteration has completed"
        )
    current, newest = serving
    rows = _query_index(consumer, current, query, where, columns)
    watermark = _watermark(job, current)
    lag_s = max(0, clock.wall_ms() - physical_ms(watermark)) / 1000
    return SearchResult(rows, watermark, lag_s, complete=newest)


def _consumer(job: Job, settings: Settings, clock: Clock) -> "IndexConsumer":
    tenant = TenantTargets.of(settings, job.account, recorded=job.confined)
    context = JobContext(
        id=job.id,
        key=job.key,
        account=job.account,
        info=resolve_info(job.spec.detail.consumer, tenant),
        settings=settings,
        scratch=Path(),
        spark=_no_spark,
        tenant=tenant,
        clock=clock,
    )
    allowed = settings.jobs.allowed_code
    kind = find_consumer(job.spec.consumer, allowed)  # says which package is missing, before the imports do
    from penstock.consumers.search_index.consumer import IndexConsumer

    if not issubclass(kind, IndexConsumer):
        raise Invalid(
            f"job {job.id} feeds {job.spec.consumer}, which is not an index; search a fulltext or vector job"
        )
    consumer = open_consumer(context)
    assert isinstance(consumer, IndexConsumer)
    return consumer


def _query_index(
    consumer: "IndexConsumer",
    current: "IndexVersion",
    query: SearchQuery,
    where: str | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    from penstock.consumers.search_index.columns import source_columns
    from penstock.consumers.search_index.lance_table import ROWS_ONLY

    found = source_columns(current.dataset.schema)
    names = found.names
    unknown = sorted(set(columns or ()) - set(names))
    if unknown:
        raise Invalid(f"the index has no column {unknown[0]}; it has {', '.join(names)}")
    condition = None
    if where and where.strip():
        from penstock.consumers.search_index.filter import render_filter

        condition = f"{render_filter(where, found)} AND {ROWS_ONLY}"
    arguments = consumer.scan_arguments(current, query)
    score = arguments.pop("score")
    try:
        return current.dataset.to_table(
            columns=[*(names if columns is None else columns), score],
            filter=condition,
            prefilter=True,
            **arguments,
        )
    except ValueError as error:
        raise Invalid(
            f"the index of job {consumer.job.id} does not understand the filter or the query; check both"
        ) from error


def _watermark(job: Job, current: "IndexVersion") -> int:
    """Return the watermark of the rows; the log's, if the source has not changed since."""
    rows_ts = current.marker.watermark
    quiet = rows_ts >= job.status.committed_ts > 0
    return max(rows_ts, job.watermark) if quiet else rows_ts


def _no_spark() -> "SparkSession":
    raise Invalid("searches need no Spark session")
