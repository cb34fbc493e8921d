"""The RPC client: one pool of connections for each store address.

A streaming call is open once its first response has come, so that a refusal fails where the call is made.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock import clock as clocks
from penstock.clock import Clock
from penstock.errors import Unavailable
from penstock.kv.rpc.batch import BatchConnection
from penstock.kv.rpc.connections import (
    BATCH_FIELDS,
    EOF,
    ConnectionArray,
    Dialer,
    RpcFailed,
    error_from_closing,
    error_from_grpc,
)
from penstock.proto.services import Method, methods
from penstock.settings import KvSettings, TlsSettings


class ResponseStream:
    """The responses of a server-streaming or bidirectional call.

    Made by `open_stream`, so that a call the store refuses fails there and not in the middle of
    its reader. Iteration yields the first response and then the others, and raises RpcFailed.
    """

    def __init__(self, call: Any, addr: str) -> None:
        self._call = call
        self._addr = addr
        self.first: Message | None = None  # None when the store ended the stream at once

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next response, None at the end; a stream that is silent too long is cancelled."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_grpc(error, self._addr) from error
        except asyncio.CancelledError as error:
            raise error_from_closing(error, self._addr) from None
        except TimeoutError as error:
            self.cancel()
            silent = f"the stream was silent for {timeout_s} s"
            raise RpcFailed(grpc.StatusCode.DEADLINE_EXCEEDED, silent, addr=self._addr) from error
        return None if message is EOF else message

    async def __aiter__(self) -> AsyncIterator[Message]:
        message = self.first
        while message is not None:
            yield message
            message = await self.receive()

    async def write(self, request: Message) -> None:
        """Send one more request of a bidirectional call; raise RpcFailed when the stream is over."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise error_from_grpc(error, self._addr) from error
        except asyncio.InvalidStateError as error:
            raise RpcFailed(grpc.StatusCode.CANCELLED, "the stream is over", addr=self._addr) from error

    def cancel(self) -> None:
        """End the call; nothing more is received."""
        self._call.cancel()


async def open_stream(
    array: ConnectionArray, method: Method, request: Message | None, timeout_s: float
) -> ResponseStream:
    """Start a streaming call and wait for its first response, at most `timeout_s`."""
    start = array.take().call(method)
    if not method.client_streaming:
        assert request is not None, f"{method.name} needs a request"
        call = start(request)
    else:
        call = start()
    array.running += 1
    call.add_done_callback(lambda _: array.end_call())
    stream = ResponseStream(call, array.addr)
    try:
        if method.client_streaming and request is not None:
            await stream.write(request)
        stream.first = await stream.receive(timeout_s)
    except BaseException:
        stream.cancel()
        raise
    return stream


IDLE_MAX_S: Final = 180.0
_SWEEP_S = 15.0


class _Pool:
    """The connections of a store, and the batch connection over them when batching is on."""

    def __init__(self, addr: str, dialer: Dialer, settings: KvSettings, clock: Clock) -> None:
        self.array = ConnectionArray(dialer, addr, settings.grpc_connection_count)
        self.batch = BatchConnection(self.array, settings, clock) if settings.max_batch_size else None
        self.used_at = clock.monotonic()
        self.pinned = False

    def idle(self, now: float) -> bool:
        quiet = self.array.running == 0 and (self.batch is None or self.batch.idle)
        return quiet and not self.pinned and now - self.used_at >= IDLE_MAX_S

    async def without_batch(self) -> None:
        batch, self.batch = self.batch, None
        if batch is not None:
            await batch.close()

    async def close(self) -> None:
        await self.without_batch()
        await self.array.close()


class RpcClient:
    """Sends requests to stores by address.

    Commands that have a batch form share BatchCommands streams; the others, and all of them
    when `max_batch_size` is 0 or the store has no batch service, are unary calls. Nothing is
    repeated here: RpcFailed tells the caller that no answer came.
    """

    def __init__(
        self, tls: TlsSettings | None = None, settings: KvSettings | None = None, clock: Clock = clocks.SYSTEM
    ) -> None:
        self._settings = settings or KvSettings()
        self._clock = clock
        self._dialer = Dialer(tls, self._settings)
        self._pools: dict[str, _Pool] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    async def send(self, addr: str, method: str, request: Message, *, timeout_s: float) -> Message:
        """Send one request of the store service and return its response.

        Raises RpcFailed when no answer comes: the store may or may not have done the work.
        """
        pool = self._pools.get(addr) or self._open(addr)
        pool.used_at = self._clock.monotonic()
        field = BATCH_FIELDS.get(method)
        if field is None or pool.batch is None:
            return await pool.array.unary(method, request, timeout_s)
        try:
            return await pool.batch.send(field, request, timeout_s)
        except RpcFailed as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        await pool.without_batch()
        return await pool.array.unary(method, request, timeout_s)

    async def stream(
        self, addr: str, service: str, method: str, request: Message | None = None, *, timeout_s: float
    ) -> ResponseStream:
        """Open a streaming call and receive its first response within `timeout_s`, or raise RpcFailed."""
        pool = self._pools.get(addr) or self._open(addr)
        pool.used_at = self._clock.monotonic()
        return await open_stream(pool.array, methods(service)[method], request, timeout_s)

    def channel(self, addr: str) -> grpc.aio.Channel:
        """Return a connection to a store that stays open until the address or the client is closed."""
        pool = self._pools.get(addr) or self._open(addr)
        pool.pinned = True
        return pool.array.take().channel

    async def health(self, addr: str, timeout_s: float) -> int:
        """Ask a store for its serving status (grpc.health.v1); raise RpcFailed when it does not answer."""
        pool = self._pools.get(addr) or self._open(addr)
        stub = health_pb2_grpc.HealthStub(pool.array.connections[0].channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise error_from_grpc(error, addr) from error
        except asyncio.CancelledError as error:
            raise error_from_closing(error, addr) from None
        return int(answer.status)

    def _open(self, addr: str) -> _Pool:
        if self._closed:
            raise Unavailable("the client is closed; connect again")
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        pool = self._pools[addr] = _Pool(addr, self._dialer, self._settings, self._clock)
        return pool

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            await self.recycle()

    async def recycle(self) -> None:
        """Close the pools that nobody has used for a while."""
        now = self._clock.monotonic()
        for addr in [addr for addr, pool in self._pools.items() if pool.idle(now)]:
            await self.close_addr(addr)

    async def close_addr(self, addr: str) -> None:
        """Close the connections of an address; running requests fail with RpcFailed."""
        pool = self._pools.pop(addr, None)
        if pool is not None:
            await pool.close()

    async def close(self) -> None:
        """Close every connection; running requests fail with RpcFailed."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for addr in list(self._pools):
            await self.close_addr(addr)
