"""Dropping versions that nobody can ask for any more."""

from collections.abc import Iterable, Iterator

from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.reader import MvccReader
from penstock.store.mvcc.records import Write, WriteKind


def garbage(versions: Iterable[tuple[int, Write]], safe_ts: int) -> Iterator[tuple[int, Write]]:
    """Yield the versions of one key, given newest first, that no read at or after `safe_ts` needs.

    The newest put at or before it stays. A delete goes together with everything it hides.
    """
    settled = False
    for commit_ts, write in versions:
        if commit_ts > safe_ts:
            continue
        if settled or write.kind is not WriteKind.PUT:
            yield commit_ts, write
        settled = settled or write.kind in {WriteKind.PUT, WriteKind.DELETE}


def collect(reader: MvccReader, effects: Effects, keys: Iterable[bytes], safe_ts: int) -> None:
    """Remove the garbage of some keys."""
    for key in keys:
        for commit_ts, write in garbage(reader.versions(key), safe_ts):
            effects.delete_write(key, commit_ts, write)
