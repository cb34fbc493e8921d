"""Searches in processes that can be ended, so that no search ends or holds the process that asks."""

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.consumers.search_index.search import SearchResult, search
from penstock.errors import PenstockError, Unavailable
from penstock.jobs.consumer import find_consumer
from penstock.jobs.job import Job
from penstock.settings import Settings
from penstock.worker_processes import TaskDied, TaskLate, WorkerAnswer, WorkerProcesses, WorkerSetup

__all__ = ["SearchWorkers"]


class SearchWorkers:
    """At most `count` processes that answer searches. Thread-safe. `close` ends them all."""

    def __init__(self, settings: Settings, *, count: int, clock: Clock = SYSTEM) -> None:
        self._settings = settings
        setup = WorkerSetup(
            memory_bytes=settings.api.search_bytes, task_s=settings.api.search_s, warm_up=_import_indexes
        )
        self._processes = WorkerProcesses(setup, count=count, clock=clock)

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return self._processes.pids

    def search(
        self,
        job: Job,
        words: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        k: int = 10,
        filter: str | None = None,  # noqa: A002 - as `search` names it
        columns: Sequence[str] | None = None,
        every: bool = False,
    ) -> SearchResult:
        """WorkerAnswer as `search_index.search.search` does; also raise Unavailable at a limit. Blocks."""
        options = {"vector": vector, "k": k, "filter": filter, "columns": columns, "every": every}
        try:
            with metrics.API_SEARCHES_RUNNING.track_inprogress():
                answer = self._processes.run(_SearchTask(job, words, options, self._settings))
        except TaskLate:
            metrics.API_SEARCHES_ENDED_TOTAL.labels("deadline").inc()
            raise Unavailable(
                f"the search took more than {self._settings.api.search_s:g} s (api.search_s) and was ended;"
                " write a narrower one"
            ) from None
        except TaskDied:
            metrics.API_SEARCHES_ENDED_TOTAL.labels("died").inc()
            raise Unavailable(
                "the process of the search ended, perhaps by its limit of memory (api.search_bytes); try"
                " again, or write a narrower one"
            ) from None
        with pa.ipc.open_stream(pa.py_buffer(answer.body)) as stream:
            rows = stream.read_all()
        head = answer.head
        return SearchResult(
            rows, int(head["watermark"]), float(head["lag_s"]), complete=bool(head["complete"])
        )

    def close(self) -> None:
        """End all processes; later searches are refused."""
        self._processes.close()


@dataclass(frozen=True, slots=True)
class _SearchTask:
    """One search; pickled."""

    job: Job
    words: str | None
    options: dict[str, Any]
    settings: Settings

    def __call__(self, _proceed: Callable[[], None]) -> WorkerAnswer:
        found = search(self.job, self.words, **self.options, settings=self.settings)
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, found.rows.schema) as writer:
            writer.write_table(found.rows)
        head = {"watermark": found.watermark, "lag_s": found.lag_s, "complete": found.complete}
        return WorkerAnswer(head, stream.getvalue())


def _import_indexes() -> None:
    for consumer in ("fulltext", "vector"):
        with contextlib.suppress(PenstockError):  # without its packages, searches say what is missing
            find_consumer(consumer)
