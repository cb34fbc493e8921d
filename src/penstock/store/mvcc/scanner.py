"""Scans of a range at a timestamp.

A scan first reads the rows of a page from the versions alone, then the locks between the ends of the page in
one pass. So a range without locks, which is nearly every range, has no cost for them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.bounds import KeyBounds
from penstock.store.engine import Cf
from penstock.store.mvcc import records
from penstock.store.mvcc.failures import KeyRefused
from penstock.store.mvcc.reader import MvccReader, ReadPoint
from penstock.store.mvcc.records import PUT_SHORT, WRITE_HEAD_BYTES, LockKind, LockRecord, Write, WriteKind

_SKIPS_BEFORE_SEEK = 16  # versions stepped over before a seek is cheaper
_KIND_MASK = 0x03
_PUT, _DELETE = int(WriteKind.PUT), int(WriteKind.DELETE)
_TS_BYTES = records.TS_BYTES
_END_BYTES = len(records.END)
_ESCAPED, _ZERO = records.ESCAPED, records.ZERO
_PAST_VERSIONS = b"\xff" * (_TS_BYTES + 1)

Row = tuple[bytes, bytes | KeyRefused]
"""A key with its value, or with the reason why it cannot be read."""


class _Page(NamedTuple):
    rows: list[tuple[bytes, bytes]]
    rest: KeyBounds | None  # what is left to read


class MvccScanner:
    """Rows of a range as a read point sees them."""

    def __init__(
        self,
        reader: MvccReader,
        point: ReadPoint,
        *,
        suspects: Sequence[bytes] | None,
        reverse: bool,
        key_only: bool,
    ) -> None:
        """Scan with `reader`. `suspects` are the keys that may be locked, in order; None: search for them."""
        self._reader = reader
        self._point = point
        self._suspects = suspects
        self._reverse = reverse
        self._key_only = key_only
        self._cursor = reader.view.take_cursor(Cf.WRITE)

    def pages(self, bounds: KeyBounds, page_rows: int) -> Iterator[list[Row]]:
        """Yield the rows in order, about `page_rows` at a time.

        Raise KeyRefused where the isolation level forbids that a newer version, or a lock, exists.
        """
        rest: KeyBounds | None = bounds
        while rest is not None:
            page = self._backward(rest, page_rows) if self._reverse else self._forward(rest, page_rows)
            yield self._with_locks(page.rows, _covered_bounds(rest, page.rest, reverse=self._reverse))
            rest = page.rest

    def _forward(self, bounds: KeyBounds, limit: int) -> _Page:
        """Read towards the end. The loop is the hot path of every scan; inlining was measured to help."""
        position, upper = records.span(bounds)
        visible = records.suffix(self._point.ts)
        value_part = slice(0) if self._key_only else slice(WRITE_HEAD_BYTES, None)
        rows: list[tuple[bytes, bytes]] = []
        append = rows.append
        done = b""  # what the versions of the last decided key begin with
        skipped = 0
        cursor = self._cursor
        read_key, read_value, advance = cursor.key, cursor.value, cursor.next
        cursor.seek(position)
        while (versioned := read_key()) is not None:  # None is the end, or an error: see below
            if upper and versioned >= upper:
                return _Page(rows, None)
            prefix = versioned[:-_TS_BYTES]
            if prefix == done:
                skipped += 1
                if skipped > _SKIPS_BEFORE_SEEK:
                    cursor.seek(done + _PAST_VERSIONS)
                    skipped = 0
                    continue
            elif versioned[-_TS_BYTES:] < visible:
                if self._point.checks_newer:
                    raise self._newer(versioned, read_value())
                skipped += 1
                if skipped > _SKIPS_BEFORE_SEEK:
                    cursor.seek(prefix + visible)
                    skipped = 0
                    continue
            elif (stored := read_value())[0] == PUT_SHORT:
                done = prefix
                skipped = 0
                append((prefix[:-_END_BYTES].replace(_ESCAPED, _ZERO), stored[value_part]))
                if len(rows) == limit:
                    return _Page(rows, _after(rows[-1][0], bounds))
            elif (kind := stored[0] & _KIND_MASK) == _DELETE:
                done = prefix
            elif kind == _PUT:
                done = prefix
                key = records.unescape(versioned)
                append((key, self._value(key, stored)))
                if len(rows) == limit:
                    return _Page(rows, _after(key, bounds))
            advance()
        cursor.status()
        return _Page(rows, None)

    def _backward(self, bounds: KeyBounds, limit: int) -> _Page:
        """Read towards the start. The versions of a key come oldest first, so the last match counts."""
        lower, upper = records.span(bounds)
        visible = records.suffix(self._point.ts)
        rows: list[tuple[bytes, bytes]] = []
        prefix = b""
        candidate: bytes | None = None
        cursor = self._cursor
        read_key, read_value, retreat = cursor.key, cursor.value, cursor.prev
        if upper:
            cursor.seek_for_prev(upper)  # no version is kept under a bare prefix: this is one before it
        else:
            cursor.seek_to_last()
        while (versioned := read_key()) is not None and versioned >= lower:
            if versioned[:-_TS_BYTES] != prefix:
                if candidate is not None:
                    key = prefix[:-_END_BYTES].replace(_ESCAPED, _ZERO)
                    rows.append((key, self._value(key, candidate)))
                    if len(rows) == limit:
                        return _Page(rows, _before(key, bounds))
                prefix = versioned[:-_TS_BYTES]
                candidate = None
            if versioned[-_TS_BYTES:] >= visible:
                stored = read_value()
                kind = stored[0] & _KIND_MASK
                if kind == _PUT:
                    candidate = stored
                elif kind == _DELETE:
                    candidate = None
            elif self._point.checks_newer:
                raise self._newer(versioned, read_value())
            retreat()
        cursor.status()
        if candidate is not None:
            key = prefix[:-_END_BYTES].replace(_ESCAPED, _ZERO)
            rows.append((key, self._value(key, candidate)))
        return _Page(rows, None)

    def _value(self, key: bytes, stored: bytes) -> bytes:
        if self._key_only:
            return b""
        if stored[0] == PUT_SHORT:
            return stored[WRITE_HEAD_BYTES:]
        return self._reader.value_of(key, Write.decode(stored))

    def _newer(self, versioned: bytes, stored: bytes) -> KeyRefused:
        return self._point.newer(records.unescape(versioned), records.ts_of(versioned), Write.decode(stored))

    def _with_locks(self, rows: list[tuple[bytes, bytes]], covered: KeyBounds) -> list[Row]:
        merged: dict[bytes, bytes | KeyRefused] | None = None
        if self._point.checks_locks:
            for key, lock in self._locks(covered):
                refused = self._point.obstacle(key, lock)
                if refused is None:
                    continue
                if refused.lock is None:
                    raise refused
                merged = dict(rows) if merged is None else merged
                if not self._point.reads_through(lock):
                    merged[key] = refused
                elif lock.kind is LockKind.DELETE:
                    merged.pop(key, None)
                else:
                    merged[key] = b"" if self._key_only else self._reader.value_of(key, lock)
        if merged is None:
            return rows  # type: ignore[return-value]  # list is invariant; the caller only reads it
        return sorted(merged.items(), key=lambda row: row[0], reverse=self._reverse)

    def _locks(self, covered: KeyBounds) -> Iterator[tuple[bytes, LockRecord]]:
        if self._suspects is None:
            yield from self._reader.scan_locks(covered)
            return
        for key in self._suspects:
            if covered.contains(key) and (lock := self._reader.load_lock(key)) is not None:
                yield key, lock


def _after(key: bytes, bounds: KeyBounds) -> KeyBounds | None:
    return bounds.clamp(key + b"\0", b"")


def _before(key: bytes, bounds: KeyBounds) -> KeyBounds | None:
    return KeyBounds(bounds.start, key) if bounds.start < key else None


def _covered_bounds(whole: KeyBounds, rest: KeyBounds | None, *, reverse: bool) -> KeyBounds:
    if rest is None:
        return whole
    return KeyBounds(rest.end, whole.end) if reverse else KeyBounds(whole.start, rest.start)


def fill(response: kvrpcpb.ScanResponse, rows: list[Row]) -> None:
    """Add rows to an answer; a row that cannot be read carries its error instead."""
    add = response.pairs.add
    for key, value in rows:
        pair = add()
        pair.key = key
        if value.__class__ is bytes:
            pair.value = value
        else:
            assert isinstance(value, KeyRefused)
            pair.error.CopyFrom(value.error)
