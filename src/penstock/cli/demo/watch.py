"""Watches the running deployment and measures lags; runs the writers of the workload, a thread each."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from penstock.changefeeds.model import ChangefeedState
from penstock.cli.demo.lags import Arrivals, DemoCommit
from penstock.cli.demo.scene import FEEDS, JOBS, DemoTarget
from penstock.cli.demo.shop import Shop
from penstock.clock import SYSTEM, Clock
from penstock.control.changefeeds import list_changefeeds
from penstock.control.deployment import Deployment
from penstock.control.jobs import list_jobs
from penstock.errors import PenstockError, Unavailable
from penstock.jobs.job import JobState

__all__ = ["Watch", "Writer", "Writers", "make_writers"]


_DATABASE = "shop"
_POLL_S = 0.25
_TARGETS_POLL_S = 1.0
"""Targets lag by seconds, and reading their state costs more than asking captures."""
_SILENCE_MAX_S = 60.0
"""Seconds for which the deployment may fail to answer."""


class Watch:
    """Records every commit, and polls the deployment for when it arrives at each stage. Thread-safe."""

    def __init__(self, deployment: Deployment, *, clock: Clock = SYSTEM) -> None:
        self._deployment = deployment
        self._clock = clock
        self.readable = Arrivals("readable")
        self.targets: dict[DemoTarget, Arrivals] = {
            target: Arrivals(target.title, target.tables) for target in (*FEEDS, *JOBS)
        }
        self.rows = 0
        self.first_rows = 0
        """The rows among them that were inserted before the measurement began."""
        self.commits = 0
        self.watermarks: dict[str, int] = {}
        """The timestamp up to which each stage has every change, by its title."""
        self._lock = threading.Lock()
        self._tables: dict[str, int] = {}
        self._targets_at = 0.0
        self._polling: Future[None] | None = None
        self._ended = False

    @property
    def stages(self) -> list[Arrivals]:
        """The stages in the order of the flow."""
        return [self.readable, *self.targets.values()]

    def record_commit(self, commit: DemoCommit) -> None:
        """Count a committed transaction, unless the watch has ended."""
        with self._lock:
            if self._ended:
                return
            rows = sum(commit.rows.values())
            self.rows += rows
            self.first_rows += 0 if commit.measured else rows
            self.commits += 1
        for stage in self.stages:
            stage.expect(commit)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Poll the deployment during the block, in a thread."""
        stopped = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-watch") as pool:
            self._polling = pool.submit(self._poll_until, stopped)
            try:
                yield
            finally:
                stopped.set()
                self._ended = True

    def check(self) -> None:
        """Raise the error of a stopped target, or of a deployment that does not answer."""
        if self._polling is not None and self._polling.done():
            self._polling.result()

    def wait(self, ts: int, timeout_s: float, waiting: Callable[[], None]) -> None:
        """Wait until every stage has every change up to a timestamp; call `waiting` meanwhile.

        Raises Unavailable after the timeout, with the stages that are late.
        """
        deadline = self._clock.monotonic() + timeout_s
        while late := [title for title, watermark in self._stage_watermarks().items() if watermark < ts]:
            self.check()
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"{', '.join(late)} did not catch up within {timeout_s:.0f} s; read the log above"
                )
            waiting()
            self._clock.pause(_POLL_S)

    def _stage_watermarks(self) -> dict[str, int]:
        return {stage.name: self.watermarks.get(stage.name, 0) for stage in self.stages}

    def _poll_until(self, stopped: threading.Event) -> None:
        answered_at = self._clock.monotonic()
        while not stopped.wait(_POLL_S):
            try:
                self.poll()
            except Unavailable:
                if self._clock.monotonic() - answered_at > _SILENCE_MAX_S:
                    raise
            else:
                answered_at = self._clock.monotonic()

    def poll(self) -> None:
        """Read the progress of every stage; raise Unavailable when the deployment does not answer."""
        now = self._clock.monotonic()
        if not self._tables or now - self._targets_at >= _TARGETS_POLL_S:
            self._targets_at = now
            self._tables = {
                f"{_DATABASE}.{table.name}": table.id for table in self._deployment.catalog.tables(_DATABASE)
            }
            self._poll_feeds()
            self._poll_jobs()
        ranges = self._deployment.readable_ranges(set(self._tables.values()))
        reached = {
            name: ranges[table_id].readable_ts if table_id in ranges else 0
            for name, table_id in self._tables.items()
        }
        self._arrive(self.readable, reached)

    def _poll_feeds(self) -> None:
        feeds = {feed.info.id: feed for feed in list_changefeeds(self._deployment)}
        for target in FEEDS:
            feed = feeds[target.name]
            if feed.state is ChangefeedState.FAILED:
                raise _stopped_error(target, feed.status.error)
            self._arrive(self.targets[target], dict.fromkeys(self._tables, feed.status.checkpoint_ts))

    def _poll_jobs(self) -> None:
        jobs = {job["job"]: job for job in list_jobs(self._deployment, None)}
        for target in JOBS:
            job = jobs[target.name]
            if job["state"] == JobState.ERROR.name.lower():
                raise _stopped_error(target, job["error"])
            self._arrive(self.targets[target], dict.fromkeys(target.tables or (), job["watermark"]))

    def _arrive(self, stage: Arrivals, upto: Mapping[str, int]) -> None:
        stage.reach(upto, self._clock.wall_ms())
        self.watermarks[stage.name] = min(upto.values(), default=0)


def _stopped_error(target: DemoTarget, why: str) -> PenstockError:
    return PenstockError(f"{target.title} ({target.name}) has stopped: {why}")


_SUPPLY_ROWS = 40


@dataclass(frozen=True, slots=True)
class Writer:
    """Runs random actions with a pause between them; an action that is listed twice runs twice as often."""

    name: str
    pause_s: float
    actions: Sequence[Callable[[], None]]


def make_writers(shop: Shop) -> list[Writer]:
    """Return the writers of the demonstration: optimistic and pessimistic buyers, and the shop's staff."""
    buy = partial(shop.order, pessimistic=False)
    buy_locked = partial(shop.order, pessimistic=True)
    return [
        Writer("visitors", 0.05, [buy]),
        Writer("customers", 0.05, [buy_locked]),
        Writer("members", 0.1, [shop.sign_up, shop.move, shop.move, shop.leave]),
        Writer("warehouse", 0.1, [shop.proceed, shop.proceed, shop.restock, shop.cancel]),
        Writer("editors", 0.15, [shop.rewrite, shop.rewrite, shop.offer, shop.review, shop.retire]),
        Writer("suppliers", 3.0, [partial(shop.offer, _SUPPLY_ROWS)]),
    ]


class Writers:
    """Runs writers, a thread each, until stopped."""

    def __init__(self, writers: Sequence[Writer], clock: Clock) -> None:
        self._writers = writers
        self._clock = clock
        self._stopped = threading.Event()
        self._work: list[Future[None]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the writers during the block; raise the error of a writer that failed."""
        self._stopped.clear()
        with ThreadPoolExecutor(len(self._writers), thread_name_prefix="penstock-demo") as pool:
            self._work = [pool.submit(self._write, writer) for writer in self._writers]
            try:
                yield
            finally:
                self._stopped.set()
        self.check()

    def check(self) -> None:
        """Raise the error of a writer that failed."""
        for work in self._work:
            if work.done():
                work.result()

    def _write(self, writer: Writer) -> None:
        while not self._stopped.wait(2 * self._clock.random() * writer.pause_s):
            writer.actions[int(self._clock.random() * len(writer.actions))]()
