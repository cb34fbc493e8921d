"""Which region has which part of a span, and how far each part is. No I/O, no waiting."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

from penstock.sources.tikv.key_ranges import KeyRange, RangeTsMap, lower_end, reaches

__all__ = ["LockedRange", "RangeLock", "RangeLockCancelled", "Stale", "Wait"]


class LockedRange:
    """A part of a span that a region has. The reader of that region raises `resolved_ts`."""

    __slots__ = ("end", "held", "initialized", "region_id", "resolved_ts", "start", "version")

    def __init__(self, start: bytes, end: bytes, region_id: int, version: int, resolved_ts: int) -> None:
        self.start = start
        self.end = end
        self.region_id = region_id
        self.version = version
        self.resolved_ts = resolved_ts
        self.initialized = False
        self.held = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Older regions have a part of the range: try again when they are released."""

    blockers: tuple[LockedRange, ...]


@dataclass(frozen=True, slots=True)
class Stale:
    """A region as new or newer has a part of the range: only these gaps are left to look up again."""

    retry: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class RangeLockCancelled:
    """The span was stopped."""


class RangeLock:
    """Divides a span into locked parts, each read by one region, and the unlocked rest.

    Invariant: locked and unlocked parts are disjoint and together the whole span. A part that passes to
    another region keeps the timestamp it was resolved to, so that `resolved_ts` covers every key.
    """

    def __init__(self, start: bytes, end: bytes, start_ts: int) -> None:
        self._span = (start, end)
        self._unlocked = RangeTsMap()
        self._unlocked.set(start, end, start_ts)
        self._uninitialized = RangeTsMap()
        self._uninitialized.set(start, end, 0)
        self._starts: list[bytes] = []
        self._locked: list[LockedRange] = []  # in the order of `_starts`
        self._by_region: dict[int, LockedRange] = {}
        # Entries may be lower than the part's timestamp: they are corrected when they come to the top.
        self._heap: list[tuple[int, int, LockedRange]] = []
        self._pushes = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._locked)

    def lock(
        self, start: bytes, end: bytes, region_id: int, version: int
    ) -> LockedRange | Wait | Stale | RangeLockCancelled:
        """Give a part of the span to a region; it begins at the lowest timestamp found there."""
        if self._stopped:
            return RangeLockCancelled()
        overlapping = self._overlapping(start, end)
        blockers = tuple(overlapping)
        elsewhere = self._by_region.get(region_id)
        if elsewhere is not None and elsewhere not in overlapping:
            blockers += (elsewhere,)
        if not blockers:
            return self._take(start, end, region_id, version)
        if any(blocker.version >= version for blocker in blockers):
            return Stale(_gaps(overlapping, start, end))
        return Wait(blockers)

    def unlock(self, locked: LockedRange, resolved_ts: int | None = None) -> bool:
        """Take a part back; return whether the span is stopped and nothing is locked."""
        at = bisect_left(self._starts, locked.start)
        assert at < len(self._locked), "the range is not locked"
        assert self._locked[at] is locked, "another range is locked there"
        del self._starts[at], self._locked[at], self._by_region[locked.region_id]
        locked.held = False
        ts = locked.resolved_ts if resolved_ts is None else resolved_ts
        self._unlocked.set(locked.start, locked.end, ts)
        return self.drained

    def stop(self) -> bool:
        """Lock no part of the span from now on; return whether nothing is locked."""
        self._stopped = True
        return self.drained

    @property
    def drained(self) -> bool:
        """Whether the span is stopped and nothing is locked."""
        return self._stopped and not self._locked

    def update(self, locked: LockedRange, resolved_ts: int) -> None:
        """Record how far a part is."""
        lower = resolved_ts < locked.resolved_ts
        locked.resolved_ts = resolved_ts
        if lower:  # its entry in the heap must not be above it
            self._push(locked)

    def initialize(self, locked: LockedRange) -> None:
        """Record that the incremental scan of a part has ended."""
        locked.initialized = True
        if self._uninitialized:
            self._uninitialized.discard(locked.start, locked.end)

    @property
    def initialized(self) -> bool:
        """Whether every key of the span has been in an initialized part at some time."""
        return not self._uninitialized

    def resolved_ts(self) -> int:
        """Return the lowest timestamp of all parts, locked or not, by looking at each."""
        lowest = min((locked.resolved_ts for locked in self._locked), default=None)
        return _lower(lowest, self._unlocked.lowest())

    def heap_min_ts(self) -> int:
        """Return what `resolved_ts` returns, from a heap: cheaper when few parts moved since then."""
        heap = self._heap
        while heap:
            ts, number, locked = heap[0]
            if not locked.held:
                heappop(heap)
            elif locked.resolved_ts != ts:
                heapreplace(heap, (locked.resolved_ts, number, locked))
            else:
                return _lower(ts, self._unlocked.lowest())
        return _lower(None, self._unlocked.lowest())

    def locked_ranges(self) -> list[LockedRange]:
        """Return the locked parts in the order of keys."""
        return list(self._locked)

    def holes(self) -> list[tuple[bytes, bytes, int]]:
        """Return the unlocked parts: start, end, timestamp."""
        return list(self._unlocked)

    def _take(self, start: bytes, end: bytes, region_id: int, version: int) -> LockedRange:
        locked = LockedRange(start, end, region_id, version, self._unlocked.min(start, end))
        self._unlocked.unset(start, end)
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._locked.insert(at, locked)
        self._by_region[region_id] = locked
        self._push(locked)
        return locked

    def _push(self, locked: LockedRange) -> None:
        self._pushes += 1
        heappush(self._heap, (locked.resolved_ts, self._pushes, locked))

    def _overlapping(self, start: bytes, end: bytes) -> list[LockedRange]:
        low = bisect_right(self._starts, start)
        if low and reaches(self._locked[low - 1].end, start):
            low -= 1
        high = bisect_left(self._starts, end) if end else len(self._starts)
        return self._locked[low:high]


def _gaps(taken: list[LockedRange], start: bytes, end: bytes) -> tuple[KeyRange, ...]:
    gaps = []
    position = start
    for locked in taken:
        if position < locked.start:
            gaps.append((position, lower_end(locked.start, end)))
        if not locked.end:
            return tuple(gaps)
        position = max(position, locked.end)
    if reaches(end, position):
        gaps.append((position, end))
    return tuple(gaps)


def _lower(one: int | None, other: int | None) -> int:
    assert one is not None or other is not None, "a span without any part"
    if one is None or other is None:
        return (one if one is not None else other) or 0
    return min(one, other)
