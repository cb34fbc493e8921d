"""Which locks a read may pass by."""

from dataclasses import dataclass

from penstock.clock import TS_MAX
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.mvcc import failures
from penstock.store.mvcc.failures import KeyRefused, Reason
from penstock.store.mvcc.records import LockRecord, Write


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """The timestamp and the manner of a read.

    `passed` are transactions known to commit later than `ts`, or never; `committed` are transactions
    known to be committed at or before `ts` whose locks linger: their locks are read like versions.
    """

    ts: int
    isolation: kvrpcpb.IsolationLevel = kvrpcpb.SI
    passed: frozenset[int] = frozenset()
    committed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, ts: int, context: kvrpcpb.Context) -> "ReadPoint":
        """Take the manner of a read from its context."""
        return cls(
            ts,
            context.isolation_level,
            frozenset(context.resolved_locks),
            frozenset(context.committed_locks),
        )

    @property
    def checks_locks(self) -> bool:
        """Whether locks matter at all."""
        return bool(self.isolation != kvrpcpb.RC)

    @property
    def checks_newer(self) -> bool:
        """Whether a version newer than `ts` fails the read."""
        return bool(self.isolation == kvrpcpb.RCCheckTS)

    def obstacle(self, key: bytes, lock: LockRecord) -> KeyRefused | None:
        """Return why this lock stops the read, or None when the read passes it by."""
        if not lock.has_data or lock.start_ts in self.passed:
            return None
        if self.isolation == kvrpcpb.RCCheckTS:
            return failures.write_conflict(
                key,
                start_ts=self.ts,
                primary=lock.primary,
                conflict_ts=lock.start_ts,
                commit_ts=0,
                reason=Reason.RcCheckTs,
            )
        if lock.start_ts > self.ts or lock.min_commit_ts > self.ts:
            return None
        if self.ts == TS_MAX and key == lock.primary and not lock.use_async_commit:
            return None  # the newest committed version was asked for, and this one is not committed yet
        return failures.locked(key, lock)

    def reads_through(self, lock: LockRecord) -> bool:
        """Tell whether a lock in the way is read like a version, being known as committed."""
        return lock.start_ts in self.committed

    def newer(self, key: bytes, commit_ts: int, write: Write) -> KeyRefused:
        """Return the refusal for a version newer than the read, where that is checked."""
        return failures.write_conflict(
            key,
            start_ts=self.ts,
            primary=b"",
            conflict_ts=write.start_ts,
            commit_ts=commit_ts,
            reason=Reason.RcCheckTs,
        )
