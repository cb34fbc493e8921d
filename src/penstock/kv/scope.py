"""What the actions of one transaction know of it."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.kv.details import CommitDetails
from penstock.kv.protocol import CommitState
from penstock.kv.session import Session
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

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
    on_primary_locked: Callable[[], None] | None = None

    def elapsed_ms(self) -> int:
        """Milliseconds since the transaction began."""
        return int((self.session.clock.monotonic() - self.began_at) * 1000)

    def primary_locked(self) -> None:
        """Tell that the primary lock is in the store."""
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


def write_context(*, retry: bool = False) -> kvrpcpb.Context:
    """Return the context of a request that writes; `retry` says that it may have arrived before."""
    return kvrpcpb.Context(max_execution_duration_ms=WRITE_MS_MAX, is_retry_request=retry)
