"""A table as a dict and a search index on it, in one place: what tests of indexes begin with."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from penstock.changes import ChangeBatch, Hint
from penstock.changes.batches import ChangesHandle
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.consumers.search_index.consumer import IndexConsumer
from penstock.consumers.search_index.lance_table import ROWS_ONLY, IndexVersion
from penstock.consumers.search_index.search import SearchResult, search
from penstock.follow.source import ScanSource, TableScan
from penstock.jobs.consumer import find_consumer
from penstock.jobs.job import Job, JobState, JobStatus
from penstock.jobs.spec import JobSpec
from penstock.settings import JobsSettings, Settings
from penstock.tables.schema import TableInfo
from penstock.testing.consumers import ListRetriever, SourceModel, job_context
from penstock.verify.target import Verifier

__all__ = ["IndexWorld"]


_SETTINGS = Settings(jobs=JobsSettings(allowed_code=("support",)))  # support.indexfunctions


class IndexWorld:
    """A source, and a job that keeps an index of it below a folder; `spark` is a session for large ranges."""

    def __init__(
        self,
        folder: Path,
        consumer: str,
        table: TableInfo,
        options: Mapping[str, str],
        *,
        spark: Any = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.folder = folder
        self.source = SourceModel(table)
        self.spark = spark
        self.clock = clock
        self.name = consumer
        self.options = {"uri": str(folder / "index"), **options}
        self.job_id = 1

    def consumer(self, **options: str) -> IndexConsumer:
        """Return a consumer as an iteration makes one."""
        context = job_context(
            self.folder,
            self.name,
            self.options | options,
            settings=_SETTINGS,
            spark=self.spark,
            job_id=self.job_id,
        )
        made: Any = find_consumer(self.name)
        consumer: IndexConsumer = made(replace(context, clock=self.clock))
        return consumer

    def changes(self, *, resync: bool = False, large: bool = False) -> ListRetriever:
        """Return what the next iteration gets."""
        from_ts = 0 if resync else self.consumer().committed_ts()
        return self.source.retriever(from_ts, self.source.ts, large=large, spark=self.spark)

    def catch_up(self, *, resync: bool = False, large: bool = False, **options: str) -> None:
        """One iteration."""
        self.consumer(**options).consume(self.changes(resync=resync, large=large))

    def standing(self) -> IndexVersion:
        """Return the index as it is."""
        found = self.consumer().table.latest()
        assert found is not None
        return found

    def rows(self) -> pa.Table:
        """Its rows, with what was made of them."""
        return self.standing().dataset.to_table(filter=ROWS_ONLY)

    def job(self, **status: Any) -> Job:
        """Its row in the log."""
        info = {"consumer": self.name, "options": self.options}
        context = self.consumer().job
        return Job(
            key=context.key,
            id=context.id,
            account="default",
            spec=JobSpec.parse({"detail": {"consumer": info}}),
            state=JobState.COMPLETED,
            watermark=status.pop("watermark", 0),
            status=JobStatus(**status),
            create_at=0,
        )

    def search(self, words: str | None = None, **rest: Any) -> SearchResult:
        """Ask the index."""
        return search(self.job(), words, settings=_SETTINGS, clock=self.clock, **rest)

    def verifier(self) -> Verifier:
        """Return the comparison of the index with the source."""
        return Verifier(
            self.job(),
            self.consumer(),
            cast("ScanSource", _ModelSource(self.source)),
            self.folder / "verify",
            log_ts=lambda: 0,
            same_ts=lambda ts: ts,
        )


class _ModelSource:
    """What a verifier asks of a ScanSource, over a model."""

    def __init__(self, model: SourceModel) -> None:
        self._model = model

    def scan(self, _table_id: int, from_ts: int, to_ts: int, _limit: ReadLimit) -> TableScan:
        """Return a scan of a range of a table."""
        schema = self._model.retriever(0, to_ts).schema
        return TableScan(
            view=cast("Any", None), from_ts=from_ts, to_ts=to_ts, schema=schema, rows=0, nbytes=0
        )

    def open(
        self,
        scan: TableScan,
        columns: Collection[str] | None,
        *,
        impossible_dates: bool = False,  # noqa: ARG002 - as the Protocol
    ) -> ChangesHandle:
        """Open a scan."""

        def batches() -> Iterator[ChangeBatch]:
            for inserts, deletes in self._model.retriever(0, scan.to_ts).batches:
                shown = [*(columns or ()), "_commit_ts"]
                yield ChangeBatch(inserts.select(shown), deletes, Hint.SNAPSHOT, scan.schema, scan.to_ts)

        return ChangesHandle(cast("Any", batches()))
