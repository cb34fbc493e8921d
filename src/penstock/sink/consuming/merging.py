"""Changes of one version of a table that several dispatchers wrote, in the order of their commits. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from penstock.sink.consuming.changerows import ChangeRows, concat
from penstock.sink.consuming.progress import Mark


@dataclass(frozen=True, slots=True)
class Piece:
    """Changes that follow each other in one stretch; when they are delivered, it has come to `mark`."""

    changes: ChangeRows | None  # None: only the mark moves
    index_path: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Delivered:
    """Changes to deliver, and where stretches are then."""

    changes: ChangeRows | None
    marks: tuple[tuple[str, Mark], ...]


def merged(streams: Sequence[Iterator[Piece]]) -> Iterator[Delivered]:
    """All changes of streams of which each is in the order of its commits.

    Where commits are not known the streams follow each other: right as long as no key wanders between
    dispatchers. Holds one piece of each stream.
    """
    if len(streams) == 1:
        for piece in streams[0]:
            yield Delivered(piece.changes, ((piece.index_path, piece.mark),))
        return
    heads = [_Head(stream) for stream in streams]
    while True:
        marks = tuple(mark for head in heads for mark in head.take_marks())
        waiting = [head for head in heads if head.changes is not None]
        if marks:
            yield Delivered(None, marks)
        if not waiting:
            return
        last = [head.last_ts for head in waiting]
        known = [ts for ts in last if ts is not None]
        if len(known) < len(last):
            parts = [waiting[last.index(None)].take_all()]
        else:
            parts = [part for head in waiting if (part := head.take_upto(min(known))) is not None]
        yield Delivered(_in_order(parts), ())


def _in_order(parts: list[ChangeRows]) -> ChangeRows:
    if len(parts) == 1:
        return parts[0]
    joined = concat(parts)
    return joined.take(pc.sort_indices(joined.commit_ts))  # stable: a stream's own order stays


class _Head:
    """The first changes of a stream that were not taken yet."""

    def __init__(self, stream: Iterator[Piece]) -> None:
        self._stream = stream
        self._marks: list[tuple[str, Mark]] = []
        self._piece: Piece | None = None
        self.changes: ChangeRows | None = None
        self._fill()

    @property
    def last_ts(self) -> int | None:
        assert self.changes is not None, "nothing is left of the stream"
        return self.changes.last_ts

    def take_marks(self) -> list[tuple[str, Mark]]:
        """The marks of pieces that were taken as a whole."""
        marks, self._marks = self._marks, []
        return marks

    def take_all(self) -> ChangeRows:
        """All that is at hand."""
        assert self.changes is not None, "nothing is left of the stream"
        taken = self.changes
        self._fill()
        return taken

    def take_upto(self, ts: int) -> ChangeRows | None:
        """Changes up to a commit; None when there are none."""
        assert self.changes is not None, "nothing is left of the stream"
        count = self.changes.count_upto(ts)
        if count == len(self.changes):
            return self.take_all()
        taken = self.changes.slice(0, count)
        self.changes = self.changes.slice(count)
        return taken if count else None

    def _fill(self) -> None:
        if self._piece is not None:
            self._marks.append((self._piece.index_path, self._piece.mark))
        self._piece = self.changes = None
        for piece in self._stream:
            if piece.changes is not None and len(piece.changes):
                self._piece, self.changes = piece, piece.changes
                return
            self._marks.append((piece.index_path, piece.mark))
