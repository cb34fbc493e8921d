"""A lease: the right of one process to do some work, for as long as the process renews it.

The lease is a row of the key-value store. Each holder has a greater epoch than all before it, and time is
the cluster's. The expiry keeps two processes from doing the same work most of the time. Safety comes from
`Lease.write`, which renews the row in the transaction of the write: a process that lost the lease, however
late it wakes up, meets a conflict on that row, reads the newer epoch and is fenced. It changes nothing.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Corrupt, Fenced, Unavailable
from penstock.kv.client import AsyncClient
from penstock.kv.transact import transact_async
from penstock.kv.transaction import AsyncTransaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The row of a lease: who has it, or nobody when `owner` is empty; and until when, by the cluster's time.

    `epoch` never decreases, also when the lease is given up.
    """

    owner: str = ""
    epoch: int = 0
    expires_ms: int = 0

    def is_held(self, now_ms: int) -> bool:
        """Return whether somebody has the lease at a time of the cluster."""
        return bool(self.owner) and self.expires_ms > now_ms

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of the row's JSON."""
        return {"owner": self.owner, "epoch": self.epoch, "expires_ms": self.expires_ms}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_fields` made; raise KeyError, TypeError or ValueError when it is damaged."""
        return cls(str(fields["owner"]), int(fields["epoch"]), int(fields["expires_ms"]))


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """Which lease: the key of its row, the work that it is for, and how to repair a damaged row."""

    key: bytes
    work: str
    repair: str

    def decode(self, value: bytes | None) -> LeaseRecord:
        """Return the record of a row's value, an empty one for None; raise Corrupt when it is damaged."""
        if value is None:
            return LeaseRecord()
        try:
            return LeaseRecord.from_fields(json.loads(value))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"the lease of {self.work} is damaged; {self.repair}") from error

    async def read(self, txn: AsyncTransaction) -> LeaseRecord:
        """Return the record as a transaction sees it."""
        return self.decode(await txn.get(self.key))

    async def write(self, txn: AsyncTransaction, record: LeaseRecord) -> None:
        """Write the record in a transaction."""
        await txn.put(self.key, json.dumps(record.to_fields()).encode())


class Lease:
    """A lease that this process has acquired. `owner` is unique to the process, `epoch` to this holding."""

    def __init__(
        self,
        client: AsyncClient,
        key: LeaseKey,
        owner: str,
        epoch: int,
        *,
        ttl_s: float,
        valid_until: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Hold a lease that `acquire` took; `valid_until` is a time of the clock's `monotonic`."""
        self.owner = owner
        self.epoch = epoch
        self._client = client
        self._key = key
        self._ttl_s = ttl_s
        self._valid_until = valid_until
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()  # every write puts the row: two of ours would conflict

    @classmethod
    async def acquire(
        cls,
        client: AsyncClient,
        key: LeaseKey,
        owner: str,
        *,
        ttl_s: float,
        check: Callable[[AsyncTransaction], Awaitable[object]] | None = None,
        clock: Clock = SYSTEM,
    ) -> "Lease":
        """Take the lease; raise Unavailable while another owner has it.

        `check` runs first in the same transaction; what it raises is raised, and nothing is taken. An owner
        that has the lease already gets a new epoch, which fences its former holding.
        """

        async def take(txn: AsyncTransaction) -> int:
            if check is not None:
                await check(txn)
            record = await key.read(txn)
            now_ms = physical_ms(await txn.start_ts)
            if record.owner != owner and record.is_held(now_ms):
                raise Unavailable(
                    f"the lease of {key.work} is held by {record.owner}; wait until that process stops"
                )
            await key.write(txn, LeaseRecord(owner, record.epoch + 1, _expiry_ms(now_ms, ttl_s)))
            return record.epoch + 1

        asked_at = clock.monotonic()
        epoch = await transact_async(client.begin, take, repeatable=True, clock=clock)
        return cls(client, key, owner, epoch, ttl_s=ttl_s, valid_until=asked_at + ttl_s, clock=clock)

    @property
    def lapsed(self) -> bool:
        """Whether another process may have the lease by now: begin nothing until it is renewed."""
        return self._clock.monotonic() >= self._valid_until

    async def check(self, txn: AsyncTransaction) -> None:
        """Raise Fenced when this process does not have the lease in what a transaction reads."""
        record = await self._key.read(txn)
        if not self._is_mine(record):
            holder = record.owner or "nobody because it was removed or given up"
            raise Fenced(f"the lease of {self._key.work} is held by {holder}; this process stops")

    async def write(self, change: Callable[[AsyncTransaction], Awaitable[T]]) -> T:
        """Do `change` in a transaction that also renews the lease; return its result.

        Raises Fenced, with nothing changed, when another process has the lease at the commit. `change` runs
        again after a conflict and after a commit whose outcome is unknown: it must bear that.
        """

        async def renew_and_change(txn: AsyncTransaction) -> T:
            await self.check(txn)
            expires_ms = _expiry_ms(physical_ms(await txn.start_ts), self._ttl_s)
            await self._key.write(txn, LeaseRecord(self.owner, self.epoch, expires_ms))
            return await change(txn)

        async with self._one_at_a_time:
            # From before the cluster was asked the time: the lease lapses here before it expires there.
            asked_at = self._clock.monotonic()
            result = await transact_async(
                self._client.begin, renew_and_change, repeatable=True, clock=self._clock
            )
            self._valid_until = asked_at + self._ttl_s
            return result

    async def renew(self) -> None:
        """Keep the lease for another `ttl_s`; raise Fenced when another process has it."""
        await self.write(_change_nothing)

    async def give_up(self) -> None:
        """Let another process have the lease at once; does nothing when one has it already."""

        async def release(txn: AsyncTransaction) -> None:
            record = await self._key.read(txn)
            if self._is_mine(record):
                await self._key.write(txn, LeaseRecord("", record.epoch, 0))

        async with self._one_at_a_time:
            self._valid_until = 0.0
            await transact_async(self._client.begin, release, repeatable=True, clock=self._clock)

    def _is_mine(self, record: LeaseRecord) -> bool:
        return (record.owner, record.epoch) == (self.owner, self.epoch)


async def read_lease(client: AsyncClient, key: LeaseKey) -> LeaseRecord:
    """Return who has a lease now, and until when."""
    async with client.begin() as txn:
        return await key.read(txn)


def _expiry_ms(now_ms: int, ttl_s: float) -> int:
    return now_ms + int(ttl_s * 1000)


async def _change_nothing(_txn: AsyncTransaction) -> None:
    """Write nothing beside the lease."""
