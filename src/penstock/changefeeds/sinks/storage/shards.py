"""Queues before encoding: a fixed number of them, first in, first out, by dispatcher. Pure."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from penstock.changefeeds.sinks.drain import DrainMarker
from penstock.changefeeds.sinks.work import DmlEvent

Item = DmlEvent | DrainMarker


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """The head of a shard's queue, on its way; nothing else of the shard is before `Shards.done`."""

    shard: int
    items: tuple[Item, ...]

    @property
    def events(self) -> list[DmlEvent]:
        """Without the markers."""
        return [item for item in self.items if isinstance(item, DmlEvent)]


class Shards:
    """Everything of a dispatcher goes through one shard, in order. Shards are independent of each other.

    A shard has at most one batch on its way, so that a later one cannot overtake it. Shards with work take
    turns.
    """

    def __init__(self, count: int) -> None:
        self._queues: list[deque[Item]] = [deque() for _ in range(count)]
        self._underway: dict[int, ShardBatch] = {}
        self._ready: deque[int] = deque()
        self._queued = 0

    def __len__(self) -> int:
        """Items that wait."""
        return self._queued

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is on its way."""
        return not self._queued and not self._underway

    def route(self, dispatcher_id: str) -> int:
        """The dispatcher's shard: always the same."""
        return crc32(dispatcher_id.encode()) % len(self._queues)

    def put(self, item: Item) -> None:
        """Add to the end of its dispatcher's shard."""
        shard = self.route(_dispatcher_id(item))
        queue = self._queues[shard]
        if not queue and shard not in self._underway:
            self._ready.append(shard)
        queue.append(item)
        self._queued += 1

    def take(
        self, weigh: Callable[[DmlEvent], int], *, room: int, limit: int, alone: bool = False
    ) -> list[ShardBatch]:
        """A batch of each shard that is ready, of about `limit` bytes together, of no more than `room`.

        `weigh` estimates an event's bytes. The first event may be beyond the limit, and with `alone` beyond
        the room too. A shard whose first event does not fit keeps its turn and those after it wait, so that a
        large event is not starved.
        """
        batches: list[ShardBatch] = []
        share = limit // max(len(self._ready), 1)
        first: float = math.inf if alone else room
        left = min(room, limit)
        while self._ready:
            queue = self._queues[self._ready[0]]
            items, taken = self._head(queue, weigh, first, left, share)
            if not items:
                break
            shard = self._ready.popleft()
            batch = self._underway[shard] = ShardBatch(shard, tuple(items))
            batches.append(batch)
            left -= taken
            if taken:
                first = left
        return batches

    def _head(
        self, queue: deque[Item], weigh: Callable[[DmlEvent], int], first: float, left: int, share: int
    ) -> tuple[list[Item], int]:
        """Take what comes first: markers, and events of about `share` bytes as long as they fit."""
        items: list[Item] = []
        taken = 0
        while queue:
            item = queue[0]
            if isinstance(item, DmlEvent):
                weight = weigh(item)
                if (taken + weight > min(left, share)) if taken else (weight > first):
                    break
                taken += weight
            items.append(queue.popleft())
            self._queued -= 1
        return items, taken

    def first_waiting(self) -> DmlEvent | None:
        """The event whose turn it is and that was not taken, because it did not fit."""
        for shard in self._ready:
            first = self._queues[shard][0]
            return first if isinstance(first, DmlEvent) else None
        return None

    def done(self, batch: ShardBatch) -> None:
        """The batch has left; its shard may go on."""
        del self._underway[batch.shard]
        if self._queues[batch.shard]:
            self._ready.append(batch.shard)

    def underway(self, dispatcher_id: str) -> bool:
        """Whether something of a dispatcher is on its way."""
        batch = self._underway.get(self.route(dispatcher_id))
        return batch is not None and any(_dispatcher_id(item) == dispatcher_id for item in batch.items)

    def drop(self, dispatcher_id: str) -> list[Item]:
        """Forget and return what waits of a dispatcher."""
        shard = self.route(dispatcher_id)
        queue = self._queues[shard]
        dropped = [item for item in queue if _dispatcher_id(item) == dispatcher_id]
        if dropped:
            self._queues[shard] = deque(item for item in queue if _dispatcher_id(item) != dispatcher_id)
            self._queued -= len(dropped)
            if not self._queues[shard] and shard not in self._underway:
                self._ready.remove(shard)
        return dropped


def _dispatcher_id(item: Item) -> str:
    return item.dispatcher.id if isinstance(item, DrainMarker) else item.slice.dispatcher.id
