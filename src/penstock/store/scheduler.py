"""Running a write command: latches, decision, durable write, notice."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from penstock import metrics
from penstock.clock import Clock
from penstock.store.concurrency import ConcurrencyManager
from penstock.store.engine import Engine
from penstock.store.latches import Latches, Ticket
from penstock.store.lock_waiting import LockWaiting
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import COMMANDING, MvccReader
from penstock.store.observe import ApplyObserver

R = TypeVar("R")


class TxnScheduler:
    """Applies the effects of actions, one command per key at a time.

    The latches of a command's keys are held from before its view is taken until its write is durable,
    the observer has heard of it and waiting requests are woken: the next command on a key sees
    everything this one did, and the observer hears of a key's changes in order. A caller that goes away
    does not stop a write that is queued.
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

        Raise what the action raises (nothing is written then), or Unavailable when the engine fails.
        """
        ticket = await self._acquire(keys)
        effects = Effects()
        try:
            result = act(MvccReader(self._engine.view(COMMANDING)), effects)
            if not effects.mutations:
                ticket.release()
                return result
            # Readers are warned first, then the write is queued: see penstock.store.concurrency.
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
        """Runs on the loop before the command's own coroutine goes on."""
        try:
            # After a failed write nobody knows what is on the disk: the guards stay, readers keep off.
            if not durable.cancelled() and durable.exception() is None:
                if self.observer is not None and effects.changes:
                    self.observer.applied(effects.changes)
                self._concurrency.lift(effects.guards)
                self._concurrency.forget_locks([gone.key for gone in effects.released])
                self._waiting.notice(effects.acquired, effects.released)
        finally:
            ticket.release()
