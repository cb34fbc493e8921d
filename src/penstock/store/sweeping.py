"""Commands over a range. They find their keys through a view, then process them in small batches.

Each batch takes the latches of its keys and reads them again, so it respects changes since the view. Between
batches other commands run.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

from penstock import metrics
from penstock.clock import Clock
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
_SLICE_VERSIONS = 4096  # milliseconds of work
_Batch = list[tuple[bytes, int]]
"""Keys with the start timestamps of their locks."""
T = TypeVar("T")


class Sweeping:
    """Lock resolution, collection of old versions and removal over ranges."""

    def __init__(self, engine: Engine, scheduler: TxnScheduler, *, clock: Clock) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock

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
        """Drop the versions that no read at or after `safe_ts` needs.

        Looks at a slice of the keys at a time and lets others run in between, as long as the slice took.
        """
        start: bytes | None = bounds.start
        while start is not None:
            began = self._clock.monotonic()
            reader = MvccReader(self._engine.view(SCANNING))
            found, start = _find_garbage(reader, KeyBounds(start, bounds.end), safe_ts)
            for batch in _batches(found):
                await self._scheduler.execute(batch, partial(_collect, batch, safe_ts))
            await self._clock.sleep(self._clock.monotonic() - began)

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
        await asyncio.to_thread(self._engine.compact, [(Cf.WRITE, lower, upper), (Cf.DEFAULT, lower, upper)])

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


def _collect(keys: list[bytes], safe_ts: int, reader: MvccReader, effects: Effects) -> None:
    resolve.collect(reader, effects, keys, safe_ts)
    collected = sum(family is Cf.WRITE for family, _, _ in effects.mutations)
    metrics.STORE_GC_COLLECTED_VERSIONS_TOTAL.inc(collected)


def _find_garbage(reader: MvccReader, bounds: KeyBounds, safe_ts: int) -> tuple[list[bytes], bytes | None]:
    """Return the keys with garbage among the first versions of a range, and where the next slice starts.

    None: the range ends within the slice. A key is never divided among two slices.
    """
    found: list[bytes] = []
    current = b""
    versions: list[tuple[int, Write]] = []
    for number, (key, commit_ts, write) in enumerate(reader.scan_writes(bounds)):
        if key != current:
            if any(True for _ in resolve.garbage(versions, safe_ts)):
                found.append(current)
            if number >= _SLICE_VERSIONS:
                return found, key
            current, versions = key, []
        versions.append((commit_ts, write))
    if any(True for _ in resolve.garbage(versions, safe_ts)):
        found.append(current)
    return found, None


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH_KEYS)):
        yield batch
