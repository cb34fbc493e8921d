"""What is shared: by the transactions and snapshots of a client, and by the actions of one transaction.

Reads below the safe point of garbage collection are refused, not answered wrongly. Garbage
collection waits for twice `safe_point_refresh_ms` after its safe point was published, and no reader
trusts a safe point that it read longer ago. So a read that garbage collection may have touched is
checked, after its answer came, against a safe point that is recent enough.
"""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.clock import TS_MAX, Clock
from penstock.errors import Invalid
from penstock.kv.background import Background
from penstock.kv.backoff import Backoffer
from penstock.kv.details import CommitDetails
from penstock.kv.latches import LocalLatches
from penstock.kv.pd import PdClient
from penstock.kv.protocol import CommitState
from penstock.kv.resolver import LockResolver
from penstock.kv.sender import Router
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import KvSettings


class SafePoint:
    """The newest safe point that this client knows of."""

    def __init__(self, pd: PdClient, *, settings: KvSettings, clock: Clock) -> None:
        self._pd = pd
        self._clock = clock
        self._trusted_s = 2 * settings.safe_point_refresh_ms / 1000
        self._ts = 0
        self._asked_at = float("-inf")

    async def check(self, read_ts: int) -> None:
        """Raise Invalid when what was read at `read_ts` may have been collected.

        Call it after the answer came. Asks the placement driver when the known safe point is too old,
        and raises Unavailable when the placement driver does not answer.
        """
        if read_ts == TS_MAX:
            return
        if self._clock.monotonic() - self._asked_at > self._trusted_s:
            await self._refresh()
        if read_ts < self._ts:
            raise Invalid(
                f"timestamp {read_ts} is older than the safe point of garbage collection ({self._ts});"
                " read at a newer one, or hold a service safe point while you read the past"
            )

    async def wait_until_known(self, ts: int) -> None:
        """Record a safe point that this client published; wait until every reader must know it."""
        self._ts = max(self._ts, ts)
        await self._clock.sleep(self._trusted_s)

    async def _refresh(self) -> None:
        asked_at = self._clock.monotonic()
        self._ts = max(self._ts, await self._pd.get_gc_safe_point())
        self._asked_at = max(self._asked_at, asked_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The parts behind a client, made once and passed to all transactions and snapshots."""

    pd: PdClient
    router: Router
    resolver: LockResolver
    safe_point: SafePoint
    background: Background
    latches: LocalLatches | None
    settings: KvSettings
    clock: Clock

    def backoffer(self, budget_ms: int, name: str) -> Backoffer:
        """Return a new budget of retries for one operation."""
        return Backoffer(budget_ms, clock=self.clock, weight=self.settings.backoff_weight, name=name)


WRITE_MS_MAX = 20_000


@dataclass(slots=True)
class TxnScope:
    """The identity and the moving parts of a transaction that talks to the store.

    `primary` is the key whose lock decides for all; it is set before any action runs.
    """

    session: Session
    start_ts: int
    began_at: float
    pessimistic: bool
    primary: bytes | None = None
    for_update_ts: int = 0
    txn_source: int = 0
    on_primary_locked: Callable[[], None] | None = None

    def elapsed_ms(self) -> int:
        """Milliseconds since the transaction began."""
        return int((self.session.clock.monotonic() - self.began_at) * 1000)

    def note_primary_locked(self) -> None:
        """Record that the primary lock is in the store."""
        if self.on_primary_locked is not None:
            self.on_primary_locked()


@dataclass(slots=True)
class CommitScope:
    """What the actions of a commit share besides the transaction's scope."""

    txn: TxnScope
    state: CommitState
    lock_ttl_ms: int
    txn_bytes: int
    details: CommitDetails
    secondaries: tuple[bytes, ...] = ()
    commit_ts: int = 0
    committed: bool = False


def write_context(*, retry: bool = False, txn_source: int = 0) -> kvrpcpb.Context:
    """Return the context of a request that writes; `retry` says that it may have arrived before."""
    return kvrpcpb.Context(
        max_execution_duration_ms=WRITE_MS_MAX, is_retry_request=retry, txn_source=txn_source
    )
