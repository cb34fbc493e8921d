"""A table that a changefeed's source reads: its objects, its newest rows over Flight, and its DDLs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.clock import SYSTEM, Clock, compose_ts
from penstock.eventstore.capture.lease import CaptureLease
from penstock.eventstore.read.flight_client import FlightReader
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.follower import EventStoreAccess, SliceFollower
from penstock.kv.lease import LeaseRecord
from penstock.tables.schema import TableInfo
from support.metaevents import put_database, put_table
from support.rawbatches import raw
from support.servedworld import ServedWorld
from support.tableworld import NAME

__all__ = ["SourceWorld"]


class SourceWorld(ServedWorld):
    """A ServedWorld and sources over it. `addrs` are those of the captures that have leases."""

    def __init__(self, folder: Path, table: TableInfo, **settings: Any) -> None:
        super().__init__(folder, table, **settings)
        self.addrs = [self.flight.addr]
        self.asked: list[str] = []  # what captures were asked to do
        self.meta = [put_database(1, 1, NAME.split(".", maxsplit=1)[0]), put_table(2, table)]

    def alter(self, table: TableInfo) -> int:
        """Give the table another schema; sources that are made after it know."""
        ts = super().alter(table)
        self.meta.append(put_table(ts, table))
        return ts

    def history(self) -> DdlHistory:
        """Return every DDL so far; nobody waits for their jobs."""
        made = DdlHistory(job_wait_ms=0)
        made.consume_kv_events(raw(self.meta), lambda: None)
        made.advance_resolved_ts(self.ts + compose_ts(10**6))
        return made

    @asynccontextmanager
    async def source(self, *, clock: Clock = SYSTEM) -> AsyncIterator[SliceFollower]:
        """Return a source of the changefeed "feed"."""
        made = SliceFollower("feed", self.access(), self.history(), clock=clock)
        try:
            yield made
        finally:
            await made.close()

    def access(self) -> EventStoreAccess:
        """Return how sources reach the event store."""
        return EventStoreAccess(self.storage, self._now, self.leases, self.connect)

    async def _now(self) -> int:
        return self.ts

    def connect(self, addr: str) -> FlightReader:
        """Return a reader of a capture, whose questions are noted in `asked`."""
        return _Counting(addr, self.asked)

    def leases(self) -> Sequence[CaptureLease]:
        """Return the leases of the captures in `addrs`."""
        record = LeaseRecord("data", 1, 0)
        return [CaptureLease(f"capture-{at}", addr, record) for at, addr in enumerate(self.addrs)]


class _Counting(FlightReader):
    """Notes what a capture is asked to do."""

    def __init__(self, addr: str, asked: list[str]) -> None:
        super().__init__(addr)
        self._asked = asked

    def run_action(self, name: str, body: bytes, **rest: Any) -> bytes:
        """Count the action, then run it."""
        self._asked.append(name)
        return super().run_action(name, body, **rest)
