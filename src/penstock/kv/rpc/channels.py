"""gRPC channels: options and credentials."""

from pathlib import Path

import grpc

from penstock.errors import Invalid
from penstock.settings import KvSettings, TlsSettings

_WINDOW_BYTES = 128 * 1024 * 1024
_RECONNECT_FIRST_MS = 100
_RECONNECT_MAX_MS = 3_000


def options(settings: KvSettings) -> list[tuple[str, int]]:
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
        self._options = options(settings)

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
