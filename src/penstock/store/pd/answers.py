"""What every call of the placement driver shares: the header, the check of the cluster, faults."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.errors import Invalid
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.services import methods
from penstock.store.faults import Faults
from penstock.store.server import end_call

__all__ = ["SERVICE", "Answers", "Behaviour", "Context", "PdRefused"]

SERVICE = "pdpb.PD"
Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any], Coroutine[Any, Any, Any]]


class PdRefused(Invalid):
    """A call was understood and refused; the header of its answer says why."""

    def __init__(self, kind: pdpb.ErrorType, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Answers:
    """Turns plain coroutines, which take a request and return a response, into gRPC behaviours.

    It adds the header of the response. Invalid becomes an error in the header with status OK, as clients
    expect.
    """

    def __init__(self, cluster_id: int, faults: Faults) -> None:
        self.cluster_id = cluster_id
        self._faults = faults

    def header(self, error: Invalid | None = None) -> pdpb.ResponseHeader:
        header = pdpb.ResponseHeader(cluster_id=self.cluster_id)
        if error is not None:
            header.error.type = error.kind if isinstance(error, PdRefused) else pdpb.UNKNOWN
            header.error.message = str(error)
        return header

    async def check(self, header: pdpb.RequestHeader, context: Context) -> None:
        """End the call when it was meant for another cluster."""
        if header.cluster_id != self.cluster_id:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"mismatch cluster id, need {self.cluster_id} but got {header.cluster_id}",
            )

    def unary(
        self, name: str, behaviour: Behaviour
    ) -> Callable[[Any, Context], Coroutine[Any, Any, Message]]:
        """Wrap a call that checks the cluster id of its caller."""
        response_class = methods(SERVICE)[name].response

        async def call(request: Any, context: Context) -> Message:
            await self.check(request.header, context)
            try:
                response: Message = await self.faulty(name, behaviour, request)
            except Invalid as error:
                return response_class(header=self.header(error))
            except Exception as error:  # noqa: BLE001 - every error becomes a status of the call
                await end_call(context, error, name)
            response.MergeFrom(response_class(header=self.header()))
            return response

        return call

    def plain(
        self, name: str, behaviour: Behaviour
    ) -> Callable[[Any, Context], Coroutine[Any, Any, Message]]:
        """Wrap a call that does not check the cluster id of its caller."""

        async def call(request: Any, context: Context) -> Message:
            try:
                response: Message = await self.faulty(name, behaviour, request)
            except Exception as error:  # noqa: BLE001 - every error becomes a status of the call
                await end_call(context, error, name)
            return response

        return call

    async def faulty(self, name: str, behaviour: Behaviour, request: Any) -> Any:
        """Run a call; raise FaultStruck when a fault ends it."""
        fault = self._faults.strike(name) if self._faults.active else None
        if fault is None:
            return await behaviour(request)
        self._faults.before(fault)
        # A caller that gives up while a fault delays the answer must not undo what was applied.
        response = await asyncio.shield(asyncio.ensure_future(behaviour(request)))
        await self._faults.after(fault)
        return response
