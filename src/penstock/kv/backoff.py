"""Waiting before a retry: how long, how often, and when to give up.

`BackoffSchedule` decides (no clock, no sleep); `Backoffer` is the thin shell that sleeps and reports. Each
kind of operation has a budget of milliseconds that it may sleep before it gives up.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from penstock import clock as clocks
from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Invalid, Unavailable

WEIGHT = 2
_CLUSTER_MISMATCH = "mismatch cluster id"

# How long each kind of operation may sleep between retries before it gives up.
READ_MS = 20_000
PREWRITE_MS = 40_000
COMMIT_MS = 40_000
COMMIT_SECONDARIES_MS = 41_000
CLEANUP_MS = 20_000
PESSIMISTIC_LOCK_MS = 20_000
PESSIMISTIC_ROLLBACK_MS = 20_000
HEART_BEAT_MS = 20_000
RESOLVE_MS = 40_000
GC_MS = 120_000
SPLIT_MS_EACH = 20_000
SPLIT_MS_MAX = 120_000
SCATTER_MS = 120_000


class Jitter(Enum):
    """How randomness spreads the sleeps of many callers."""

    NONE = "none"  # exactly the exponential value
    FULL = "full"  # anything below it
    EQUAL = "equal"  # its upper half
    DECORRELATED = "decorrelated"  # grows from the last sleep instead of the attempt


class BackoffKind(Enum):
    """A reason to wait: its name in metrics, base and cap in milliseconds, jitter, and the user's message."""

    TIKV_RPC = ("tikvRPC", 100, 2_000, Jitter.EQUAL, "TiKV server timeout")
    TIFLASH_RPC = ("tiflashRPC", 100, 2_000, Jitter.EQUAL, "TiFlash server timeout")
    TXN_LOCK = ("txnLock", 100, 3_000, Jitter.EQUAL, "resolve lock timeout")
    TXN_LOCK_FAST = ("txnLockFast", 10, 3_000, Jitter.EQUAL, "resolve lock timeout")
    PD_RPC = ("pdRPC", 500, 3_000, Jitter.EQUAL, "PD server timeout")
    REGION_MISS = ("regionMiss", 2, 500, Jitter.NONE, "region unavailable")
    REGION_SCHEDULING = ("regionScheduling", 2, 500, Jitter.NONE, "region unavailable")
    SERVER_BUSY = ("tikvServerBusy", 2_000, 10_000, Jitter.EQUAL, "server busy")
    TIFLASH_SERVER_BUSY = ("tiflashServerBusy", 2_000, 10_000, Jitter.EQUAL, "server busy")
    DISK_FULL = ("tikvDiskFull", 500, 5_000, Jitter.NONE, "disk full")
    RECOVERY_IN_PROGRESS = ("regionRecoveryInProgress", 100, 10_000, Jitter.EQUAL, "recovery in progress")
    TXN_NOT_FOUND = ("txnNotFound", 2, 500, Jitter.NONE, "resolve lock timeout")
    STALE_COMMAND = ("staleCommand", 2, 1_000, Jitter.NONE, "stale command")
    MAX_TS_NOT_SYNCED = ("maxTsNotSynced", 2, 500, Jitter.NONE, "max ts not synced")
    DATA_NOT_READY = ("dataNotReady", 2, 2_000, Jitter.NONE, "data not ready")
    REGION_NOT_INITIALIZED = ("regionNotInitialized", 2, 1_000, Jitter.NONE, "region not initialized")
    IS_WITNESS = ("isWitness", 1_000, 10_000, Jitter.EQUAL, "is witness")
    COMMIT_TS_LAG = ("commitTSLag", 2, 500, Jitter.NONE, "commit ts lag")

    def __init__(self, label: str, base_ms: int, cap_ms: int, jitter: Jitter, message: str) -> None:
        self.label = label
        self.base_ms = base_ms
        self.cap_ms = cap_ms
        self.jitter = jitter
        self.message = message


# Sleeps that do not count against the budget, up to this many milliseconds each: a busy store asks
# its clients to stay away, and giving up early would only add load.
_EXCLUDED_MAX_MS = {BackoffKind.SERVER_BUSY: 600_000, BackoffKind.TIFLASH_SERVER_BUSY: 600_000}
_SECONDS_SLEPT = {kind: metrics.KV_BACKOFF_SECONDS.labels(kind.label) for kind in BackoffKind}


def sleep_ms(
    jitter: Jitter, base_ms: float, cap_ms: float, *, attempt: int, last_ms: float, draw: float
) -> float:
    """Return the sleep of an attempt (from 0), given the last sleep of its kind and a draw in [0, 1)."""
    value = min(cap_ms, base_ms * (1 << min(attempt, 32)))
    match jitter:
        case Jitter.NONE:
            return value
        case Jitter.FULL:
            return value * draw
        case Jitter.EQUAL:
            return value / 2 + value / 2 * draw
        case Jitter.DECORRELATED:
            return min(cap_ms, base_ms + (max(last_ms, base_ms) * 3 - base_ms) * draw)
        case unknown:
            assert_never(unknown)


@dataclass(slots=True)
class _Spent:
    attempts: int = 0
    last_ms: float = 0
    total_ms: float = 0


@dataclass(slots=True)
class BackoffSchedule:
    """What has been slept so far against a budget.

    Invariant: `total_ms` is the sum over the kinds, and `excluded_ms` the part that does not count.
    """

    budget_ms: float
    total_ms: float = 0
    excluded_ms: float = 0
    _spent: dict[BackoffKind, _Spent] = field(default_factory=dict)

    def next_ms(self, kind: BackoffKind, draw: float, max_ms: float | None = None) -> float | None:
        """Account for one more sleep and return it, or None when the budget is used up."""
        if self._is_used_up(kind):
            return None
        spent = self._spent.setdefault(kind, _Spent())
        sleep = sleep_ms(
            kind.jitter, kind.base_ms, kind.cap_ms, attempt=spent.attempts, last_ms=spent.last_ms, draw=draw
        )
        if max_ms is not None:
            sleep = min(sleep, max_ms)
        spent.attempts += 1
        spent.last_ms = sleep
        spent.total_ms += sleep
        self.total_ms += sleep
        if kind in _EXCLUDED_MAX_MS:
            self.excluded_ms += sleep
        return sleep

    def _is_used_up(self, kind: BackoffKind) -> bool:
        if self.total_ms - self.excluded_ms >= self.budget_ms:
            return True
        limit = _EXCLUDED_MAX_MS.get(kind)
        return limit is not None and self.excluded_ms >= limit and self.excluded_ms >= self.budget_ms

    def longest(self) -> BackoffKind | None:
        """Return the kind that slept longest in all, the likeliest cause of the failure."""
        return max(self._spent, key=lambda kind: self._spent[kind].total_ms, default=None)

    def retries(self) -> int:
        """Return how many sleeps there were."""
        return sum(spent.attempts for spent in self._spent.values())

    def copy(self) -> "BackoffSchedule":
        """Return a copy that is charged independently from here on."""
        spent = {k: _Spent(s.attempts, s.last_ms, s.total_ms) for k, s in self._spent.items()}
        return BackoffSchedule(self.budget_ms, self.total_ms, self.excluded_ms, spent)


class Backoffer:
    """The retries of one user-visible operation, all charged to one budget.

    A budget of 0 means that nothing is retried.
    """

    def __init__(
        self, budget_ms: float, *, clock: Clock = clocks.SYSTEM, weight: int = WEIGHT, name: str = ""
    ) -> None:
        self.name = name
        self._clock = clock
        self._schedule = BackoffSchedule(budget_ms * weight)

    @property
    def total_ms(self) -> float:
        """Milliseconds slept so far."""
        return self._schedule.total_ms

    async def backoff(
        self, kind: BackoffKind, error: BaseException | str, *, max_ms: float | None = None
    ) -> None:
        """Sleep before the next attempt.

        Raises Unavailable, caused by `error`, when the budget is used up, and Invalid at once when
        the error says that the server belongs to another cluster.
        """
        cause = error if isinstance(error, BaseException) else None
        if _CLUSTER_MISMATCH in str(error):
            raise Invalid(f"the server belongs to another cluster ({error}); check pd_addrs") from cause
        sleep = self._schedule.next_ms(kind, self._clock.random(), max_ms)
        if sleep is None:
            raise Unavailable(self._exhausted_message(kind, error)) from cause
        _SECONDS_SLEPT[kind].observe(sleep / 1000)
        await self._clock.sleep(sleep / 1000)

    def _exhausted_message(self, kind: BackoffKind, error: BaseException | str) -> str:
        reason = (self._schedule.longest() or kind).message
        retries = self._schedule.retries()
        after = f" after {retries} retries in {self.total_ms:.0f} ms" if retries else ""
        of = f" in {self.name}" if self.name else ""
        return f"{reason}{of}{after}: {error}"

    def fork(self) -> "Backoffer":
        """Return a backoffer for concurrent work that has spent what this one has."""
        child = Backoffer(0, clock=self._clock, name=self.name)
        child._schedule = self._schedule.copy()
        return child
