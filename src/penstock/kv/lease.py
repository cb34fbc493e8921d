"""The right to be the one runner of a cluster's jobs, for as long as it is renewed.

Each holder has a greater epoch than all before it. The lease keeps two runners from doing the same work most
of the time; that the elder's writes change nothing is the log's affair, whose rows the newer one adopts.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Conflict, Corrupt, Fenced, Unavailable, Undetermined
from penstock.kv import AsyncClient, AsyncTransaction

T = TypeVar("T")

LEASE_KEY = b"penstock/jobs/lease"
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Who holds the lease, and until when by the database's time; nobody, where the owner is empty."""

    owner: str = ""
    epoch: int = 0
    expires_ms: int = 0

    def write(self) -> bytes:
        """What is kept."""
        return json.dumps({"owner": self.owner, "epoch": self.epoch, "expires_ms": self.expires_ms}).encode()

    @classmethod
    def read(cls, data: bytes | None) -> Self:
        """Read what `write` made; nobody's when there is nothing. Raises Corrupt when it is damaged."""
        if data is None:
            return cls()
        try:
            tree = json.loads(data)
            return cls(str(tree["owner"]), int(tree["epoch"]), int(tree["expires_ms"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                "the lease of the jobs' runner is damaged; delete its key once no runner runs"
            ) from error


class Lease:
    """The lease in the hands of its holder. `owner` is unique to the process, `epoch` to this holding."""

    def __init__(self, client: AsyncClient, owner: str, *, ttl_s: float, clock: Clock = SYSTEM) -> None:
        self.owner = owner
        self.epoch = 0
        self._client = client
        self._ttl_s = ttl_s
        self._clock = clock
        self._until = 0.0

    @classmethod
    async def acquire(
        cls, client: AsyncClient, owner: str, *, ttl_s: float, clock: Clock = SYSTEM
    ) -> "Lease":
        """Become the one runner; raise Unavailable while somebody else is."""
        lease = cls(client, owner, ttl_s=ttl_s, clock=clock)

        async def acquire(txn: AsyncTransaction) -> int:
            found = LeaseRecord.read(await txn.get(LEASE_KEY))
            now_ms = physical_ms(await txn.start_ts)
            if found.owner not in {"", owner} and found.expires_ms > now_ms:
                raise Unavailable(f"jobs are run by {found.owner}; wait until that one stops")
            return await lease._put(txn, found.epoch + 1, now_ms)

        lease.epoch = await lease._timed(acquire)
        return lease

    @property
    def lapsed(self) -> bool:
        """Whether somebody else may be the runner by now: begin nothing until it is renewed."""
        return self._clock.monotonic() >= self._until

    async def renew(self) -> None:
        """Stay the one runner; raise Fenced when somebody else is."""

        async def renew(txn: AsyncTransaction) -> None:
            await self._check(txn)
            await self._put(txn, self.epoch, physical_ms(await txn.start_ts))

        await self._timed(renew)

    async def give_up(self) -> None:
        """Let another process be the runner at once; without effect when one is already."""

        async def give_up(txn: AsyncTransaction) -> None:
            found = LeaseRecord.read(await txn.get(LEASE_KEY))
            if (found.owner, found.epoch) == (self.owner, self.epoch):
                await txn.put(LEASE_KEY, LeaseRecord("", found.epoch, 0).write())

        self._until = 0.0
        await _committed(self._client, give_up)

    async def _check(self, txn: AsyncTransaction) -> None:
        found = LeaseRecord.read(await txn.get(LEASE_KEY))
        if (found.owner, found.epoch) != (self.owner, self.epoch):
            raise Fenced(f"jobs are run by {found.owner or 'nobody'} now; this process stops running them")

    async def _put(self, txn: AsyncTransaction, epoch: int, now_ms: int) -> int:
        await txn.put(LEASE_KEY, LeaseRecord(self.owner, epoch, now_ms + int(self._ttl_s * 1000)).write())
        return epoch

    async def _timed(self, work: Callable[[AsyncTransaction], Awaitable[T]]) -> T:
        """Run a transaction that writes the lease. It counts from before the database was asked the time."""
        asked_at = self._clock.monotonic()
        done = await _committed(self._client, work)
        self._until = asked_at + self._ttl_s
        return done


async def holder(client: AsyncClient) -> LeaseRecord:
    """Who is the runner, as far as is known."""
    async with client.begin() as txn:
        return LeaseRecord.read(await txn.get(LEASE_KEY))


async def _committed(client: AsyncClient, work: Callable[[AsyncTransaction], Awaitable[T]]) -> T:
    """Run a transaction until it commits; all of ours may be repeated."""
    problem: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            async with client.begin() as txn:
                return await work(txn)
        except (Conflict, Undetermined) as error:
            problem = error
    raise Unavailable("the lease of the jobs' runner changes hands all the time; try again") from problem
