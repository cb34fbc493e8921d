"""What the storage tells about a write once it is durable."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class ChangeKind(IntEnum):
    """How a key's state moved."""

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
    """One key's part of a durable write; `commit_ts` is 0 and `value` is empty where there is none."""

    kind: ChangeKind
    key: bytes
    start_ts: int
    commit_ts: int
    op: WriteOp
    value: bytes


class ApplyObserver(Protocol):
    """Follows every write of the storage.

    Pessimistic locks and locks without data (`WriteOp.LOCK`) are not told, nor what becomes of them.
    """

    def applied(self, changes: Sequence[Change]) -> None:
        """Take the changes of one command, on the event loop.

        They are durable and visible to new views; the command is not answered yet and the latches of
        its keys are still held, so changes of one key arrive in order. Must not block or raise.
        """
