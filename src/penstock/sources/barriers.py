"""When a span's resolved timestamp may be passed on: the state machine of one subscription. No I/O."""

from enum import Enum

__all__ = ["COMPACTED_MIN", "NOTHING_WAITS", "Barriers", "PlacedBarrier"]

NOTHING_WAITS = 1 << 64
COMPACTED_MIN = 1024  # barriers that were passed on and stay at the head of the list before the rest is moved


class PlacedBarrier(Enum):
    """What became of a resolved timestamp on arrival."""

    NEW = "new"  # a barrier of its own
    MERGED = "merged"  # replaced the timestamp of a barrier that waits for the same data
    DROPPED = "dropped"  # not above what was accepted before


class Barriers:
    """Orders the resolved timestamps of a span after the data that arrived before them.

    Data batches are numbered from 1 in the order of arrival. `acked_seq` is the largest N such that
    every batch in [1..N] is persisted; `done` holds the persisted ones above it, which wait for a
    gap to be filled. A resolved timestamp becomes a barrier {wait_seq, ts} that may be passed on once
    `acked_seq >= wait_seq`.

    Invariant: along the list of waiting barriers both `wait_seq` and `ts` strictly increase, so that
    what `take_ready` returns strictly increases over the life of the span, whatever the order of
    the calls to `add_resolved`. `next_wait_seq` is the first one's, or NOTHING_WAITS.
    """

    __slots__ = (
        "_head",
        "_highest_ts",
        "_ts",
        "_wait_seqs",
        "acked_seq",
        "compactions",
        "done",
        "next_data_seq",
        "next_wait_seq",
    )

    def __init__(self) -> None:
        self.next_data_seq = 1
        self.acked_seq = 0
        self.next_wait_seq = NOTHING_WAITS
        self.done: set[int] = set()
        self.compactions = 0
        self._wait_seqs: list[int] = []
        self._ts: list[int] = []
        self._head = 0  # barriers before it have been passed on
        self._highest_ts = 0

    @property
    def waiting(self) -> int:
        """How many barriers have not been passed on."""
        return len(self._ts) - self._head

    def add_data(self) -> int:
        """Count a batch that arrived; return its number."""
        seq = self.next_data_seq
        self.next_data_seq = seq + 1
        return seq

    def mark_persisted(self, seq: int) -> bool:
        """Record that a batch is durable; return False when that was known."""
        acked = self.acked_seq
        assert seq < self.next_data_seq, f"batch {seq} was persisted before it arrived"
        if seq != acked + 1:
            if seq <= acked or seq in self.done:
                return False
            self.done.add(seq)
            return True
        done = self.done
        while seq + 1 in done:
            seq += 1
            done.remove(seq)
        self.acked_seq = seq
        return True

    def add_resolved(self, ts: int) -> PlacedBarrier:
        """Bind a resolved timestamp to the batches that arrived before it."""
        if ts <= self._highest_ts:
            return PlacedBarrier.DROPPED
        self._highest_ts = ts
        wait_seq = self.next_data_seq - 1
        if self._head < len(self._ts) and self._wait_seqs[-1] == wait_seq:
            self._ts[-1] = ts
            return PlacedBarrier.MERGED
        if self._head == len(self._ts):
            self.next_wait_seq = wait_seq
        self._wait_seqs.append(wait_seq)
        self._ts.append(ts)
        return PlacedBarrier.NEW

    def take_ready(self) -> int | None:
        """Take the first barrier if all it waits for is persisted; return its timestamp."""
        if self.acked_seq < self.next_wait_seq:
            return None
        ts = self._ts[self._head]
        self._head = head = self._head + 1
        if head == len(self._ts):
            self._forget(head)
            self.next_wait_seq = NOTHING_WAITS
            return ts
        self.next_wait_seq = self._wait_seqs[head]
        if head >= COMPACTED_MIN and head * 2 >= len(self._ts):
            self._forget(head)
            self.compactions += 1
        return ts

    def _forget(self, count: int) -> None:
        del self._wait_seqs[:count]
        del self._ts[:count]
        self._head = 0
