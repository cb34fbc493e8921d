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
from penstock.tables.keys import prefix_end

PREFIX = b"penstock/capture/"


@dataclass(frozen=True, slots=True)
class CaptureLease:
    """One capture. `data_id` tells a capture that was restarted from another with the same name."""

    id: str
    data_id: str
    flight_addr: str
    expires_ms: int

    def write(self) -> bytes:
        """The row's value."""
        tree = {"data_id": self.data_id, "flight_addr": self.flight_addr, "expires_ms": self.expires_ms}
        return json.dumps(tree).encode()

    @classmethod
    def read(cls, key: bytes, value: bytes) -> "CaptureLease":
        """A lease from its row."""
        try:
            tree = json.loads(value)
            name = key.removeprefix(PREFIX).decode()
            return cls(name, tree["data_id"], tree["flight_addr"], int(tree["expires_ms"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt("a capture's lease row is damaged; remove it from the store") from error


class CaptureMembership:
    """This capture's lease, and everybody's."""

    def __init__(self, client: AsyncClient, *, capture_id: str, data_id: str, ttl_s: float) -> None:
        self._client = client
        self._id = capture_id
        self._data_id = data_id
        self._ttl_ms = int(ttl_s * 1000)

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
            if mine is not None and mine.data_id != self._data_id and mine.expires_ms > now_ms:
                raise Invalid(
                    f"capture {self._id!r} already runs with other data, at {mine.flight_addr};"
                    " give each capture its own capture.id"
                )
            renewed = CaptureLease(self._id, self._data_id, flight_addr, now_ms + self._ttl_ms)
            await txn.put(key, renewed.write())
        live = {lease.id: lease for lease in rows if lease.expires_ms > now_ms}
        return {**live, self._id: renewed}

    async def give_up(self) -> None:
        """Let the others take the tables at once."""
        async with self._client.begin() as txn:
            await txn.delete(PREFIX + self._id.encode())
