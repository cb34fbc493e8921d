"""Streaming calls whose first response is received while they open."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.kv.rpc.connections import ConnectionArray
from penstock.kv.rpc.failure import EOF, RpcFailed, from_closing, from_grpc
from penstock.proto.services import Method


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
            raise from_grpc(error, self._addr) from error
        except asyncio.CancelledError as error:
            raise from_closing(error, self._addr) from None
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
            raise from_grpc(error, self._addr) from error
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
    call.add_done_callback(lambda _: array.ended())
    stream = ResponseStream(call, array.addr)
    try:
        if method.client_streaming and request is not None:
            await stream.write(request)
        stream.first = await stream.receive(timeout_s)
    except BaseException:
        stream.cancel()
        raise
    return stream
