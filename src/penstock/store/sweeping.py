"""Commands over a range. They find their keys through a view, then process them in small batches.

Each batch takes the latches of its keys and reads them again, so it respects changes since the view. Between
batches other commands run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.bounds import KeyBounds
from penstock.store.engine import Cf, Engine
from penstock.store.mvcc import pessimistic, records, resolve
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import SCANNING, MvccReader
from penstock.store.mvcc.records import LockRecord, Write
from penstock.store.mvcc.resolve import commit
from penstock.store.scheduler import TxnScheduler

_BATCH_KEYS = 256
_Batch = list[tuple[bytes, int]]
"""Keys with the start timestamps of their locks."""
T = TypeVar("T")


class Sweeping:
    """Lock resolution, collection of old versions and removal over ranges."""

    def __init__(self, engine: Engine, scheduler: TxnScheduler) -> None:
        self._engine = engine
        self._scheduler = scheduler

    async def resolve(self, fates: Mapping[int, int], bounds: KeyBounds) -> None:
        """Commit (at the given timestamp) or roll back (0) every lock of some transactions."""

        def act(batch: _Batch, reader: MvccReader, effects: Effects) -> None:
            for key, start_ts in batch:
                lock = reader.load_lock(key)
                if lock is not None and lock.start_ts == start_ts:
                    resolve_key(reader, effects, key, start_ts, fates[start_ts])

        await self._each_locked(bounds, lambda lock: lock.start_ts in fates, act)

    async def unlock(self, start_ts: int, for_update_ts: int, bounds: KeyBounds) -> None:
        """Release every pessimistic lock of a transaction."""

        def act(batch: _Batch, reader: MvccReader, effects: Effects) -> None:
            for key, _ in batch:
                pessimistic.unlock_key(reader, effects, key, start_ts, for_update_ts)

        await self._each_locked(bounds, lambda lock: lock.is_pessimistic and lock.start_ts == start_ts, act)

    async def collect(self, safe_ts: int, bounds: KeyBounds) -> None:
        """Drop the versions that no read at or after `safe_ts` needs."""
        reader = MvccReader(self._engine.view(SCANNING))
        for batch in _batches(_keys_with_garbage(reader, bounds, safe_ts)):
            await self._scheduler.execute(batch, partial(resolve.collect, keys=batch, safe_ts=safe_ts))

    async def remove(self, bounds: KeyBounds) -> None:
        """Remove every lock, version and value of a range, without a trace in the versions.

        Locks are rolled back one by one, so that observers and waiting requests see their end.
        """

        def act(batch: _Batch, reader: MvccReader, effects: Effects) -> None:
            for key, _ in batch:
                lock = reader.load_lock(key)
                if lock is not None:
                    effects.roll_back(key, lock)

        await self._each_locked(bounds, lambda _: True, act)
        lower, upper = records.span(bounds)
        await self._engine.delete_range([(Cf.WRITE, lower, upper), (Cf.DEFAULT, lower, upper)])

    async def _each_locked(
        self,
        bounds: KeyBounds,
        matches: Callable[[LockRecord], bool],
        act: Callable[[_Batch, MvccReader, Effects], None],
    ) -> None:
        reader = MvccReader(self._engine.view(SCANNING))
        locked = ((key, lock.start_ts) for key, lock in reader.scan_locks(bounds) if matches(lock))
        for batch in _batches(locked):
            await self._scheduler.execute([key for key, _ in batch], partial(act, batch))


def resolve_key(reader: MvccReader, effects: Effects, key: bytes, start_ts: int, commit_ts: int) -> None:
    """Commit a transaction on a key, or roll it back if `commit_ts` is 0; raise KeyRefused if neither."""
    if commit_ts:
        commit(reader, effects, key, start_ts, commit_ts)
    else:
        resolve.clean_up(reader, effects, key, start_ts, missing=resolve.Missing.ROLL_BACK)


def fates_of(request: kvrpcpb.ResolveLockRequest) -> dict[int, int]:
    """Return start timestamp to commit timestamp (0: rolled back) of the transactions to resolve."""
    if request.txn_infos:
        return {info.txn: info.status for info in request.txn_infos}
    return {request.start_version: request.commit_version}


def _keys_with_garbage(reader: MvccReader, bounds: KeyBounds, safe_ts: int) -> Iterator[bytes]:
    current = b""
    versions: list[tuple[int, Write]] = []
    for key, commit_ts, write in reader.scan_writes(bounds):
        if key != current:
            if any(True for _ in resolve.garbage(versions, safe_ts)):
                yield current
            current, versions = key, []
        versions.append((commit_ts, write))
    if any(True for _ in resolve.garbage(versions, safe_ts)):
        yield current


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH_KEYS)):
        yield batch
