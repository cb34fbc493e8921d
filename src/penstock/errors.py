"""Errors, split by what the caller does next.

* PenstockError
  - Conflict         run the transaction again
    - WriteConflict  another transaction committed the key first
    - Deadlock       this transaction was chosen to break a cycle of waits
    - LockTimeout    a lock was not given up in time, or at once where waiting was declined
    - Aborted        the transaction was rolled back, or its locks expired
  - Unavailable      wait, then repeat the same call
  - Undetermined     read the outcome before repeating the call
  - Fenced           stop; a newer owner holds this work
  - Invalid          fix the argument, the option or the settings
    - KeyExists      an insert met a row that is already there
    - AssertionFailed  the caller asserted that a key exists, or does not, and was wrong
    - Denied         the credentials are refused; replace them (storage may also accept them again later)
    - NotFound       nothing has that name
    - AlreadyExists  the name is taken
  - StaleRead        read a snapshot and continue from it: older history is gone
  - Corrupt          stop; keep the objects for inspection
"""

from functools import partial
from typing import Any

__all__ = [
    "Aborted",
    "AlreadyExists",
    "AssertionFailed",
    "Conflict",
    "Corrupt",
    "Deadlock",
    "Denied",
    "Fenced",
    "Invalid",
    "KeyExists",
    "LockTimeout",
    "NotFound",
    "PenstockError",
    "StaleRead",
    "Unavailable",
    "Undetermined",
    "WriteConflict",
    "show_key",
]

_SHOWN_KEY_BYTES = 11  # 't' + table id + '_r': which table, never which row


def show_key(key: bytes) -> str:
    """Name a key in a message without showing a row's values."""
    head = key[:_SHOWN_KEY_BYTES].hex()
    return f"0x{head}… ({len(key)} bytes)" if len(key) > _SHOWN_KEY_BYTES else f"0x{head}"


class PenstockError(Exception):
    """Root of everything Penstock raises on purpose."""


class Conflict(PenstockError):
    """Run the transaction again."""


class WriteConflict(Conflict):
    """Another transaction committed `key` after this one began."""

    def __init__(self, key: bytes, *, start_ts: int, conflict_ts: int, reason: str = "") -> None:
        super().__init__(
            f"write conflict on {show_key(key)}: transaction {start_ts} met a newer change of {conflict_ts}"
            f"{f' ({reason})' if reason else ''}; run the transaction again"
        )
        self.key = key
        self.start_ts = start_ts
        self.conflict_ts = conflict_ts


class Deadlock(Conflict):
    """This transaction waited in a cycle and was chosen to break it.

    `retryable` is set when the lock that closed the cycle was asked for by the failing call,
    so that repeating only this call can succeed.
    """

    def __init__(
        self, key: bytes, *, waits_for_ts: int, retryable: bool, wait_chain: tuple[tuple[int, int], ...] = ()
    ) -> None:
        super().__init__(
            f"deadlock on {show_key(key)}, held by transaction {waits_for_ts}; run the transaction again"
        )
        self.key = key
        self.waits_for_ts = waits_for_ts
        self.retryable = retryable
        self.wait_chain = wait_chain


class LockTimeout(Conflict):
    """A lock was not given up in time, or at once where waiting was declined."""

    def __init__(self, key: bytes, *, no_wait: bool) -> None:
        why = "is held and waiting was declined" if no_wait else "was not released within the wait timeout"
        super().__init__(f"lock on {show_key(key)} {why}; run the transaction again")
        self.key = key
        self.no_wait = no_wait


class Aborted(Conflict):
    """The transaction was rolled back, or its locks expired, before it could commit."""


class Unavailable(PenstockError):
    """Wait, then repeat the same call."""


class Undetermined(PenstockError):
    """The outcome is unknown: read it before repeating the call."""


class Fenced(PenstockError):
    """Stop: a newer owner holds this work."""


class Invalid(PenstockError):
    """Fix the argument, the option or the settings."""


class KeyExists(Invalid):
    """An insert met a key that is already there."""

    def __init__(self, key: bytes) -> None:
        super().__init__(f"key {show_key(key)} already exists; use put to overwrite it")
        self.key = key


class AssertionFailed(Invalid):
    """The caller asserted that a key exists, or that it does not, and was wrong."""

    def __init__(self, key: bytes, *, start_ts: int) -> None:
        super().__init__(f"assertion on {show_key(key)} failed in transaction {start_ts}; read the key again")
        self.key = key
        self.start_ts = start_ts


class Denied(Invalid):
    """The credentials are refused. A retry may succeed once they are replaced or accepted again."""


class NotFound(Invalid):
    """Nothing has that name, or the caller may not see it."""


class AlreadyExists(Invalid):
    """The name is taken; choose another one."""


class StaleRead(PenstockError):
    """Read a snapshot and continue from it: changes can be read after `oldest_ts`, not already after `ts`.

    Either the history before `oldest_ts` is gone. Or, when `replaced` is set, a DDL at `oldest_ts` removed,
    added or rewrote rows without a change for each of them: TRUNCATE, DROP or EXCHANGE PARTITION, MODIFY
    COLUMN, or another table under the same name.
    """

    def __init__(
        self,
        table: str,
        ts: int,
        *,
        oldest_ts: int,
        replaced: bool = False,
        remedy: str = "read a snapshot and go on from it",
    ) -> None:
        reason = f"history of {table} at {ts} is gone"
        if replaced:
            reason = f"a DDL replaced rows of {table} since {ts} without changes of them"
        super().__init__(f"{reason}; the oldest that can be read is {oldest_ts}: {remedy}")
        self.table = table
        self.ts = ts
        self.oldest_ts = oldest_ts
        self.replaced = replaced
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle passes positional arguments only; executors send this error to the driver.
        build = partial(StaleRead, oldest_ts=self.oldest_ts, replaced=self.replaced, remedy=self.remedy)
        return build, (self.table, self.ts)


class Corrupt(PenstockError):
    """Stop, and keep the objects for inspection."""
