"""Certificates and keys, by their paths."""

from pathlib import Path

from pydantic import model_validator

from penstock.errors import Invalid
from penstock.settings.frozen import Frozen


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
