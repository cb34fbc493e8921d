"""Looks at a running deployment: how far its stages have come, and how long commits took to get there.

Everybody who is busy in the shop at the same time, each a thread with its own habits.
"""

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
from penstock.control import changefeeds
from penstock.control import jobs as freshcalls
from penstock.control.deployment import Deployment
from penstock.errors import PenstockError, Unavailable
from penstock.jobs.job import JobState

__all__ = ["Watch", "Writer", "Writers", "staff"]


_DATABASE = "shop"
_LOOK_S = 0.25
_TARGETS_LOOK_S = 1.0
"""Targets take seconds, and to ask after them costs more than to ask captures."""
_SLOW_LOOKS_S = 60.0
"""How long the deployment may fail to answer."""


class Watch:
    """Knows every commit, and by looks at the deployment when it arrived where. For several threads."""

    def __init__(self, deployment: Deployment, *, clock: Clock = SYSTEM) -> None:
        self._deployment = deployment
        self._clock = clock
        self.readable = Arrivals("readable")
        self.targets: dict[DemoTarget, Arrivals] = {
            each: Arrivals(each.title, each.tables) for each in (*FEEDS, *JOBS)
        }
        self.rows = 0
        self.first_rows = 0
        """Of those, the ones that were there before anything was measured."""
        self.commits = 0
        self.watermarks: dict[str, int] = {}
        """Up to when each stage has everything, by its title."""
        self._lock = threading.Lock()
        self._tables: dict[str, int] = {}
        self._targets_at = 0.0
        self._looking: Future[None] | None = None
        self._over = False

    @property
    def stages(self) -> list[Arrivals]:
        """In the order of the flow."""
        return [self.readable, *self.targets.values()]

    def committed(self, commit: DemoCommit) -> None:
        """A transaction was committed; after the watch nobody counts any more."""
        with self._lock:
            if self._over:
                return
            rows = sum(commit.rows.values())
            self.rows += rows
            self.first_rows += 0 if commit.measured else rows
            self.commits += 1
        for each in self.stages:
            each.expect(commit)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look all the time during the block, in a thread."""
        stopped = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-watch") as pool:
            self._looking = pool.submit(self._look_on, stopped)
            try:
                yield
            finally:
                stopped.set()
                self._over = True

    def check(self) -> None:
        """Raise what keeps a target from going on, or the looks from being answered."""
        if self._looking is not None and self._looking.done():
            self._looking.result()

    def wait(self, ts: int, timeout_s: float, waiting: Callable[[], None]) -> None:
        """Wait until every stage has everything up to a timestamp; raise Unavailable with who has not."""
        deadline = self._clock.monotonic() + timeout_s
        while late := [title for title, reached in self._reached().items() if reached < ts]:
            self.check()
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"{', '.join(late)} did not catch up within {timeout_s:.0f} s; look at the log above"
                )
            waiting()
            self._clock.pause(_LOOK_S)

    def _reached(self) -> dict[str, int]:
        return {each.name: self.watermarks.get(each.name, 0) for each in self.stages}

    def _look_on(self, stopped: threading.Event) -> None:
        answered_at = self._clock.monotonic()
        while not stopped.wait(_LOOK_S):
            try:
                self.look()
            except Unavailable:
                if self._clock.monotonic() - answered_at > _SLOW_LOOKS_S:
                    raise
            else:
                answered_at = self._clock.monotonic()

    def look(self) -> None:
        """See how far everything has come; raise Unavailable when somebody does not answer."""
        now = self._clock.monotonic()
        if not self._tables or now - self._targets_at >= _TARGETS_LOOK_S:
            self._targets_at = now
            self._tables = {
                f"{_DATABASE}.{each.name}": each.id for each in self._deployment.catalog.tables(_DATABASE)
            }
            self._look_at_feeds()
            self._look_at_jobs()
        looks = self._deployment.looks(set(self._tables.values()))
        reached = {
            name: looks[each].readable_ts if each in looks else 0 for name, each in self._tables.items()
        }
        self._arrive(self.readable, reached)

    def _look_at_feeds(self) -> None:
        feeds = {each.info.id: each for each in changefeeds.listed(self._deployment)}
        for target in FEEDS:
            feed = feeds[target.name]
            if feed.state is ChangefeedState.FAILED:
                raise _stopped(target, feed.status.error)
            self._arrive(self.targets[target], dict.fromkeys(self._tables, feed.status.checkpoint_ts))

    def _look_at_jobs(self) -> None:
        jobs = {each["job"]: each for each in freshcalls.listed(self._deployment, None)}
        for target in JOBS:
            job = jobs[target.name]
            if job["state"] == JobState.ERROR.name.lower():
                raise _stopped(target, job["error"])
            self._arrive(self.targets[target], dict.fromkeys(target.tables or (), job["watermark"]))

    def _arrive(self, stage: Arrivals, upto: Mapping[str, int]) -> None:
        stage.reach(upto, self._clock.wall_ms())
        self.watermarks[stage.name] = min(upto.values(), default=0)


def _stopped(target: DemoTarget, why: str) -> PenstockError:
    return PenstockError(f"{target.title} ({target.name}) has stopped: {why}")


_SUPPLY_ROWS = 40


@dataclass(frozen=True, slots=True)
class Writer:
    """Does one of some things again and again, with a pause between them; what stands twice is done twice."""

    name: str
    pause_s: float
    deeds: Sequence[Callable[[], None]]


def staff(shop: Shop) -> list[Writer]:
    """Those of the demonstration: optimistic and pessimistic buyers, and who works behind them."""
    buy, insist = partial(shop.order, pessimistic=False), partial(shop.order, pessimistic=True)
    return [
        Writer("visitors", 0.05, [buy]),
        Writer("customers", 0.05, [insist]),
        Writer("members", 0.1, [shop.sign_up, shop.move, shop.move, shop.leave]),
        Writer("warehouse", 0.1, [shop.proceed, shop.proceed, shop.restock, shop.cancel]),
        Writer("editors", 0.15, [shop.rewrite, shop.rewrite, shop.offer, shop.review, shop.retire]),
        Writer("suppliers", 3.0, [partial(shop.offer, _SUPPLY_ROWS)]),
    ]


class Writers:
    """Threads that write until they are told to stop."""

    def __init__(self, staff: Sequence[Writer], clock: Clock) -> None:
        self._staff = staff
        self._clock = clock
        self._stopped = threading.Event()
        self._work: list[Future[None]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write during the block; raise what one of them met."""
        self._stopped.clear()
        with ThreadPoolExecutor(len(self._staff), thread_name_prefix="penstock-demo") as pool:
            self._work = [pool.submit(self._write, each) for each in self._staff]
            try:
                yield
            finally:
                self._stopped.set()
        self.check()

    def check(self) -> None:
        """Raise what one of them met: it writes no more."""
        for each in self._work:
            if each.done():
                each.result()

    def _write(self, writer: Writer) -> None:
        while not self._stopped.wait(2 * self._clock.random() * writer.pause_s):
            writer.deeds[int(self._clock.random() * len(writer.deeds))]()
