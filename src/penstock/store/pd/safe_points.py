"""Safe points below which versions may be collected, the barriers that hold them back, and the calls on both.

The transaction safe point advances first, and barriers hold it back. In the older calls, a service's safe
point is a barrier, and "gc_worker" is the transaction safe point itself.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid
from penstock.proto import pdpb_pb2 as pdpb
from penstock.store import meta
from penstock.store.engine import Cf, Engine
from penstock.store.pd.answers import Behaviour

__all__ = ["GC_WORKER", "GarbageCollection", "GcBarrier", "SafePoints"]


GC_WORKER = "gc_worker"
FOREVER_S = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class GcBarrier:
    """Holds the transaction safe point at or below `ts` until it expires."""

    id: str
    ts: int
    expires_ms: int | None  # None never expires

    def ttl_s(self, now_ms: int) -> int:
        return FOREVER_S if self.expires_ms is None else max(0, -(-(self.expires_ms - now_ms) // 1000))

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass(slots=True)
class SafePoints:
    """The safe points of a cluster.

    Invariant: gc <= txn <= every barrier that has not expired; gc and txn never decrease.
    """

    gc: int = 0
    txn: int = 0
    _barriers: dict[str, GcBarrier] = field(default_factory=dict)

    def barriers(self, now_ms: int) -> list[GcBarrier]:
        return [barrier for barrier in self._barriers.values() if not barrier.is_expired(now_ms)]

    def set_barrier(self, barrier_id: str, ts: int, ttl_s: int, now_ms: int) -> GcBarrier:
        """Set or move a barrier; raise Invalid when the transaction safe point has passed `ts`."""
        if not barrier_id or barrier_id == GC_WORKER:
            raise Invalid(f"{barrier_id!r} is not a name for a GC barrier; choose another")
        if ttl_s <= 0:
            raise Invalid(f"a GC barrier cannot live {ttl_s} seconds; give a positive TTL")
        if ts < self.txn:
            raise Invalid(f"GC barrier {barrier_id} at {ts} is behind the txn safe point {self.txn}")
        expires_ms = None if ttl_s >= FOREVER_S // 1000 else now_ms + ttl_s * 1000
        barrier = self._barriers[barrier_id] = GcBarrier(barrier_id, ts, expires_ms)
        return barrier

    def delete_barrier(self, barrier_id: str) -> GcBarrier | None:
        return self._barriers.pop(barrier_id, None)

    def advance_txn(self, target: int, now_ms: int) -> GcBarrier | None:
        """Move the transaction safe point towards `target`; return the barrier that stopped it."""
        if target < self.txn:
            raise Invalid(f"txn safe point is {self.txn} already; it cannot go back to {target}")
        for gone in [barrier.id for barrier in self._barriers.values() if barrier.is_expired(now_ms)]:
            del self._barriers[gone]
        lowest = min(self._barriers.values(), key=lambda barrier: barrier.ts, default=None)
        blocker = lowest if lowest is not None and lowest.ts < target else None
        self.txn = blocker.ts if blocker is not None else target
        return blocker

    def advance_gc(self, target: int) -> None:
        """Move the GC safe point; raise Invalid when it would go back or pass the transaction safe point."""
        if target < self.gc:
            raise Invalid(f"GC safe point is {self.gc} already; it cannot go back to {target}")
        if target > self.txn:
            raise Invalid(f"GC safe point {target} would pass the txn safe point {self.txn}")
        self.gc = target

    def update_gc(self, target: int) -> int:
        """Raise the GC safe point, and the other one with it, if it is behind. The older call."""
        self.gc = max(self.gc, target)
        self.txn = max(self.txn, self.gc)
        return self.gc

    def update_service(self, service_id: str, ts: int, ttl_s: int, now_ms: int) -> GcBarrier:
        """Set or remove a service's safe point; return the lowest entry. The older call.

        A safe point below the lowest entry is not stored; the caller sees that in the answer.
        """
        if service_id == GC_WORKER:
            if ts > self.txn:
                self.advance_txn(ts, now_ms)
        elif ttl_s <= 0:
            self.delete_barrier(service_id)
        elif ts >= self.txn:
            self.set_barrier(service_id, ts, ttl_s, now_ms)
        worker = GcBarrier(GC_WORKER, self.txn, None)
        return min([worker, *self.barriers(now_ms)], key=lambda barrier: barrier.ts)

    def dump(self) -> bytes:
        """Return the form that is stored on disk."""
        barriers = [[barrier.id, barrier.ts, barrier.expires_ms] for barrier in self._barriers.values()]
        return json.dumps({"gc": self.gc, "txn": self.txn, "barriers": barriers}).encode()

    @classmethod
    def load(cls, stored: bytes | None) -> "SafePoints":
        """Read the form that is stored on disk; raise Corrupt when it is damaged."""
        if stored is None:
            return cls()
        try:
            tree = json.loads(stored)
            return cls(gc=tree["gc"], txn=tree["txn"], _barriers=dict(_decode_barriers(tree["barriers"])))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "the safe points' record is damaged; restore the data directory from a copy"
            ) from error


def _decode_barriers(rows: list[tuple[str, int, int | None]]) -> Iterator[tuple[str, GcBarrier]]:
    for barrier_id, ts, expires_ms in rows:
        yield barrier_id, GcBarrier(barrier_id, ts, expires_ms)


class GarbageCollection:
    """Answers the calls about safe points. Every change is durable before its answer."""

    def __init__(self, engine: Engine, *, clock: Clock = SYSTEM) -> None:
        self._engine = engine
        self._clock = clock
        self._points = SafePoints.load(engine.view().get(Cf.META, meta.GC))

    def behaviours(self) -> dict[str, Behaviour]:
        return {
            "GetGCSafePoint": self.get_gc_safe_point,
            "UpdateGCSafePoint": self.update_gc_safe_point,
            "UpdateServiceGCSafePoint": self.update_service_gc_safe_point,
            "AdvanceGCSafePoint": self.advance_gc_safe_point,
            "AdvanceTxnSafePoint": self.advance_txn_safe_point,
            "SetGCBarrier": self.set_gc_barrier,
            "DeleteGCBarrier": self.delete_gc_barrier,
            "GetGCState": self.get_gc_state,
        }

    async def _save(self) -> None:
        await self._engine.write([(Cf.META, meta.GC, self._points.dump())])

    def _barrier_info(self, barrier: GcBarrier) -> pdpb.GCBarrierInfo:
        ttl_s = barrier.ttl_s(self._clock.wall_ms())
        return pdpb.GCBarrierInfo(barrier_id=barrier.id, barrier_ts=barrier.ts, ttl_seconds=ttl_s)

    async def get_gc_safe_point(self, _: pdpb.GetGCSafePointRequest) -> pdpb.GetGCSafePointResponse:
        return pdpb.GetGCSafePointResponse(safe_point=self._points.gc)

    async def update_gc_safe_point(
        self, request: pdpb.UpdateGCSafePointRequest
    ) -> pdpb.UpdateGCSafePointResponse:
        safe_point = self._points.update_gc(request.safe_point)
        await self._save()
        return pdpb.UpdateGCSafePointResponse(new_safe_point=safe_point)

    async def update_service_gc_safe_point(
        self, request: pdpb.UpdateServiceGCSafePointRequest
    ) -> pdpb.UpdateServiceGCSafePointResponse:
        now_ms = self._clock.wall_ms()
        service_id = request.service_id.decode("utf-8", "backslashreplace")
        lowest = self._points.update_service(service_id, request.safe_point, request.TTL, now_ms)
        await self._save()
        return pdpb.UpdateServiceGCSafePointResponse(
            service_id=lowest.id.encode(), TTL=lowest.ttl_s(now_ms), min_safe_point=lowest.ts
        )

    async def advance_gc_safe_point(
        self, request: pdpb.AdvanceGCSafePointRequest
    ) -> pdpb.AdvanceGCSafePointResponse:
        old = self._points.gc
        self._points.advance_gc(request.target)
        await self._save()
        return pdpb.AdvanceGCSafePointResponse(old_gc_safe_point=old, new_gc_safe_point=self._points.gc)

    async def advance_txn_safe_point(
        self, request: pdpb.AdvanceTxnSafePointRequest
    ) -> pdpb.AdvanceTxnSafePointResponse:
        old = self._points.txn
        blocker = self._points.advance_txn(request.target, self._clock.wall_ms())
        await self._save()
        return pdpb.AdvanceTxnSafePointResponse(
            old_txn_safe_point=old,
            new_txn_safe_point=self._points.txn,
            blocker_description=f"GC barrier {blocker.id} at {blocker.ts}" if blocker else "",
        )

    async def set_gc_barrier(self, request: pdpb.SetGCBarrierRequest) -> pdpb.SetGCBarrierResponse:
        barrier = self._points.set_barrier(
            request.barrier_id, request.barrier_ts, request.ttl_seconds, self._clock.wall_ms()
        )
        await self._save()
        return pdpb.SetGCBarrierResponse(new_barrier_info=self._barrier_info(barrier))

    async def delete_gc_barrier(self, request: pdpb.DeleteGCBarrierRequest) -> pdpb.DeleteGCBarrierResponse:
        barrier = self._points.delete_barrier(request.barrier_id)
        await self._save()
        return pdpb.DeleteGCBarrierResponse(
            deleted_barrier_info=self._barrier_info(barrier) if barrier else None
        )

    async def get_gc_state(self, request: pdpb.GetGCStateRequest) -> pdpb.GetGCStateResponse:
        """Return the state. All keyspaces share one, so the answer only repeats the scope."""
        barriers = [] if request.exclude_gc_barriers else self._points.barriers(self._clock.wall_ms())
        return pdpb.GetGCStateResponse(
            gc_state=pdpb.GCState(
                keyspace_scope=request.keyspace_scope,
                txn_safe_point=self._points.txn,
                gc_safe_point=self._points.gc,
                gc_barriers=[self._barrier_info(barrier) for barrier in barriers],
            )
        )
