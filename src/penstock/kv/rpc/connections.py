"""The connections of one store: an array of gRPC channels, used in turn.

Also what every call over them needs: channel options and credentials, the error of a request without an
answer, and which commands travel in batches under which name.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from penstock.errors import Invalid
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.services import Method, methods
from penstock.settings import KvSettings, TlsSettings

_WINDOW_BYTES = 128 * 1024 * 1024
_RECONNECT_FIRST_MS = 100
_RECONNECT_MAX_MS = 3_000


def channel_options(settings: KvSettings) -> list[tuple[str, int]]:
    """Return the arguments of every channel to a store or placement driver."""
    return [
        # Without this, channels with equal arguments share one connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", settings.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS),
        ("grpc.min_reconnect_backoff_ms", settings.dial_timeout_ms),  # how long one attempt may take
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]


class Dialer:
    """Opens channels; certificates are read anew for each one, so that rotated files are picked up."""

    def __init__(self, tls: TlsSettings | None, settings: KvSettings) -> None:
        self._tls = tls
        self._options = channel_options(settings)

    def open(self, addr: str) -> grpc.aio.Channel:
        """Return a channel with a connection of its own; raise Invalid when a TLS file cannot be used."""
        if self._tls is None:
            return grpc.aio.insecure_channel(addr, self._options)
        authority, certificate, key = self._tls.read()
        if b"-----BEGIN" not in authority:
            raise Invalid(f"TLS file {self._tls.ca_path} holds no PEM certificate; check tls.ca_path")
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.aio.secure_channel(addr, credentials, self._options)

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes when the TLS files do."""
        if self._tls is None:
            return ()
        paths = (self._tls.ca_path, self._tls.cert_path, self._tls.key_path)
        return tuple(_modified_ns(path) for path in paths if path is not None)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0  # being replaced: the next look sees the new file


# What read() returns at the end of a stream; the published stubs do not declare it.
EOF: Final[Any] = vars(grpc.aio)["EOF"]


class RpcFailed(Exception):
    """A request got no answer from its store; `sent` tells whether the store may have received it."""

    def __init__(self, code: grpc.StatusCode, reason: str, *, addr: str, sent: bool = True) -> None:
        super().__init__(f"{code.name} from {addr}: {reason}")
        self.code = code
        self.addr = addr
        self.sent = sent


def error_from_grpc(error: grpc.aio.AioRpcError, addr: str) -> RpcFailed:
    """Return the failure for an error of gRPC."""
    return RpcFailed(error.code(), error.details() or "no details", addr=addr)


def error_from_closing(cancelled: asyncio.CancelledError, addr: str) -> RpcFailed | asyncio.CancelledError:
    """Return the error for a CancelledError of gRPC, which has two reasons.

    Closing a channel cancels its calls in the tasks that wait for them; unless the task itself is
    being cancelled, that is a failed request and must not pass for a cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return cancelled
    return RpcFailed(grpc.StatusCode.CANCELLED, "the connection was closed", addr=addr)


SERVICE = "tikvpb.Tikv"


def _batchable() -> Mapping[str, str]:
    commands = tikvpb.BatchCommandsRequest.Request.DESCRIPTOR.fields
    fields = {f.message_type.full_name: f.name for f in commands if f.message_type is not None}
    return {
        name: fields[method.request.DESCRIPTOR.full_name]
        for name, method in methods(SERVICE).items()
        if method.request.DESCRIPTOR.full_name in fields
    }


# Method of the service -> its field in a batch, such as "KvGet" -> "Get".
BATCH_FIELDS: Mapping[str, str] = _batchable()

# The message each field holds.
BATCH_REQUESTS: Mapping[str, type[Message]] = {
    field: methods(SERVICE)[method].request for method, field in BATCH_FIELDS.items()
}


def unary_method(method: str) -> Method:
    """Return a unary method of the store service."""
    found = methods(SERVICE)[method]
    assert found.arity == "unary_unary", f"{method} is a stream"
    return found


def multicallable(channel: Any, method: Method) -> Any:
    """Return gRPC's callable for a method over a channel."""
    return getattr(channel, method.arity)(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


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
        """Return gRPC's callable for a method on this connection."""
        found = self._calls.get(method.path)
        if found is None:
            found = self._calls[method.path] = multicallable(self.channel, method)
        return found

    async def renew(self) -> None:
        """Open the channel again when certificates changed; called after the connection failed."""
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

    def end_call(self) -> None:
        """Count a running call as ended."""
        self.running -= 1

    async def unary(self, method: str, request: Message, timeout_s: float) -> Message:
        """Call a unary method of the store service; raise RpcFailed when no answer comes."""
        connection = self.take()
        self.running += 1
        try:
            answer: Message = await connection.call(unary_method(method))(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await connection.renew()
            raise error_from_grpc(error, self.addr) from error
        except asyncio.CancelledError as error:
            raise error_from_closing(error, self.addr) from None
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
