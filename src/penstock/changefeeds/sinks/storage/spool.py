"""Counts what the engine holds between encoding and the remote, and decides which dispatchers go on. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent

HIGH = 0.8  # of the quota: above it no dispatcher is woken
LOW = 0.6  # of the quota: at or below it all are woken again
ITEMS_MAX = 50_000
"""Descriptions of chunks and slices in the memory of a process, about 1 KiB each: the quota of those."""


@dataclass(slots=True)
class _SpoolSegment:
    chunks: int
    nbytes: int


class SpoolAllowance:
    """Bytes that the open spools of one account may have together: each gets the same part of them. Pure."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self.open = 0
        """How many spools there are."""

    @property
    def part(self) -> int:
        """Bytes that one spool may have."""
        return max(1, self._nbytes // max(1, self.open))


class ItemBudget:
    """How many items the spools of a process may describe together. Pure.

    Half of it is for whoever comes first. Of the other half each account has the same part, and each of its
    spools the same part of that: a spool that comes late has it, whatever the others hold.

    Invariant: a spool is full only when the first half is used up and it has its own part too. So all spools
    together have no more than the budget, but for one item of each dispatcher that was woken before.
    """

    def __init__(self, items_max: int = ITEMS_MAX) -> None:
        self.half = items_max // 2
        self.items = 0
        """How many items all spools have."""
        self._open: Counter[str] = Counter()

    def open(self, account: str = "") -> "ItemShare":
        """Return the share of a new spool; close it in the end."""
        self._open[account] += 1
        return ItemShare(self, account)

    def part(self, account: str) -> float:
        """Return how many items each spool of an account may have in any case."""
        return self.half / max(1, len(self._open)) / max(1, self._open[account])

    def close(self, account: str) -> None:
        """Give the part of a spool to others."""
        self._open[account] -= 1
        if not self._open[account]:
            del self._open[account]


class ItemShare:
    """The items of one spool of an account, within the budget of its process."""

    def __init__(self, budget: ItemBudget, account: str) -> None:
        self._budget = budget
        self._account = account
        self.items = 0
        self._closed = False

    def add(self, items: int) -> None:
        """Count items; fewer than none: uncount them."""
        if not self._closed:
            self.items += items
            self._budget.items += items

    def exceeds(self, mark: float) -> bool:
        """Return whether there are too many: more than a part `mark` of what the spool may have."""
        budget = self._budget
        return budget.items > mark * budget.half and self.items > mark * budget.part(self._account)

    def close(self) -> None:
        """Leave the budget to others, with what is still counted."""
        if not self._closed:
            self.add(-self.items)
            self._closed = True
            self._budget.close(self._account)


class Spool:
    """Counts chunks, and holds back wakes while there are too many.

    `nbytes` and `items` count the chunks that are not on the remote yet, and the slices that go there
    without the spool, by what is expected of them; both decide about wakes, with hysteresis: bytes are with
    the engine, and every item has a description here, however small it is. A segment is released only as a
    whole. So the quota limits `retained_bytes`, all bytes of every segment that is not released, together
    with what running encode jobs are expected to add. The part of an `allowance` is a quota too. `items` is
    its share of the process's items.
    """

    def __init__(
        self,
        quota_bytes: int,
        *,
        allowance: SpoolAllowance | None = None,
        items: ItemShare | None = None,
        high: float = HIGH,
        low: float = LOW,
    ) -> None:
        assert quota_bytes > 0, "a spool needs a quota"
        assert 0 < low < high <= 1, "wakes resume below where they stop"
        self._quota_bytes = quota_bytes
        self._allowance = allowance
        self._high = high
        self._low = low
        self._items = items or ItemBudget().open()
        self.nbytes = 0
        self.retained_bytes = 0
        self.expected_bytes = 0
        self.paused = False
        self._held: list[DmlEvent] = []
        self._segments: dict[int, _SpoolSegment] = {}  # in the order in which they came

    @property
    def items(self) -> int:
        """How many chunks and slices are not on the remote yet."""
        return self._items.items

    @property
    def quota_bytes(self) -> int:
        """The bytes that it may have now; the part of an allowance changes with the number of spools."""
        part = self._quota_bytes if self._allowance is None else self._allowance.part
        return min(self._quota_bytes, part)

    @property
    def high_bytes(self) -> int:
        """Above it no dispatcher is woken."""
        return int(self.quota_bytes * self._high)

    @property
    def low_bytes(self) -> int:
        """At or below it all dispatchers are woken again."""
        return int(self.quota_bytes * self._low)

    @property
    def held_wakes(self) -> int:
        """How many events wait for the spool to empty; tests see by it that the number is bounded."""
        return len(self._held)

    @property
    def room(self) -> int:
        """How many bytes a new job may be expected to add."""
        return max(self.quota_bytes - self.retained_bytes - self.expected_bytes, 0)

    @property
    def empty(self) -> bool:
        """Whether nothing is in it or expected: then any single event may come, however large."""
        return self.retained_bytes == 0 and self.expected_bytes == 0

    @property
    def keep_bytes(self) -> int:
        """How many bytes may rest while it is paused; none when there are too many small items."""
        return 0 if self._items.exceeds(self._low) else self.low_bytes

    def _pause_if_full(self) -> None:
        if self.nbytes > self.high_bytes or self._items.exceeds(self._high):
            self.paused = True

    def _resume_if_low(self) -> None:
        if self.nbytes <= self.low_bytes and not self._items.exceeds(self._low):
            self.paused = False

    def expect(self, nbytes: int) -> None:
        """Reserve room for a job that will add about so many bytes."""
        self.expected_bytes += nbytes

    def settle(self, nbytes: int) -> None:
        """Give back the room of a job that has ended; `add` counts what it really added."""
        self.expected_bytes -= nbytes
        assert self.expected_bytes >= 0, "a job was settled twice"

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Count chunks that are in the spool."""
        for chunk in chunks:
            segment = self._segments.setdefault(chunk.segment, _SpoolSegment(0, 0))
            segment.chunks += 1
            segment.nbytes += chunk.nbytes
            self.retained_bytes += chunk.nbytes
            self.nbytes += chunk.nbytes
            self._items.add(1)
        self._pause_if_full()

    def add_direct(self, nbytes: int) -> None:
        """Count a slice that goes into its file without the spool, by the bytes that are expected of it."""
        self.retained_bytes += nbytes
        self.nbytes += nbytes
        self._items.add(1)
        self._pause_if_full()

    def remove_direct(self, nbytes: int, items: int) -> None:
        """Uncount slices that are on the remote or dropped."""
        self.retained_bytes -= nbytes
        self.nbytes -= nbytes
        self._items.add(-items)
        self._resume_if_low()

    def admit(self, event: DmlEvent) -> bool:
        """Return whether the event's dispatcher may go on now; if not, hold it for `release_held`."""
        self._pause_if_full()  # its quota may be smaller by now
        if self.paused:
            self._held.append(event)
        return not self.paused

    def remove(self, chunks: Iterable[Chunk]) -> list[int]:
        """Uncount chunks that are on the remote or dropped; return the segments that are no longer needed."""
        free = []
        for chunk in chunks:
            segment = self._segments[chunk.segment]
            segment.chunks -= 1
            self.nbytes -= chunk.nbytes
            self._items.add(-1)
            if segment.chunks == 0:
                del self._segments[chunk.segment]
                self.retained_bytes -= segment.nbytes
                free.append(chunk.segment)
        self._resume_if_low()
        return free

    def release_held(self) -> Sequence[DmlEvent]:
        """Return the held events that may go on now: all of them, or none."""
        self._resume_if_low()  # its quota may be larger by now
        if self.paused or not self._held:
            return ()
        held, self._held = self._held, []
        return held

    def oldest_segments(self, keep_bytes: int) -> Iterator[int]:
        """Yield the segments to release until at most `keep_bytes` are retained, the oldest first."""
        left = self.retained_bytes
        for number, segment in self._segments.items():
            if left <= keep_bytes:
                return
            left -= segment.nbytes
            yield number
