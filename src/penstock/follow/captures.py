"""Which captures are alive, which tables each of them owns, and how far those tables are.

Leases in the key-value store say who is alive; the captures themselves say what they own.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pydantic import SecretStr

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Unavailable
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import (
    CaptureCatalog,
    CaptureProgress,
    RangeReader,
    ReadRange,
    Refusal,
    SchemaRange,
    TableView,
)
from penstock.kv import Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings
from penstock.tables.keys import prefix_end

_log = logging.getLogger(__name__)

LEASES_S = 2.0
"""Seconds for which the list of leases is cached."""


class CaptureReader(RangeReader, Protocol):
    """Reads rows and progress from one capture. `FlightReader` does so over Flight."""

    def tables(self) -> list[CaptureProgress]:
        """Return the progress of every table that the capture owns, in one call."""

    def refusals(self) -> list[Refusal]:
        """Return the tables that the capture owns and cannot capture."""

    def catalog(self, patterns: Sequence[str], since_ts: int) -> CaptureCatalog:
        """Return the progress of the tables that match, and those of them that changed after `since_ts`."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True)
class OwnedRows:
    """Reads a table's rows from the capture that owns it; implements RangeReader. Can be pickled if `reader`
    can.

    The progress of the table is the one seen when the owner was found, and costs no call: up to there the
    table can still be read.
    """

    reader: RangeReader
    seen: CaptureProgress

    def progress(self, table_id: int) -> CaptureProgress:
        """Return the progress that was seen with the owner; ask the capture about any other table."""
        return self.seen if table_id == self.seen.table_id else self.reader.progress(table_id)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """Return the parts of a range that have one schema each, as the owner has them."""
        return self.reader.parts(wanted)

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Read a range from the owner; return its schema and its rows."""
        return self.reader.read(wanted)


class Captures:
    """Finds captures by their leases, and asks each of them once for all its tables. Thread-safe; blocks.

    A capture that does not answer is left out until it does: its tables then have no owner.
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
        self._leases_read_at: float | None = None
        self._silent: frozenset[str] = frozenset()
        self._owners: dict[int, OwnedRows] = {}

    def progress(self) -> dict[int, CaptureProgress]:
        """Ask every capture for its tables; return the progress of each table that has an owner, by id.

        Raises Invalid when a capture refuses the token, Unavailable when leases cannot be read.
        """
        readers = self._live_readers()
        asked = [(addr, reader, self._pool.submit(reader.tables)) for addr, reader in readers.items()]
        found: dict[int, CaptureProgress] = {}
        owners: dict[int, OwnedRows] = {}
        silent = set()
        for addr, reader, answer in asked:
            try:
                tables = answer.result()
            except Unavailable as error:
                silent.add(addr)
                if addr not in self._silent:
                    _log.warning("a capture does not answer", extra={"capture": addr, "reason": str(error)})
                continue
            for table in tables:
                known = found.get(table.table_id)
                # A table that moves has two owners for a while: the one that is further is the new one.
                if known is None or known.readable_ts < table.readable_ts:
                    found[table.table_id], owners[table.table_id] = table, OwnedRows(reader, table)
        with self._lock:
            self._owners, self._silent = owners, frozenset(silent)
            if silent:
                self._leases_read_at = None  # a capture that is gone has no lease soon
        return found

    def readers(self) -> list[CaptureReader]:
        """Return the captures that are alive, in the order of their names; each stays the same while it is.

        Raises Unavailable when leases cannot be read.
        """
        return list(self._live_readers().values())

    def refusals(self) -> dict[int, Refusal]:
        """Ask every capture for the tables that it owns and cannot capture; return them by id.

        A capture that does not answer is left out. Call it after `progress`: a table with an owner is
        captured, whatever another capture says of it.
        """
        readers = self._live_readers()
        asked = [self._pool.submit(reader.refusals) for reader in readers.values()]
        found: dict[int, Refusal] = {}
        for answer in asked:
            with suppress(Unavailable):  # `progress` logs it
                found |= {refusal.table_id: refusal for refusal in answer.result()}
        with self._lock:
            return {table_id: refusal for table_id, refusal in found.items() if table_id not in self._owners}

    @property
    def all_answer(self) -> bool:
        """Whether there are captures, and all of them answered the last call of `progress`."""
        with self._lock:
            return bool(self._readers) and not self._silent

    def owner(self, table_id: int) -> RangeReader | None:
        """Return a reader of the table's owner as of the last call of `progress`; None when it had none."""
        with self._lock:
            return self._owners.get(table_id)

    def close(self) -> None:
        """Close the connections."""
        for reader in self._readers.values():
            reader.close()

    def _live_readers(self) -> dict[str, CaptureReader]:
        now = self._clock.monotonic()
        with self._lock:
            if self._leases_read_at is not None and now < self._leases_read_at + LEASES_S:
                return self._readers
        try:
            addrs = [lease.flight_addr for lease in self._leases()]
        except Unavailable:
            if not self._readers:
                raise
            return self._readers  # captures that were alive may well answer still
        with self._lock:
            gone = [reader for addr, reader in self._readers.items() if addr not in addrs]
            self._readers = {addr: self._readers.get(addr) or self._connect(addr) for addr in addrs}
            self._leases_read_at = now
        for reader in gone:
            reader.close()
        return self._readers


def live_captures(client: Client) -> list[CaptureLease]:
    """Return the leases that have not expired, by the capture's name.

    Raises Unavailable when the cluster does not answer.
    """
    now = client.timestamp()
    rows = client.snapshot(now).iter(PREFIX, prefix_end(PREFIX))
    leases = [CaptureLease.read(key, value) for key, value in rows]
    return sorted(
        (lease for lease in leases if lease.record.is_held(physical_ms(now))), key=lambda lease: lease.id
    )


def find_owners(
    client: Client, *, tls: TlsSettings | None = None, token: SecretStr | None = None
) -> dict[int, FlightReader]:
    """Return a reader of the owner for every table that is captured now, by id.

    A capture that does not answer is left out: its tables can be read as far as their objects go.
    Raises Invalid when a capture refuses the token, Unavailable when the cluster does not answer.
    """
    found: dict[int, FlightReader] = {}
    for lease in live_captures(client):
        reader = FlightReader(lease.flight_addr, tls=tls, token=token)
        try:
            found |= {table.table_id: reader for table in reader.tables()}
        except Unavailable as error:
            _log.warning("a capture does not answer", extra={"capture": lease.id, "reason": str(error)})
    return found


def open_table(settings: Settings, name: str, *, at_ts: int | None = None) -> TableView:
    """Open the table that is called `database.table` at `at_ts`, or now, for `collect_changes`.

    Its objects are read from storage, and changes that are not in objects yet from the capture that has them.
    A view shows no table, partition or owner that came later: open another one for another read. Raises
    Invalid when there is no such table, or a capture refuses the Flight token, and Unavailable when storage
    or the cluster does not answer.
    """
    owners = find_owners(
        ClusterRef.of(settings).client(),
        tls=settings.capture.flight_client_tls,
        token=settings.capture.read_flight_token(),
    )
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    return find_table(storage, name, at_ts=at_ts, rows=owners.get)
