"""A part of a slice read, encoded, and cut into chunks: what executors do, in bounded memory.

The rows of a part in the order in which they are written, with a bounded amount of them in memory.

Batches come by time. What is of one time, a snapshot or a large commit, comes in no order of handles, so it
is held until it is complete. Where that is too much it is read again, a range of handles at a time.

Where a stream of encoded rows is cut into chunks: by its rows alone, however they arrive. Pure.

Chunks end between commits. A commit that is larger than `commit_bytes_max` may be cut after any of its rows,
unless its rows belong together; so may a snapshot. A position is a commit and a handle, so the delete and the
insert that one row's update became are never cut apart.

Reading that is begun anew when rows have moved meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import TypeVar

import numpy as np

from penstock.changefeeds.codecs.encoder import (
    EncodedRows,
    Encoder,
    encoder_of,
    shown_columns,
)
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import Mask, Pairing, RowChanges, keys_move, taken
from penstock.changefeeds.codecs.row_filter import RowFilter
from penstock.changefeeds.engines.engine import Traced
from penstock.changes import ChangeBatch, ChangesPartition, Hint
from penstock.columnar.text_lines import Ints
from penstock.errors import Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.follow.slices import Position, Slice

__all__ = ["EncodedChunk", "encode_part", "tried_again"]


HELD_BYTES_MAX = 256 * 1024 * 1024
_SAMPLED = 64  # one handle of so many is looked at to divide a commit


@dataclass(frozen=True, slots=True)
class PartRows:
    """Changes of a part that are after a position.

    The changes of one commit are held together in memory, however many, where its keys can move between rows.
    """

    part: ChangesPartition
    pairing: Pairing
    after: Position
    held_bytes_max: int = HELD_BYTES_MAX

    @property
    def is_snapshot(self) -> bool:
        """Whether they are the rows that there are at one time."""
        return not self.part.from_ts

    def changes(self) -> Iterator[tuple[RowChanges, bool]]:
        """Changes in order, and whether the last commit among them is complete. Raises what reading does."""
        with self.part.collect() as batches:
            waiting: list[ChangeBatch] = []
            held = 0
            for batch in batches:
                waiting.append(batch)
                held += batch.data.nbytes + batch.tombstones.nbytes
                if batch.hint is Hint.TAIL_DONE:
                    yield self._paired(waiting), True
                elif held > self.held_bytes_max and self._divides:
                    yield from self._divided(waiting, batches)
                else:
                    continue
                waiting, held = [], 0
            if waiting:
                yield self._paired(waiting), True

    def _paired(self, batches: list[ChangeBatch]) -> RowChanges:
        return self.pairing.of(batches, self.after, snapshot_ts=self.part.to_ts if self.is_snapshot else 0)

    @property
    def _divides(self) -> bool:
        return self.is_snapshot or not keys_move(self.pairing.table)

    def _divided(
        self, begun: list[ChangeBatch], rest: Iterable[ChangeBatch]
    ) -> Iterator[tuple[RowChanges, bool]]:
        """What belongs together with batches that are too many, read again by ranges of handles."""
        sample = _Sample()
        for batch in chain(begun, rest):
            sample.add(batch)
            if batch.hint is Hint.TAIL_DONE:
                break
        begun.clear()
        whole = self.part
        if not self.is_snapshot:
            whole = replace(whole, from_ts=sample.ts - 1, to_ts=sample.ts)
        bounds = [b"", *sample.cuts(self.held_bytes_max // 2), b""]
        for number, (low, high) in enumerate(pairwise(bounds), 2):
            part = whole.within(low, high)
            if part is not None:
                with part.collect() as batches:
                    yield self._paired(list(batches)), number == len(bounds)


class _Sample:
    """How much there is of one time, and some of its handles."""

    def __init__(self) -> None:
        self.ts = 0
        self._nbytes = 0
        self._handles: list[bytes] = []

    def add(self, batch: ChangeBatch) -> None:
        for side in (batch.tombstones, batch.data):
            if side.num_rows:
                self.ts = int(side.column(COMMIT_TS)[0].as_py())
                self._nbytes += side.nbytes
                places = np.arange(0, side.num_rows, _SAMPLED)
                self._handles += taken(side.column(HANDLE), places).to_pylist()

    def cuts(self, nbytes: int) -> list[bytes]:
        """Handles that divide it into about so many bytes each."""
        count = -(-self._nbytes // max(1, nbytes))
        handles = sorted(self._handles)
        chosen = (handles[len(handles) * number // count] for number in range(1, count))
        return sorted(set(chosen) - {handles[0]})


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of some rows: their bytes, their commits, and whether a row and the next one must not be parted."""

    nbytes: Ints
    commits: Ints
    followed: Mask


class Chunking:
    """Rows come in, and how many of those that wait make the next chunk comes out.

    A chunk ends at the first place behind `chunk_bytes` where it may.
    """

    def __init__(
        self, chunk_bytes: int, commit_bytes_max: int, *, anywhere: bool, never_inside: bool
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._commit_bytes_max = commit_bytes_max
        self._anywhere = anywhere
        self._never_inside = never_inside
        self._nbytes = np.empty(0, np.int64)
        self._commits = np.empty(0, np.int64)
        self._followed = np.empty(0, np.bool_)

    def add(self, sizes: Sizes, *, whole: bool) -> Iterator[int]:
        """Rows of each chunk that is now complete; `whole`: the last commit has no more rows."""
        self._nbytes = np.concatenate((self._nbytes, sizes.nbytes))
        self._commits = np.concatenate((self._commits, sizes.commits))
        self._followed = np.concatenate((self._followed, sizes.followed))
        ends = np.cumsum(self._nbytes)
        places = self._places(ends, whole=whole)
        reached, done = 0, 0
        while True:
            next_place = int(np.searchsorted(ends[places], reached + self._chunk_bytes))
            if next_place >= len(places):
                break
            row = int(places[next_place])
            yield row + 1 - done
            reached, done = int(ends[row]), row + 1
        self._nbytes, self._commits = self._nbytes[done:], self._commits[done:]
        self._followed = self._followed[done:]

    def rest(self) -> int:
        """How many rows wait still."""
        return len(self._nbytes)

    def _places(self, ends: Ints, *, whole: bool) -> Ints:
        """The rows behind which a chunk may end."""
        if self._anywhere or not len(ends):
            return np.arange(len(ends))
        last = np.append(self._commits[1:] != self._commits[:-1], True)
        bounds = np.flatnonzero(last)
        held = np.diff(ends[bounds], prepend=0)
        allowed = last.copy()
        allowed[-1] = whole
        if not self._never_inside:
            allowed |= np.repeat(held > self._commit_bytes_max, np.diff(bounds, prepend=-1))
        return np.flatnonzero(allowed & ~self._followed)


_PIECE_ROWS = 32 * 1024  # that are encoded at once
_PIECE_BYTES = 64 * 1024 * 1024
_TRACED_MAX = 64  # transactions that a chunk tells of: descriptors are the driver's memory
_AFTER = b"\0"  # behind a handle: the lowest handle above it


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A payload: the changes after `start` up to `end` of a dispatcher."""

    start: Position
    end: Position
    rows: int
    payload: bytes
    traced: Traced = ()


def encode_part(piece: Slice, number: int, options: EncoderOptions) -> Iterator[EncodedChunk]:
    """The chunks of part `number` of a slice, in order; none when the filter leaves no row.

    The same slice gives the same chunks. Together the chunks of all parts are the changes after `piece.start`
    up to `piece.end`. Raises what reading changes raises (Unavailable, StaleRead, Corrupt), and Invalid for
    options that do not fit the table.
    """
    part = piece.parts[number]
    rows = RowFilter.of(piece.schema, options.where)
    pairing = Pairing(
        piece.schema.table,
        [column.name for column in shown_columns(piece.schema, options)],
        _reads(piece.schema, options, rows),
        None if rows is None else rows.keeps,
    )
    chunks = _Chunks(_Bounds(piece, part), encoder_of(piece.schema, options), options)
    for changes, whole in PartRows(part, pairing, piece.start).changes():
        yield from chunks.add(changes, whole=whole)
    yield from chunks.end()


def _reads(schema: SchemaVersion, options: EncoderOptions, rows: RowFilter | None) -> list[str]:
    """The columns of the table that are needed, in its order."""
    shown = {column.name for column in shown_columns(schema, options)}
    looked_at = set() if rows is None else set(rows.columns)
    return [column.name for column in schema.table.stored_columns if column.name in shown | looked_at]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Where a part begins and ends in the order of its dispatcher's changes.

    A part whose handles are bounded more tightly than its dispatcher's has rows of one timestamp only, of
    which other parts have the rest.
    """

    piece: Slice
    part: ChangesPartition

    def begin(self, first_ts: int) -> Position:
        """The place before its rows, of which the first is of `first_ts`."""
        low, own = self.part.handle_from, self.piece.dispatcher.handle_from
        if self.is_snapshot:
            begin = Position(self.part.to_ts, low)
        elif low > own:
            begin = Position(first_ts, low)
        else:
            begin = Position(self.part.from_ts)
        return max(begin, self.piece.start)

    def end(self, last_ts: int) -> Position:
        """The place behind its rows, of which the last is of `last_ts`."""
        if self.part is self.piece.parts[-1]:
            return self.piece.end
        return Position(last_ts, self.part.handle_to) if self.is_cut else Position(self.part.to_ts)

    @property
    def is_cut(self) -> bool:
        """Whether other parts have rows of the same commit behind it."""
        high, own = self.part.handle_to, self.piece.dispatcher.handle_to
        return bool(high) and (not own or high < own)

    @property
    def is_snapshot(self) -> bool:
        """Whether its rows are those that there are at one time."""
        return not self.part.from_ts


class _Chunks:
    """Encodes changes as they come and gives chunks; the last is held back, because it ends with its part."""

    def __init__(self, bounds: _Bounds, encoder: Encoder, options: EncoderOptions) -> None:
        self._bounds = bounds
        self._encoder = encoder
        self._sampling = None if bounds.is_snapshot else options.traced
        self._cuts = Chunking(
            options.chunk_bytes,
            options.commit_bytes_max,
            anywhere=bounds.is_snapshot,
            never_inside=keys_move(bounds.piece.schema.table),
        )
        self._waiting: list[_Waiting] = []
        self._made: EncodedChunk | None = None
        self._last_ts = 0

    def add(self, changes: RowChanges, *, whole: bool) -> Iterator[EncodedChunk]:
        """Changes that follow; `whole`: their last commit is complete."""
        done, followed = 0, changes.followed
        for each in changes.pieces(_PIECE_ROWS, _PIECE_BYTES):
            behind = followed[done : done + len(each)]
            done += len(each)
            complete = whole and done == len(changes)
            block = self._encoder.encode(each)
            self._waiting.append(_Waiting(block, each, complete))
            sizes = Sizes(block.nbytes, each.commit_ts, behind)
            for rows in self._cuts.add(sizes, whole=complete):
                yield from self._chunk(rows)

    def end(self) -> Iterator[EncodedChunk]:
        """What is left."""
        if self._cuts.rest():
            yield from self._chunk(self._cuts.rest())
        if self._made is not None:
            yield replace(self._made, end=self._bounds.end(self._last_ts))

    def _chunk(self, rows: int) -> Iterator[EncodedChunk]:
        """Make a chunk of the first `rows` that wait; give the one before."""
        first_ts = int(self._waiting[0].changes.commit_ts[0])
        start = self._bounds.begin(first_ts) if self._made is None else self._made.end
        taken = self._take(rows)
        if self._made is not None:
            yield self._made
        payload = self._encoder.payload([each.block for each in taken])
        self._made = EncodedChunk(start, self._behind(taken[-1]), rows, payload, self._traced(taken))

    def _traced(self, taken: list["_Waiting"]) -> Traced:
        if self._sampling is None:
            return ()
        picked = self._sampling.pick(np.concatenate([each.changes.commit_ts for each in taken]))
        return self._sampling.within(picked, _TRACED_MAX).pairs()

    def _take(self, rows: int) -> list["_Waiting"]:
        taken: list[_Waiting] = []
        while rows:
            first = self._waiting[0]
            count = min(rows, len(first.changes))
            taken.append(first.slice(0, count))
            left = first.slice(count, len(first.changes))
            self._waiting[:1] = [left] if len(left.changes) else []
            rows -= count
        return taken

    def _behind(self, last: "_Waiting") -> Position:
        """The place behind some changes, before those that still wait."""
        self._last_ts = int(last.changes.commit_ts[-1])
        complete = last.complete
        if self._waiting:
            complete = int(self._waiting[0].changes.commit_ts[0]) != self._last_ts
        if complete and not self._bounds.is_cut and not self._bounds.is_snapshot:
            return Position(self._last_ts)
        return Position(self._last_ts, last.changes.handles[-1].as_py() + _AFTER)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Encoded changes that are in no chunk yet; `complete`: their last commit has no more rows."""

    block: EncodedRows
    changes: RowChanges
    complete: bool

    def slice(self, start: int, stop: int) -> "_Waiting":
        return _Waiting(self.block.slice(start, stop), self.changes.slice(start, stop), self.complete)


T = TypeVar("T")


def tried_again(work: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What `work` gives, which is the same each time; once it is begun anew when something is not available.

    A capture that gives a table up has put its rows into objects; who looked there before asks it in vain.
    """
    given = 0
    try:
        for each in work():
            yield each
            given += 1
    except Unavailable:
        yield from islice(work(), given, None)
