"""The stores of a cluster: where they are, and the worker that talks to each."""

import asyncio
from collections.abc import Callable, Iterator

from penstock.kv.pd import PdClient
from penstock.sources.tikv.request_worker import RegionRequestWorker
from penstock.sources.tikv.routing import FeedEnd, FeedEndReason

__all__ = ["StoreWorkers"]


class StoreWorkers:
    """One worker per store, made when it is first needed, and anew when the store has moved.

    Invariant: a worker that is closed has no task, and gets none. So one caller at a time asks where a store
    is; the others wait for what it finds.
    """

    def __init__(self, pd: PdClient, new_worker: Callable[[int, str], RegionRequestWorker]) -> None:
        self._pd = pd
        self._new_worker = new_worker
        self._workers: dict[int, RegionRequestWorker] = {}
        self._addrs: dict[int, str] = {}
        self._asking: dict[int, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __iter__(self) -> Iterator[RegionRequestWorker]:
        return iter(list(self._workers.values()))

    async def get(self, store_id: int) -> RegionRequestWorker | None:
        """Return the worker of a store; None when it is gone for good, or `close` was called.

        Give it the task before anything else is awaited. Raises what the client of PD does.
        """
        async with self._asking.setdefault(store_id, asyncio.Lock()):
            if store_id not in self._addrs:
                store = await self._pd.get_store(store_id)
                if store is None:
                    return None
                self._addrs[store_id] = store.address
        if self._closed:
            return None
        addr = self._addrs[store_id]
        worker = self._workers.get(store_id)
        if worker is None or worker.addr != addr:
            if worker is not None:
                worker.give_back(FeedEnd(FeedEndReason.STREAM_LOST, f"the store has moved to {addr}"))
                closing = asyncio.create_task(worker.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            worker = self._workers[store_id] = self._new_worker(store_id, addr)
        return worker

    def lost(self, store_id: int) -> None:
        """A store does not answer: it may have moved."""
        self._addrs.pop(store_id, None)

    async def close(self) -> None:
        """End every stream; no other is opened."""
        self._closed = True
        await asyncio.gather(*(worker.close() for worker in self._workers.values()), *self._closing)
        self._workers.clear()
