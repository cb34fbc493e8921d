"""The execution of write commands: latches, decision, durable write, notification.

A key has one writer at a time, in the order of arrival.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from penstock import metrics
from penstock.clock import Clock
from penstock.store.concurrency import ConcurrencyManager
from penstock.store.engine import Engine
from penstock.store.lock_waiting import LockWaiting
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import COMMANDING, MvccReader
from penstock.store.observe import ApplyObserver


class Latches:
    """Latches of keys: a command takes all of its latches together, first come, first served.

    A ticket joins the queues of all its keys in one step. So two tickets have the same order in every queue
    that they share and cannot wait for each other.
    """

    def __init__(self) -> None:
        self._queues: dict[bytes, deque[Ticket]] = {}

    async def acquire(self, keys: Iterable[bytes]) -> "Ticket":
        """Wait until every key is free; a cancelled wait leaves the queues."""
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
        """Return whether nobody holds or awaits a latch. Tests use it to show that none leaks."""
        return not self._queues


class Ticket:
    """A command's hold on its keys. `blocked` counts the keys at which other tickets are before it."""

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
        """Leave every queue and wake the tickets that are first now."""
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


R = TypeVar("R")


class TxnScheduler:
    """Applies the effects of actions, one command per key at a time.

    A command holds the latches of its keys from before its view is taken until its write is durable, the
    observer has been called and waiting requests are woken. So the next command on a key sees everything that
    this one did, and the observer sees a key's changes in order. A caller that goes away does not stop a
    queued write.
    """

    def __init__(
        self, engine: Engine, concurrency: ConcurrencyManager, waiting: LockWaiting, clock: Clock
    ) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._waiting = waiting
        self._clock = clock
        self._latches = Latches()
        self.observer: ApplyObserver | None = None

    async def execute(self, keys: Iterable[bytes], act: Callable[[MvccReader, Effects], R]) -> R:
        """Run an action under the latches of `keys` and make its effects durable.

        Raise what the action raises, and then write nothing. Raise Unavailable when the engine fails.
        """
        ticket = await self._acquire(keys)
        effects = Effects()
        try:
            reader = MvccReader(self._engine.view(COMMANDING), self._concurrency.may_be_locked)
            result = act(reader, effects)
            if not effects.mutations:
                ticket.release()
                return result
            # Guards first, then the queued write: penstock.store.concurrency says why.
            self._concurrency.guard(effects.guards)
            self._concurrency.note_locks(effects.acquired)
            durable = self._engine.submit(effects.mutations)
        except BaseException:
            ticket.release()
            raise
        durable.add_done_callback(partial(self._finish, effects, ticket))
        await asyncio.shield(durable)
        return result

    async def _acquire(self, keys: Iterable[bytes]) -> Ticket:
        began = self._clock.monotonic()
        ticket = await self._latches.acquire(keys)
        metrics.STORE_LATCH_WAIT_SECONDS.observe(self._clock.monotonic() - began)
        return ticket

    def _finish(self, effects: Effects, ticket: Ticket, durable: "asyncio.Future[None]") -> None:
        """Finish a durable write. It runs on the loop before the command's own coroutine continues."""
        try:
            # After a failed write the state of the disk is unknown: the guards stay, so readers meet them.
            if not durable.cancelled() and durable.exception() is None:
                if self.observer is not None and effects.changes:
                    self.observer.observe(effects.changes)
                self._concurrency.lift(effects.guards)
                self._concurrency.forget_locks([gone.key for gone in effects.released])
                self._waiting.notice(effects.acquired, effects.released)
        finally:
            ticket.release()
