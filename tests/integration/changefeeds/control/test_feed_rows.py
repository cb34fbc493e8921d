"""Changefeeds in a real store: what commands do, what a run does, and what happens when two run one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.changefeeds.commands import (
    create_changefeed,
    pause_changefeed,
    resume_changefeed,
    update_changefeed,
)
from penstock.changefeeds.model import (
    ChangefeedInfo,
    ChangefeedRecord,
    ChangefeedState,
    DispatcherRecord,
    DoneDdls,
    LeftOutTable,
    PendingFile,
)
from penstock.changefeeds.store import ChangefeedKeys, ChangefeedStore
from penstock.errors import AlreadyExists, Corrupt, Fenced, Invalid, NotFound, Unavailable, Undetermined
from penstock.follow.slices import Position, TableSpan
from penstock.kv import AsyncClient, AsyncTransaction
from penstock.settings import parse_changefeed
from support.warmstore import WarmStore

LONG_S = 60.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("feeds") / "store", stores=1) as running:
        yield running


@asynccontextmanager
async def feeds_of(store: WarmStore) -> AsyncIterator[ChangefeedStore]:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        yield ChangefeedStore(client)


def info(name: str, **more: object) -> ChangefeedInfo:
    return replace(ChangefeedInfo(id=name, settings={"sink_uri": "file:///tmp/x"}, start_ts=100), **more)


def kept(table_id: int, *, feed: str = "f") -> DispatcherRecord:
    return DispatcherRecord(TableSpan.of(feed, table_id), Position(100))


def pending(dispatcher: DispatcherRecord, number: int) -> PendingFile:
    path = f"shop/items/1/CDC{number}.json"
    start, end = Position(100 + number), Position(101 + number, b"\x80")
    return PendingFile(dispatcher.span.id, path, "shop/items/1/meta/CDC.index", start, end, 7 * number)


async def test_a_changefeed_is_found_again_as_it_was_created(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("found", snapshot=True))
        feed = await feeds.get("found")
        assert feed.info == info("found", snapshot=True)
        assert feed.status.checkpoint_ts == 99, "nothing of a snapshot is there before all of it is"
        assert feed.state is ChangefeedState.NORMAL
        assert "found" in [each.info.id for each in await feeds.list()]


async def test_a_name_is_taken_once(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("once"))
        await feeds.create(info("once"))  # an attempt of the same call that was not answered
        with pytest.raises(Invalid, match="there is a changefeed once already"):
            await feeds.create(info("once", start_ts=5))


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a--b", "ä", "a" * 129])
async def test_a_name_that_cannot_be_one_is_refused(store: WarmStore, name: str) -> None:
    async with feeds_of(store) as feeds:
        with pytest.raises(Invalid, match="cannot name a changefeed"):
            await feeds.create(info(name))


async def test_what_is_not_there_is_said_so(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        with pytest.raises(Invalid, match="there is no changefeed gone"):
            await feeds.get("gone")
        with pytest.raises(Invalid, match="there is no changefeed gone"):
            await feeds.acquire("gone", "me", ttl_s=LONG_S)


async def test_a_stopped_changefeed_says_so_and_goes_on_where_it_was(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("paused"))
        run = await feeds.acquire("paused", "me", ttl_s=LONG_S)
        await run.keep_checkpoint(500)
        stopped = await feeds.change(
            "paused", lambda feed: ChangefeedRecord(replace(feed.info, stopped=True), feed.status)
        )
        assert stopped.state is ChangefeedState.STOPPED
        assert not stopped.runnable
        resumed = await feeds.change(
            "paused", lambda feed: ChangefeedRecord(replace(feed.info, stopped=False), feed.status)
        )
        assert resumed.state is ChangefeedState.NORMAL
        assert resumed.status.checkpoint_ts == 500


async def test_progress_is_there_for_the_next_run(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("next"))
        first = await feeds.acquire("next", "a", ttl_s=LONG_S)
        one, two, three = (kept(number) for number in (1, 2, 3))
        await first.change_dispatchers([one, two], [])
        await first.begin_files([pending(one, 1), pending(two, 1)])
        await first.begin_files([pending(one, 2), replace(pending(one, 3), followed=True)])
        await first.change_dispatchers([three], [two.span.id], done=DoneDdls(300, frozenset({400})))
        earlier = DoneDdls(200, frozenset({290, 350}))  # nothing is taken back
        await first.change_dispatchers([], [], done=earlier)
        await first.keep_checkpoint(250)
        await first.keep_checkpoint(240)  # an older one changes nothing
        out = LeftOutTable(table_id=7, name="shop.odd", reason="its type is unknown", since_ts=200)
        await first.change_dispatchers([], [], left_out=[out])
        await first.change_dispatchers([], [])
        await first.keep_state(ChangefeedState.WARNING, warning="it goes on without shop.odd")
        await first.give_up()
        second = await feeds.acquire("next", "b", ttl_s=LONG_S)
        assert sorted(await second.dispatchers(), key=lambda each: each.span.table_id) == [
            replace(one, pending=(pending(one, 2), replace(pending(one, 3), followed=True))),
            three,
        ]
        assert await second.checkpoint_ts() == 250
        assert await second.done_ddls() == DoneDdls(300, frozenset({350, 400}))
        assert await second.left_out() == (out,)
        status = (await second.get_record()).status
        assert (status.warning, status.error) == ("it goes on without shop.odd", "")
        assert status.without_error().warning == ""
        assert status.without_error().left_out == (out,)


async def test_one_process_at_a_time_runs_a_changefeed(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("one"))
        await feeds.acquire("one", "a", ttl_s=LONG_S)
        with pytest.raises(Unavailable, match="lease of changefeed one is held by a; wait"):
            await feeds.acquire("one", "b", ttl_s=LONG_S)


async def test_a_process_that_was_taken_over_changes_nothing_more(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("fenced"))
        old = await feeds.acquire("fenced", "a", ttl_s=0)
        await old.change_dispatchers([kept(1)], [])
        new = await feeds.acquire("fenced", "b", ttl_s=LONG_S)
        before = await new.get_record()
        attempts = [
            old.renew(),
            old.keep_checkpoint(999),
            old.keep_state(ChangefeedState.FAILED, "x"),
            old.begin_files([pending(kept(1), 1)]),
            old.change_dispatchers([kept(2)], [kept(1).span.id]),
            old.dispatchers(),
        ]
        for attempt in attempts:
            with pytest.raises(Fenced, match="lease of changefeed fenced is held by b; this process stops"):
                await attempt
        await old.give_up()
        assert await new.get_record() == before
        assert await new.dispatchers() == [kept(1)]
        await new.renew()


async def test_the_same_process_takes_over_from_its_former_life(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("again"))
        former = await feeds.acquire("again", "a", ttl_s=LONG_S)
        await feeds.acquire("again", "a", ttl_s=LONG_S)
        with pytest.raises(Fenced):
            await former.renew()


async def test_a_file_of_a_dispatcher_that_is_gone_is_not_begun(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("none"))
        run = await feeds.acquire("none", "a", ttl_s=LONG_S)
        await run.change_dispatchers([kept(1)], [])
        with pytest.raises(Fenced, match="has no dispatcher"):
            await run.begin_files([pending(kept(1), 1), pending(kept(2), 1)])
        assert await run.dispatchers() == [kept(1)], "nothing of a call that failed is kept"


async def test_a_removed_changefeed_leaves_nothing_and_stops_who_runs_it(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("removed"))
        run = await feeds.acquire("removed", "a", ttl_s=LONG_S)
        await run.change_dispatchers([kept(1)], [])
        await feeds.remove("removed")
        with pytest.raises(Fenced, match="removed or given up"):
            await run.keep_checkpoint(999)
        await feeds.create(info("removed"))
        assert await (await feeds.acquire("removed", "b", ttl_s=LONG_S)).dispatchers() == []


async def test_many_files_may_begin_at_the_same_time(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("busy"))
        run = await feeds.acquire("busy", "me", ttl_s=LONG_S)
        dispatchers = [kept(each, feed="busy") for each in range(10)]
        await run.change_dispatchers(dispatchers, [])

        async def write(dispatcher: DispatcherRecord) -> None:
            for number in range(5):
                await run.begin_files([pending(dispatcher, number)])

        await asyncio.gather(*map(write, dispatchers))
        assert {file.start.ts for each in await run.dispatchers() for file in each.pending} == {104}


async def test_a_damaged_changefeed_hides_no_other_and_can_be_removed(store: WarmStore) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        feeds = ChangefeedStore(client)
        await feeds.create(info("sound"))
        await feeds.create(info("damaged"))
        async with client.begin() as txn:
            await txn.put(ChangefeedKeys("damaged").status, b"{")
        with pytest.raises(Corrupt, match="the status of changefeed damaged is damaged"):
            await feeds.get("damaged")
        names = [each.info.id for each in await feeds.list()]
        assert "sound" in names
        assert "damaged" not in names
        await feeds.remove("damaged")
        with pytest.raises(Invalid, match="there is no changefeed damaged"):
            await feeds.remove("damaged")


class Unanswered:
    """A client whose next commits happen without an answer; `between` is called after each of them."""

    def __init__(self, client: AsyncClient, commits: int = 1) -> None:
        self._client = client
        self._left = commits
        self.between: Callable[[], Awaitable[object]] | None = None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncTransaction]:
        async with self._client.begin() as txn:
            yield txn
        if self._left and txn.commit_ts:
            self._left -= 1
            if self.between is not None:
                await self.between()
            raise Undetermined("the commit was not answered")


class Overtaken:
    """A client whose first transaction conflicts with what somebody does before it commits."""

    def __init__(self, client: AsyncClient, overtake: Callable[[], Awaitable[object]]) -> None:
        self._client = client
        self._overtake = [overtake]

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncTransaction]:
        async with self._client.begin() as txn:
            yield txn
            while self._overtake:
                await self._overtake.pop()()


async def test_a_removal_that_was_not_answered_is_no_changefeed_that_was_never_there(
    store: WarmStore,
) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        await ChangefeedStore(client).create(info("forgotten"))
        await ChangefeedStore(Unanswered(client)).remove("forgotten")
        with pytest.raises(NotFound):
            await ChangefeedStore(client).get("forgotten")
        with pytest.raises(NotFound, match="there is no changefeed forgotten"):
            await ChangefeedStore(Unanswered(client)).remove("forgotten")


async def test_a_removal_that_was_not_answered_leaves_alone_what_was_created_since(
    store: WarmStore,
) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        feeds = ChangefeedStore(client)
        await feeds.create(info("renewed"))
        shaky = Unanswered(client)
        shaky.between = lambda: feeds.create(info("renewed", created_ms=1))
        await ChangefeedStore(shaky).remove("renewed")
        assert (await feeds.get("renewed")).info.created_ms == 1


async def test_a_changefeed_that_somebody_changes_meanwhile_is_removed(store: WarmStore) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        feeds = ChangefeedStore(client)
        await feeds.create(info("meddled"))
        await ChangefeedStore(Overtaken(client, lambda: pause_changefeed(feeds, "meddled"))).remove("meddled")
        with pytest.raises(NotFound):
            await feeds.get("meddled")


async def test_a_creation_that_was_not_answered_leaves_alone_what_has_begun_since(
    store: WarmStore,
) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        shaky = Unanswered(client)

        async def somebody_runs_it() -> None:
            run = await ChangefeedStore(client).acquire("begun", "a", ttl_s=LONG_S)
            await run.keep_checkpoint(700)

        shaky.between = somebody_runs_it
        await ChangefeedStore(shaky).create(info("begun"))
        assert (await ChangefeedStore(client).get("begun")).status.checkpoint_ts == 700
        with pytest.raises(AlreadyExists):
            await ChangefeedStore(client).create(info("begun", created_ms=1))


async def test_every_other_command_may_go_unanswered_too(store: WarmStore) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        await ChangefeedStore(client).create(
            info("repeated", settings={"sink_uri": "file:///tmp/y?protocol=csv"})
        )
        assert (
            await pause_changefeed(ChangefeedStore(Unanswered(client)), "repeated")
        ).state is ChangefeedState.STOPPED
        updated = await update_changefeed(ChangefeedStore(Unanswered(client)), "repeated", {"target_ts": 900})
        assert updated.info.settings["target_ts"] == 900
        assert (
            await resume_changefeed(ChangefeedStore(Unanswered(client)), "repeated")
        ).state is ChangefeedState.NORMAL
        run = await ChangefeedStore(Unanswered(client)).acquire("repeated", "a", ttl_s=LONG_S)
        await run.renew()
        await run.give_up()


async def test_of_two_that_choose_one_place_at_the_same_time_one_is_refused(store: WarmStore) -> None:
    async with await AsyncClient.connect([store.pd_addr]) as client:
        wanted = parse_changefeed({"sink_uri": "memory:///chosen?protocol=csv"}, origin="a test")
        now_ts = await client.timestamp()
        creating = [
            create_changefeed(ChangefeedStore(client), f"race{each}", wanted, now_ts=now_ts)
            for each in range(4)
        ]
        outcomes = await asyncio.gather(*creating, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, Invalid)]
        assert len(refused) == 3, outcomes
        assert all("give changefeed race" in str(each) for each in refused)


async def test_at_another_place_nothing_that_was_kept_of_the_former_counts(store: WarmStore) -> None:
    async with feeds_of(store) as feeds:
        await feeds.create(info("moved", snapshot=True))
        run = await feeds.acquire("moved", "a", ttl_s=LONG_S)
        assert await run.location() == ""
        await run.begin_at("old", is_new=True)
        assert (await feeds.get("moved")).status.location_ts == 99
        await run.change_dispatchers([kept(1), kept(2)], [], done=DoneDdls(300, frozenset({400})))
        await run.begin_files([pending(kept(1), 1)])
        await run.keep_checkpoint(250)
        assert (await feeds.get("moved")).begins_with_rows
        await run.begin_at("new", is_new=True)
        assert await run.dispatchers() == []
        assert await run.location() == "new"
        assert (await run.done_ddls(), await run.checkpoint_ts()) == (DoneDdls(250), 250)
        feed = await feeds.get("moved")
        assert (feed.begins_with_rows, feed.start_ts) == (False, 250)
        await run.change_dispatchers([kept(1)], [])
        await run.begin_at("newer", is_new=False)
        assert await run.dispatchers() == [kept(1)], "only its name was unknown"
