"""The captures that are alive, how far each of their tables has come, and who is asked for a table's rows.

Which capture has the newest rows of which table, as the key-value store and the captures say.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pydantic import SecretStr

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Unavailable
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import CaptureProgress, RangeReader, ReadRange, SchemaRange
from penstock.kv import Client
from penstock.settings import TlsSettings
from penstock.tables.keys import prefix_end

_log = logging.getLogger(__name__)

LEASES_S = 2.0
"""How long leases are taken for what they were."""


class CaptureReader(RangeReader, Protocol):
    """Reads from one capture; see FlightReader."""

    def tables(self) -> list[CaptureProgress]:
        """Every table that the capture owns, in one call."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class OwnedRows:
    """A table's rows with the capture that owns it; implements RangeReader. Can be pickled when `reader` can.

    How far the table was is not asked again: what it was can still be read.
    """

    reader: RangeReader
    seen: CaptureProgress

    def progress(self, table_id: int) -> CaptureProgress:
        """See RangeReader."""
        return self.seen if table_id == self.seen.table_id else self.reader.progress(table_id)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """See RangeReader."""
        return self.reader.parts(wanted)

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """See RangeReader."""
        return self.reader.read(wanted)


class Captures:
    """Finds captures by their leases, and asks each of them once for all its tables. Thread-safe; blocks.

    A capture that does not answer is left out until it does: its tables are then nobody's.
    """

    def __init__(
        self,
        leases: Callable[[], Sequence[CaptureLease]],
        connect: Callable[[str], CaptureReader],
        pool: Executor,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._leases = leases
        self._connect = connect
        self._pool = pool
        self._clock = clock
        self._lock = threading.Lock()
        self._readers: dict[str, CaptureReader] = {}
        self._looked_for_at: float | None = None
        self._silent: frozenset[str] = frozenset()
        self._owners: dict[int, OwnedRows] = {}

    def progress(self) -> dict[int, CaptureProgress]:
        """Every table that is captured now, by id. Raises Invalid when a capture refuses the token.

        Raises Unavailable when it is not known what captures there are.
        """
        readers = self._live()
        asked = [(addr, reader, self._pool.submit(reader.tables)) for addr, reader in readers.items()]
        found: dict[int, CaptureProgress] = {}
        owners: dict[int, OwnedRows] = {}
        silent = set()
        for addr, reader, answer in asked:
            try:
                listed = answer.result()
            except Unavailable as error:
                silent.add(addr)
                if addr not in self._silent:
                    _log.warning("a capture does not answer", extra={"capture": addr, "reason": str(error)})
                continue
            for each in listed:
                known = found.get(each.table_id)
                if known is None or known.readable_ts < each.readable_ts:  # two, while a table moves
                    found[each.table_id], owners[each.table_id] = each, OwnedRows(reader, each)
        with self._lock:
            self._owners, self._silent = owners, frozenset(silent)
            if silent:
                self._looked_for_at = None
        return found

    @property
    def all_answer(self) -> bool:
        """Whether there are captures, and all of them answered when they were asked last."""
        with self._lock:
            return bool(self._readers) and not self._silent

    def owner(self, table_id: int) -> RangeReader | None:
        """Who has the newest rows of a table, as far as was seen; None: nobody."""
        with self._lock:
            return self._owners.get(table_id)

    def close(self) -> None:
        """End the connections."""
        for each in self._readers.values():
            each.close()

    def _live(self) -> dict[str, CaptureReader]:
        now = self._clock.monotonic()
        with self._lock:
            if self._looked_for_at is not None and now < self._looked_for_at + LEASES_S:
                return self._readers
        try:
            addrs = [lease.flight_addr for lease in self._leases()]
        except Unavailable:
            if not self._readers:
                raise
            return self._readers  # who was alive may well be
        with self._lock:
            gone = [reader for addr, reader in self._readers.items() if addr not in addrs]
            self._readers = {addr: self._readers.get(addr) or self._connect(addr) for addr in addrs}
            self._looked_for_at = now
        for each in gone:
            each.close()
        return self._readers


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
