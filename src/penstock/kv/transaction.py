"""A transaction: reads at its start, writes in memory, one commit."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Self

from penstock import metrics
from penstock.errors import Invalid, PenstockError
from penstock.kv.committer import Committer
from penstock.kv.details import CommitDetails, measure_command
from penstock.kv.heartbeat import Heart
from penstock.kv.latches import Latch
from penstock.kv.locking import Locker
from penstock.kv.membuffer import DELETED, Assertion, InsertNeeds, KeyFlag, WriteSet, check_key, check_value
from penstock.kv.mutations import Mutations, collect
from penstock.kv.protocol import BinlogHook, CommitOptions, SchemaHook
from penstock.kv.scanning import PageSource, ScanRows, Union, UnionScanner
from penstock.kv.scope import Session, TxnScope
from penstock.kv.snapshot import AsyncSnapshot, check_bounds

_log = logging.getLogger(__name__)


class TxnPhase(Enum):
    """How far a transaction has come."""

    ACTIVE = "active"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDETERMINED = "finished with an unknown outcome"


@dataclass(slots=True)
class _OpenTxn:
    """The parts of a transaction that need its start timestamp."""

    scope: TxnScope
    snapshot: AsyncSnapshot
    heart: Heart
    locker: Locker

    def latest(self) -> AsyncSnapshot:
        """Return the view in which locked keys are read: no other transaction can change them."""
        if self.scope.for_update_ts <= self.snapshot.ts:
            return self.snapshot
        return AsyncSnapshot(self.scope.session, self.scope.for_update_ts)


class AsyncTransaction:
    """Reads see the store as it was at `start_ts`, and the transaction's own writes.

    Optimistic: nothing is locked before the commit, which raises WriteConflict when another
    transaction committed one of the keys first. Pessimistic: each key is locked before it is
    written, and a locked key reads at its latest value instead of that at `start_ts`.

    A transaction is not for several tasks at once. Used as a context manager it commits at the
    end of the block and rolls back when the block raises.
    """

    def __init__(
        self,
        session: Session,
        *,
        pessimistic: bool,
        options: CommitOptions,
        schema: SchemaHook | None = None,
        binlog: BinlogHook | None = None,
        txn_source: int = 0,
        reserve_commit_ts: bool = False,
    ) -> None:
        self._session = session
        self._txn_source = txn_source
        self._start_ts = session.pd.timestamp()
        self._start_ts.add_done_callback(_retrieve)
        # Asked for together, the three come by one request and follow each other.
        self._reserved = [session.pd.timestamp() for _ in range(2 * reserve_commit_ts)]
        for reserved in self._reserved:
            reserved.add_done_callback(_retrieve)
        self._began_at = session.clock.monotonic()
        self._options = options
        self._schema = schema
        self._binlog = binlog
        self._writes = WriteSet(pessimistic=pessimistic)
        self._buffer = self._writes.buffer
        self._phase = TxnPhase.ACTIVE
        self._opened: _OpenTxn | None = None
        self._committer: Committer | None = None
        self.pessimistic = pessimistic
        self.commit_ts = 0

    @property
    def start_ts(self) -> "asyncio.Future[int]":
        """The timestamp of the transaction's reads, asked for when it began; await it."""
        return asyncio.shield(self._start_ts)

    def check_schema_by(self, hook: SchemaHook) -> None:
        """Have the commit ask a hook that must see every change of the schema up to the commit timestamp.

        The hook is asked at a timestamp T. Then the transaction commits in one phase or by async commit at
        T + 1, or, if somebody has read a later state of the store meanwhile, in two phases after the hook
        was asked again. Raise Invalid when the transaction has a schema hook already.
        """
        self._check_active()
        if self._schema is not None:
            raise Invalid("the transaction checks its schema by a hook of its own; begin it without one")
        self._schema = hook
        self._options = replace(self._options, exact_schema=True)

    @property
    def phase(self) -> TxnPhase:
        """How far the transaction has come."""
        return self._phase

    @property
    def commit_details(self) -> CommitDetails | None:
        """Where the time of the commit went; None before it, and for a transaction that wrote nothing."""
        return self._committer.details if self._committer is not None else None

    @property
    def writes(self) -> WriteSet:
        """The writes in memory, for a caller that has no locks to take; raises Invalid after the end."""
        self._check_active()
        return self._writes

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it has none."""
        self._check_active()
        buffered = self._buffer.get(check_key(key))
        if buffered is not None:
            return buffered or None
        opened = await self._open()
        return await (opened.latest() if self._is_locked(key) else opened.snapshot).get(key)

    async def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that have one."""
        self._check_active()
        found: dict[bytes, bytes] = {}
        old: list[bytes] = []
        locked: list[bytes] = []
        for key in keys:
            buffered = self._buffer.get(check_key(key))
            if buffered is None:
                (locked if self._is_locked(key) else old).append(key)
            elif buffered:
                found[key] = buffered
        opened = await self._open()
        if old:
            found |= await opened.snapshot.batch_get(old)
        if locked:
            found |= await opened.latest().batch_get(locked)
        return found

    def scan(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> ScanRows:
        """Return the rows of [lower, upper) in ascending order; an empty `upper` is the end of all keys.

        Own writes are among them as they were when the scan was asked for. With `key_only` the
        values of rows that were not written here are empty.
        """
        return self._rows(lower, upper, reverse=False, limit=limit, key_only=key_only)

    def scan_reverse(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> ScanRows:
        """Return the rows of [lower, upper) in descending order."""
        return self._rows(lower, upper, reverse=True, limit=limit, key_only=key_only)

    def _rows(
        self, lower: bytes, upper: bytes, *, reverse: bool, limit: int | None, key_only: bool
    ) -> ScanRows:
        self._check_active()
        check_bounds(lower, upper, limit)
        overlay = dict(self._buffer.rows(lower, upper))

        async def source() -> PageSource:
            opened = await self._open()
            await self._add_locked(opened, overlay, lower, upper)
            if not overlay:
                return opened.snapshot.scanner(lower, upper, reverse=reverse, limit=limit, key_only=key_only)
            pages = opened.snapshot.scanner(lower, upper, reverse=reverse, key_only=key_only)
            union = Union(sorted(overlay.items()), reverse=reverse)
            return UnionScanner(pages, union, rows_left=limit)

        return ScanRows(source)

    async def _add_locked(
        self, opened: _OpenTxn, overlay: dict[bytes, bytes], lower: bytes, upper: bytes
    ) -> None:
        """Add the latest values of locked keys, where they may differ from those at the start."""
        if not self.pessimistic or opened.latest() is opened.snapshot:
            return
        locked = [key for key in self._buffer.keys_with(KeyFlag.LOCKED, lower, upper) if key not in overlay]
        if locked:
            newest = await opened.latest().batch_get(locked)
            overlay |= {key: newest.get(key, DELETED) for key in locked}

    def _is_locked(self, key: bytes) -> bool:
        return self.pessimistic and bool(self._buffer.flags(key) & KeyFlag.LOCKED)

    async def put(self, key: bytes, value: bytes, *, assertion: Assertion | None = None) -> None:
        """Write a value. A pessimistic transaction locks the key first, raising what `lock_keys` raises."""
        self._check_active()
        check_value(value)
        if self.pessimistic:
            await self.lock_keys([key])
        self._writes.put(key, value, assertion)

    async def delete(self, key: bytes, *, assertion: Assertion | None = None) -> None:
        """Delete a key, whether it exists or not. A pessimistic transaction locks the key first."""
        self._check_active()
        if self.pessimistic:
            await self.lock_keys([key])
        self._writes.delete(key, assertion)

    async def insert(self, key: bytes, value: bytes) -> None:
        """Write a value of a key that must not exist.

        Raises KeyExists: at once when this transaction can tell (a pessimistic one always can), else
        at the commit.
        """
        self._check_active()
        check_value(value)
        if self.pessimistic:
            needs = self._writes.insert_needs(key)
            if needs is not InsertNeeds.NOTHING:
                opened = await self._open()
                with measure_command(self._session.clock, "lock_keys"):
                    await opened.locker.lock([key], must_not_exist=needs is InsertNeeds.LOCK_NOT_EXISTING)
        self._writes.insert(key, value)

    async def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write many values at once. A pessimistic transaction locks all keys first, by one call."""
        self._check_active()
        if self.pessimistic:
            await self.lock_keys(keys)
        self._writes.put_many(keys, values)

    async def insert_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write many values of keys that must not exist.

        Raises KeyExists: at once when this transaction can tell (a pessimistic one always can), else at the
        commit.
        """
        self._check_active()
        if not self.pessimistic:
            self._writes.insert_many(keys, values)
            return
        needs = [(key, self._writes.insert_needs(key)) for key in keys]
        opened = await self._open()
        with measure_command(self._session.clock, "lock_keys"):
            for need in (InsertNeeds.LOCK, InsertNeeds.LOCK_NOT_EXISTING):
                wanted = [key for key, needed in needs if needed is need]
                if wanted:
                    must_not_exist = need is InsertNeeds.LOCK_NOT_EXISTING
                    await opened.locker.lock(wanted, must_not_exist=must_not_exist)
        self._writes.insert_many(keys, values)

    async def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete many keys at once. A pessimistic transaction locks all of them first, by one call."""
        self._check_active()
        if self.pessimistic:
            await self.lock_keys(keys)
        self._writes.delete_many(keys)

    def savepoint(self) -> AbstractContextManager[None]:
        """Return a block (`with`) whose writes are undone when it raises; locks taken in it stay."""
        return self.writes.savepoint()

    async def lock_keys(
        self,
        keys: Iterable[bytes],
        *,
        wait_timeout_ms: int | None = None,
        no_wait: bool = False,
        return_values: bool = False,
    ) -> dict[bytes, bytes | None]:
        """Lock keys; with `return_values` return their values, None for a key without one.

        Optimistic: the commit fails when one of them was changed. Pessimistic: the values are the
        latest; waits for other transactions (up to 50 s, or `wait_timeout_ms`, or not at all with
        `no_wait`) and raises LockTimeout, Deadlock, Aborted or Unavailable with none of the keys locked.
        """
        self._check_active()
        wanted = [check_key(key) for key in keys]
        if wait_timeout_ms is not None and wait_timeout_ms < 0:
            raise Invalid(f"wait_timeout_ms is {wait_timeout_ms}; give milliseconds, or no_wait=True")
        fresh: dict[bytes, bytes | None] = {}
        if self.pessimistic:
            opened = await self._open()
            with measure_command(self._session.clock, "lock_keys"):
                fresh = await opened.locker.lock(
                    wanted, wait_timeout_ms=wait_timeout_ms, no_wait=no_wait, return_values=return_values
                )
        else:
            for key in wanted:
                self._buffer.update_flags(key, add=KeyFlag.LOCKED)
        if not return_values:
            return {}
        read = await self.batch_get(key for key in wanted if key not in fresh)
        return {key: fresh[key] if key in fresh else read.get(key) for key in wanted}

    async def get_for_update(
        self, key: bytes, *, wait_timeout_ms: int | None = None, no_wait: bool = False
    ) -> bytes | None:
        """Lock a key and return its value."""
        found = await self.lock_keys(
            [key], wait_timeout_ms=wait_timeout_ms, no_wait=no_wait, return_values=True
        )
        return found[key]

    async def commit(self) -> int:
        """Make the writes durable and visible, all or none; return the commit timestamp, 0 without writes.

        Raises WriteConflict, KeyExists, AssertionFailed, Aborted or Unavailable with nothing
        committed, and Undetermined when it cannot be known: read the keys before trying again.
        """
        self._check_active()
        self._phase = TxnPhase.COMMITTING
        with measure_command(self._session.clock, "commit"), self._log_if_slow():
            try:
                self.commit_ts = await self._commit()
            except BaseException:
                unknown = self._committer is not None and self._committer.unknown
                self._phase = TxnPhase.UNDETERMINED if unknown else TxnPhase.ROLLED_BACK
                raise
            finally:
                if self._opened is not None:
                    self._opened.heart.stop()
        self._phase = TxnPhase.COMMITTED
        return self.commit_ts

    async def _commit(self) -> int:
        if not self._buffer.keys():
            return 0
        opened = await self._open()
        try:
            opened.locker.check_alive()
            await opened.locker.settle()
            mutations = collect(self._buffer, pessimistic=self.pessimistic)
        except BaseException:
            opened.locker.release_later()
            raise
        if not mutations:
            return 0
        async with self._hold_latches(mutations, opened.scope.start_ts) as latch:
            reserved = [await ts for ts in self._reserved]
            committer = Committer(
                *(opened.scope, mutations, self._options, self._schema, self._binlog),
                reserved=(reserved[0], reserved[1]) if reserved else None,
            )
            self._committer = committer
            committer.details.local_latch_s = latch.waited_s
            latch.commit_ts = await committer.execute()
            return latch.commit_ts

    @contextmanager
    def _log_if_slow(self) -> Iterator[None]:
        """Log the spans of a commit that takes longer than `slow_commit_ms`, whether it succeeds or fails."""
        clock = self._session.clock
        began = clock.monotonic()
        try:
            yield
        finally:
            seconds = clock.monotonic() - began
            details = self.commit_details
            if details is not None and seconds * 1000 >= self._session.settings.slow_commit_ms:
                start_ts = self._opened.scope.start_ts if self._opened is not None else 0
                _log.info(
                    "slow commit",
                    extra={"start_ts": start_ts, "commit_total_s": round(seconds, 6), **details.as_fields()},
                )

    @asynccontextmanager
    async def _hold_latches(self, mutations: Mutations, start_ts: int) -> AsyncIterator[Latch]:
        if self._session.latches is None or self.pessimistic:
            yield Latch(start_ts, ())
            return
        async with self._session.latches.hold(mutations.keys, start_ts) as latch:
            yield latch

    async def rollback(self) -> None:
        """Forget the writes and give up the locks; after Unavailable the locks stay until they expire."""
        self._check_active()
        self._phase = TxnPhase.ROLLED_BACK
        with measure_command(self._session.clock, "rollback"):
            if self._opened is not None:
                await self._opened.locker.release()

    async def __aenter__(self) -> Self:
        self._check_active()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._phase is not TxnPhase.ACTIVE:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except PenstockError as failure:
            _log.warning("rollback failed; locks are left to expire", extra={"error": str(failure)})

    async def _open(self) -> _OpenTxn:
        if self._opened is None:
            clock = self._session.clock
            began = clock.monotonic()
            start_ts = await asyncio.shield(self._start_ts)
            metrics.KV_TS_FUTURE_WAIT_SECONDS.observe(clock.monotonic() - began)
            if self._opened is None:  # another task may have come first
                self._opened = self._make(start_ts)
        return self._opened

    def _make(self, start_ts: int) -> _OpenTxn:
        scope = TxnScope(
            self._session,
            start_ts,
            self._began_at,
            self.pessimistic,
            for_update_ts=start_ts,
            txn_source=self._txn_source,
        )
        heart = Heart(scope)
        scope.on_primary_locked = heart.start
        snapshot = AsyncSnapshot(self._session, start_ts)
        return _OpenTxn(scope, snapshot, heart, Locker(scope, self._buffer, heart))

    def _check_active(self) -> None:
        if self._phase is not TxnPhase.ACTIVE:
            raise Invalid(f"the transaction is {self._phase.value}; begin another one")


def _retrieve(future: "asyncio.Future[int]") -> None:
    """Retrieve the error of a start timestamp that was never awaited: asyncio would log it."""
    if not future.cancelled():
        future.exception()
