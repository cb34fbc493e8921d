"""The committed changes in a range of stored versions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.store.mvcc import keys
from penstock.store.mvcc.records import Write, WriteKind

__all__ = ["Committed", "committed_after"]

ValueOf = Callable[[bytes, Write], bytes]


@dataclass(slots=True)
class Committed:
    """A change of one key, with the value it replaced (empty when there was none)."""

    key: bytes
    start_ts: int
    commit_ts: int
    kind: WriteKind
    value: bytes
    old_value: bytes = b""


def committed_after(
    records: Iterable[tuple[bytes, bytes]], after_ts: int, value_of: ValueOf
) -> Iterator[Committed | None]:
    """Yield the changes committed after `after_ts`, newest first for each key.

    One item per record that was looked at, None where it gives no change, so that the caller decides
    how much is looked at in one go. A change is known once the version it replaced was met, which
    is the next older one of its key with data.
    """
    waiting: Committed | None = None
    prefix = b""
    done_with_key = False
    for stored_key, stored in records:
        ready = None
        if stored_key[: -keys.TS_BYTES] != prefix:
            prefix = stored_key[: -keys.TS_BYTES]
            ready, waiting = waiting, None
            done_with_key = False
        if done_with_key:
            yield ready
            continue
        commit_ts = keys.ts_of(stored_key)
        done_with_key = waiting is None and commit_ts <= after_ts
        if not done_with_key:
            write = Write.decode(stored)
            if write.kind is WriteKind.PUT or write.kind is WriteKind.DELETE:
                key = waiting.key if waiting is not None else keys.unescape(stored_key)
                value = value_of(key, write) if write.kind is WriteKind.PUT else b""
                if waiting is not None:
                    waiting.old_value = value
                    ready, waiting = waiting, None
                done_with_key = commit_ts <= after_ts
                if not done_with_key:
                    waiting = Committed(key, write.start_ts, commit_ts, write.kind, value)
        yield ready
    if waiting is not None:
        yield waiting
