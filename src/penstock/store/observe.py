"""The changes that the storage reports once a write is durable, and the observer of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class ChangeKind(IntEnum):
    """How the state of a key changed."""

    PREWRITE = 1  # a put or delete lock was written
    COMMIT = 2  # that lock became a version
    ROLLBACK = 3  # that lock was removed without a version
    COMMITTED = 4  # a version was written with no lock before it (one-phase commit)


class WriteOp(IntEnum):
    """What a transaction does to a key."""

    PUT = 0
    DELETE = 1
    LOCK = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One key's part of a durable write. `commit_ts` is 0 before a commit; `value` may be empty.

    `txn_source` says who wrote it, as the writer's request did; 0: anybody.
    """

    kind: ChangeKind
    key: bytes
    start_ts: int
    commit_ts: int
    op: WriteOp
    value: bytes
    txn_source: int = 0


class ApplyObserver(Protocol):
    """Observes every write of the storage.

    Pessimistic locks and locks without data (`WriteOp.LOCK`) are not reported, nor their end.
    """

    def observe(self, changes: Sequence[Change]) -> None:
        """Take the changes of one command. It is called on the event loop and must not block or raise.

        The changes are durable and visible to new views. The command is not answered yet and still holds the
        latches of its keys, so changes of one key arrive in order.
        """
