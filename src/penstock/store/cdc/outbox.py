"""The queue of a stream: what waits to be sent, already in the messages of the wire."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from penstock.proto import cdcpb_pb2 as cdcpb

__all__ = ["EVENTS_MAX", "Outbox", "Quota"]

EVENTS_MAX = 64  # of one message
MESSAGE_BYTES_MAX = 6 * 1024 * 1024
CROWDED_BYTES = 8 * 1024 * 1024
CROWDED_SHARE = 8  # an eighth of the quota of all streams, if that is less
EVENT_OVERHEAD = 64  # estimated bytes of a message besides keys and values


@dataclass(slots=True)
class Quota:
    """Bytes that wait on all streams together, and their limit."""

    limit: int
    used: int = 0

    @property
    def exceeded(self) -> bool:
        return self.used > self.limit


class _QueuedMessage(NamedTuple):
    message: cdcpb.ChangeDataEvent
    size: int
    resolves: bool  # carries resolved timestamps only


class Outbox:
    """A queue of messages with one reader; producers never wait here.

    Order: messages leave as their events came in. Events are built in place inside the last message
    until it is full, so that a busy stream batches by itself; a message with a resolved timestamp
    stands alone, after every event that came before it.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._crowded_bytes = min(CROWDED_BYTES, quota.limit // CROWDED_SHARE)
        self._waiting: deque[_QueuedMessage] = deque()
        self._open: cdcpb.ChangeDataEvent | None = None  # the last message while it takes more events
        self.tail: object = None  # the writer that may still add to the last event of the last message
        self._open_bytes = 0
        self._sending_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self.resolved_waiting = 0  # messages with resolved timestamps that are not sent yet
        self.pending_bytes = 0

    def add_event(self, region_id: int, request_id: int, tail: object = None) -> cdcpb.Event:
        """Return a new event at the end of the queue; the caller fills it and then calls `charge`.

        It may be added to later, by more than one `charge`, for as long as `self.tail is tail`.
        """
        if self._open is None or len(self._open.events) >= EVENTS_MAX:
            self._seal()
            self._open = cdcpb.ChangeDataEvent()
        event = self._open.events.add()
        event.region_id = region_id
        event.request_id = request_id
        self.tail = tail
        self._open_bytes += EVENT_OVERHEAD
        self._account(EVENT_OVERHEAD)
        return event

    def charge(self, size: int) -> None:
        """Account for what was put into the last event."""
        assert self._open is not None
        if self._open_bytes + size > MESSAGE_BYTES_MAX and len(self._open.events) > 1:
            alone = cdcpb.ChangeDataEvent(events=[self._open.events.pop()])
            self._seal()
            self._open = alone
        self._open_bytes += size
        self._account(size)
        self._changed.set()

    def add_resolved(self, message: cdcpb.ChangeDataEvent) -> None:
        """Queue a message that carries resolved timestamps only."""
        self._seal()
        size = message.ByteSize() + EVENT_OVERHEAD
        self._waiting.append(_QueuedMessage(message, size, resolves=True))
        self.resolved_waiting += 1
        self._account(size)
        self._changed.set()

    async def next(self) -> cdcpb.ChangeDataEvent | None:
        """Wait for a message and take it; None once the outbox is closed.

        Its bytes count as pending until the next call: by then it has left.
        """
        self._account(-self._sending_bytes)
        self._sending_bytes = 0
        while not self._closed:
            if not self._waiting:
                self._seal()
            if self._waiting:
                message, self._sending_bytes, resolves = self._waiting.popleft()
                self.resolved_waiting -= resolves
                return message
            self._changed.clear()
            await self._changed.wait()
        return None

    @property
    def crowded(self) -> bool:
        """Whether producers that can wait should, so that the quota is left for those that cannot."""
        return self.pending_bytes > self._crowded_bytes

    async def room(self) -> None:
        """Wait until the outbox is not crowded, or is closed."""
        while self.crowded and not self._closed:
            self._room.clear()
            await self._room.wait()

    def drop_data(self) -> None:
        """Drop everything that waits except errors: no client may miss the end of a subscription."""
        self._seal()
        waiting, self._waiting = self._waiting, deque()
        self.resolved_waiting = 0
        for dropped in waiting:
            self._account(-dropped.size)
            for event in dropped.message.events:
                if event.WhichOneof("event") == "error":
                    self.add_event(event.region_id, event.request_id).error.CopyFrom(event.error)
                    self.charge(0)

    def close(self) -> None:
        """Release everything; `next` and `room` return at once from now on."""
        self._closed = True
        self._waiting.clear()
        self._open = self.tail = None
        self._account(-self.pending_bytes)
        self._sending_bytes = 0
        self._changed.set()

    def _seal(self) -> None:
        if self._open is not None:
            self._waiting.append(_QueuedMessage(self._open, self._open_bytes, resolves=False))
        self._open = None
        self._open_bytes = 0
        self.tail = None

    def _account(self, change: int) -> None:
        self.pending_bytes += change
        self._quota.used += change
        if change < 0 or self._closed:
            self._room.set()
