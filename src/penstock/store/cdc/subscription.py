"""One client's subscription to one region: its rows, its locks and its resolved timestamp.

A subscription begins with an incremental scan of a view of the store and gets live changes from the moment of
that view on. A client's matcher relies on the following for each transaction on each key of the range:

* nothing is lost: a change that is not in the view becomes visible after it, so it is observed
  after it and sent live. The scan sends a change that is in the view.
* before INITIALIZED a COMMIT may be sent ahead of its PREWRITE, which the scan still owes; the client
  keeps it. One whose PREWRITE never follows was in the view as a write: its COMMITTED row is sent,
  and the client drops the COMMIT at INITIALIZED.
* after INITIALIZED a COMMIT is sent only when its PREWRITE was: a client treats anything else as lost
  data. A command that was durable before the view and is observed after it would break this, so
  from the end of the lock scan on, the end of a lock is sent only if the lock is tracked, and a
  lock is tracked exactly while its PREWRITE was sent and its end was not.
* a PREWRITE is not sent by the scan after its end was sent live together with a live PREWRITE: the
  client would keep it for ever.

A one-phase commit that is both in the view and observed after it is sent twice, with the same
(key, start_ts, commit_ts).

As from TiKV, no row comes of transactions whose source says that they rewrite a column for MODIFY COLUMN, or
that TiDB Lightning imported them: nobody replicates these. With `filter_loop` none comes of transactions that
another cluster's replication wrote. Their locks hold the resolved timestamp back like others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Protocol

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.store.bounds import KeyBounds
from penstock.store.cdc.outbox import Outbox
from penstock.store.observe import Change, ChangeKind, WriteOp

__all__ = [
    "COMMIT",
    "COMMITTED",
    "DELETE",
    "INITIALIZED",
    "NO_OP",
    "OPS",
    "PREWRITE",
    "PUT",
    "ROLLBACK",
    "EventRowWriter",
    "LockTable",
    "RegionSubscription",
    "Resolver",
    "SubscriptionOwner",
    "SubscriptionPhase",
]


PREWRITE = cdcpb.Event.PREWRITE
COMMIT = cdcpb.Event.COMMIT
ROLLBACK = cdcpb.Event.ROLLBACK
COMMITTED = cdcpb.Event.COMMITTED
INITIALIZED = cdcpb.Event.INITIALIZED

PUT = cdcpb.Event.Row.PUT
DELETE = cdcpb.Event.Row.DELETE
NO_OP = cdcpb.Event.Row.UNKNOWN

EVENT_BYTES_MAX = 32 * 1024  # keys and values of one event; a larger row has an event of its own
_ROW_OVERHEAD = 32

_REPLICATED = 0xFF  # the low byte of a source: the cluster from which the transaction was replicated
_INTERNAL_SHIFT = 8  # above it: a column is rewritten (8 bits), an import of TiDB Lightning (bit 16)


class EventRowWriter:
    """Writes the rows of one subscription into events at the end of its outbox.

    Rows keep their order. Nothing else may be added to the outbox between the first `add` and `finish`, so a
    caller never waits in between. Rows of several rounds share an event while it is still the last one of the
    outbox, so that small transactions do not become many tiny events.
    """

    __slots__ = ("_event_bytes", "_outbox", "_region_id", "_request_id", "_rows", "_uncharged", "count")

    def __init__(self, outbox: Outbox, region_id: int, request_id: int) -> None:
        self._outbox = outbox
        self._region_id = region_id
        self._request_id = request_id
        self._rows = cdcpb.Event.Entries()  # of the event that this writer was the tail of last
        self._event_bytes = 0
        self._uncharged = 0
        self.count = 0

    def add(
        self,
        kind: cdcpb.Event.LogType,
        op: cdcpb.Event.Row.OpType,
        key: bytes,
        start_ts: int,
        commit_ts: int = 0,
        value: bytes = b"",
        old_value: bytes = b"",
        txn_source: int = 0,
    ) -> None:
        size = len(key) + len(value) + len(old_value) + _ROW_OVERHEAD
        if self._outbox.tail is not self or self._event_bytes + size > EVENT_BYTES_MAX:
            self._open_event()
        self._event_bytes += size
        self._uncharged += size
        self.count += 1
        row = self._rows.entries.add()
        row.type = kind
        row.op_type = op
        row.key = key
        row.start_ts = start_ts
        if commit_ts:
            row.commit_ts = commit_ts
        if value:
            row.value = value
        if old_value:
            row.old_value = old_value
        if txn_source:
            row.txn_source = txn_source

    def mark_initialized(self) -> None:
        """Write the row that ends an incremental scan."""
        if self._outbox.tail is not self:
            self._open_event()
        self._rows.entries.add().type = INITIALIZED
        self._uncharged += _ROW_OVERHEAD
        self.count += 1

    def finish(self) -> None:
        """Pass the written rows to the outbox."""
        if self._uncharged:
            self._outbox.charge(self._uncharged)
            self._uncharged = 0

    def _open_event(self) -> None:
        self.finish()
        self._rows = self._outbox.add_event(self._region_id, self._request_id, tail=self).entries
        self._event_bytes = 0


_STALE_STARTS_MAX = 64  # starts of finished transactions kept before the heap is rebuilt


@dataclass(slots=True)
class LockTable:
    """The locks of unfinished transactions, by transaction.

    Invariant: `_starts` is a heap with every start_ts of `_keys`. It may also have some of finished
    transactions; these are dropped when they come to the top, or all together once they outnumber the others.
    """

    _keys: dict[int, set[bytes]] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, key: bytes, start_ts: int) -> None:
        """Track a lock; tracking it again changes nothing."""
        keys = self._keys.get(start_ts)
        if keys is not None:
            keys.add(key)
            return
        self._keys[start_ts] = {key}
        heappush(self._starts, start_ts)

    def remove(self, key: bytes, start_ts: int) -> bool:
        """Forget a lock; return whether it was tracked."""
        keys = self._keys.get(start_ts)
        if keys is None or key not in keys:
            return False
        keys.remove(key)
        if not keys:
            del self._keys[start_ts]
            if len(self._starts) > 2 * len(self._keys) + _STALE_STARTS_MAX:
                self._starts = list(self._keys)
                heapify(self._starts)
        return True

    def oldest(self) -> int | None:
        """Return the smallest start_ts of a tracked lock."""
        starts = self._starts
        while starts and starts[0] not in self._keys:
            heappop(starts)
        return starts[0] if starts else None


@dataclass(slots=True)
class Resolver:
    """The resolved timestamp of one subscription.

    Promise: after `resolve` has returned ts, every change with commit_ts <= ts has been sent. The caller's
    bound covers every transaction whose prewrite was not seen yet (see progress.py); a transaction whose lock
    is tracked commits above its start_ts.

    Invariant: `resolved_ts` never decreases. A lock may be tracked late with a start_ts below it; the proof
    of the bound says that such a transaction still commits above it.
    """

    locks: LockTable = field(default_factory=LockTable)
    resolved_ts: int = 0

    def resolve(self, bound: int) -> int:
        """Take a new bound into account; return the resolved timestamp."""
        oldest = self.locks.oldest()
        ts = bound if oldest is None else min(bound, oldest)
        self.resolved_ts = max(self.resolved_ts, ts)
        return self.resolved_ts

    def resolve_at_least(self, ts: int) -> None:
        """Never report less than `ts` again, because it was reported for this subscription."""
        self.resolved_ts = max(self.resolved_ts, ts)


OPS = (PUT, DELETE)  # by Op; locks and versions number their kinds the same
assert (WriteOp.PUT, WriteOp.DELETE) == (0, 1)


class SubscriptionPhase(Enum):
    """The phases of a subscription, in the order in which it goes through them."""

    WAITING = auto()  # its scan has not begun: live changes will be in the view
    LOCKS = auto()  # the locks of the view are being sent
    WRITES = auto()  # the writes of the view are being sent
    LIVE = auto()  # INITIALIZED was sent
    ENDED = auto()


class SubscriptionOwner(Protocol):
    """The server of a subscription, which is called when its state changes."""

    @property
    def store_id(self) -> int:
        """The store whose leadership of the region the subscription depends on."""

    def locks_changed(self, subscription: "RegionSubscription") -> None:
        """Take note that a live subscription has got its first lock or lost its last one."""

    def end(self, subscription: "RegionSubscription", error: cdcpb.Error | None) -> None:
        """Send the error and nothing more. A second call does nothing."""


@dataclass(slots=True)
class _LiveLocks:
    """Locks that live changes brought while the locks of the view were still being read."""

    prewritten: set[tuple[bytes, int]] = field(default_factory=set)
    ended: set[tuple[bytes, int]] = field(default_factory=set)


class RegionSubscription:
    """Decides which rows to send, and tracks the locks that hold the resolved timestamp back."""

    __slots__ = (
        "_filter_loop",
        "_overtaken",
        "_whole_region",
        "_writer",
        "bounds",
        "checkpoint_ts",
        "old_values",
        "owner",
        "phase",
        "region_id",
        "reported_ts",
        "request_id",
        "resolver",
    )

    def __init__(
        self,
        *,
        owner: SubscriptionOwner,
        outbox: Outbox,
        region_id: int,
        request_id: int,
        checkpoint_ts: int,
        bounds: KeyBounds,
        whole_region: bool,
        old_values: bool,
        filter_loop: bool = False,
    ) -> None:
        self.owner = owner
        self.region_id = region_id
        self.request_id = request_id
        self.checkpoint_ts = checkpoint_ts
        self.bounds = bounds
        self.old_values = old_values
        self.phase = SubscriptionPhase.WAITING
        self.resolver = Resolver()
        self.reported_ts = -1  # the last resolved timestamp sent to the client
        self._whole_region = whole_region
        self._filter_loop = filter_loop
        self._writer = EventRowWriter(outbox, region_id, request_id)
        self._overtaken: _LiveLocks | None = None

    def deliver(self, changes: Iterable[tuple[Change, bytes]]) -> int:
        """Send live changes, each with the value it replaces; return how many rows were sent."""
        if self.phase is SubscriptionPhase.WAITING or self.phase is SubscriptionPhase.ENDED:
            return 0
        if not self._whole_region:
            contains = self.bounds.contains
            changes = [pair for pair in changes if contains(pair[0].key)]
        locks, overtaken, add = self.resolver.locks, self._overtaken, self._writer.add
        was_locked = bool(locks)
        count = self._writer.count
        for change, old_value in changes:
            kind, key, start_ts, source = change.kind, change.key, change.start_ts, change.txn_source
            is_sent = not source or self._is_sent(source)
            if kind is ChangeKind.PREWRITE:
                locks.add(key, start_ts)
                if overtaken is not None:
                    overtaken.prewritten.add((key, start_ts))
                if is_sent:
                    add(PREWRITE, OPS[change.op], key, start_ts, 0, change.value, old_value, source)
            elif kind is ChangeKind.COMMITTED:
                if is_sent and change.commit_ts > self.checkpoint_ts:
                    op = OPS[change.op]
                    add(COMMITTED, op, key, start_ts, change.commit_ts, change.value, old_value, source)
            elif (locks.remove(key, start_ts) or self._ends_unread_lock(key, start_ts)) and is_sent:
                if kind is ChangeKind.COMMIT:
                    op = OPS[change.op]
                    add(COMMIT, op, key, start_ts, change.commit_ts, change.value, b"", source)
                else:
                    add(ROLLBACK, NO_OP, key, start_ts)
        self._writer.finish()
        if self.phase is SubscriptionPhase.LIVE and bool(locks) != was_locked:
            self.owner.locks_changed(self)
        return self._writer.count - count

    def _is_sent(self, txn_source: int) -> bool:
        """Return whether rows of a transaction are sent, by its source."""
        return not txn_source >> _INTERNAL_SHIFT and not (self._filter_loop and txn_source & _REPLICATED)

    def _ends_unread_lock(self, key: bytes, start_ts: int) -> bool:
        """Remember the end of a lock that the scan may still read."""
        if self._overtaken is None:
            return False
        self._overtaken.ended.add((key, start_ts))
        return True

    def begin_scan(self) -> None:
        """Send live changes from now on; the view of the scan is taken in the same step."""
        assert self.phase is SubscriptionPhase.WAITING
        self.phase = SubscriptionPhase.LOCKS
        self._overtaken = _LiveLocks()

    def scan_lock(
        self,
        key: bytes,
        start_ts: int,
        op: cdcpb.Event.Row.OpType,
        value: bytes,
        old_value: bytes,
        txn_source: int = 0,
    ) -> None:
        """Send a lock of the view and track it, unless live changes already brought it."""
        assert self._overtaken is not None
        lock = (key, start_ts)
        if lock in self._overtaken.prewritten:
            return
        if lock not in self._overtaken.ended:
            self.resolver.locks.add(key, start_ts)
        if self._is_sent(txn_source):
            self._writer.add(PREWRITE, op, key, start_ts, 0, value, old_value, txn_source)

    def end_of_locks(self) -> None:
        """Take note that every lock of the view was sent."""
        self.phase = SubscriptionPhase.WRITES
        self._overtaken = None

    def scan_write(
        self,
        key: bytes,
        start_ts: int,
        commit_ts: int,
        op: cdcpb.Event.Row.OpType,
        value: bytes,
        old_value: bytes,
        txn_source: int = 0,
    ) -> None:
        """Send a committed change of the view."""
        if self._is_sent(txn_source):
            self._writer.add(COMMITTED, op, key, start_ts, commit_ts, value, old_value, txn_source)

    def end_of_slice(self) -> None:
        """Pass the rows of the scan so far to the outbox; live changes may follow."""
        self._writer.finish()

    def end_of_scan(self) -> None:
        """Send INITIALIZED; resolved timestamps may follow."""
        assert self.phase is SubscriptionPhase.WRITES
        self._writer.mark_initialized()
        self._writer.finish()
        self.phase = SubscriptionPhase.LIVE
        self.owner.locks_changed(self)
