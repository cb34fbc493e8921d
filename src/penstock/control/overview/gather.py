"""Finding out how a deployment does: everybody is asked at once, and nobody is waited for long.

One call for each capture and one scan for each kind of row, however many tables and jobs there are.

Asking many at once, without waiting for those that do not answer.

Folders of this machine that run out of room.
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
from penstock.control.overview import part_metrics
from penstock.control.overview.facts import SLOW_S, CaptureFact, Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.locks import holding_locks
from penstock.control.overview.part_metrics import Growth, MetricSample, read_page, spools
from penstock.control.part_states import PartKind, PartState, PartStatus, UpStates
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.capture.tables import wanted
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import CaptureProgress
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.captures import live_captures
from penstock.follow.source import ReadableRange
from penstock.jobs.freshness import freshness_of
from penstock.jobs.job import Job
from penstock.jobs.log.job_rows import DATABASE as BOOKKEEPING
from penstock.kv.lease import LeaseRecord, holder
from penstock.settings import Settings
from penstock.verify.results import LastVerification, Outcomes

__all__ = ["Probe", "Rates", "gather", "scarce", "unreached"]


T = TypeVar("T")


class Probe(Generic[T]):
    """Work that is done in a thread of its own while somebody waits, and no longer than they like.

    The thread goes on until the work ends, but keeps no process from ending.
    """

    def __init__(self, what: str, work: Callable[[], T], *, clock: Clock = SYSTEM) -> None:
        self.what = what
        self._clock = clock
        self._answer: Future[T] = Future()
        threading.Thread(target=self._do, args=(work,), name="penstock-asking", daemon=True).start()

    def _do(self, work: Callable[[], T]) -> None:
        try:
            self._answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._answer.set_exception(error)

    def answer(self, deadline: float) -> T:
        """What came of it; raise what the work raised, or Unavailable at the deadline (monotonic)."""
        try:
            return self._answer.result(max(0.0, deadline - self._clock.monotonic()))
        except TimeoutError:
            if self._answer.done():
                raise
            raise Unavailable(f"{self.what} took too long to find out; try again") from None

    def answer_or(self, default: T, deadline: float, unknown: dict[str, str]) -> T:
        """The same, but for errors of ours: those are noted as what is not known, and `default` is given."""
        try:
            return self.answer(deadline)
        except PenstockError as error:
            unknown[self.what] = str(error)
            return default


FREE_MIN = 1 << 30


def scarce(settings: Settings, *, free_min: int = FREE_MIN) -> dict[str, int]:
    """Bytes that are free where less than `free_min` are, by the key of the setting that names the folder."""
    found: dict[str, int] = {}
    for key, folder in _folders(settings):
        try:
            free = shutil.disk_usage(folder).free
        except OSError:  # nothing is written there, or not by us
            continue
        if free < free_min:
            found[key] = free
    return found


def _folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    yield "store.data", settings.store.data
    yield "capture.data", settings.capture.data
    yield "jobs.data", settings.jobs.data
    parts = urlsplit(settings.capture.storage)
    if parts.scheme == "file":
        yield "capture.storage", Path(unquote(parts.netloc + parts.path))


ANSWER_S = 3.0
"""How long all together have to answer: on a busy machine it takes longer than one would think."""
CLUSTER_S = 1.8
"""How long the cluster has to say the time; when it does not, it is asked nothing else."""
PAGES_S = 1.8
"""How long a capture has to say how far its tables are, and a part to show its metrics."""
LOCKS_S = 0.5
_EXPLAINED_MAX = 16
_PARTITIONS_MAX = 8
_SHARED_S = 1.0

Pages = dict[str, dict[MetricSample, float] | None]


class Rates:
    """What is remembered from one overview to the next. For any number of threads.

    That is the parts' counters, from which rates come, and for a moment everything that was found out: so
    many who look cost as much as one.
    """

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self._latest: tuple[float, Facts] | None = None
        self._growth = Growth()

    def facts(self, deployment: Deployment) -> Facts:
        """How the deployment does, as of a second ago at most."""
        with self._turn:
            if self._latest is None or self._clock.monotonic() >= self._latest[0] + _SHARED_S:
                found = gather(deployment, self._growth, clock=self._clock)
                self._latest = self._clock.monotonic(), found
            return self._latest[1]

    def read(self, settings: Settings) -> None:
        """Look at the counters only, so that the next overview has rates."""
        with self._turn:
            pages = _pages(_up_parts(settings, {}) or ())
            self._growth.add(self._clock.monotonic(), _answered(pages))


def gather(deployment: Deployment, growth: Growth, *, clock: Clock = SYSTEM) -> Facts:
    """Ask everybody. Who does not answer in time is part of the answer: it raises only for our mistakes."""
    deadline = clock.monotonic() + ANSWER_S
    settings, unknown = deployment.settings, dict[str, str]()
    parts = _up_parts(settings, unknown)
    pages = Probe("metrics", lambda: _pages(parts or ()), clock=clock)
    try:
        now_ts = Probe("its time", deployment.now_ts, clock=clock).answer(clock.monotonic() + CLUSTER_S)
    except PenstockError as error:
        shown = pages.answer_or({}, deadline, unknown)
        growth.add(clock.monotonic(), _answered(shown))
        left = unreached(settings, str(error), clock=clock)
        return replace(left, growth=growth, silent=_silent(shown))
    schemas = Probe("schemas", lambda: _schemas(deployment), clock=clock)
    captures = Probe("captures", lambda: _captures(deployment), clock=clock)
    feeds = Probe("changefeeds", lambda: _feeds(deployment), clock=clock)
    jobs = Probe("jobs", lambda: _verified_jobs(deployment), clock=clock)
    runner = Probe("the runner of jobs", lambda: eventloop.run(holder(deployment.client)), clock=clock)

    shown = pages.answer_or({}, deadline, unknown)
    growth.add(clock.monotonic(), _answered(shown))
    found = captures.answer_or([], deadline, unknown)
    tables = _tables(schemas.answer_or([], deadline, unknown), found, settings)
    lease = runner.answer_or(LeaseRecord(), deadline, unknown)
    run_by = lease.owner if lease.expires_ms > physical_ms(now_ts) else ""
    attended = bool(run_by) or runner.what in unknown  # who is not known to be away is not missed
    levels = spools(_answered(shown))
    return Facts(
        now_ts=now_ts,
        tables=tables,
        captures=tuple(each.fact for each in found),
        feeds=tuple(
            FeedFact(feed, owner, levels.get(feed.info.id))
            for feed, owner in feeds.answer_or([], deadline, unknown)
        ),
        jobs=_jobs(jobs.answer_or([], deadline, unknown), tables, settings, now_ts, attended=attended),
        runner=run_by,
        parts=parts,
        unknown=unknown,
        silent=_silent(shown),
        flush_interval_s=settings.capture.flush_interval_s,
        scarce={} if parts is None else scarce(settings),
        locks=eventloop.run(
            holding_locks(deployment.client, _slowest(tables, found, now_ts), timeout_s=LOCKS_S)
        ),
        growth=growth,
    )


def unreached(settings: Settings, error: str, *, clock: Clock = SYSTEM) -> Facts:
    """What is known while the cluster does not answer."""
    unknown: dict[str, str] = {}
    parts = _up_parts(settings, unknown)
    return Facts(
        now_ts=compose_ts(clock.wall_ms()),
        parts=parts,
        cluster_error=error,
        unknown=unknown,
        scarce={} if parts is None else scarce(settings),
    )


# The parts.


def _up_parts(settings: Settings, unknown: dict[str, str]) -> tuple[PartStatus, ...] | None:
    try:
        found = UpStates.read(settings.up.data)
    except PenstockError as error:
        unknown["parts"] = str(error)
        return None
    return None if found is None else found.parts


def _pages(parts: Sequence[PartStatus]) -> Pages:
    """What the parts count, by their names; None: one runs and does not answer."""
    asked = [
        part
        for part in parts
        if part.kind is not PartKind.API and part.state is PartState.RUNNING and part.metrics_addr
    ]
    found: Pages = {}
    for name, text in part_metrics.pages(asked, timeout_s=PAGES_S).items():
        try:
            found[name] = None if text is None else read_page(text)
        except ValueError:
            found[name] = None
    return found


def _silent(pages: Pages) -> frozenset[str]:
    return frozenset(name for name, page in pages.items() if page is None)


def _answered(pages: Pages) -> dict[str, dict[MetricSample, float]]:
    return {name: page for name, page in pages.items() if page is not None}


# Tables.


@dataclass(frozen=True, slots=True)
class _Captured:
    """A capture, with what it has."""

    fact: CaptureFact
    tables: Sequence[CaptureProgress] = ()


def _schemas(deployment: Deployment) -> list[tuple[SchemaVersion, str]]:
    """Every table with rows but our own, with the account that it belongs to."""
    schema = deployment.catalog.schema()
    owned = deployment.catalog.owned_databases()
    return [
        (SchemaVersion(table.update_ts, 0, table, database.name), owned[database.name].name)
        for name, database in schema.databases.items()
        if name != BOOKKEEPING and database.name in owned  # else made meanwhile
        for table in schema.tables[database.id].values()
        if table.is_base_table
    ]


def _captures(deployment: Deployment) -> list[_Captured]:
    leases = live_captures(deployment.face)
    token = deployment.settings.capture.read_flight_token()
    tls = deployment.settings.capture.flight_client_tls

    def ask(lease: CaptureLease) -> list[CaptureProgress]:
        with FlightReader(lease.flight_addr, tls=tls, token=token) as reader:
            return reader.tables(timeout_s=PAGES_S)

    deadline = SYSTEM.monotonic() + PAGES_S
    asked = [(lease, Probe(f"capture {lease.id}", partial(ask, lease))) for lease in leases]
    found = []
    for lease, question in asked:
        try:
            tables = question.answer(deadline)
        except PenstockError as error:
            found.append(_Captured(CaptureFact(lease.id, lease.flight_addr, str(error))))
        else:
            found.append(_Captured(CaptureFact(lease.id, lease.flight_addr), tables))
    return found


def _owners(captures: Iterable[_Captured]) -> dict[int, tuple[str, CaptureProgress]]:
    """Who has each physical table; of two, while it moves, the one that has more of it."""
    found: dict[int, tuple[str, CaptureProgress]] = {}
    for capture in captures:
        for each in capture.tables:
            known = found.get(each.table_id)
            if known is None or known[1].readable_ts < each.readable_ts:
                found[each.table_id] = capture.fact.id, each
    return found


def _tables(
    schemas: Iterable[tuple[SchemaVersion, str]], captures: Iterable[_Captured], settings: Settings
) -> tuple[TableFact, ...]:
    """Those that are captured, or should be."""
    owners = _owners(captures)
    found = []
    for schema, account in schemas:
        asked_for = wanted(schema.database, schema.table.name, settings.capture.tables)
        ids = schema.table.physical_ids
        parts = [owners[each] for each in ids if each in owners]
        fact = TableFact(schema=schema, account=account, wanted=asked_for)
        if parts and len(parts) == len(ids):
            fact = _whole(fact, parts)
        if asked_for or parts:
            found.append(fact)
    return tuple(found)


def _whole(table: TableFact, parts: Sequence[tuple[str, CaptureProgress]]) -> TableFact:
    """How far a table of several parts has come. Another schema counts as a change: targets follow it."""
    each = [progress for _, progress in parts]
    readable_ts = min(part.readable_ts for part in each)
    changed_ts = max(table.schema.since_ts, *(part.changed_ts for part in each))
    return replace(
        table,
        captures=tuple(dict.fromkeys(capture for capture, _ in parts)),
        readable_ts=readable_ts,
        changed_ts=min(readable_ts, changed_ts),
        flushed_ts=min(part.flushed_ts for part in each),
        oldest_ts=max(part.oldest_ts for part in each),
    )


def _slowest(
    tables: Iterable[TableFact], captures: Iterable[_Captured], now_ts: int
) -> Mapping[int, tuple[int, list[int]]]:
    """The tables that are explained first: up to where each is complete, and its slowest partitions."""
    slow = sorted(
        (table for table in tables if table.readable_ts and behind_s(now_ts, table.readable_ts) > SLOW_S),
        key=lambda table: table.readable_ts,
    )[:_EXPLAINED_MAX]
    owners = _owners(captures) if slow else {}
    return {
        table.id: (
            table.readable_ts,
            sorted(table.schema.table.physical_ids, key=lambda each: owners[each][1].readable_ts)[
                :_PARTITIONS_MAX
            ],
        )
        for table in slow
    }


# Changefeeds and jobs.


def _feeds(deployment: Deployment) -> list[tuple[ChangefeedRecord, str]]:
    async def work() -> list[tuple[ChangefeedRecord, str]]:
        owners = await deployment.feeds.owners()
        return [(feed, owners.get(feed.info.id, "")) for feed in await deployment.feeds.list()]

    return eventloop.run(work())


def _verified_jobs(deployment: Deployment) -> list[tuple[Job, LastVerification | None]]:
    jobs = deployment.jobs()
    found = jobs.get_jobs()
    verified = Outcomes(jobs.log).read(job.key for job in found)
    return [(job, verified.get(job.key)) for job in found]


def _jobs(
    jobs: Iterable[tuple[Job, LastVerification | None]],
    tables: Iterable[TableFact],
    settings: Settings,
    now_ts: int,
    *,
    attended: bool,
) -> tuple[JobFact, ...]:
    looks = {
        table.id: ReadableRange(table.readable_ts, table.changed_ts, table.oldest_ts)
        for table in tables
        if table.readable_ts
    }
    span_s = settings.jobs.span_s
    return tuple(
        JobFact(
            job,
            freshness_of(job, looks.get(job.key.table_id), now_ts=now_ts, span_s=span_s, attended=attended),
            verified,
        )
        for job, verified in jobs
    )
