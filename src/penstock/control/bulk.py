"""Work on whole tables: load the first snapshot, merge objects, compare the event store with the cluster.

With `engine: spark` the tasks run on the executors of a Spark session; a session that is there is used and
left open. With `engine: local` they run on threads of this process.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.errors import Invalid
from penstock.eventstore.upkeep.load import RangeTask
from penstock.settings import Settings
from penstock.spark.bulk import LoadReport, MergeReport, load_table, merge_objects
from penstock.spark.shipping import for_executors
from penstock.spark.tasks import Progress, Work, run_on_executors
from penstock.verify.event_store import TableVerifyReport, verify

__all__ = ["BulkEngine", "compare_table", "load", "merge", "open_engine"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BulkEngine:
    """Runs the tasks of bulk work; `settings` are those that the tasks may be given."""

    settings: Settings
    run: Callable[[Sequence[Any]], list[Any]]


@contextmanager
def open_engine(settings: Settings, progress: Progress | None = None) -> Iterator[BulkEngine]:
    """Yield the engine that the settings name.

    A session of Spark is watched meanwhile: work on one that dies, or whose master is lost, raises
    Unavailable, and the log says that executors are missing. One that is built for the block is ended with
    it within seconds. Raises Invalid when Java is missing or Spark's settings are refused, Unavailable when
    its master does not answer.
    """
    if settings.engine == "local":
        yield BulkEngine(settings, lambda works: _run_on_threads(works, progress))
        return
    from penstock.spark.session import has_session
    from penstock.spark.supervised import SupervisedSession

    session = SupervisedSession(settings, app_name="penstock-table", leave_open=has_session())
    try:
        session.get()
        yield BulkEngine(
            for_executors(settings),
            lambda works: run_on_executors(session.get(), works, progress=progress) if works else [],
        )
    finally:
        session.stop()


def _run_on_threads(works: Sequence[Work[R]], progress: Progress | None) -> list[R]:
    """Run every work on threads, one for each core; return the answers in the order of `works`.

    The first error of a work is raised; works that have not begun are not run then.
    """
    report = progress or (lambda _done, _all: None)
    report(0, len(works))
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="penstock-bulk") as pool:
        futures = [pool.submit(work.run) for work in works]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                report(done, len(works))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def load(engine: BulkEngine, table: str, *, restart: bool = False) -> LoadReport:
    """Load `database.table` as it is now into the event store; a capture goes on from there.

    A load that was interrupted goes on, `restart` begins a new one. Raises Invalid when there is no such
    table, it is captured already, or history at the timestamp of an interrupted load is gone; Unavailable
    when the cluster or storage does not answer.
    """
    _check_name(table)

    def run(tasks: Sequence[RangeTask]) -> None:
        engine.run(tasks)

    return load_table(engine.settings, table, run, restart=restart)


def merge(engine: BulkEngine, table: str) -> MergeReport:
    """Merge the objects of `database.table` until its capture plans no more.

    Raises Invalid when there is no such table, Unavailable when no capture owns it, or the capture or storage
    does not answer; merges that were committed before that stay.
    """
    _check_name(table)
    return merge_objects(
        engine.settings, table, engine.run, flight_tls=engine.settings.capture.flight_client_tls
    )


def compare_table(engine: BulkEngine, table: str, *, ts: int | None = None) -> TableVerifyReport:
    """Compare the rows of `database.table` in the event store with the cluster's.

    Raises Invalid when there is no such table or `ts` cannot be read in the cluster, StaleRead when it is
    collected in the event store, Unavailable when the event store is not complete up to `ts` or something
    does not answer, Corrupt when the schemas differ.
    """
    _check_name(table)
    return verify(
        engine.settings, table, engine.run, ts=ts, flight_tls=engine.settings.capture.flight_client_tls
    )


def _check_name(table: str) -> None:
    database, _, name = table.partition(".")
    if not database or not name:
        raise Invalid(f"{table!r} names no table; write database.table, as in shop.orders")
