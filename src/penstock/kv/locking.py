"""Locking keys of a pessimistic transaction: what to ask for, and what to do when it fails."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.errors import Aborted, Deadlock, KeyExists, WriteConflict
from penstock.kv import backoff
from penstock.kv.actions.pessimistic import LockWait, PessimisticLock, PessimisticRollback
from penstock.kv.batch_executor import BatchExecutor
from penstock.kv.heartbeat import Heart
from penstock.kv.membuffer import KeyFlag, MemBuffer
from penstock.kv.mutations import Mutations
from penstock.kv.scope import TxnScope

DEFAULT_WAIT_MS = 50_000
_AFTER_DEADLOCK_S = 0.005


class Aftermath(Enum):
    """What to do with the keys of a lock call that failed."""

    NOTHING = auto()
    ROLL_BACK_AND_WAIT = auto()
    ROLL_BACK_LATER = auto()


def aftermath(error: BaseException, keys: int) -> Aftermath:
    """Decide: a single key that the store refused is not locked; a deadlock is broken before it is raised."""
    if keys == 1 and isinstance(error, WriteConflict | KeyExists):
        return Aftermath.NOTHING
    return Aftermath.ROLL_BACK_AND_WAIT if isinstance(error, Deadlock) else Aftermath.ROLL_BACK_LATER


@dataclass(slots=True)
class Locker:
    """Takes and gives up the pessimistic locks of one transaction. Each key is locked once."""

    scope: TxnScope
    buffer: MemBuffer
    heart: Heart
    locked: int = 0
    _rollbacks: set[asyncio.Task[None]] = field(default_factory=set)

    async def lock(
        self,
        keys: Iterable[bytes],
        *,
        wait_timeout_ms: int | None = None,
        no_wait: bool = False,
        return_values: bool = False,
        must_not_exist: bool = False,
    ) -> dict[bytes, bytes | None]:
        """Lock the keys that are not locked yet; return their values if asked.

        A key that changed after the transaction's for_update_ts is locked at a later one. Raises
        Deadlock, LockTimeout, KeyExists, Aborted, Unavailable; none of the keys is locked then.
        """
        wanted = sorted({key for key in keys if not self.buffer.flags(key) & KeyFlag.LOCKED})
        if not wanted:
            return {}
        self.check_alive()
        await self.settle()
        session = self.scope.session
        wait_ms = DEFAULT_WAIT_MS if wait_timeout_ms is None else wait_timeout_ms
        wait = LockWait(deadline=session.clock.monotonic() + wait_ms / 1000, no_wait=no_wait)
        while True:
            action = PessimisticLock(
                self.scope,
                wait,
                wanted,
                must_not_exist=must_not_exist,
                return_values=return_values,
                is_first_lock=self.locked == 0 and len(wanted) == 1,
            )
            try:
                await self._attempt(action, wanted)
            except WriteConflict:
                if session.clock.monotonic() >= wait.deadline:
                    raise
                self.scope.for_update_ts = await session.pd.timestamp()
                continue
            self._mark(wanted, action)
            return action.values

    async def _attempt(self, action: PessimisticLock, keys: Sequence[bytes]) -> None:
        chosen = self.scope.primary is None
        if chosen:
            self.scope.primary = keys[0]
        session = self.scope.session
        bo = session.backoffer(backoff.PESSIMISTIC_LOCK_MS, "pessimistic lock")
        try:
            await BatchExecutor(session).run(bo, action, Mutations.of_keys(keys), self.scope.primary)
        except BaseException as error:
            await self._clean_up(error, keys, primary_chosen=chosen)
            raise

    async def _clean_up(self, error: BaseException, keys: Sequence[bytes], *, primary_chosen: bool) -> None:
        what = aftermath(error, len(keys))
        if what is not Aftermath.NOTHING:
            rollback = self._roll_back_later(keys)
            if what is Aftermath.ROLL_BACK_AND_WAIT:
                await asyncio.wait({rollback})
                await self.scope.session.clock.sleep(_AFTER_DEADLOCK_S)
        if primary_chosen:
            self.heart.stop()
            self.scope.primary = None

    def _mark(self, keys: Sequence[bytes], action: PessimisticLock) -> None:
        self.locked += len(keys)
        for key in keys:
            exists = key in action.existing
            known = KeyFlag.LOCKED | KeyFlag.LOCKED_VALUE_EXISTS if exists else KeyFlag.LOCKED
            self.buffer.update_flags(key, add=known)

    def _roll_back_later(self, keys: Sequence[bytes]) -> asyncio.Task[None]:
        work = self._roll_back(keys, self.scope.for_update_ts)
        task = self.scope.session.background.spawn(work, "pessimistic rollback")
        self._rollbacks.add(task)
        task.add_done_callback(self._rollbacks.discard)
        return task

    async def _roll_back(self, keys: Sequence[bytes], for_update_ts: int) -> None:
        session = self.scope.session
        bo = session.backoffer(backoff.PESSIMISTIC_ROLLBACK_MS, "pessimistic rollback")
        action = PessimisticRollback(self.scope, for_update_ts)
        await BatchExecutor(session).run(bo, action, Mutations.of_keys(keys), None)

    async def settle(self) -> None:
        """Wait for running rollbacks, which could remove a lock that is taken again."""
        if self._rollbacks:
            await asyncio.wait(set(self._rollbacks))

    async def release(self) -> None:
        """Give up every lock."""
        self.heart.stop()
        if not self.locked:
            return
        await self.settle()
        await self._roll_back(self.buffer.keys_with(KeyFlag.LOCKED), self.scope.for_update_ts)

    def release_later(self) -> None:
        """Give up every lock, in the background."""
        self.heart.stop()
        if self.locked:
            self._roll_back_later(self.buffer.keys_with(KeyFlag.LOCKED))

    def check_alive(self) -> None:
        """Raise Aborted when the locks can no longer be relied on."""
        if self.heart.expired:
            raise Aborted(
                f"the locks of transaction {self.scope.start_ts} expired: it ran too long or lost its"
                " primary lock; run it again"
            )
