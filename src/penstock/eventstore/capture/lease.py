"""Captures that are alive, as rows in the key-value store: each renews its own until it stops.

A lease decides who should own a table. Who may write one is decided by the epoch in its manifest: a capture
whose lease ran out while it slept is fenced there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.clock import physical_ms
from penstock.errors import Corrupt, Invalid
from penstock.kv import AsyncClient
from penstock.kv.lease import LeaseRecord
from penstock.tables.keys import prefix_end

PREFIX = b"penstock/capture/"


@dataclass(frozen=True, slots=True)
class CaptureLease:
    """The lease of one capture on its name, and where others reach it.

    The owner in the record is the id of the capture's data: it tells a capture that was restarted from
    another with the same name. The record's epoch fences nothing; it starts again once the row is deleted.
    """

    id: str
    flight_addr: str
    record: LeaseRecord

    def write(self) -> bytes:
        """Return the row's value; release 0.1.0 reads it too, by the key `data_id`."""
        more = {"data_id": self.record.owner, "flight_addr": self.flight_addr}
        return json.dumps({**self.record.to_fields(), **more}).encode()

    @classmethod
    def read(cls, key: bytes, value: bytes) -> "CaptureLease":
        """Read a lease from its row; raise Corrupt when the row is damaged."""
        try:
            tree = json.loads(value)
            if "owner" not in tree:  # a row of release 0.1.0
                tree = {**tree, "owner": tree["data_id"], "epoch": 0}
            name = key.removeprefix(PREFIX).decode()
            return cls(name, str(tree["flight_addr"]), LeaseRecord.from_fields(tree))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt("a capture's lease row is damaged; remove it from the store") from error


class CaptureMembership:
    """This capture's lease, and everybody's."""

    def __init__(self, client: AsyncClient, *, capture_id: str, data_id: str, ttl_s: float) -> None:
        self._client = client
        self._id = capture_id
        self._data_id = data_id
        self._ttl_ms = int(ttl_s * 1000)
        self._epoch = 0

    async def renew(self, flight_addr: str) -> Mapping[str, CaptureLease]:
        """Extend the lease by its ttl and return every live one, by name.

        Time is the cluster's. Raises Invalid when a live capture elsewhere has the same name.
        """
        key = PREFIX + self._id.encode()
        async with self._client.begin() as txn:
            now_ms = physical_ms(await txn.start_ts)
            rows = [
                CaptureLease.read(found, value) async for found, value in txn.scan(PREFIX, prefix_end(PREFIX))
            ]
            mine = next((lease for lease in rows if lease.id == self._id), None)
            record = LeaseRecord() if mine is None else mine.record
            if mine is not None and record.owner != self._data_id and record.is_held(now_ms):
                raise Invalid(
                    f"capture {self._id!r} already runs with other data, at {mine.flight_addr};"
                    " give each capture its own capture.id"
                )
            goes_on = (record.owner, record.epoch) == (self._data_id, self._epoch)
            epoch = record.epoch if goes_on else record.epoch + 1
            held = LeaseRecord(self._data_id, epoch, now_ms + self._ttl_ms)
            renewed = CaptureLease(self._id, flight_addr, held)
            await txn.put(key, renewed.write())
        self._epoch = epoch
        live = {lease.id: lease for lease in rows if lease.record.is_held(now_ms)}
        return {**live, self._id: renewed}

    async def give_up(self) -> None:
        """Let the others take the tables at once."""
        async with self._client.begin() as txn:
            await txn.delete(PREFIX + self._id.encode())
