"""One writer per key at a time, in the order of arrival."""

import asyncio
from collections import deque
from collections.abc import Iterable


class Latches:
    """Latches of keys, taken all at once and handed on first come, first served.

    A ticket joins the queues of all its keys in one step, so two tickets stand in the same order in
    every queue they share and cannot wait for each other.
    """

    def __init__(self) -> None:
        self._queues: dict[bytes, deque[Ticket]] = {}

    async def acquire(self, keys: Iterable[bytes]) -> "Ticket":
        """Wait until every key is free; a cancelled wait gives its places up."""
        ticket = Ticket(self, dict.fromkeys(keys))
        if ticket.blocked:
            turn = ticket.turn = asyncio.get_running_loop().create_future()
            try:
                await turn
            except asyncio.CancelledError:
                ticket.release()
                raise
        return ticket

    def is_free(self) -> bool:
        """Tell whether nobody holds or awaits a latch."""
        return not self._queues


class Ticket:
    """A command's hold on its keys. `blocked` counts the keys at which others stand before it."""

    __slots__ = ("_keys", "_latches", "blocked", "turn")

    def __init__(self, latches: Latches, keys: Iterable[bytes]) -> None:
        self._latches = latches
        self._keys = keys
        self.blocked = 0
        self.turn: asyncio.Future[None] | None = None
        queues = latches._queues
        for key in keys:
            queue = queues.get(key)
            if queue is None:
                queues[key] = deque((self,))
            else:
                queue.append(self)
                self.blocked += 1

    def release(self) -> None:
        """Leave every queue, and let those whose turn it is go on."""
        queues = self._latches._queues
        for key in self._keys:
            queue = queues[key]
            if queue[0] is not self:
                queue.remove(self)
                continue
            queue.popleft()
            if queue:
                queue[0]._advance()
            else:
                del queues[key]

    def _advance(self) -> None:
        self.blocked -= 1
        if not self.blocked and self.turn is not None and not self.turn.done():
            self.turn.set_result(None)
