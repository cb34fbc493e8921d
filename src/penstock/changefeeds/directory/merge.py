"""Merges the changes of one version of a table, which several dispatchers wrote, by commit. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, DecodedChanges, concat
from penstock.changefeeds.directory.progress import FilePosition

_COMMIT_ROWS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class FileRun:
    """A run of changes of one file sequence, which is at `mark` when they are delivered."""

    changes: DecodedChanges | None  # None: only the mark moves
    index_path: str
    mark: FilePosition


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """Changes to deliver, and the marks of file sequences after that."""

    changes: DecodedChanges | None
    marks: tuple[tuple[str, FilePosition], ...]


def merge_streams(streams: Sequence[Iterator[FileRun]]) -> Iterator[MergedBatch]:
    """Yield the changes of all streams in the order of commits; each stream is in that order already.

    The deletes of a commit come first, so that a key that goes from one row to another is free when the other
    row gets it. Where commits are not known, the streams follow each other, which is right as long as no key
    moves between dispatchers. Holds one run of each stream, and more of a stream whose commit goes on, up to
    a limit.
    """
    if len(streams) == 1:
        for run in streams[0]:
            yield MergedBatch(run.changes, ((run.index_path, run.mark),))
        return
    heads = [_Head(stream) for stream in streams]
    while True:
        marks = tuple(mark for head in heads for mark in head.take_marks())
        if marks:
            yield MergedBatch(None, marks)
        waiting = [head for head in heads if head.changes is not None]
        if not waiting:
            return
        last = [head.last_ts for head in waiting]
        known = [ts for ts in last if ts is not None]
        if len(known) < len(last):
            parts = [waiting[last.index(None)].take_all()]
        else:
            parts = [part for head in waiting if (part := head.take_upto(min(known))) is not None]
        yield MergedBatch(_in_order(parts), ())


def _in_order(parts: list[DecodedChanges]) -> DecodedChanges:
    if len(parts) == 1:
        return parts[0]
    joined = concat(parts)
    order = pa.table({"ts": joined.commit_ts, "stays": pc.not_equal(joined.ops, OP_DELETE)})
    return joined.take(pc.sort_indices(order, sort_keys=[("ts", "ascending"), ("stays", "ascending")]))


class _Head:
    """The first changes of a stream that were not taken yet, up to the end of a commit."""

    def __init__(self, stream: Iterator[FileRun]) -> None:
        self._stream = stream
        self._marks: list[tuple[str, FilePosition]] = []  # of what was taken
        self._marks_after: list[tuple[str, FilePosition]] = []  # of what is at hand
        self._ahead: FileRun | None = None
        self.changes: DecodedChanges | None = None
        self._look_ahead()
        self._fill()

    @property
    def last_ts(self) -> int | None:
        assert self.changes is not None, "nothing is left of the stream"
        return self.changes.last_ts

    def take_marks(self) -> list[tuple[str, FilePosition]]:
        """Return the marks of runs that were taken as a whole."""
        marks, self._marks = self._marks, []
        return marks

    def take_all(self) -> DecodedChanges:
        """Take all changes that are at hand."""
        assert self.changes is not None, "nothing is left of the stream"
        taken = self.changes
        self._fill()
        return taken

    def take_upto(self, ts: int) -> DecodedChanges | None:
        """Take the changes up to a commit; return None when there are none."""
        assert self.changes is not None, "nothing is left of the stream"
        count = self.changes.count_upto(ts)
        if count == len(self.changes):
            return self.take_all()
        taken = self.changes.slice(0, count)
        self.changes = self.changes.slice(count)
        return taken if count else None

    def _fill(self) -> None:
        """Read the next runs: as many as the last commit of the first one spans."""
        self._marks += self._marks_after
        self._marks_after = []
        held: list[DecodedChanges] = []
        rows = 0
        while self._ahead is not None and self._ahead.changes is not None:
            changes = self._ahead.changes
            if held and (rows > _COMMIT_ROWS_MAX or not _goes_on(held[-1], changes)):
                break
            held.append(changes)
            rows += len(changes)
            self._marks_after.append((self._ahead.index_path, self._ahead.mark))
            self._look_ahead()
        self.changes = concat(held) if held else None
        if not held:
            self._marks += self._marks_after
            self._marks_after = []

    def _look_ahead(self) -> None:
        """Find the next run with changes; the marks of runs without changes come before it."""
        self._ahead = None
        for run in self._stream:
            if run.changes is not None and len(run.changes):
                self._ahead = run
                return
            self._marks_after.append((run.index_path, run.mark))


def _goes_on(before: DecodedChanges, after: DecodedChanges) -> bool:
    """Return whether the last commit of some changes goes on in those that follow."""
    first = after.commit_ts[0].as_py()
    return first is not None and bool(first == before.last_ts)
