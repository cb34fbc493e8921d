"""How a transaction commits: which protocol it may use, and what a prewrite's answers make of it.

Two-phase commit always works. Async commit and one-phase commit save a round trip each, under
conditions; when the store cannot grant them it says so and the transaction falls back to two phases.
A layer above may take part in a commit by two hooks: a schema check and a binlog.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock.clock import compose_ts, physical_ms
from penstock.errors import Aborted
from penstock.settings import KvSettings

TXN_AGE_MAX_MS = 24 * 3600 * 1000
_COMMIT_TS_JUMP_MAX = compose_ts(3600 * 1000)


class Mode(Enum):
    """The commit protocol in use."""

    TWO_PHASE = "2pc"
    ASYNC = "async-commit"
    ONE_PHASE = "1pc"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """What the user of a transaction asked of its commit."""

    async_commit: bool = True
    one_pc: bool = True
    causal_consistency: bool = False
    exact_schema: bool = False  # the schema hook must have seen every change up to the commit timestamp


CHECKS_ONLY = CommitOptions(async_commit=False, one_pc=False)
"""For mutations that leave no lock: there is nothing that a prewrite could commit."""


@dataclass(slots=True)
class CommitState:
    """The protocol of one commit while it runs.

    `try_async` and `try_one_pc` only ever go from true to false. `min_commit_ts` only grows and is
    below every commit timestamp that the transaction may get.
    """

    start_ts: int
    try_async: bool = False
    try_one_pc: bool = False
    min_commit_ts: int = 0
    max_commit_ts: int = 0
    one_pc_commit_ts: int = 0
    fell_back: Mode | None = None  # the protocol that was tried and refused

    @classmethod
    def plan(
        cls,
        start_ts: int,
        options: CommitOptions,
        settings: KvSettings,
        *,
        keys: int,
        key_bytes: int,
        has_binlog: bool,
    ) -> "CommitState":
        """Decide what to try: one-phase is settled later, by the number of batches."""
        small = keys <= settings.async_commit_keys_max and key_bytes <= settings.async_commit_key_bytes_max
        return cls(
            start_ts,
            try_async=options.async_commit and small and not has_binlog,
            try_one_pc=options.one_pc and not has_binlog,
        )

    @property
    def mode(self) -> Mode:
        """The protocol that the transaction is committed by, as far as is known."""
        if self.try_one_pc:
            return Mode.ONE_PHASE
        return Mode.ASYNC if self.try_async else Mode.TWO_PHASE

    @property
    def decided_by_prewrite(self) -> bool:
        """Whether a prewrite without an answer leaves the outcome unknown."""
        return self.try_async or self.try_one_pc

    def bound_commit_ts(self, *, elapsed_ms: int, safe_window_ms: int) -> int:
        """Set the latest commit timestamp for which a schema check made now holds; return the time."""
        now_ts = self.start_ts + compose_ts(elapsed_ms)
        self.max_commit_ts = now_ts + compose_ts(safe_window_ms)
        return max(now_ts, self.min_commit_ts)

    def pin_commit_ts(self, ts: int) -> None:
        """Let a prewrite commit at `ts` and at no other time; the store asks for two phases otherwise."""
        self.min_commit_ts = self.max_commit_ts = ts

    def raise_min_commit_ts(self, ts: int) -> None:
        """Commit at `ts` or later."""
        self.min_commit_ts = max(self.min_commit_ts, ts)

    def fall_back(self) -> None:
        """Continue in two phases, because a faster protocol was refused."""
        if self.decided_by_prewrite:
            self.fell_back = self.mode
        self.try_async = self.try_one_pc = False

    def note_batch_count(self, batches: int) -> None:
        """Record the number of requests of the prewrite: one-phase commit needs exactly one."""
        if batches > 1:
            self.try_one_pc = False

    def take_answer(self, *, min_commit_ts: int, one_pc_commit_ts: int) -> None:
        """Record the answer of one prewrite; fall back to two phases when the store did not grant more."""
        if self.try_one_pc:
            if one_pc_commit_ts:
                self.one_pc_commit_ts = one_pc_commit_ts
                self.raise_min_commit_ts(one_pc_commit_ts)
                return
            self.fall_back()
            return
        if not self.try_async:
            return
        if min_commit_ts:
            self.raise_min_commit_ts(min_commit_ts)
        else:
            self.fall_back()

    def request_min_commit_ts(self, for_update_ts: int) -> int:
        """Return the bound to send with a prewrite."""
        return max(self.min_commit_ts, for_update_ts + 1, self.start_ts + 1)


def check_age(start_ts: int, now_ts: int) -> None:
    """Raise Aborted for a transaction too old to commit."""
    age_ms = physical_ms(now_ts) - physical_ms(start_ts)
    if age_ms > TXN_AGE_MAX_MS:
        raise Aborted(
            f"transaction {start_ts} began {age_ms // 3_600_000} hours ago and is too old to commit;"
            " run it again in a shorter time"
        )


def check_commit_ts(start_ts: int, commit_ts: int) -> None:
    """Raise Aborted when the placement driver's time did not move forward."""
    if commit_ts <= start_ts:
        raise Aborted(
            f"commit timestamp {commit_ts} is not after start timestamp {start_ts};"
            " check the placement driver's clock, then run the transaction again"
        )


def check_commit_ts_expired(attempted_ts: int, min_commit_ts: int) -> None:
    """Raise Aborted when a reader pushed the commit further ahead than any clock can explain."""
    if min_commit_ts - attempted_ts > _COMMIT_TS_JUMP_MAX:
        raise Aborted(
            f"commit timestamp {attempted_ts} lies more than an hour below what the store asks for"
            f" ({min_commit_ts}); run the transaction again"
        )


Write = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""


class SchemaHook(Protocol):
    """Guards a transaction against schema changes made while it ran.

    Called on the event loop. An error that it raises ends the commit and rolls the transaction back.
    """

    async def check(self, since_ts: int, until_ts: int) -> bool:
        """Return whether the schema in force at `since_ts` still is at `until_ts`."""

    async def amend(self, since_ts: int, until_ts: int, writes: Sequence[Write]) -> Sequence[Write] | None:
        """Return what must be written besides `writes` to obey the newer schema, or None when nothing can.

        Asked of pessimistic transactions only, whose reads are protected by locks. The keys
        returned are new to the transaction.
        """


class BinlogHook(Protocol):
    """Records transactions in a log beside the store. Called on the event loop.

    A transaction with a binlog commits in two phases. `prewrite` runs beside the store's prewrite
    and must be durable before it returns: only then the transaction commits. `commit` or `skip`
    follows once the outcome is known; neither does when it stays unknown.
    """

    async def prewrite(self, start_ts: int, primary: bytes, writes: Sequence[Write]) -> None:
        """Record what is about to be committed; an error ends the commit and rolls back."""

    async def commit(self, start_ts: int, commit_ts: int) -> None:
        """Record that the transaction is committed; it is, whatever this raises."""

    async def skip(self, start_ts: int) -> None:
        """Record that the transaction is rolled back."""
