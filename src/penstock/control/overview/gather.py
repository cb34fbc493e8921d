"""Gathers the facts of a deployment: asks every part at once, and waits only a few seconds for answers.

It makes one call to each capture and one scan of each kind of row, however many tables and jobs there are.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import unquote, urlsplit

from penstock import eventloop
from penstock.changefeeds.model import ChangefeedRecord
from penstock.clock import SYSTEM, Clock, compose_ts, physical_ms
from penstock.control.deployment import Deployment
from penstock.control.overview.facts import SLOW_S, CaptureFact, Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.locks import find_holding_locks
from penstock.control.overview.part_metrics import (
    Growth,
    MetricSample,
    count_abandoned,
    count_rows,
    parse_page,
    parts_starting_spark,
    parts_without_executors,
    parts_without_spark,
    read_pages,
    spool_levels,
)
from penstock.control.part_states import PartKind, PartState, PartStatus, UpStates
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.capture.tables import matches_patterns
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import CaptureProgress, Refusal
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.captures import live_captures
from penstock.follow.source import ReadableRange
from penstock.jobs.freshness import freshness_of
from penstock.jobs.job import Job
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.kv.lease import LeaseRecord, read_lease
from penstock.settings import Settings
from penstock.tables.system_tables import PENSTOCK_DATABASE
from penstock.verify.results import LastVerification, VerificationResults

__all__ = ["FactsCache", "Probe", "facts_without_cluster", "find_low_disks", "gather_facts"]


T = TypeVar("T")

ANSWER_S = 3.0
"""Seconds for all answers together. A busy machine needs most of them."""
CLUSTER_S = 1.8
"""Seconds for the cluster to return a timestamp; if it does not, it is asked nothing else."""
PAGES_S = 1.8
"""Seconds for a capture to return the progress of its tables, and for a part to serve its metrics."""
LOCKS_S = 0.5
_EXPLAINED_TABLES_MAX = 16
_EXPLAINED_PARTITIONS_MAX = 8
_CACHE_S = 1.0
FREE_BYTES_MIN = 1 << 30
"""A folder with fewer free bytes is reported."""

Pages = dict[str, dict[MetricSample, float] | None]


class FactsCache:
    """The latest facts for a second, and the parts' counters, from which rates come. Thread-safe.

    Many readers within a second cost as much as one.
    """

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: tuple[float, Facts] | None = None
        self._growth = Growth()

    def facts(self, deployment: Deployment) -> Facts:
        """Return the facts of the deployment, at most a second old."""
        with self._lock:
            if self._latest is None or self._clock.monotonic() >= self._latest[0] + _CACHE_S:
                facts = gather_facts(deployment, self._growth, clock=self._clock)
                self._latest = self._clock.monotonic(), facts
            return self._latest[1]

    def read_counters(self, settings: Settings) -> None:
        """Read only the counters, so that the next overview has rates."""
        with self._lock:
            pages = _read_pages(_read_parts(settings, {}) or ())
            self._growth.add(self._clock.monotonic(), _answered_pages(pages))


def gather_facts(deployment: Deployment, growth: Growth, *, clock: Clock = SYSTEM) -> Facts:
    """Read all facts. Whatever does not answer in time is noted in the facts; it raises no PenstockError."""
    deadline = clock.monotonic() + ANSWER_S
    settings, unknown = deployment.settings, dict[str, str]()
    parts = _read_parts(settings, unknown)
    pages = Probe("metrics", lambda: _read_pages(parts or ()), clock=clock)
    try:
        now_ts = Probe("the time of the cluster", deployment.now_ts, clock=clock).answer(
            clock.monotonic() + CLUSTER_S
        )
    except PenstockError as error:
        metrics = pages.answer_or({}, deadline, unknown)
        growth.add(clock.monotonic(), _answered_pages(metrics))
        facts = facts_without_cluster(settings, str(error), clock=clock)
        answered = _answered_pages(metrics)
        return replace(
            facts,
            growth=growth,
            silent=_silent_parts(metrics),
            starting_spark=parts_starting_spark(answered),
            without_spark=parts_without_spark(answered),
            without_executors=parts_without_executors(answered),
            engines=count_rows(answered),
        )
    schemas = Probe("schemas", lambda: _read_schemas(deployment), clock=clock)
    captures = Probe("captures", lambda: _ask_captures(deployment), clock=clock)
    feeds = Probe("changefeeds", lambda: _read_feeds(deployment), clock=clock)
    jobs = Probe("jobs", lambda: _read_jobs(deployment), clock=clock)
    runner = Probe(
        "the runner of jobs",
        lambda: eventloop.run(read_lease(deployment.client, RUNNER_LEASE)),
        clock=clock,
    )

    metrics = pages.answer_or({}, deadline, unknown)
    growth.add(clock.monotonic(), _answered_pages(metrics))
    answers = captures.answer_or([], deadline, unknown)
    tables = _table_facts(schemas.answer_or([], deadline, unknown), answers, settings)
    lease = runner.answer_or(LeaseRecord(), deadline, unknown)
    run_by = lease.owner if lease.is_held(physical_ms(now_ts)) else ""
    attended = (
        bool(run_by) or runner.what in unknown
    )  # an unreadable lease does not mean that no process runs jobs
    levels = spool_levels(_answered_pages(metrics))
    return Facts(
        now_ts=now_ts,
        tables=tables,
        captures=tuple(answer.fact for answer in answers),
        feeds=tuple(
            FeedFact(feed, owner, levels.get(feed.info.id))
            for feed, owner in feeds.answer_or([], deadline, unknown)
        ),
        jobs=_job_facts(jobs.answer_or([], deadline, unknown), tables, settings, now_ts, attended=attended),
        runner=run_by,
        abandoned=count_abandoned(_answered_pages(metrics)),
        abandoned_max=settings.jobs.abandoned_max,
        parts=parts,
        unknown=unknown,
        silent=_silent_parts(metrics),
        engine=settings.engine,
        engines=count_rows(_answered_pages(metrics)),
        starting_spark=parts_starting_spark(_answered_pages(metrics)),
        without_spark=parts_without_spark(_answered_pages(metrics)),
        without_executors=parts_without_executors(_answered_pages(metrics)),
        flush_interval_s=settings.capture.flush_interval_s,
        low_disks={} if parts is None else find_low_disks(settings),
        locks=eventloop.run(
            find_holding_locks(deployment.client, _slow_tables(tables, answers, now_ts), timeout_s=LOCKS_S)
        ),
        growth=growth,
    )


def facts_without_cluster(settings: Settings, error: str, *, clock: Clock = SYSTEM) -> Facts:
    """Return the facts of this machine, for when the cluster does not answer."""
    unknown: dict[str, str] = {}
    parts = _read_parts(settings, unknown)
    return Facts(
        now_ts=compose_ts(clock.wall_ms()),
        parts=parts,
        engine=settings.engine,
        cluster_error=error,
        unknown=unknown,
        low_disks={} if parts is None else find_low_disks(settings),
    )


# The parts.


def _read_parts(settings: Settings, unknown: dict[str, str]) -> tuple[PartStatus, ...] | None:
    try:
        states = UpStates.read(settings.up.data)
    except PenstockError as error:
        unknown["parts"] = str(error)
        return None
    return None if states is None else states.parts


def _read_pages(parts: Sequence[PartStatus]) -> Pages:
    """Return the samples of each part by name; None for a part that runs and does not answer."""
    serving = [
        part
        for part in parts
        if part.kind is not PartKind.API and part.state is PartState.RUNNING and part.metrics_addr
    ]
    pages: Pages = {}
    for name, text in read_pages(serving, timeout_s=PAGES_S).items():
        try:
            pages[name] = None if text is None else parse_page(text)
        except ValueError:
            pages[name] = None
    return pages


def _silent_parts(pages: Pages) -> frozenset[str]:
    return frozenset(name for name, page in pages.items() if page is None)


def _answered_pages(pages: Pages) -> dict[str, dict[MetricSample, float]]:
    return {name: page for name, page in pages.items() if page is not None}


# Tables.


@dataclass(frozen=True, slots=True)
class _CaptureAnswer:
    """A capture and the progress of its tables; none when it did not answer."""

    fact: CaptureFact
    tables: Sequence[CaptureProgress] = ()
    refusals: Sequence[Refusal] = ()


def _read_schemas(deployment: Deployment) -> list[tuple[SchemaVersion, str]]:
    """Return every base table but our own, with its account."""
    at_ts = deployment.now_ts()  # one moment: a name may go from one account to another
    schema = deployment.catalog.schema(at_ts)
    owners = {name: owner.name for name, owner in deployment.catalog.owned_databases(at_ts=at_ts).items()}
    return [
        (
            SchemaVersion(table.update_ts, 0, table, database.name, owners[database.name]),
            owners[database.name],
        )
        for name, database in schema.databases.items()
        if name != PENSTOCK_DATABASE
        for table in schema.tables[database.id].values()
        if table.is_base_table
    ]


def _ask_captures(deployment: Deployment) -> list[_CaptureAnswer]:
    leases = live_captures(deployment.blocking_client)
    token = deployment.settings.capture.read_flight_token()
    tls = deployment.settings.capture.flight_client_tls

    def ask(lease: CaptureLease) -> tuple[list[CaptureProgress], list[Refusal]]:
        with FlightReader(lease.flight_addr, tls=tls, token=token) as reader:
            return reader.tables(timeout_s=PAGES_S), reader.refusals(timeout_s=PAGES_S)

    deadline = SYSTEM.monotonic() + PAGES_S
    probes = [(lease, Probe(f"capture {lease.id}", partial(ask, lease))) for lease in leases]
    answers = []
    for lease, probe in probes:
        try:
            tables, refusals = probe.answer(deadline)
        except PenstockError as error:
            answers.append(_CaptureAnswer(CaptureFact(lease.id, lease.flight_addr, str(error))))
        else:
            answers.append(_CaptureAnswer(CaptureFact(lease.id, lease.flight_addr), tables, refusals))
    return answers


def _owners(captures: Iterable[_CaptureAnswer]) -> dict[int, tuple[str, CaptureProgress]]:
    """Return the capture of each physical table; while a table moves between two, the one further ahead."""
    owners: dict[int, tuple[str, CaptureProgress]] = {}
    for capture in captures:
        for progress in capture.tables:
            known = owners.get(progress.table_id)
            if known is None or known[1].readable_ts < progress.readable_ts:
                owners[progress.table_id] = capture.fact.id, progress
    return owners


def _table_facts(
    schemas: Iterable[tuple[SchemaVersion, str]], captures: Sequence[_CaptureAnswer], settings: Settings
) -> tuple[TableFact, ...]:
    """Return the tables that are captured, or should be."""
    owners = _owners(captures)
    refusals = {refusal.table_id: refusal for capture in captures for refusal in capture.refusals}
    facts = []
    for schema, account in schemas:
        asked_for = matches_patterns(schema.database, schema.table.name, settings.capture.tables)
        ids = schema.table.physical_ids
        parts = [owners[physical_id] for physical_id in ids if physical_id in owners]
        fact = TableFact(schema=schema, account=account, wanted=asked_for)
        if parts and len(parts) == len(ids):
            fact = _with_progress(fact, parts)
        refused = [refusals[table_id] for table_id in ids if table_id in refusals and table_id not in owners]
        if not refused and asked_for and schema.table.unreadable and len(parts) < len(ids):
            refused = [Refusal(schema.table.id, schema.table.unreadable, schema.since_ts)]
        if refused:
            fact = replace(fact, refusal=min(refused, key=lambda refusal: refusal.since_ts))
        if asked_for or parts or refused:
            facts.append(fact)
    return tuple(facts)


def _with_progress(table: TableFact, parts: Sequence[tuple[str, CaptureProgress]]) -> TableFact:
    """Return the table with the progress of all its partitions.

    A new schema counts as a change, because targets follow it.
    """
    progresses = [progress for _, progress in parts]
    readable_ts = min(progress.readable_ts for progress in progresses)
    changed_ts = max(table.schema.since_ts, *(progress.changed_ts for progress in progresses))
    return replace(
        table,
        captures=tuple(dict.fromkeys(capture for capture, _ in parts)),
        readable_ts=readable_ts,
        changed_ts=min(readable_ts, changed_ts),
        flushed_ts=min(progress.flushed_ts for progress in progresses),
        oldest_ts=max(progress.oldest_ts for progress in progresses),
    )


def _slow_tables(
    tables: Iterable[TableFact], captures: Iterable[_CaptureAnswer], now_ts: int
) -> Mapping[int, tuple[int, list[int]]]:
    """Return the slowest tables: up to where each is complete, and its slowest partitions."""
    slow = sorted(
        (table for table in tables if table.readable_ts and behind_s(now_ts, table.readable_ts) > SLOW_S),
        key=lambda table: table.readable_ts,
    )[:_EXPLAINED_TABLES_MAX]
    owners = _owners(captures) if slow else {}
    return {
        table.id: (
            table.readable_ts,
            sorted(
                table.schema.table.physical_ids, key=lambda physical_id: owners[physical_id][1].readable_ts
            )[:_EXPLAINED_PARTITIONS_MAX],
        )
        for table in slow
    }


# Changefeeds and jobs.


def _read_feeds(deployment: Deployment) -> list[tuple[ChangefeedRecord, str]]:
    async def read() -> list[tuple[ChangefeedRecord, str]]:
        owners = await deployment.feeds.owners()
        return [(feed, owners.get(feed.info.id, "")) for feed in await deployment.feeds.list()]

    return eventloop.run(read())


def _read_jobs(deployment: Deployment) -> list[tuple[Job, LastVerification | None]]:
    jobs = deployment.jobs()
    registered = jobs.get_jobs()
    verified = VerificationResults(jobs.log).read(job.key for job in registered)
    return [(job, verified.get(job.key)) for job in registered]


def _job_facts(
    jobs: Iterable[tuple[Job, LastVerification | None]],
    tables: Iterable[TableFact],
    settings: Settings,
    now_ts: int,
    *,
    attended: bool,
) -> tuple[JobFact, ...]:
    ranges = {
        table.id: ReadableRange(table.readable_ts, table.changed_ts, table.oldest_ts, table.refusal)
        for table in tables
        if table.readable_ts or table.refusal
    }
    span_s = settings.jobs.span_s
    return tuple(
        JobFact(
            job,
            freshness_of(job, ranges.get(job.key.table_id), now_ts=now_ts, span_s=span_s, attended=attended),
            verified,
        )
        for job, verified in jobs
    )


# Disks.


def find_low_disks(settings: Settings, *, free_bytes_min: int = FREE_BYTES_MIN) -> dict[str, int]:
    """Return the free bytes of folders that have less than `free_bytes_min`, by their settings key."""
    low: dict[str, int] = {}
    for key, folder in _folders(settings):
        try:
            free = shutil.disk_usage(folder).free
        except OSError:  # the folder is not used on this machine
            continue
        if free < free_bytes_min:
            low[key] = free
    return low


def _folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    yield "store.data", settings.store.data
    yield "capture.data", settings.capture.data
    yield "jobs.data", settings.jobs.data
    parts = urlsplit(settings.capture.storage)
    if parts.scheme == "file":
        yield "capture.storage", Path(unquote(parts.netloc + parts.path))


# Waiting.


class Probe(Generic[T]):
    """Work in a thread of its own, for whose answer a caller waits up to a deadline.

    The thread runs until the work ends, but it is a daemon and does not keep the process alive.
    """

    def __init__(self, what: str, work: Callable[[], T], *, clock: Clock = SYSTEM) -> None:
        self.what = what
        self._clock = clock
        self._answer: Future[T] = Future()
        threading.Thread(target=self._run, args=(work,), name="penstock-asking", daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self._answer.set_exception(error)

    def answer(self, deadline: float) -> T:
        """Return the result; raise the error of the work, or Unavailable at the deadline (monotonic)."""
        try:
            return self._answer.result(max(0.0, deadline - self._clock.monotonic()))
        except TimeoutError:
            if self._answer.done():
                raise
            raise Unavailable(f"reading {self.what} took too long; try again") from None

    def answer_or(self, default: T, deadline: float, unknown: dict[str, str]) -> T:
        """Return the result; on a PenstockError note it in `unknown` and return `default`."""
        try:
            return self.answer(deadline)
        except PenstockError as error:
            unknown[self.what] = str(error)
            return default
