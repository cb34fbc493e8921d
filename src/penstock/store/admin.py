"""The admin service: what an operator or a test does to regions, leaders, stores and faults."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from penstock.errors import Invalid, PenstockError
from penstock.proto import storepb_pb2 as storepb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import handler
from penstock.store.faults import Faults
from penstock.store.regions import Regions

__all__ = ["AdminService"]


class AdminService:
    """The admin service. It refuses to set faults unless `faults_allowed`.

    `stop_store` and `start_store` turn a store off and on by its id; they raise Invalid for an unknown store.
    """

    def __init__(
        self,
        regions: Regions,
        faults: Faults,
        *,
        stop_store: Callable[[int], Awaitable[None]],
        start_store: Callable[[int], Awaitable[None]],
        faults_allowed: bool,
    ) -> None:
        self._regions = regions
        self._stop_store = stop_store
        self._start_store = start_store
        self._faults = faults
        self._faults_allowed = faults_allowed

    def handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "Split": self.split,
            "Merge": self.merge,
            "TransferLeader": self.transfer_leader,
            "StopStore": self.stop_store,
            "StartStore": self.start_store,
            "SetFaults": self.set_faults,
        }
        return handler("penstock.storepb.Admin", {name: _answer_errors(call) for name, call in calls.items()})

    async def split(self, request: storepb.SplitRequest) -> storepb.SplitResponse:
        parts = await self._regions.split_at([encode_bytes(key) for key in request.keys])
        return storepb.SplitResponse(regions=[part.to_proto() for part in parts])

    async def merge(self, request: storepb.MergeRequest) -> storepb.MergeResponse:
        return storepb.MergeResponse(region=(await self._regions.merge(request.region_id)).to_proto())

    async def transfer_leader(self, request: storepb.TransferLeaderRequest) -> storepb.TransferLeaderResponse:
        await self._regions.transfer_leader(request.region_id, request.store_id)
        return storepb.TransferLeaderResponse()

    async def stop_store(self, request: storepb.StopStoreRequest) -> storepb.StopStoreResponse:
        await self._stop_store(request.store_id)
        return storepb.StopStoreResponse()

    async def start_store(self, request: storepb.StartStoreRequest) -> storepb.StartStoreResponse:
        await self._start_store(request.store_id)
        return storepb.StartStoreResponse()

    async def set_faults(self, request: storepb.SetFaultsRequest) -> storepb.SetFaultsResponse:
        if not self._faults_allowed:
            raise Invalid("faults are switched off; start the store with --enable-faults")
        self._faults.set(request.faults)
        return storepb.SetFaultsResponse()


def _answer_errors(call: Callable[[Any], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a call so that its PenstockError becomes the status FAILED_PRECONDITION with the same message."""

    async def behaviour(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await call(request)
        except PenstockError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    return behaviour
