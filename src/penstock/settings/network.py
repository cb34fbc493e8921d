"""Certificates and keys, by their paths.

Bearer tokens: from the settings, or from a file.

Addresses as people write them: host:port, with an IPv6 host in brackets.
"""

import ipaddress
import re
from pathlib import Path

from pydantic import SecretStr, model_validator

from penstock.errors import Invalid
from penstock.settings.frozen import Frozen

__all__ = [
    "ServerTlsSettings",
    "TlsSettings",
    "asked_host",
    "check_token",
    "is_everywhere",
    "is_loopback",
    "joined",
    "parted",
    "read_token",
]


class TlsSettings(Frozen):
    """Paths of PEM files; with a certificate and key the peer can check us as well."""

    ca_path: Path
    """Authority that the servers' certificates must come from."""
    cert_path: Path | None = None
    """Certificate to show to the servers."""
    key_path: Path | None = None
    """Key of that certificate."""

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> "TlsSettings":
        if (self.cert_path is None) != (self.key_path is None):
            raise ValueError("cert_path and key_path are given together or not at all")
        return self

    def read(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Return authority, certificate and key; raise Invalid when a file cannot be read."""
        certificate = read_pem(self.cert_path) if self.cert_path is not None else None
        key = read_pem(self.key_path) if self.key_path is not None else None
        return read_pem(self.ca_path), certificate, key


def read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"TLS file {path} cannot be read ({error.strerror}); check tls.*_path") from error


class ServerTlsSettings(Frozen):
    """Paths of PEM files of a server; with an authority, clients must show a certificate it signed."""

    cert_path: Path
    """Certificate of the server."""
    key_path: Path
    """Key of that certificate."""
    ca_path: Path | None = None
    """Authority that client certificates must come from; without it none are asked for."""

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Return certificate, key and authority; raise Invalid when a file cannot be read."""
        authority = read_pem(self.ca_path) if self.ca_path is not None else None
        return read_pem(self.cert_path), read_pem(self.key_path), authority


_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")
_BAD_BEARER = "a token has at least 16 characters, of letters, digits and -._~+/="


def check_token(token: SecretStr | None) -> SecretStr | None:
    """Return a token that fits a header; raise ValueError for another."""
    if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError(_BAD_BEARER)
    return token


def read_token(token: SecretStr | None, path: Path | None, *, key: str) -> SecretStr | None:
    """Return the token of either source; raise Invalid when its file, which `key` names, cannot be used."""
    if path is None:
        return token
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise Invalid(f"token file {path} cannot be read ({error.strerror}); check {key}") from error
    if not _TOKEN.fullmatch(text):
        raise Invalid(f"token file {path} is refused: {_BAD_BEARER}")
    return SecretStr(text)


_PORT_MAX = 65_535
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on


def parted(addr: str) -> tuple[str, int]:
    """Host, without brackets, and port; raise Invalid for what is not host:port."""
    host, _, port = addr.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Invalid(f"address {addr!r} is not host:port; write one such as 127.0.0.1:9100")
    return host, int(port)


def joined(host: str, port: int) -> str:
    """The address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_everywhere(host: str) -> bool:
    """Whether who listens on a host does so on every address of its machine."""
    return host in _EVERYWHERE


def asked_host(host: str) -> str:
    """Where to ask, on its own machine, somebody who listens on a host."""
    return _EVERYWHERE.get(host, host)


def is_loopback(addr: str) -> bool:
    """Whether an address can be reached from its own machine only."""
    host = addr.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
