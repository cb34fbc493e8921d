"""The worker of a store while the store moves: a region that asked for it is followed, and by one worker."""

import asyncio
from types import SimpleNamespace
from typing import Any

from penstock.clock import SYSTEM
from penstock.kv.rpc.connections import Dialer
from penstock.settings import KvSettings
from penstock.sources.tikv.request_cache import RequestCache
from penstock.sources.tikv.request_worker import RegionRequestWorker, StoreWorkers
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason
from penstock.sources.tikv.subscription import RegionTask
from support.feeds import a_matcher, a_span, a_task

NOWHERE = ("127.0.0.1:1", "127.0.0.1:2")


class Pd:
    """Answers when it may, each question with the next address."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self._addrs = iter(NOWHERE)

    async def get_store(self, _: int) -> Any:
        addr = next(self._addrs)
        self.asked.set()
        await self.may_answer.wait()
        return SimpleNamespace(address=addr)


class Rig:
    def __init__(self) -> None:
        self.pd: Any = Pd()
        self.stores = StoreWorkers(self.pd, self.new_worker)
        self.given_back: list[tuple[RegionTask, FeedEnd]] = []

    def new_worker(self, store_id: int, addr: str) -> RegionRequestWorker:
        unused: Any = None
        return RegionRequestWorker(
            store_id,
            addr,
            dialer=Dialer(None, KvSettings()),
            cluster_id=1,
            cache=RequestCache(8, clock=SYSTEM, now_ms=lambda: 0),
            processor=unused,
            on_given_back=self.take_back,
            on_lost=self.lose_store,
            new_matcher=a_matcher,
            clock=SYSTEM,
        )

    def take_back(self, task: RegionTask, end: FeedEnd) -> None:
        self.given_back.append((task, end))

    def lose_store(self, store_id: int) -> None:
        self.stores.forget_addr(store_id)


async def test_regions_that_ask_for_a_store_while_it_moves_get_the_same_worker() -> None:
    rig = Rig()
    asking = asyncio.gather(*(rig.stores.get(7) for _ in range(2)))
    await rig.pd.asked.wait()
    rig.pd.may_answer.set()
    first, second = await asking
    assert first is second
    assert list(rig.stores) == [first]
    await rig.stores.close()


async def test_what_waits_at_the_worker_of_a_store_that_moved_is_given_back() -> None:
    rig = Rig()
    rig.pd.may_answer.set()
    old, task = await rig.stores.get(7), a_task(a_span())
    assert old is not None
    rig.stores.forget_addr(7)
    old.cache.add(task)  # as late as can be
    new = await rig.stores.get(7)
    assert new is not None
    assert (old.addr, new.addr) == NOWHERE
    assert [(each, end.reason) for each, end in rig.given_back] == [(task, FeedEndReason.STREAM_LOST)]
    assert len(old.cache) == 0
    await rig.stores.close()


async def test_a_store_that_is_found_after_the_end_gets_no_worker() -> None:
    rig = Rig()
    asking = asyncio.create_task(rig.stores.get(7))
    await rig.pd.asked.wait()
    await rig.stores.close()
    rig.pd.may_answer.set()
    assert await asking is None
    assert list(rig.stores) == []
