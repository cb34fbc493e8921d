"""Matches prewrites and commits of a region."""

from collections.abc import Iterator

from penstock.sources.tikv.prewrite_spill import CachedEnd, PrewriteMemory, PrewriteSpill, SpilledPrewrite

__all__ = ["Matcher"]

_ROW_BYTES = 256  # what an unmatched row costs beyond its key and values


class Matcher:
    """The unmatched rows of one region's change stream.

    Prewrites are kept by transaction until their commit or rollback. Before the incremental scan has
    ended (`initialized`), a commit may come before its prewrite: it is cached until then.

    Memory: `settle` is called after each event. When all regions together hold more than
    the bound, this one moves its largest transactions to disk, so that the whole exceeds the
    bound by one event at most.
    """

    __slots__ = (
        "_bytes",
        "_cached",
        "_charged",
        "_memory",
        "_space",
        "_spill",
        "_spilled",
        "_spilled_ends",
        "_txns",
        "initialized",
    )

    def __init__(self, memory: PrewriteMemory, spill: PrewriteSpill) -> None:
        self.initialized = False
        self._memory = memory
        self._spill = spill
        self._space: int | None = None  # on disk, once rows were moved there
        self._txns: dict[int, dict[bytes, SpilledPrewrite]] = {}
        self._spilled: dict[int, int] = {}  # start_ts -> rows on disk
        self._cached: list[CachedEnd] = []
        self._spilled_ends = 0
        self._bytes = 0
        self._charged = 0

    def __len__(self) -> int:
        """How many prewrites wait for their commit."""
        return sum(map(len, self._txns.values())) + sum(self._spilled.values())

    @property
    def cached(self) -> int:
        """How many commits and rollbacks wait for the end of the incremental scan."""
        return len(self._cached) + self._spilled_ends

    def put(self, start_ts: int, key: bytes, value: bytes, old_value: bytes, generation: int = 0) -> None:
        """Keep a prewrite, unless a later one of the same key is known."""
        txn = self._txns.get(start_ts)
        if txn is None:
            txn = self._txns[start_ts] = {}
        known = txn.get(key)
        row = SpilledPrewrite(value, old_value, generation)
        if known is not None:
            if not row.supersedes(known):
                return
            self._bytes -= _weight(key, known)
        txn[key] = row
        self._bytes += _ROW_BYTES + len(key) + len(value) + len(old_value)

    def match(self, start_ts: int, key: bytes) -> SpilledPrewrite | None:
        """Take the prewrite of a commit; None when there is none that can be trusted yet.

        Before the scan has ended an empty value may be an echo, and a pipelined transaction may
        still send a later generation.
        """
        txn = self._txns.get(start_ts)
        row = txn.get(key) if txn is not None else None
        if start_ts in self._spilled:
            return self._match_spilled(start_ts, key, row)
        if row is None or not (self.initialized or (row.value and not row.generation)):
            return None
        self._forget(start_ts, key, row)
        return row

    def rollback(self, start_ts: int, key: bytes) -> None:
        """Forget a prewrite."""
        txn = self._txns.get(start_ts)
        row = txn.get(key) if txn is not None else None
        if row is not None:
            self._forget(start_ts, key, row)
        if start_ts in self._spilled:
            self._take_spilled(start_ts, key)

    def cache(self, end: CachedEnd) -> None:
        """Keep a commit or rollback for the end of the scan."""
        self._cached.append(end)
        self._bytes += _ROW_BYTES + len(end.key)

    def initialize(self) -> Iterator[tuple[CachedEnd, SpilledPrewrite]]:
        """End the scan: return the cached commits that match now, in order; apply the rollbacks.

        Commits that still have no prewrite are dropped: the scan delivered them as committed rows.
        """
        self.initialized = True
        cached, self._cached = self._cached, []
        self._bytes -= sum(_ROW_BYTES + len(end.key) for end in cached)
        if self._spilled_ends:
            assert self._space is not None
            self._spilled_ends = 0
            yield from self._replay(self._spill.ends(self._space))
        yield from self._replay(iter(cached))

    def settle(self) -> None:
        """Account for what changed; move rows to disk when there are too many."""
        change = self._bytes - self._charged
        if not change:
            return
        self._charged = self._bytes
        if self._memory.charge(change) and change > 0:
            self._shed()

    def close(self) -> None:
        """Forget everything."""
        self._txns.clear()
        self._spilled.clear()
        self._cached.clear()
        self._bytes = self._spilled_ends = 0
        self.settle()
        if self._space is not None:
            self._spill.drop(self._space)
            self._space = None

    def _replay(self, ends: Iterator[CachedEnd]) -> Iterator[tuple[CachedEnd, SpilledPrewrite]]:
        for end in ends:
            if not end.commit_ts:
                self.rollback(end.start_ts, end.key)
            elif (row := self.match(end.start_ts, end.key)) is not None:
                yield end, row

    def _forget(self, start_ts: int, key: bytes, row: SpilledPrewrite) -> None:
        txn = self._txns[start_ts]
        del txn[key]
        if not txn:
            del self._txns[start_ts]
        self._bytes -= _ROW_BYTES + len(key) + len(row.value) + len(row.old_value)

    def _match_spilled(
        self, start_ts: int, key: bytes, row: SpilledPrewrite | None
    ) -> SpilledPrewrite | None:
        stored = self._take_spilled(start_ts, key)
        best = row if stored is None or (row is not None and row.supersedes(stored)) else stored
        if best is None:
            return None
        if not (self.initialized or (best.value and not best.generation)):
            if stored is not None:
                assert self._space is not None
                self._spill.put_back(self._space, start_ts, key, stored)
                self._spilled[start_ts] = self._spilled.get(start_ts, 0) + 1
            return None
        if row is not None:
            self._forget(start_ts, key, row)
        return best

    def _take_spilled(self, start_ts: int, key: bytes) -> SpilledPrewrite | None:
        assert self._space is not None
        row = self._spill.take(self._space, start_ts, key)
        if row is not None:
            self._spilled[start_ts] -= 1
            if not self._spilled[start_ts]:
                del self._spilled[start_ts]
        return row

    def _shed(self) -> None:
        if self._space is None:
            self._space = self._spill.new_space()
        by_size = sorted(self._txns, key=lambda start_ts: len(self._txns[start_ts]))
        exceeded = True
        while exceeded and by_size:
            start_ts = by_size.pop()
            rows = self._txns.pop(start_ts)
            new = self._spill.put(self._space, start_ts, rows)
            if new:
                self._spilled[start_ts] = self._spilled.get(start_ts, 0) + new
            exceeded = self._release(sum(_weight(key, row) for key, row in rows.items()))
        if exceeded and self._cached:
            self._spill.append_ends(self._space, self._spilled_ends, self._cached)
            self._spilled_ends += len(self._cached)
            self._release(sum(_ROW_BYTES + len(end.key) for end in self._cached))
            self._cached = []

    def _release(self, size: int) -> bool:
        self._bytes -= size
        self._charged = self._bytes
        return self._memory.charge(-size)


def _weight(key: bytes, row: SpilledPrewrite) -> int:
    return _ROW_BYTES + len(key) + len(row.value) + len(row.old_value)
