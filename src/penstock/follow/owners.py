"""Which capture has the newest rows of which table, as the key-value store and the captures say."""

import logging

from pydantic import SecretStr

from penstock.clock import physical_ms
from penstock.errors import Unavailable
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.eventstore.read.flight_client import FlightReader
from penstock.kv import Client
from penstock.settings import TlsSettings
from penstock.tables.keys import prefix_end

_log = logging.getLogger(__name__)


def live_captures(client: Client) -> list[CaptureLease]:
    """The captures whose leases run, by name; raise Unavailable when the cluster does not answer."""
    now = client.timestamp()
    rows = client.snapshot(now).iter(PREFIX, prefix_end(PREFIX))
    leases = [CaptureLease.read(key, value) for key, value in rows]
    return sorted(
        (lease for lease in leases if lease.expires_ms > physical_ms(now)), key=lambda each: each.id
    )


def find_owners(
    client: Client, *, tls: TlsSettings | None = None, token: SecretStr | None = None
) -> dict[int, FlightReader]:
    """A reader of the capture that owns it, for every table that is captured now.

    A capture that does not answer is left out: its tables can then be read as far as their objects go.
    Raises Invalid when a capture refuses the token, Unavailable when the cluster does not answer.
    """
    found: dict[int, FlightReader] = {}
    for lease in live_captures(client):
        reader = FlightReader(lease.flight_addr, tls=tls, token=token)
        try:
            found |= {each.table_id: reader for each in reader.tables()}
        except Unavailable as error:
            _log.warning("a capture does not answer", extra={"capture": lease.id, "reason": str(error)})
    return found
