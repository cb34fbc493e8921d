"""The incremental scan: the locks and committed changes of a subscription's range before its live changes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock import metrics
from penstock.clock import TS_MAX, Clock
from penstock.store.cdc.outbox import Outbox
from penstock.store.cdc.subscription import OPS, RegionSubscription, SubscriptionPhase
from penstock.store.engine import Cf, EngineView
from penstock.store.mvcc.reader import MvccReader
from penstock.store.mvcc.records import (
    TS_BYTES,
    LockKind,
    LockRecord,
    Write,
    WriteKind,
    span,
    ts_of,
    unescape,
)
from penstock.store.storage import TxnStorage

__all__ = ["CommittedChange", "IncrementalScan", "read_committed_after"]


ValueOf = Callable[[bytes, Write], bytes]


@dataclass(slots=True)
class CommittedChange:
    """A change of one key, with the value it replaced (empty when there was none)."""

    key: bytes
    start_ts: int
    commit_ts: int
    kind: WriteKind
    value: bytes
    old_value: bytes = b""
    txn_source: int = 0


def read_committed_after(
    records: Iterable[tuple[bytes, bytes]], after_ts: int, value_of: ValueOf
) -> Iterator[CommittedChange | None]:
    """Yield the changes committed after `after_ts`, newest first for each key.

    Yield one item per record read, None when the record gives no change, so that the caller decides how many
    records to read at once. A change is complete once the version that it replaced was read: the next older
    one of its key with data.
    """
    waiting: CommittedChange | None = None
    prefix = b""
    done_with_key = False
    for stored_key, stored in records:
        ready = None
        if stored_key[:-TS_BYTES] != prefix:
            prefix = stored_key[:-TS_BYTES]
            ready, waiting = waiting, None
            done_with_key = False
        if done_with_key:
            yield ready
            continue
        commit_ts = ts_of(stored_key)
        done_with_key = waiting is None and commit_ts <= after_ts
        if not done_with_key:
            write = Write.decode(stored)
            if write.kind is WriteKind.PUT or write.kind is WriteKind.DELETE:
                key = waiting.key if waiting is not None else unescape(stored_key)
                value = value_of(key, write) if write.kind is WriteKind.PUT else b""
                if waiting is not None:
                    waiting.old_value = value
                    ready, waiting = waiting, None
                done_with_key = commit_ts <= after_ts
                if not done_with_key:
                    waiting = CommittedChange(
                        key, write.start_ts, commit_ts, write.kind, value, txn_source=write.txn_source
                    )
        yield ready
    if waiting is not None:
        yield waiting


SLICE_RECORDS = 512  # records to read before other tasks run


class IncrementalScan:
    """Sends the locks, then the versions after the checkpoint, then INITIALIZED.

    It runs in slices, between which the loop is free, and waits while the client is behind. So it takes
    little memory however large the region is.
    """

    def __init__(
        self, subscription: RegionSubscription, outbox: Outbox, storage: TxnStorage, clock: Clock
    ) -> None:
        self._subscription = subscription
        self._outbox = outbox
        self._storage = storage
        self._clock = clock

    async def run(self) -> None:
        """Scan until done, or until the subscription has ended."""
        if not await self._pause():
            return
        view = self._storage.engine.view()
        self._subscription.begin_scan()  # in the same step as the view: no change falls in between
        with metrics.STORE_CDC_SCAN_SECONDS.time():
            if await self._send_locks(view) and await self._send_writes(view):
                self._subscription.end_of_scan()

    async def _pause(self) -> bool:
        """Let other tasks run and the client catch up; return whether the subscription is still open."""
        self._subscription.end_of_slice()
        await self._clock.sleep(0)
        await self._outbox.room()
        return self._subscription.phase is not SubscriptionPhase.ENDED

    def _slice_is_full(self, count: int) -> bool:
        return count % SLICE_RECORDS == 0 or self._outbox.crowded

    async def _send_locks(self, view: EngineView) -> bool:
        subscription, reader = self._subscription, MvccReader(view)
        bounds = subscription.bounds
        for count, (key, stored) in enumerate(view.iterate(Cf.LOCK, bounds.start, bounds.end), 1):
            lock = LockRecord.decode(stored)
            if lock.has_data:
                value = reader.value_of(key, lock) if lock.kind is LockKind.PUT else b""
                old_value = reader.newest_put_before(key, TS_MAX) if subscription.old_values else None
                subscription.scan_lock(
                    key, lock.start_ts, OPS[lock.kind], value, old_value or b"", lock.txn_source
                )
            if self._slice_is_full(count) and not await self._pause():
                return False
        subscription.end_of_locks()
        return await self._pause()

    async def _send_writes(self, view: EngineView) -> bool:
        subscription = self._subscription
        records = view.iterate(Cf.WRITE, *span(subscription.bounds))
        changes = read_committed_after(records, subscription.checkpoint_ts, MvccReader(view).value_of)
        for count, change in enumerate(changes, 1):
            if change is not None:
                old_value = change.old_value if subscription.old_values else b""
                subscription.scan_write(
                    change.key,
                    change.start_ts,
                    change.commit_ts,
                    OPS[change.kind],
                    change.value,
                    old_value,
                    change.txn_source,
                )
            if self._slice_is_full(count) and not await self._pause():
                return False
        return True
