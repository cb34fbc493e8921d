"""Reads the rows of a region's change stream: matches changes and checks the store's promises. No I/O."""

from collections.abc import Iterable

from penstock.errors import Corrupt
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.sources.raw_batch import RawColumns
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.prewrite_spill import CachedEnd

__all__ = ["EntryReader"]

PREWRITE = cdcpb.Event.PREWRITE
COMMIT = cdcpb.Event.COMMIT
ROLLBACK = cdcpb.Event.ROLLBACK
COMMITTED = cdcpb.Event.COMMITTED
INITIALIZED = cdcpb.Event.INITIALIZED


class EntryReader:
    """Reads the entries of one region from the time it was subscribed at.

    Skips keys outside [start, end), because a store may send the whole region, and commits up to
    `span_start_ts`, because the subscription starts after it.
    """

    __slots__ = ("_end", "_start", "_whole", "matcher", "region_id", "span_start_ts")

    def __init__(
        self,
        region_id: int,
        matcher: Matcher,
        *,
        span_start_ts: int,
        start: bytes = b"",
        end: bytes = b"",
        whole: bool = True,
    ) -> None:
        self.region_id = region_id
        self.matcher = matcher
        self.span_start_ts = span_start_ts
        self._start = start
        self._end = end
        self._whole = whole

    def read(self, rows: Iterable[cdcpb.Event.Row], resolved_ts: int, out: RawColumns) -> bool:
        """Append the changes that are complete to `out`; return whether the scan ended in these rows.

        Raises Corrupt when the store broke a promise: a commit at or below the region's resolved
        timestamp, or without a prewrite after the scan had ended.
        """
        matcher = self.matcher
        put, match = matcher.put, matcher.match
        whole, initialized_now = self._whole, False
        for row in rows:
            kind = row.type
            key = row.key
            if not whole and kind != INITIALIZED and not self._is_wanted(key):
                continue
            if kind == PREWRITE:
                put(row.start_ts, key, row.value, row.old_value, row.generation)
            elif kind == COMMIT:
                start_ts = row.start_ts
                commit_ts = row.commit_ts
                prewrite = match(start_ts, key)
                if prewrite is None:
                    self._keep_unmatched(row)
                elif commit_ts <= self.span_start_ts:
                    continue
                elif commit_ts <= resolved_ts:
                    raise self._late_error(commit_ts, resolved_ts)
                else:
                    out.add(row.op_type, start_ts, commit_ts, key, prewrite[0], prewrite[1])
            elif kind == COMMITTED:
                commit_ts = row.commit_ts
                if commit_ts <= resolved_ts:
                    raise self._late_error(commit_ts, resolved_ts)
                out.add(row.op_type, row.start_ts, commit_ts, key, row.value, row.old_value)
            elif kind == ROLLBACK:
                if matcher.initialized:
                    matcher.rollback(row.start_ts, key)
                else:
                    matcher.cache(CachedEnd(row.start_ts, 0, 0, key))
            elif kind == INITIALIZED:
                self._initialize(resolved_ts, out)
                initialized_now = True
            else:
                raise Corrupt(f"region {self.region_id} sent a row of unknown kind {kind}; update Penstock")
        matcher.settle()
        return initialized_now

    def _is_wanted(self, key: bytes) -> bool:
        return key >= self._start and (not self._end or key < self._end)

    def _keep_unmatched(self, row: cdcpb.Event.Row) -> None:
        if self.matcher.initialized:
            raise Corrupt(
                f"region {self.region_id} sent the commit {row.commit_ts} of transaction {row.start_ts}"
                " without its prewrite; check the store's log, then subscribe again"
            )
        self.matcher.cache(CachedEnd(row.start_ts, row.commit_ts, row.op_type, row.key))

    def _initialize(self, resolved_ts: int, out: RawColumns) -> None:
        for end, prewrite in self.matcher.initialize():
            if end.commit_ts <= self.span_start_ts:
                continue
            if end.commit_ts <= resolved_ts:
                raise self._late_error(end.commit_ts, resolved_ts)
            out.add(end.op, end.start_ts, end.commit_ts, end.key, prewrite.value, prewrite.old_value)

    def _late_error(self, commit_ts: int, resolved_ts: int) -> Corrupt:
        return Corrupt(
            f"region {self.region_id} sent a change committed at {commit_ts} after it had resolved"
            f" {resolved_ts}; check the store's log, then subscribe again"
        )
