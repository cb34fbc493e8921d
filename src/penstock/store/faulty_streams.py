"""Fault switches for the streams of a service that knows nothing of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from penstock.store.faults import Fault, Faults, Struck
from penstock.store.statuses import end

__all__ = ["FaultyStreams"]

_Behaviour = Callable[[AsyncIterator[Any], Any], Awaitable[None]]


class FaultyStreams(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Serves another handler's two-way streams, with faults striking the requests they carry.

    A dropped request is never seen, a delayed one holds up those behind it, and the kinds that end a
    call end the stream. Region errors are for calls only and strike nothing here.
    """

    def __init__(
        self,
        inner: "grpc.GenericRpcHandler[Any, Any]",
        faults: Faults,
        store_id: int,
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._store_id = store_id

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Find the method in the handler behind, and wrap it."""
        found: Any = self._inner.service(handler_call_details)
        if found is None:
            return None
        name = str(handler_call_details.method).rpartition("/")[2]

        async def behaviour(requests: AsyncIterator[Any], context: Any) -> None:
            await self._serve(name, found.stream_stream, requests, context)

        return grpc.stream_stream_rpc_method_handler(
            behaviour,
            request_deserializer=found.request_deserializer,
            response_serializer=found.response_serializer,
        )

    async def _serve(
        self, name: str, behaviour: _Behaviour, requests: AsyncIterator[Any], context: Any
    ) -> None:
        struck: asyncio.Future[Struck] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(behaviour(self._passed(name, requests, struck), context))
        try:
            ends: list[asyncio.Future[Any]] = [serving, struck]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait([serving])
        if struck.done():
            await end(context, struck.result(), name)
        await serving

    async def _passed(
        self, name: str, requests: AsyncIterator[Any], struck: "asyncio.Future[Struck]"
    ) -> AsyncIterator[Any]:
        async for request in requests:
            fault = self._faults.strike(name, self._store_id) if self._faults.active else None
            try:
                if fault is not None:
                    self._faults.before(fault)
                yield request
                if fault is not None:
                    await self._faults.after(fault)
            except Struck as end:
                if fault is not None and fault.kind == Fault.DROP:
                    continue
                struck.set_result(end)
                return
