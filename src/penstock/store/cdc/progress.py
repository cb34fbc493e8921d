"""Resolved timestamps: how far every subscription of the store is complete.

Each round takes a timestamp T from the oracle, raises the store's max_ts to T, reads M, the oldest
memory lock, and sets the bound B = min(T, M), or keeps the B of an earlier round that is higher.

Claim: from then on, a change of a transaction with commit_ts <= B is observed only if its lock is tracked at
that time by every subscription that is live on the key, or was sent already.

Take a transaction X that commits a key with commit_ts <= B <= T, and the round that set B.

* Two-phase: X drew commit_ts from the oracle before T, hence after the prewrite of the key was
  answered, hence after it was observed: the lock was tracked before the round and stays so until its
  end is sent. For a subscription that began later the lock, or the write, was in its view.
* Async commit and one phase compute commit_ts > max_ts while a memory lock is held on the key.
  If that lock was set after M was read, then max_ts >= T and commit_ts > T >= B. If it was held
  then, B <= M <= start_ts < commit_ts. If it was gone, the command was observed before (a
  command is observed while its memory locks are held), so the lock is tracked, or the one-phase
  commit was sent.
* A command between its durable write and its observation is one of the above: a prewrite is not
  answered yet, so a commit_ts is not drawn yet, or its memory lock is still held; a commit's lock is
  still tracked, or its write was in the view of the scan and was sent before INITIALIZED.

Each case holds at the moment of the round and at all later ones. So an earlier bound that is higher holds as
well, and a subscription without locks may report B at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.store.cdc.subscription import RegionSubscription

__all__ = ["Frontier", "RequestProgress"]

_VALUES_MAX = 32  # different timestamps of one round before regions are grouped under a lower one
_FIRST_BATCH = 8
_BATCH_GROWTH = 4


@dataclass(slots=True)
class Frontier:
    """The bound B of the proof above. Invariant: it never decreases."""

    ts: int = 0

    def advance(self, oracle_ts: int, memory_lock_ts: int | None) -> int:
        """Take a round into account; return the bound."""
        bound = oracle_ts if memory_lock_ts is None else min(oracle_ts, memory_lock_ts)
        self.ts = max(self.ts, bound)
        return self.ts


class RequestProgress:
    """The live subscriptions of one request on one stream, and the progress to report for them.

    All subscriptions without locks are at the bound, so a round copies one list of regions, which is rebuilt
    only when it has changed. Only subscriptions with locks are checked one by one.
    """

    def __init__(self, request_id: int) -> None:
        self._idle: dict[int, tuple[RegionSubscription, int]] = {}  # with the round in which it came
        self._locked: dict[int, RegionSubscription] = {}
        self._last = cdcpb.ResolvedTs(request_id=request_id)  # the last message for those without locks
        self._idle_changed = False
        self._bound = 0
        self._round = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._locked)

    def place(self, subscription: RegionSubscription) -> None:
        """Put a live subscription among those with locks or those without."""
        region_id = subscription.region_id
        if not subscription.resolver.locks:
            self._locked.pop(region_id, None)
            self._idle[region_id] = (subscription, self._round)
            self._idle_changed = True
            return
        if (was_idle := self._idle.pop(region_id, None)) is not None:
            self._idle_changed = True
            # It was at the bound until now, and a resolved timestamp never decreases.
            subscription.resolver.resolve_at_least(self._bound)
            if was_idle[1] < self._round:
                subscription.reported_ts = self._bound
        self._locked[region_id] = subscription

    def remove(self, subscription: RegionSubscription) -> None:
        """Forget a subscription, live or not."""
        if self._idle.pop(subscription.region_id, None) is not None:
            self._idle_changed = True
        self._locked.pop(subscription.region_id, None)

    def advance(self, bound: int) -> list[cdcpb.ResolvedTs]:
        """Return the messages for the client at a new bound."""
        news = []
        if self._idle and (self._idle_changed or bound > self._bound):
            if self._idle_changed:
                self._last.ClearField("regions")
                self._last.regions.extend(self._idle)
                self._idle_changed = False
            self._last.ts = bound
            news.append(cdcpb.ResolvedTs())
            news[-1].CopyFrom(self._last)
        self._bound = bound
        self._round += 1
        for ts, subscriptions in _batches(self._find_moved(bound)):
            for subscription in subscriptions:
                subscription.reported_ts = ts
            regions = [subscription.region_id for subscription in subscriptions]
            news.append(cdcpb.ResolvedTs(regions=regions, ts=ts, request_id=self._last.request_id))
        return news

    def _find_moved(self, bound: int) -> list[tuple[int, RegionSubscription]]:
        resolved = [(one.resolver.resolve(bound), one) for one in self._locked.values()]
        return [(ts, one) for ts, one in resolved if ts > one.reported_ts]


def _batches(moved: list[tuple[int, RegionSubscription]]) -> Iterator[tuple[int, list[RegionSubscription]]]:
    """Group by timestamp; when there are too many different ones, group neighbours under the lowest.

    The slowest regions are in the smallest groups, so that few are held back by a neighbour.
    """
    by_ts: dict[int, list[RegionSubscription]] = {}
    for ts, subscription in moved:
        by_ts.setdefault(ts, []).append(subscription)
    if len(by_ts) <= _VALUES_MAX:
        yield from by_ts.items()
        return
    moved.sort(key=itemgetter(0))
    at, size = 0, _FIRST_BATCH
    while at < len(moved):
        batch = moved[at : at + size]
        # Some may have reported more already, while they were in another group.
        ts = batch[0][0]
        if behind := [subscription for _, subscription in batch if ts > subscription.reported_ts]:
            yield ts, behind
        at, size = at + size, size * _BATCH_GROWTH
