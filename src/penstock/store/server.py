"""gRPC on one address: the server, the status of a failed call, and faults on the streams of a service."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from penstock.errors import Invalid, Unavailable
from penstock.settings import ServerTlsSettings, StoreSettings
from penstock.settings.network import is_loopback, join_address
from penstock.store.executor import ClusterMismatch
from penstock.store.faults import Fault, Faults, FaultStruck

__all__ = ["Endpoint", "FaultyStreams", "check_exposure", "end_call", "split_server_address"]


_MESSAGE_BYTES_MAX = 256 * 1024 * 1024
_CONNECTIONS_MAX = 2000
"""Connections to one address. A client has a few to each store."""
_CALLS_MAX = 10_000
"""Calls at a time on one connection; more wait in the client."""
_HANDSHAKE_MS = 5_000
"""Milliseconds for a new connection to speak TLS and HTTP/2. Silent ones are closed then."""
_IDLE_MS = 600_000
"""Milliseconds without a call after which a connection is closed; its client opens another when it needs one.
A change stream is a call."""
_PING_MS = 60_000
"""Milliseconds without traffic after which a client is asked whether it is still there."""
_PING_TIMEOUT_MS = 20_000
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the same address is a mistake: let it fail
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # clients ping as often as they like
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ("grpc.max_allowed_incoming_connections", _CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", _CALLS_MAX),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS),
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),  # gRPC's own 60 s otherwise, whatever keepalive says
]
_WILDCARDS = {"0.0.0.0", "::", "", "*"}  # noqa: S104 - these are refused
_PORT_MAX = 65_535


def split_server_address(address: str) -> tuple[str, int]:
    """Return host and port; raise Invalid unless the text is host:port with a host that clients can reach."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Invalid(f"address {address!r} is not host:port; write one such as 127.0.0.1:2379")
    if host in _WILDCARDS:
        raise Invalid(
            f"address {address!r} names no host that clients can reach; write the host's own address"
        )
    return host, int(port)


def check_exposure(store: StoreSettings) -> None:
    """Raise Invalid when other machines could reach the store without client certificates, unasked.

    The store has no users: whoever can connect can read and write everything.
    """
    is_closed = store.tls is not None and store.tls.ca_path is not None
    if is_closed or store.insecure or is_loopback(store.pd_addr):
        return
    raise Invalid(
        f"store.pd_addr {store.pd_addr} can be reached from other machines, and whoever connects can do"
        " everything; set store.tls with ca_path, or listen on 127.0.0.1, or say store.insecure: true"
    )


class Endpoint:
    """A gRPC server with a health service. It binds its address at once and serves from `start` to `stop`."""

    def __init__(self, address: str, *, tls: ServerTlsSettings | None = None) -> None:
        """Bind the address; port 0 takes any free port. Raise Invalid when it cannot be bound."""
        host, port = split_server_address(address)
        _probe(host, port)
        self._server = grpc.aio.server(options=_OPTIONS)
        try:
            bound = self._bind(join_address(host, port), tls)
        except RuntimeError as error:
            raise Invalid(f"address {address} cannot be bound; choose another one") from error
        self.address = join_address(host, bound)
        serving = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs are older
        health_pb2_grpc.add_HealthServicer_to_server(serving, self._server)

    def _bind(self, address: str, tls: ServerTlsSettings | None) -> int:
        if tls is None:
            return self._server.add_insecure_port(address)
        certificate, key, authority = tls.read()
        _check(tls)
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=authority, require_client_auth=authority is not None
        )
        return self._server.add_secure_port(address, credentials)

    async def start(self, handlers: "Sequence[grpc.GenericRpcHandler[Any, Any]]") -> None:
        """Serve these handlers."""
        self._server.add_generic_rpc_handlers(tuple(handlers))
        await self._server.start()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Close every connection. Calls under way have `grace_s` seconds to end."""
        await self._server.stop(grace_s)


def _check(tls: ServerTlsSettings) -> None:
    """Raise Invalid when a TLS file is wrong; the gRPC library would only log it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.cert_path, tls.key_path)
    except ssl.SSLError as error:
        raise Invalid(
            f"TLS certificate {tls.cert_path} and key {tls.key_path} do not fit together ({error.reason}); "
            "give a PEM certificate and its key"
        ) from error
    try:
        if tls.ca_path is not None:
            context.load_verify_locations(tls.ca_path)
    except ssl.SSLError as error:
        raise Invalid(
            f"TLS authority {tls.ca_path} holds no certificate ({error.reason}); give a PEM certificate"
        ) from error


def _probe(host: str, port: int) -> None:
    """Raise Invalid with the system's reason when the address cannot be bound; gRPC would not tell it."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(addresses[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(addresses[0][4])
            probe.listen(1)
    except OSError as error:
        raise Invalid(
            f"address {join_address(host, port)} cannot be bound ({error.strerror}); choose another one"
        ) from error


_LOG = logging.getLogger(__name__)


async def end_call(
    context: grpc.aio.ServicerContext[Any, Any], error: BaseException, method: str
) -> NoReturn:
    """End a call with the gRPC status of an error.

    A fault may want the call never to be answered: then it hangs until its caller gives up. An unexpected
    error is logged, and the caller only learns that there was one.
    """
    if isinstance(error, FaultStruck):
        if error.code is None:
            await asyncio.get_running_loop().create_future()
        else:
            await context.abort(error.code, "fault")
    if isinstance(error, ClusterMismatch):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, Unavailable):
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    _LOG.error("call failed", exc_info=error, extra={"method": method})
    await context.abort(grpc.StatusCode.INTERNAL, f"{method} failed; the server's log says why")
    raise AssertionError("abort raises")


_Behaviour = Callable[[AsyncIterator[Any], Any], Awaitable[None]]


class FaultyStreams(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Serves the two-way streams of another handler and applies faults to their requests.

    The handler knows nothing of faults: it never sees a dropped request; a delayed request holds up the
    requests behind it; faults that end a call end the stream. Region errors do not apply to streams.
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
        """Find the method in the inner handler, and wrap it."""
        method: Any = self._inner.service(handler_call_details)
        if method is None:
            return None
        name = str(handler_call_details.method).rpartition("/")[2]

        async def behaviour(requests: AsyncIterator[Any], context: Any) -> None:
            await self._serve(name, method.stream_stream, requests, context)

        return grpc.stream_stream_rpc_method_handler(
            behaviour,
            request_deserializer=method.request_deserializer,
            response_serializer=method.response_serializer,
        )

    async def _serve(
        self, name: str, behaviour: _Behaviour, requests: AsyncIterator[Any], context: Any
    ) -> None:
        struck: asyncio.Future[FaultStruck] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(behaviour(self._filter_requests(name, requests, struck), context))
        try:
            ends: list[asyncio.Future[Any]] = [serving, struck]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait([serving])
        if struck.done():
            await end_call(context, struck.result(), name)
        await serving

    async def _filter_requests(
        self, name: str, requests: AsyncIterator[Any], struck: "asyncio.Future[FaultStruck]"
    ) -> AsyncIterator[Any]:
        async for request in requests:
            fault = self._faults.strike(name, self._store_id) if self._faults.active else None
            try:
                if fault is not None:
                    self._faults.before(fault)
                yield request
                if fault is not None:
                    await self._faults.after(fault)
            except FaultStruck as end:
                if fault is not None and fault.kind == Fault.DROP:
                    continue
                struck.set_result(end)
                return
