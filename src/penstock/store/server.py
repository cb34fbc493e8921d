"""A gRPC server on one address."""

import socket
import ssl
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from penstock.errors import Invalid
from penstock.settings import ServerTlsSettings

__all__ = ["Endpoint", "split_address"]

_MESSAGE_BYTES_MAX = 256 * 1024 * 1024
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the address is a mistake, not a helper
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # clients ping as often as they like
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
]
_WILDCARDS = {"0.0.0.0", "::", "", "*"}  # noqa: S104 - these are refused
_PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Return host and port; raise Invalid for anything but host:port with a host clients can reach."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Invalid(f"address {address!r} is not host:port; write one such as 127.0.0.1:2379")
    if host in _WILDCARDS:
        raise Invalid(
            f"address {address!r} names no host that clients can reach; write the host's own address"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint:
    """Binds an address at once and serves it from `start` to `stop`, with a health service beside."""

    def __init__(self, address: str, *, tls: ServerTlsSettings | None = None) -> None:
        """Port 0 takes any free port. Raise Invalid when the address cannot be bound."""
        host, port = split_address(address)
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
        """Close every connection, after giving calls under way a moment."""
        await self._server.stop(grace_s)


def _check(tls: ServerTlsSettings) -> None:
    """Refuse files that are not what they should be, which the gRPC library only logs."""
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
    """Fail with the system's own words, which the gRPC library keeps to itself."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as error:
        raise Invalid(
            f"address {join_address(host, port)} cannot be bound ({error.strerror}); choose another one"
        ) from error
