"""What the demonstration's watch makes of what a deployment says."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.changefeeds.model import ChangefeedState
from penstock.cli.demo import watch as demo_watch
from penstock.cli.demo.lags import DemoCommit
from penstock.cli.demo.scene import DELTA, FEEDS, FULLTEXT, JOBS
from penstock.cli.demo.shop import ORDERS, PRODUCTS
from penstock.cli.demo.watch import Watch
from penstock.clock import SYSTEM, compose_ts
from penstock.errors import PenstockError, Unavailable
from penstock.follow.source import ReadableRange
from penstock.testing.clock import ManualClock

IDS = {PRODUCTS: 7, ORDERS: 8}


class Deployed:
    """A deployment that says what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.readable = dict.fromkeys(IDS.values(), 0)
        self.feeds = dict.fromkeys((each.name for each in FEEDS), 0)
        self.jobs = dict.fromkeys((each.name for each in JOBS), 0)
        self.feed_state, self.job_state = ChangefeedState.NORMAL, "completed"
        self.catalog = SimpleNamespace(
            tables=lambda _: [SimpleNamespace(name=name[5:], id=number) for name, number in IDS.items()]
        )
        monkeypatch.setattr(demo_watch, "list_changefeeds", lambda _: self._feeds())
        monkeypatch.setattr(demo_watch, "list_jobs", lambda _, __: self._jobs())

    def readable_ranges(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        return {each: ReadableRange(self.readable[each], 0) for each in table_ids if self.readable[each]}

    def reach(self, ts: int) -> None:
        self.readable = dict.fromkeys(self.readable, ts)
        self.feeds, self.jobs = dict.fromkeys(self.feeds, ts), dict.fromkeys(self.jobs, ts)

    def _feeds(self) -> list[Any]:
        return [
            SimpleNamespace(
                info=SimpleNamespace(id=name),
                state=self.feed_state,
                status=SimpleNamespace(checkpoint_ts=ts, error="the disk is full"),
            )
            for name, ts in self.feeds.items()
        ]

    def _jobs(self) -> list[dict[str, Any]]:
        return [
            {"job": name, "state": self.job_state, "watermark": ts, "error": "it is refused"}
            for name, ts in self.jobs.items()
        ]


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> Deployed:
    return Deployed(monkeypatch)


def test_a_commit_is_followed_to_the_targets_of_its_tables(deployed: Deployed) -> None:
    clock = ManualClock(wall_ms=10_000)
    watch = Watch(cast("Any", deployed), clock=clock)
    watch.record_commit(DemoCommit(compose_ts(9_000), {ORDERS: 3}))
    deployed.readable[8] = compose_ts(9_500)
    watch.poll()
    assert (watch.readable.rows, watch.readable.lags_ms) == (3, [1_000])
    assert watch.targets[DELTA].rows == 0
    clock.advance(2)
    deployed.reach(compose_ts(11_000))
    watch.poll()
    assert watch.targets[DELTA].lags_ms == [3_000]
    assert [watch.targets[each].rows for each in (*FEEDS, FULLTEXT)] == [3, 3, 0]


@pytest.mark.parametrize("broken", ["feed", "job"])
def test_a_target_that_has_stopped_ends_the_watch_with_its_error(deployed: Deployed, broken: str) -> None:
    if broken == "feed":
        deployed.feed_state = ChangefeedState.FAILED
    else:
        deployed.job_state = "error"
    watch = Watch(cast("Any", deployed))
    expected = "the disk is full" if broken == "feed" else "it is refused"
    with watch.running(), pytest.raises(PenstockError, match=f"has stopped: {expected}"):
        watch.wait(1, 60, lambda: None)


def test_who_does_not_catch_up_is_named(deployed: Deployed) -> None:
    now_ts = compose_ts(SYSTEM.wall_ms())
    deployed.reach(now_ts)
    deployed.jobs[DELTA.name] = now_ts - 1
    watch = Watch(cast("Any", deployed), clock=ManualClock())
    watch.poll()
    with pytest.raises(Unavailable, match=r"^delta table did not catch up within 5 s"):
        watch.wait(now_ts, 5, lambda: None)


def test_after_the_watch_nobody_counts(deployed: Deployed) -> None:
    watch = Watch(cast("Any", deployed))
    with watch.running():
        watch.record_commit(DemoCommit(1, {ORDERS: 3}))
    watch.record_commit(DemoCommit(2, {ORDERS: 3}))
    assert (watch.rows, watch.commits) == (3, 1)
