"""Decisions about regions: which to subscribe first, and what follows when one ends. No I/O, no clock."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from penstock.errors import Invalid, PenstockError
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.retry import EQUAL_JITTER, BackoffPolicy
from penstock.sources.tikv.key_ranges import KeyRange

__all__ = ["FORCED_MAX", "FeedEnd", "FeedEndReason", "RetryPauses", "Route", "Urgency", "priority", "route"]


FORCED_MAX = 3600  # tasks up to this value pass the flow control


class Urgency(IntEnum):
    """Seconds that are added to the priority of a task."""

    HIGH = 0  # the region was being followed, and its span waits for it
    LOW = 86_400  # a new region, or one whose store is busy


def priority(urgency: Urgency, *, waited_s: float, lag_s: float) -> float:
    """Return a number; smaller goes first: tasks that waited long, and have little to catch up."""
    return max(0.0, urgency - waited_s + lag_s)


PAUSE_BASE_S = 0.05
PAUSE_MAX_S = 2.0
PAUSE_FORGOTTEN_S = 300.0
PAUSE_ASKED_MAX_S = 600.0
_BACKOFF = BackoffPolicy(base_s=PAUSE_BASE_S, cap_s=PAUSE_MAX_S, jitter=EQUAL_JITTER)


class FeedEndReason(Enum):
    """Why a region's stream ended."""

    NOT_LEADER = "not_leader"
    EPOCH_NOT_MATCH = "epoch_not_match"
    REGION_NOT_FOUND = "region_not_found"
    NO_LEADER = "no_leader"  # no leader is known
    STORE_NOT_FOUND = "store_not_found"
    STREAM_LOST = "stream_lost"
    SERVER_IS_BUSY = "server_is_busy"
    CONGESTED = "congested"
    CANCELLED = "cancelled"
    DUPLICATE_REQUEST = "duplicate_request"
    COMPATIBILITY = "compatibility"
    CLUSTER_ID_MISMATCH = "cluster_id_mismatch"
    UNSUPPORTED = "unsupported"  # the store cannot be talked to at all; `detail` says why
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FeedEnd:
    """How a region's stream ended; `detail` is for the log, `leader_store_id` a hint, 0 without one."""

    reason: FeedEndReason
    detail: str = ""
    leader_store_id: int = 0
    backoff_ms: int = 0

    @classmethod
    def of(cls, error: cdcpb.Error) -> "FeedEnd":
        """Read the error of a change stream."""
        for reason in _REASONS:
            if error.HasField(reason.value):
                break
        else:
            return cls(FeedEndReason.UNKNOWN, "the store gave no reason that is known here")
        match reason:
            case FeedEndReason.NOT_LEADER:
                return cls(reason, leader_store_id=error.not_leader.leader.store_id)
            case FeedEndReason.SERVER_IS_BUSY:
                busy = error.server_is_busy
                return cls(reason, busy.reason, backoff_ms=busy.backoff_ms)
            case FeedEndReason.COMPATIBILITY:
                return cls(reason, error.compatibility.required_version)
            case FeedEndReason.CLUSTER_ID_MISMATCH:
                return cls(reason, f"{error.cluster_id_mismatch.current}")
        return cls(reason)


_REASONS = (
    FeedEndReason.NOT_LEADER,
    FeedEndReason.EPOCH_NOT_MATCH,
    FeedEndReason.REGION_NOT_FOUND,
    FeedEndReason.DUPLICATE_REQUEST,
    FeedEndReason.COMPATIBILITY,
    FeedEndReason.CLUSTER_ID_MISMATCH,
    FeedEndReason.SERVER_IS_BUSY,
    FeedEndReason.CONGESTED,
)


@dataclass(frozen=True, slots=True)
class Route:
    """The next step: ask the same region again, look the range up again, give up, or nothing at all."""

    same_region: bool = False
    urgency: Urgency = Urgency.HIGH
    fatal: PenstockError | None = None
    ignored: bool = False


def route(end: FeedEnd) -> Route:
    """Return the next step for a reason."""
    match end.reason:
        case FeedEndReason.NOT_LEADER | FeedEndReason.UNKNOWN | FeedEndReason.STREAM_LOST:
            return Route(same_region=True)
        case FeedEndReason.SERVER_IS_BUSY | FeedEndReason.CONGESTED:
            return Route(same_region=True, urgency=Urgency.LOW)
        case (
            FeedEndReason.EPOCH_NOT_MATCH
            | FeedEndReason.REGION_NOT_FOUND
            | FeedEndReason.NO_LEADER
            | FeedEndReason.STORE_NOT_FOUND
        ):
            return Route()
        case FeedEndReason.CANCELLED:
            return Route(ignored=True)
        case FeedEndReason.UNSUPPORTED:
            return Route(fatal=Invalid(end.detail))
        case FeedEndReason.DUPLICATE_REQUEST:
            return Route(
                fatal=Invalid("a region was subscribed twice on one stream; this is a defect of Penstock")
            )
        case FeedEndReason.COMPATIBILITY:
            return Route(
                fatal=Invalid(f"the store asks for version {end.detail} of the client; update Penstock")
            )
        case FeedEndReason.CLUSTER_ID_MISMATCH:
            return Route(fatal=Invalid(f"the store belongs to cluster {end.detail}; check pd_addrs"))


@dataclass(slots=True)
class _Attempts:
    count: int = 0
    last_at: float = 0.0


@dataclass(slots=True)
class RetryPauses:
    """Pauses before a range is tried again: doubling from 50 ms to 2 s, with jitter.

    Five minutes after its last failure a range begins with the shortest pause again.
    """

    _ranges: dict[KeyRange, _Attempts] = field(default_factory=dict)
    _swept_at: float = 0.0

    def next_s(self, key_range: KeyRange, end: FeedEnd, *, now: float, draw: float) -> float:
        """Return the pause before the next attempt at a range."""
        self._sweep(now)
        attempts = self._ranges.setdefault(key_range, _Attempts())
        attempts.count += 1
        attempts.last_at = now
        if end.backoff_ms:
            return min(end.backoff_ms / 1000, PAUSE_ASKED_MAX_S)
        return _BACKOFF.delay_s(attempts.count, draw)

    def forget(self, key_range: KeyRange) -> None:
        """Forget the failures of a range that is followed again."""
        self._ranges.pop(key_range, None)

    def _sweep(self, now: float) -> None:
        if now - self._swept_at < PAUSE_FORGOTTEN_S:
            return
        self._swept_at = now
        self._ranges = {k: a for k, a in self._ranges.items() if now - a.last_at < PAUSE_FORGOTTEN_S}
