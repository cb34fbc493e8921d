"""The connections of one store: an array of channels, used in turn."""

import asyncio
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.kv.rpc.channels import Dialer
from penstock.kv.rpc.commands import multicallable, unary
from penstock.kv.rpc.failure import RpcFailed, from_closing, from_grpc
from penstock.proto.services import Method

_RENEW_GRACE_S = 1.0


class Connection:
    """One channel, that is one TCP connection; opened again when the TLS files change."""

    def __init__(self, dialer: Dialer, addr: str) -> None:
        self.addr = addr
        self._dialer = dialer
        self._stamp = dialer.stamp()
        self.channel: grpc.aio.Channel = dialer.open(addr)
        self._calls: dict[str, Any] = {}

    def call(self, method: Method) -> Any:
        """Return what starts a call of the method on this connection."""
        found = self._calls.get(method.path)
        if found is None:
            found = self._calls[method.path] = multicallable(self.channel, method)
        return found

    async def renew(self) -> None:
        """Take over changed certificates; called when the connection has failed."""
        stamp = self._dialer.stamp()
        if stamp == self._stamp:
            return
        old, self.channel = self.channel, self._dialer.open(self.addr)
        self._stamp = stamp
        self._calls = {}
        await old.close(_RENEW_GRACE_S)

    async def close(self) -> None:
        """Close the connection; its calls fail."""
        await self.channel.close(None)


class ConnectionArray:
    """Several connections to one store, so that no single one limits throughput."""

    def __init__(self, dialer: Dialer, addr: str, count: int) -> None:
        self.addr = addr
        self.connections = [Connection(dialer, addr) for _ in range(count)]
        self._next = 0
        self.running = 0  # unary and streaming calls; a running call keeps the array from being recycled

    def take(self) -> Connection:
        """Return the next connection, in turn."""
        self._next = (self._next + 1) % len(self.connections)
        return self.connections[self._next]

    def ended(self) -> None:
        """A running call has ended."""
        self.running -= 1

    async def unary(self, method: str, request: Message, timeout_s: float) -> Message:
        """Call a unary method of the store service; raise RpcFailed when no answer comes."""
        connection = self.take()
        self.running += 1
        try:
            answer: Message = await connection.call(unary(method))(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await connection.renew()
            raise from_grpc(error, self.addr) from error
        except asyncio.CancelledError as error:
            raise from_closing(error, self.addr) from None
        except grpc.aio.UsageError as error:
            raise RpcFailed(
                grpc.StatusCode.CANCELLED, "the connection is closed", addr=self.addr, sent=False
            ) from error
        else:
            return answer
        finally:
            self.running -= 1

    async def close(self) -> None:
        """Close every connection."""
        for connection in self.connections:
            await connection.close()
