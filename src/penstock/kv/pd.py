"""The placement driver's client: timestamps, regions, stores, safe points."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock import clock as clocks
from penstock.clock import Clock
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.members import Members
from penstock.kv.rpc.connections import Dialer, error_from_closing
from penstock.kv.tso import TsoDispatcher
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.codec import decode_bytes, encode_bytes
from penstock.settings import KvSettings, TlsSettings

_LOG = logging.getLogger(__name__)
_BUDGET_MS = 15_000
_LOW_RESOLUTION_S = 2.0


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """A region as the placement driver knows it, with the bounds of its raw keys."""

    meta: metapb.Region
    leader: metapb.Peer | None


def raw_region(encoded: metapb.Region) -> metapb.Region:
    """Return the region with the raw keys in place of the memcomparable ones."""
    region = metapb.Region()
    region.CopyFrom(encoded)
    region.start_key = decode_bytes(encoded.start_key) if encoded.start_key else b""
    region.end_key = decode_bytes(encoded.end_key) if encoded.end_key else b""
    return region


class PdClient:
    """Calls of the placement driver, always to its leader.

    Every call is repeated with growing pauses while no leader answers: against `bo` where one is
    given, else for about 15 s times the weight. Then Unavailable. Invalid means that the addresses
    lead to another cluster.
    """

    def __init__(self, members: Members, settings: KvSettings, clock: Clock) -> None:
        self._members = members
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.pd_timeout_ms / 1000
        self._tso = TsoDispatcher(
            members, batch_max=settings.tso_batch_max, timeout_s=self._timeout_s, clock=clock
        )
        self._refresher = asyncio.create_task(self._refresh_low_resolution())

    @classmethod
    async def connect(
        cls,
        addrs: Sequence[str],
        *,
        tls: TlsSettings | None = None,
        settings: KvSettings | None = None,
        clock: Clock = clocks.SYSTEM,
    ) -> "PdClient":
        """Find the leader and the cluster's id; raise Unavailable when no address answers."""
        settings = settings or KvSettings()
        members = Members(addrs, Dialer(tls, settings), settings.pd_timeout_ms / 1000)
        try:
            await members.refresh()
        except BaseException:
            await members.close()
            raise
        return cls(members, settings, clock)

    @property
    def cluster_id(self) -> int:
        """The cluster's id, which every request names."""
        return self._members.cluster_id

    def timestamp(self) -> "asyncio.Future[int]":
        """Ask for a timestamp; the request goes out at once, merged with those of other callers."""
        return self._tso.ask()

    def low_resolution_ts(self) -> int:
        """Return the latest timestamp seen, at most about 2 s old while the placement driver answers."""
        return self._tso.last_ts

    async def _refresh_low_resolution(self) -> None:
        while True:
            try:
                await self._tso.ask()
            except PenstockError as error:
                _LOG.warning("the low-resolution timestamp is stale", extra={"error": str(error)})
            await self._clock.sleep(_LOW_RESOLUTION_S)

    async def get_region(self, key: bytes, *, bo: Backoffer | None = None) -> RegionInfo:
        """Return the region that holds a raw key."""
        request = pdpb.GetRegionRequest(region_key=_encode_key(key))
        return await self._region("GetRegion", request, bo)

    async def get_previous_region(self, key: bytes, *, bo: Backoffer | None = None) -> RegionInfo:
        """Return the region before the one that holds a raw key; Unavailable when there is none."""
        request = pdpb.GetRegionRequest(region_key=_encode_key(key))
        return await self._region("GetPrevRegion", request, bo)

    async def get_last_region(self, *, bo: Backoffer | None = None) -> RegionInfo:
        """Return the region without an upper bound."""
        beyond = b"\xff" * 64  # of encoded keys; should a region end above it, the walk below goes on
        found = await self._region("GetRegion", pdpb.GetRegionRequest(region_key=beyond), bo)
        while found.meta.end_key:
            found = await self.get_region(found.meta.end_key, bo=bo)
        return found

    async def get_region_by_id(self, region_id: int, *, bo: Backoffer | None = None) -> RegionInfo:
        """Return a region by its id."""
        return await self._region("GetRegionByID", pdpb.GetRegionByIDRequest(region_id=region_id), bo)

    async def scan_regions(
        self, start: bytes, end: bytes, limit: int, *, bo: Backoffer | None = None
    ) -> list[RegionInfo]:
        """Return up to `limit` regions that meet [start, end), in order; an empty end is the end of keys."""
        request = pdpb.ScanRegionsRequest(
            start_key=_encode_key(start), end_key=_encode_key(end) if end else b"", limit=limit
        )
        answer: pdpb.ScanRegionsResponse = await self._call("ScanRegions", request, bo)
        if answer.regions:
            return [_info(item.region, item.leader) for item in answer.regions]
        return [_info(*pair) for pair in zip(answer.region_metas, answer.leaders, strict=True)]

    async def get_store(self, store_id: int, *, bo: Backoffer | None = None) -> metapb.Store | None:
        """Return a store, or None when it is gone for good."""
        try:
            answer = await self._call("GetStore", pdpb.GetStoreRequest(store_id=store_id), bo)
        except _ForgottenError:
            return None
        store: metapb.Store = answer.store
        return None if store.state == metapb.Tombstone else store

    async def get_all_stores(self, *, bo: Backoffer | None = None) -> list[metapb.Store]:
        """Return the stores that are not gone."""
        request = pdpb.GetAllStoresRequest(exclude_tombstone_stores=True)
        return list((await self._call("GetAllStores", request, bo)).stores)

    async def get_gc_safe_point(self, *, bo: Backoffer | None = None) -> int:
        """Return the timestamp below which old versions may be gone."""
        answer: pdpb.GetGCSafePointResponse = await self._call(
            "GetGCSafePoint", pdpb.GetGCSafePointRequest(), bo
        )
        return answer.safe_point

    async def update_gc_safe_point(self, ts: int, *, bo: Backoffer | None = None) -> int:
        """Raise the safe point; return the one in force, which never goes back."""
        answer: pdpb.UpdateGCSafePointResponse = await self._call(
            "UpdateGCSafePoint", pdpb.UpdateGCSafePointRequest(safe_point=ts), bo
        )
        return answer.new_safe_point

    async def update_service_gc_safe_point(
        self, service_id: str, ttl_s: int, safe_point: int, *, bo: Backoffer | None = None
    ) -> int:
        """Hold back GC for a service (ttl_s <= 0 lets go); return the lowest safe point of all services.

        An answer above `safe_point` means that the request came too late and was not stored.
        """
        request = pdpb.UpdateServiceGCSafePointRequest(
            service_id=service_id.encode(), TTL=ttl_s, safe_point=safe_point
        )
        answer: pdpb.UpdateServiceGCSafePointResponse = await self._call(
            "UpdateServiceGCSafePoint", request, bo
        )
        return answer.min_safe_point

    async def scatter_region(self, region_id: int, *, bo: Backoffer | None = None) -> None:
        """Ask the placement driver to place a region's peers and leader again."""
        request = pdpb.ScatterRegionRequest(region_id=region_id, regions_id=[region_id])
        await self._call("ScatterRegion", request, bo)

    async def get_operator(
        self, region_id: int, *, bo: Backoffer | None = None
    ) -> pdpb.GetOperatorResponse | None:
        """Return what the placement driver is doing, or did last, to a region.

        None: it is doing nothing. The placement driver forgets an operator soon after its end.
        """
        try:
            answer: pdpb.GetOperatorResponse = await self._call(
                "GetOperator", pdpb.GetOperatorRequest(region_id=region_id), bo
            )
        except _ForgottenError:
            return None
        return answer

    async def _region(self, method: str, request: Message, bo: Backoffer | None) -> RegionInfo:
        bo = bo or self._backoffer(method)
        while True:
            answer = await self._call(method, request, bo)
            if answer.HasField("region"):
                return _info(answer.region, answer.leader)
            await bo.backoff(BackoffKind.PD_RPC, f"the placement driver knows no such region ({method})")

    def _backoffer(self, name: str) -> Backoffer:
        return Backoffer(_BUDGET_MS, clock=self._clock, weight=self._settings.backoff_weight, name=name)

    async def _call(self, method: str, request: Any, bo: Backoffer | None) -> Any:
        bo = bo or self._backoffer(method)
        followed = False
        while True:
            asked = self._members.leader
            try:
                return await self._attempt(method, request)
            except Unavailable as error:
                failed = error
            try:
                await self._members.refresh()
            except Unavailable as error:
                failed = error
            # A new leader is asked at once, but two members that name each other are not.
            if followed or self._members.leader == asked:
                await bo.backoff(BackoffKind.PD_RPC, failed)
            followed = not followed

    async def _attempt(self, method: str, request: Any) -> Any:
        leader = self._members.leader
        request.header.cluster_id = self._members.cluster_id
        try:
            answer = await getattr(self._members.stub, method)(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Invalid(
                    f"the placement driver at {leader} does not serve {method}; upgrade it"
                ) from error
            raise Unavailable(f"{method} at {leader}: {error.details() or error.code().name}") from error
        except grpc.aio.UsageError as error:
            raise Unavailable(f"{method} at {leader}: the connection is closed") from error
        except asyncio.CancelledError as error:
            cause = error_from_closing(error, leader)
            if cause is error:
                raise
            raise Unavailable(f"{method} at {leader}: the connection was closed") from cause
        problem = answer.header.error
        if problem.type != pdpb.OK:
            if _says_not_found(method, problem):
                raise _ForgottenError
            raise Unavailable(f"{method} at {leader}: {problem.message}")
        return answer

    async def close(self) -> None:
        """Close the connections; timestamps still awaited fail with Unavailable."""
        self._refresher.cancel()
        await asyncio.gather(self._refresher, return_exceptions=True)
        await self._tso.close()
        await self._members.close()


class _ForgottenError(Exception):
    """The placement driver has forgotten the store or the operator that was asked for."""


def _says_not_found(method: str, problem: pdpb.Error) -> bool:
    if method == "GetOperator":
        return bool(problem.type == pdpb.REGION_NOT_FOUND)
    return method == "GetStore" and "not found" in problem.message


def _encode_key(key: bytes) -> bytes:
    return encode_bytes(key) if key else b""


def _info(region: metapb.Region, leader: metapb.Peer) -> RegionInfo:
    return RegionInfo(raw_region(region), leader if leader.id else None)
