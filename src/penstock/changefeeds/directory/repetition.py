"""Leaving out what a directory repeats: after a restart TiCDC writes again from its checkpoint. Pure."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.tables.schema import TableInfo

_KEYS_MAX = 100_000


class Repetition:
    """Knows what was delivered of one dispatcher's changes, whose files are in the order of their commits.

    A change is a repetition when its commit is at most `resolved_ts`, or before the newest one delivered, or
    the newest one itself and its key is among those delivered of it. Changes without a commit-ts all pass.
    """

    def __init__(self, table: TableInfo, resolved_ts: int) -> None:
        self._keys_of = [column.name for column in table.primary_key]
        self._newest_ts = resolved_ts + 1  # a commit that nothing was delivered of
        self._newest_keys: set[tuple[Any, ...]] | None = set()

    def new(self, changes: DecodedChanges) -> DecodedChanges:
        """Those that are none; they count as delivered from now on."""
        if not len(changes) or changes.commit_ts.null_count:
            return changes
        newest = pa.scalar(self._newest_ts, pa.uint64())
        again = pc.less(changes.commit_ts, newest)
        same = pc.indices_nonzero(pc.equal(changes.commit_ts, newest)).to_pylist()
        fresh = changes
        if pc.any(again).as_py():
            fresh = changes.filter(pc.invert(again))
            same = [place - (len(changes) - len(fresh)) for place in same]
        if same and self._newest_keys and self._keys_of:
            known = self._keys(fresh.slice(same[0], len(same)))
            repeated = [place for place, key in zip(same, known, strict=True) if key in self._newest_keys]
            places = pa.array(range(len(fresh)), pa.int64())
            fresh = fresh.filter(pc.invert(pc.is_in(places, pa.array(repeated, pa.int64()))))
        self._deliver(fresh)
        return fresh

    def _deliver(self, fresh: DecodedChanges) -> None:
        last_ts = fresh.last_ts
        if last_ts is None:
            return
        if last_ts > self._newest_ts:
            self._newest_ts, self._newest_keys = last_ts, set()
        if self._newest_keys is None or not self._keys_of:
            return
        tail = fresh.filter(pc.equal(fresh.commit_ts, pa.scalar(last_ts, pa.uint64())))
        if len(self._newest_keys) + len(tail) > _KEYS_MAX:
            self._newest_keys = None  # so large a commit is delivered again rather than kept in mind
        else:
            self._newest_keys.update(self._keys(tail))

    def _keys(self, changes: DecodedChanges) -> list[tuple[Any, ...]]:
        columns = [changes.rows.column(name).to_pylist() for name in self._keys_of]
        return list(zip(changes.ops.to_pylist(), *columns, strict=True))
