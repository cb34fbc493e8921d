"""Who may use a Flight service, and how a caller knows the service: TLS and a bearer token."""

import hmac
from dataclasses import dataclass, field
from typing import Any

from pyarrow import flight
from pydantic import SecretStr

from penstock.errors import Invalid
from penstock.settings import CaptureSettings
from penstock.settings.network import is_loopback

HEADER = "authorization"


def bearer(token: SecretStr) -> bytes:
    """The value of the header that carries a token."""
    return b"Bearer " + token.get_secret_value().encode("ascii")


@dataclass(frozen=True, slots=True)
class FlightAccess:
    """What a service shows to its callers and asks of them. The default asks for nothing."""

    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)  # with its key
    authority: bytes | None = None  # callers must show a certificate that it signed
    token: SecretStr | None = None  # every call must carry it

    @classmethod
    def of(cls, settings: CaptureSettings) -> "FlightAccess":
        """Read what the settings name; raise Invalid when a file cannot be used.

        An address that other machines reach must be protected: without TLS and a token it is refused.
        """
        token = settings.read_flight_token()
        if not (settings.flight_tls and token) and not is_loopback(settings.flight_addr):
            raise Invalid(
                f"capture.flight_addr = {settings.flight_addr!r} can be reached by other machines; give"
                " capture.flight_tls and capture.flight_token (or flight_token_path), or listen on 127.0.0.1"
            )
        if settings.flight_tls is None:
            return cls(token=token)
        certificate, key, authority = settings.flight_tls.read()
        return cls((certificate, key), authority, token)

    @property
    def scheme(self) -> str:
        """How an address of the service begins."""
        return "grpc+tls" if self.certificate else "grpc"

    def server_options(self) -> dict[str, Any]:
        """Arguments for Flight's server."""
        options: dict[str, Any] = {}
        if self.certificate is not None:
            options["tls_certificates"] = [self.certificate]
        if self.authority is not None:
            options |= {"verify_client": True, "root_certificates": self.authority}
        if self.token is not None:
            options["middleware"] = {"token": TokenCheck(self.token)}
        return options


OPEN = FlightAccess()


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow ships no types
    """Refuses every call, of whatever method, that does not carry the token. Takes constant time."""

    def __init__(self, token: SecretStr) -> None:
        super().__init__()
        self._expected = bearer(token)

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> None:
        """Called by Flight before the call itself."""
        given = [value for name, values in headers.items() if name.lower() == HEADER for value in values]
        if not given:
            raise flight.FlightUnauthenticatedError("this service needs a token; send authorization: Bearer")
        shown = given[0].encode() if isinstance(given[0], str) else given[0]
        if len(given) > 1 or not hmac.compare_digest(shown, self._expected):
            raise flight.FlightUnauthenticatedError("the token is not the one of this service; check it")
