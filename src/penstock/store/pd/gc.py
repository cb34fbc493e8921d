"""Calls about safe points."""

from penstock.clock import SYSTEM, Clock
from penstock.proto import pdpb_pb2 as pdpb
from penstock.store import meta
from penstock.store.engine import Cf, Engine
from penstock.store.pd.answers import Behaviour
from penstock.store.pd.safe_points import GcBarrier, SafePoints

__all__ = ["GarbageCollection"]


class GarbageCollection:
    """Keeps the safe points on disk: every change is durable before it is answered."""

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

    def _shown(self, barrier: GcBarrier) -> pdpb.GCBarrierInfo:
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
        return pdpb.SetGCBarrierResponse(new_barrier_info=self._shown(barrier))

    async def delete_gc_barrier(self, request: pdpb.DeleteGCBarrierRequest) -> pdpb.DeleteGCBarrierResponse:
        barrier = self._points.delete_barrier(request.barrier_id)
        await self._save()
        return pdpb.DeleteGCBarrierResponse(deleted_barrier_info=self._shown(barrier) if barrier else None)

    async def get_gc_state(self, request: pdpb.GetGCStateRequest) -> pdpb.GetGCStateResponse:
        """Keyspaces share one state here, so the scope is only repeated."""
        barriers = [] if request.exclude_gc_barriers else self._points.barriers(self._clock.wall_ms())
        return pdpb.GetGCStateResponse(
            gc_state=pdpb.GCState(
                keyspace_scope=request.keyspace_scope,
                txn_safe_point=self._points.txn,
                gc_safe_point=self._points.gc,
                gc_barriers=[self._shown(barrier) for barrier in barriers],
            )
        )
