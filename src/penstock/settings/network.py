"""What settings of network connections share: certificates, bearer tokens and addresses.

Certificates are files in PEM format. A token is in the settings or in a file. An address is host:port, with
brackets around an IPv6 host.
"""

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr, model_validator

from penstock.errors import Invalid
from penstock.settings.frozen import Frozen

__all__ = [
    "ServerTlsSettings",
    "TlsSettings",
    "accepted_hosts",
    "check_token",
    "host_of",
    "is_everywhere",
    "is_loopback",
    "join_address",
    "reachable_host",
    "read_token",
    "split_address",
]


class TlsSettings(Frozen):
    """PEM files of a client. A certificate and its key let the servers authenticate the client too."""

    ca_path: Path
    """Authority that signs the servers' certificates."""
    cert_path: Path | None = None
    """Certificate that the client shows to the servers."""
    key_path: Path | None = None
    """Key of that certificate."""

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> "TlsSettings":
        if (self.cert_path is None) != (self.key_path is None):
            raise ValueError("cert_path and key_path belong together; set both or neither")
        return self

    def read(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Return authority, certificate and key; raise Invalid when a file cannot be read."""
        certificate = read_pem(self.cert_path) if self.cert_path is not None else None
        key = read_pem(self.key_path) if self.key_path is not None else None
        return read_pem(self.ca_path), certificate, key


def read_pem(path: Path) -> bytes:
    """Return the bytes of a PEM file; raise Invalid when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"TLS file {path} cannot be read ({error.strerror}); check tls.*_path") from error


class ServerTlsSettings(Frozen):
    """PEM files of a server. With an authority, clients must show a certificate that it signed."""

    cert_path: Path
    """Certificate of the server."""
    key_path: Path
    """Key of that certificate."""
    ca_path: Path | None = None
    """Authority that signs client certificates; without it clients need no certificate."""

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Return certificate, key and authority; raise Invalid when a file cannot be read."""
        authority = read_pem(self.ca_path) if self.ca_path is not None else None
        return read_pem(self.cert_path), read_pem(self.key_path), authority


_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")
_BEARER_RULE = "a token has at least 16 characters, of letters, digits and -._~+/="


def check_token(token: SecretStr | None) -> SecretStr | None:
    """Return the token; raise ValueError when it does not fit a header."""
    if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError(_BEARER_RULE)
    return token


def read_token(token: SecretStr | None, path: Path | None, *, key: str) -> SecretStr | None:
    """Return the token, from its file if there is a path; raise Invalid when the file cannot be used.

    `key` is the setting that names the file, for the message.
    """
    if path is None:
        return token
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise Invalid(f"token file {path} cannot be read ({error.strerror}); check {key}") from error
    if not _TOKEN.fullmatch(text):
        raise Invalid(f"token file {path} is refused: {_BEARER_RULE}")
    return SecretStr(text)


_PORT_MAX = 65_535
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Hosts that mean every address of a machine, and the loopback host that reaches such a listener.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on


def split_address(addr: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port; raise Invalid when the text is not host:port."""
    host, _, port = addr.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Invalid(f"address {addr!r} is not host:port; write one such as 127.0.0.1:9100")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_everywhere(host: str) -> bool:
    """Return whether a listener on this host listens on every address of its machine."""
    return host in _EVERYWHERE


def reachable_host(host: str) -> str:
    """Return the host that reaches, from its own machine, a listener on `host`."""
    return _EVERYWHERE.get(host, host)


def accepted_hosts(addr: str, hosts: Iterable[str] = ()) -> frozenset[str]:
    """Return the host names that requests to a listener may use: `hosts`, its own, and loopback's.

    Another name is a sign of DNS rebinding: a page has pointed its own name here, to read what it may not.
    """
    host = split_address(addr)[0]
    own = (host, *_LOOPBACK) if is_loopback(addr) else (host,)
    return frozenset(name.lower() for name in (*hosts, *own))


def host_of(authority: str) -> str:
    """Return the host of a Host header in lower case; empty when the header is malformed."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(addr: str) -> bool:
    """Return whether an address can be reached only from its own machine."""
    host = addr.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
