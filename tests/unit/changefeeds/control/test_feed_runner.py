"""The process that runs changefeeds, among doubles: what happens to one is its own."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.changefeeds import runner
from penstock.changefeeds.model import ChangefeedInfo, ChangefeedRecord, ChangefeedState, ChangefeedStatus
from penstock.changefeeds.runner import ChangefeedRunner, create_configured_changefeeds
from penstock.clock import SYSTEM
from penstock.errors import Denied, Invalid, Unavailable
from penstock.settings import Settings

SINK = "memory:///x?protocol=canal-json"


class Quick:
    """A clock on which nobody waits."""

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, _seconds: float) -> None:
        await SYSTEM.sleep(0)


class Run:
    """The lease of a changefeed."""

    def __init__(self, feeds: "Kept", feed_id: str) -> None:
        self._feeds = feeds
        self._id = feed_id

    async def get_record(self) -> ChangefeedRecord:
        return self._feeds.all[self._id]

    async def keep_state(self, state: ChangefeedState, error: str = "", warning: str = "") -> None:
        feed = self._feeds.all[self._id]
        status = ChangefeedStatus(checkpoint_ts=1, ddl_ts=1, state=state, error=error, warning=warning)
        self._feeds.all[self._id] = ChangefeedRecord(feed.info, status)

    async def renew(self) -> None:
        pass

    async def give_up(self) -> None:
        pass


class Kept:
    """Changefeeds in memory."""

    def __init__(self, *names: str) -> None:
        self.all = {name: feed_of(name) for name in names}
        self.acquired: list[str] = []
        self.ttls: dict[str, float] = {}
        self.refuse: dict[str, Exception] = {}

    async def list(self) -> list[ChangefeedRecord]:
        return list(self.all.values())

    async def acquire(self, feed_id: str, _owner: str, *, ttl_s: float) -> Run:
        self.ttls[feed_id] = ttl_s
        self.acquired.append(feed_id)
        if feed_id in self.refuse:
            raise self.refuse[feed_id]
        return Run(self, feed_id)

    def shown(self, name: str) -> tuple[ChangefeedState, str]:
        return self.all[name].status.state, self.all[name].status.error


def feed_of(name: str, **more: object) -> ChangefeedRecord:
    info = ChangefeedInfo(id=name, settings={"sink_uri": SINK, **more}, start_ts=1)
    return ChangefeedRecord(info, ChangefeedStatus.of_new(info))


class Source:
    """Is opened, or not."""

    def __init__(self) -> None:
        self.problems: dict[str, Exception] = {}

    async def connect(self, _settings: Settings, feed_id: str, **_rest: object) -> "Source":
        if feed_id in self.problems:
            raise self.problems[feed_id]
        return self

    async def close(self) -> None:
        pass


class Healthy:
    """A changefeed that runs for ever and is well."""

    state, error, warning, checkpoint_ts = ChangefeedState.NORMAL, "", "", 1

    def __init__(self, *_given: object, **_rest: object) -> None:
        pass

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    made = Source()
    monkeypatch.setattr(runner, "SliceFollower", made)
    monkeypatch.setattr(runner, "Changefeed", Healthy)
    return made


async def run_until(
    kept: Kept, holds: Callable[[], bool], on_owned: Callable[[], None] | None = None
) -> None:
    running = asyncio.create_task(
        ChangefeedRunner(
            Settings(), kept, lambda *_: None, owner="me", on_owned=on_owned, clock=Quick()
        ).run()
    )
    try:
        for _ in range(2000):
            if holds() or running.done():
                break
            await SYSTEM.sleep(0)
        assert not running.done(), "one changefeed ended all"
        assert holds()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_whatever_ends_one_changefeed_leaves_the_others_alone(source: Source) -> None:
    kept = Kept("a", "b")
    kept.refuse["a"] = AssertionError("a mistake of ours")
    await run_until(kept, lambda: kept.acquired.count("a") > 5)
    assert kept.acquired.count("b") == 1


@pytest.mark.parametrize(
    ("problem", "state"),
    [
        (Invalid("the token is wrong"), ChangefeedState.FAILED),
        (Unavailable("nobody answers"), ChangefeedState.WARNING),
        (Denied("the key is not valid yet"), ChangefeedState.WARNING),
        (KeyError("a mistake of ours"), ChangefeedState.FAILED),
    ],
)
async def test_what_keeps_one_from_being_opened_is_its_state(
    source: Source, problem: Exception, state: ChangefeedState
) -> None:
    kept = Kept("a")
    source.problems["a"] = problem
    await run_until(kept, lambda: kept.shown("a") == (state, f"{type(problem).__name__}: {problem}"))


async def test_one_that_is_well_again_does_not_show_what_was(source: Source) -> None:
    kept = Kept("a")
    info = kept.all["a"].info
    before = ChangefeedStatus(checkpoint_ts=1, ddl_ts=1, state=ChangefeedState.WARNING, error="what was")
    kept.all["a"] = ChangefeedRecord(info, before)
    await run_until(kept, lambda: kept.shown("a") == (ChangefeedState.NORMAL, ""))


async def test_what_engines_share_starts_with_a_changefeed_of_ones_own(source: Source) -> None:
    owned: list[int] = []
    kept = Kept("of another")
    kept.refuse["of another"] = Unavailable("another process runs it")
    await run_until(kept, lambda: len(kept.acquired) > 5, lambda: owned.append(1))
    assert owned == []
    kept.all["ours"] = feed_of("ours")
    source.problems["ours"] = Unavailable("nobody answers")  # so it is not open yet
    await run_until(kept, lambda: bool(owned), lambda: owned.append(1))


async def test_a_lease_is_as_long_as_the_changefeed_says(source: Source) -> None:
    kept = Kept("usual", "short")
    kept.all["short"] = feed_of("short", lease_ttl_s=3)
    await run_until(kept, lambda: len(kept.ttls) == 2)
    assert kept.ttls == {"usual": 15.0, "short": 3.0}


@pytest.mark.parametrize(
    ("kept", "warned"),
    [({}, 0), ({"lease_ttl_s": 15}, 0), ({"split_rows": 5}, 1), ({"of": "a later version"}, 1)],
)
async def test_only_settings_that_differ_are_told(
    kept: dict[str, object], warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What was kept before a setting was invented has its default."""
    feeds = Kept("feed")
    feeds.all["feed"] = feed_of("feed", **kept)
    settings = Settings.model_validate({"changefeeds": {"feed": {"sink_uri": SINK}}})
    await create_configured_changefeeds(feeds, settings, now_ts=1)
    told = [each for each in caplog.records if "other settings than the file" in each.getMessage()]
    assert len(told) == warned


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sink_uri": "file:///srv/ann?protocol=canal-json"}, "api.accounts.ann.targets"),
        ({"sink_uri": "file:///elsewhere/${HOME}?protocol=canal-json"}, "secret of the operator"),
        (
            {"sink_uri": "s3://x?protocol=csv", "storage_options": {"region": "${HOME}"}},
            "secret of the operator",
        ),
    ],
)
@pytest.mark.usefixtures("source")
async def test_a_tenants_changefeed_is_not_run_where_its_account_may_not_write(
    settings: dict[str, object], reason: str
) -> None:
    kept = Kept("a")
    feed = feed_of("a", **settings)
    kept.all["a"] = replace(feed, info=replace(feed.info, account="ann"))
    deployed = Settings.model_validate(
        {"api": {"accounts": {"ann": {"token": "a-token-of-16-letters", "targets": ["file:///elsewhere"]}}}}
    )
    running = asyncio.create_task(
        ChangefeedRunner(deployed, kept, lambda *_: None, owner="me", clock=Quick()).run()
    )
    try:
        async with asyncio.timeout(60):
            while kept.shown("a")[0] is not ChangefeedState.FAILED:
                await SYSTEM.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert reason in kept.shown("a")[1]
