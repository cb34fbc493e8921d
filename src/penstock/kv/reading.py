"""Point reads of a snapshot: one key or many, with the locks in their way resolved."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock import metrics
from penstock.clock import TS_MAX
from penstock.kv import backoff
from penstock.kv.background import run_all
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.locks import Lock, to_error
from penstock.kv.region_table import KeyLocation
from penstock.kv.scope import Session
from penstock.kv.sender import RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

_CONCURRENT_BATCHES_MAX = 64
_REMEMBERED_MAX = 4096  # transactions named in each request
_REGIONS_NUM = metrics.KV_TXN_REGIONS_NUM.labels("snapshot", "general")


@dataclass(slots=True)
class ReadView:
    """Reads the store at one timestamp.

    Remembers the transactions whose locks do not concern this timestamp, so that the status of each is
    asked once; every request names them to the store.
    """

    session: Session
    ts: int
    _ignored: set[int] = field(default_factory=set)
    _committed: set[int] = field(default_factory=set)

    def backoffer(self, name: str) -> Backoffer:
        """Return the budget of one read."""
        return self.session.backoffer(backoff.READ_MS, name)

    def context(self) -> kvrpcpb.Context:
        """Return the context that a request of this view carries."""
        return kvrpcpb.Context(resolved_locks=self._ignored, committed_locks=self._committed)

    async def make_way(self, bo: Backoffer, locks: Sequence[Lock], *, lite: bool = False) -> None:
        """Resolve locks in the way, or wait until their owners may have finished."""
        outcome = await self.session.resolver.resolve_for_read(bo, locks, self.ts, lite=lite)
        if len(self._ignored) + len(self._committed) > _REMEMBERED_MAX:
            self._ignored.clear()  # the status of a transaction that is met again is asked again
            self._committed.clear()
        self._ignored |= outcome.ignored
        self._committed |= outcome.committed
        if outcome.wait_ms:
            cause = f"transaction {locks[0].start_ts} holds locks"
            await bo.backoff(BackoffKind.TXN_LOCK_FAST, cause, max_ms=outcome.wait_ms)

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it has none."""
        bo = self.backoffer("get")
        first: Lock | None = None
        while True:
            request = kvrpcpb.GetRequest(context=self.context(), key=key, version=self.ts)
            answer = await self.session.router.send_to_key(bo, "KvGet", request, key, kvrpcpb.GetResponse)
            if not answer.HasField("error"):
                await self.session.safe_point.check(self.ts)
                return None if answer.not_found else answer.value
            lock = lock_of(answer.error, self.ts)
            first = first or lock
            if self.ts == TS_MAX and lock.start_ts != first.start_ts:
                self._ignored.add(lock.start_ts)  # came after the read began: the newest value is before it
            else:
                await self.make_way(bo, [lock], lite=True)

    async def batch_get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of sorted, distinct keys that have one."""
        found = await self._batch_get(self.backoffer("batch get"), keys)
        await self.session.safe_point.check(self.ts)
        return found

    async def _batch_get(self, bo: Backoffer, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        groups = await self.session.router.cache.group_keys(bo, keys)
        _REGIONS_NUM.observe(len(groups))
        size = self.session.settings.batch_get_keys
        batches = [
            (location, keys[start : min(start + size, part.stop)])
            for location, part in groups
            for start in range(part.start, part.stop, size)
        ]
        found: dict[bytes, bytes] = {}
        for first in range(0, len(batches), _CONCURRENT_BATCHES_MAX):
            window = batches[first : first + _CONCURRENT_BATCHES_MAX]
            for part in await run_all(self._get_batch(bo.fork(), *batch) for batch in window):
                found |= part
        return found

    async def _get_batch(
        self, bo: Backoffer, location: KeyLocation, keys: Sequence[bytes]
    ) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        while True:
            request = kvrpcpb.BatchGetRequest(context=self.context(), keys=keys, version=self.ts)
            try:
                answer = await self.session.router.send_to_region(
                    bo, "KvBatchGet", request, location, kvrpcpb.BatchGetResponse
                )
            except RegionStale:
                return found | await self._batch_get(bo, keys)
            if answer.HasField("error"):
                await self.make_way(bo, [lock_of(answer.error, self.ts)])
                continue
            locks = []
            for pair in answer.pairs:
                if pair.HasField("error"):
                    locks.append(lock_of(pair.error, self.ts))
                else:
                    found[pair.key] = pair.value
            if not locks:
                return found
            await self.make_way(bo, locks)
            keys = sorted({lock.key for lock in locks})


def lock_of(error: kvrpcpb.KeyError, ts: int) -> Lock:
    """Return the lock that stopped a read; raise the error for any other answer."""
    if not error.HasField("locked"):
        raise to_error(error, ts)
    return Lock.of(error.locked)
