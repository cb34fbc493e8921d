"""The pages of metrics that the parts of a deployment show, read all at once."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException

from penstock.clock import SYSTEM, Clock
from penstock.control.part_states import PartStatus
from penstock.errors import Invalid
from penstock.settings.network import asked_host, parted

__all__ = ["pages"]

_AT_ONCE_MAX = 16
_PAGE_BYTES_MAX = 16 << 20
_CHUNK_BYTES = 1 << 16


def pages(
    parts: Sequence[PartStatus], *, timeout_s: float = 2.0, clock: Clock = SYSTEM
) -> dict[str, str | None]:
    """Each part's metrics in the Prometheus text format, by its name.

    None for a part that shows none, or does not answer in full within about `timeout_s`; never raises.
    """
    shown = {part.name: part.metrics_addr for part in parts if part.metrics_addr is not None}
    found: dict[str, str | None] = {part.name: None for part in parts}
    if not shown:
        return found
    with ThreadPoolExecutor(min(len(shown), _AT_ONCE_MAX), "penstock-pages") as pool:
        read = pool.map(lambda addr: _read(addr, timeout_s, clock), shown.values())
        found.update(zip(shown, read, strict=True))
    return found


def _read(addr: str, timeout_s: float, clock: Clock) -> str | None:
    deadline = clock.monotonic() + timeout_s
    try:
        host, port = parted(addr)
        connection = HTTPConnection(asked_host(host), port, timeout=timeout_s)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
            answer = connection.getresponse()
            if answer.status != 200:
                return None
            page = bytearray()
            while chunk := answer.read(_CHUNK_BYTES):
                page += chunk
                if len(page) > _PAGE_BYTES_MAX or clock.monotonic() > deadline:
                    return None
            return page.decode()
        finally:
            connection.close()
    except (OSError, HTTPException, UnicodeDecodeError, Invalid):
        return None
