"""Reads a part of a slice, encodes it and cuts it into chunks, in bounded memory: what executors do.

`PartRows` reads rows in the order in which they are written. Batches come by time. The rows of one time, a
snapshot or a large commit, come in no order of handles, so they are held until they are complete. Where they
are too many, they are read again, one range of handles at a time.

`ChunkCutter` decides where chunks end, by the rows alone, however they arrive. Chunks end between commits. A
commit that is larger than `commit_bytes_max` may be cut after any of its rows; so may a snapshot. A position
is a commit, a phase of it and a handle. Where a commit has no phases, the delete and the insert of one row's
update are never cut apart.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from typing import TypeVar

import numpy as np

from penstock.changefeeds.codecs.encoder import (
    EncodedRows,
    Encoder,
    encoder_of,
    output_columns,
)
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import (
    DELETE,
    Mask,
    Pairing,
    RowChanges,
    key_columns,
    take_cells,
)
from penstock.changefeeds.codecs.row_filter import RowFilter
from penstock.changefeeds.engines.engine import ENCODE, READ, Traced
from penstock.changes import ChangeBatch, ChangesPartition, Hint
from penstock.columnar.text_lines import Ints
from penstock.errors import Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE
from penstock.follow.slices import Phase, Position, Slice

__all__ = ["EncodedChunk", "OnStep", "encode_part", "ignore_step", "retry_when_moved"]


HELD_BYTES_MAX = 256 * 1024 * 1024
_SAMPLE_EVERY = 64  # one handle of so many is sampled to divide a commit
_PIECE_ROWS = 32 * 1024  # that are encoded at once
_PIECE_BYTES = 64 * 1024 * 1024
_TRACED_MAX = 64  # transactions that a chunk lists: descriptors take the driver's memory
_AFTER = b"\0"  # appended to a handle: the lowest handle above it

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A payload: the changes of a dispatcher after `start` up to `end`."""

    start: Position
    end: Position
    rows: int
    payload: bytes
    traced: Traced = ()


OnStep = Callable[[str], None]
"""Takes the step that begins, or goes on."""


def ignore_step(step: str) -> None:
    """Do nothing: nobody waits."""


def encode_part(
    slice_: Slice,
    number: int,
    options: EncoderOptions,
    on_read: Callable[[int], None] | None = None,
    on_step: OnStep = ignore_step,
) -> Iterator[EncodedChunk]:
    """Yield the chunks of part `number` of a slice, in order; none when the filter leaves no row.

    `on_read` is called at the end, with the rows that were read, also those that the filter left out.
    `on_step` is called whenever rows were read or encoded; what it raises ends the work.

    The same slice gives the same chunks. Together the chunks of all parts are the changes of the slice.
    Raises Unavailable, StaleRead or Corrupt when the slice cannot be read, and Invalid for options that do
    not fit the table.
    """
    part = slice_.parts[number]
    rows = RowFilter.of(slice_.schema, options.where)
    pairing = Pairing(
        slice_.schema.table,
        [column.name for column in output_columns(slice_.schema, options)],
        _columns_to_read(slice_.schema, options, rows),
        None if rows is None else rows.keeps,
    )
    chunks = _ChunkBuilder(_Bounds(slice_, part), encoder_of(slice_.schema, options), options)
    rows_read = 0
    on_step(READ)
    for changes, whole in PartRows(part, pairing, slice_.start, slice_.end, on_step=on_step).changes():
        rows_read += len(changes) + changes.left_out
        on_step(ENCODE)
        for chunk in chunks.add(changes, whole=whole):
            yield chunk
            on_step(ENCODE)
        on_step(READ)
    yield from chunks.end()
    if on_read is not None:
        on_read(rows_read)


def retry_when_moved(work: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yield what `work` yields, which is the same each time; start it once more when it raises Unavailable.

    A capture that gives up a table has moved its rows into objects. A reader that looked there before asks
    the capture in vain; the second attempt finds the rows in the objects.
    """
    yielded = 0
    try:
        for item in work():
            yield item
            yielded += 1
    except Unavailable:
        yield from islice(work(), yielded, None)


def _columns_to_read(schema: SchemaVersion, options: EncoderOptions, rows: RowFilter | None) -> list[str]:
    """Return the columns of the table that are needed, in its order."""
    written = {column.name for column in output_columns(schema, options)}
    filtered = set() if rows is None else set(rows.columns)
    needed = written | filtered | set(key_columns(schema.table))
    return [column.name for column in schema.table.stored_columns if column.name in needed]


@dataclass(frozen=True, slots=True)
class PartRows:
    """The changes of a part that are after a position, and not after another (None: to the part's end)."""

    part: ChangesPartition
    pairing: Pairing
    after: Position
    upto: Position | None = None
    held_bytes_max: int = HELD_BYTES_MAX
    on_step: OnStep = field(default=ignore_step, kw_only=True)

    @property
    def is_snapshot(self) -> bool:
        """Whether the part is a snapshot: the rows at one time."""
        return not self.part.from_ts

    def changes(self) -> Iterator[tuple[RowChanges, bool]]:
        """Yield changes in order, and whether their last commit is complete.

        Raises Unavailable, StaleRead or Corrupt when they cannot be read.
        """
        with self.part.collect() as batches:
            waiting: list[ChangeBatch] = []
            held = 0
            for batch in batches:
                self.on_step(READ)
                waiting.append(batch)
                held += batch.data.nbytes + batch.tombstones.nbytes
                if batch.hint is Hint.TAIL_DONE:
                    yield self._pair(waiting), True
                elif held > self.held_bytes_max:
                    yield from self._divide(waiting, batches)
                else:
                    continue
                waiting, held = [], 0
            if waiting:
                yield self._pair(waiting), True

    def _pair(self, batches: list[ChangeBatch]) -> RowChanges:
        snapshot_ts = self.part.to_ts if self.is_snapshot else 0
        return self.pairing.of(batches, self.after, self.upto, snapshot_ts=snapshot_ts)

    def _divide(
        self, begun: list[ChangeBatch], rest: Iterable[ChangeBatch]
    ) -> Iterator[tuple[RowChanges, bool]]:
        """Read a snapshot or commit whose batches are too many again, one range of handles at a time.

        A commit with phases is read twice: first for its deletes, then for the rest of it.
        """
        sample = _TimeSample()
        for batch in chain(begun, rest):
            self.on_step(READ)
            sample.add(batch)
            if batch.hint is Hint.TAIL_DONE:
                break
        begun.clear()
        whole = self.part
        if not self.is_snapshot:
            whole = replace(whole, from_ts=sample.ts - 1, to_ts=sample.ts)
        bounds = [b"", *sample.cuts(self.held_bytes_max // 2), b""]
        parts = [part for pair in pairwise(bounds) if (part := whole.within(*pair)) is not None]
        if self.is_snapshot or not self.pairing.table.unique_keys:
            passes = [(part, Phase.ROWS) for part in parts]
        else:
            passes = [(part, phase) for phase in (Phase.DELETES, Phase.REST) for part in parts]
        last: RowChanges | None = None  # the last one with changes ends the commit, so it waits for the next
        left_out = 0
        for part, phase in passes:
            self.on_step(READ)
            with part.collect() as batches:
                changes = self._pair(list(batches))
            if phase is not Phase.REST:  # which reads the same changes as the pass before it
                left_out += changes.left_out
            if phase is not Phase.ROWS:
                changes = changes.where((changes.kinds == DELETE) == (phase is Phase.DELETES))
            if len(changes):
                if last is not None:
                    yield replace(last, left_out=0), False
                last = changes
            elif last is None:
                last = changes  # nothing to write, unless more comes: it tells how many were left out
        if last is not None:
            yield replace(last, left_out=left_out), True


class _TimeSample:
    """How many bytes one time has, and a sample of its handles."""

    def __init__(self) -> None:
        self.ts = 0
        self._nbytes = 0
        self._handles: list[bytes] = []

    def add(self, batch: ChangeBatch) -> None:
        for side in (batch.tombstones, batch.data):
            if side.num_rows:
                self.ts = int(side.column(COMMIT_TS)[0].as_py())
                self._nbytes += side.nbytes
                places = np.arange(0, side.num_rows, _SAMPLE_EVERY)
                self._handles += take_cells(side.column(HANDLE), places).to_pylist()

    def cuts(self, nbytes: int) -> list[bytes]:
        """Return handles that divide it into ranges of about so many bytes each."""
        count = -(-self._nbytes // max(1, nbytes))
        handles = sorted(self._handles)
        chosen = (handles[len(handles) * number // count] for number in range(1, count))
        return sorted(set(chosen) - {handles[0]})


@dataclass(frozen=True, slots=True)
class RowSizes:
    """The bytes and commits of rows, and whether a row and the next one must not be cut apart."""

    nbytes: Ints
    commits: Ints
    followed: Mask


class ChunkCutter:
    """Takes the sizes of rows and returns how many of the waiting rows make the next chunk.

    A chunk ends at the first allowed place at or after `chunk_bytes`.
    """

    def __init__(self, chunk_bytes: int, commit_bytes_max: int, *, anywhere: bool) -> None:
        self._chunk_bytes = chunk_bytes
        self._commit_bytes_max = commit_bytes_max
        self._anywhere = anywhere
        self._nbytes = np.empty(0, np.int64)
        self._commits = np.empty(0, np.int64)
        self._followed = np.empty(0, np.bool_)

    def add(self, sizes: RowSizes, *, whole: bool) -> Iterator[int]:
        """Yield the rows of each chunk that is now complete; `whole`: the last commit has no more rows."""
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
        """Return how many rows still wait."""
        return len(self._nbytes)

    def _places(self, ends: Ints, *, whole: bool) -> Ints:
        """Return the rows after which a chunk may end."""
        if self._anywhere or not len(ends):
            return np.arange(len(ends))
        last = np.append(self._commits[1:] != self._commits[:-1], True)
        bounds = np.flatnonzero(last)
        held = np.diff(ends[bounds], prepend=0)
        allowed = last.copy()
        allowed[-1] = whole
        allowed |= np.repeat(held > self._commit_bytes_max, np.diff(bounds, prepend=-1))
        return np.flatnonzero(allowed & ~self._followed)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Where a part begins and ends in the order of its dispatcher's changes.

    A part with narrower handle bounds than its dispatcher has rows of one timestamp only; other parts have
    the rest of that timestamp.
    """

    slice_: Slice
    part: ChangesPartition

    def begin(self, first_ts: int) -> Position:
        """Return the position before its rows; `first_ts` is the commit of the first."""
        low, own = self.part.handle_from, self.slice_.dispatcher.handle_from
        if self.is_snapshot:
            begin = Position(self.part.to_ts, low)
        elif low > own:
            begin = Position(first_ts, low)
        else:
            begin = Position(self.part.from_ts)
        return max(begin, self.slice_.start)

    def end(self, last_ts: int) -> Position:
        """Return the position after its rows; `last_ts` is the commit of the last."""
        if self.part is self.slice_.parts[-1]:
            return self.slice_.end
        end = Position(last_ts, self.part.handle_to) if self.is_cut else Position(self.part.to_ts)
        return min(end, self.slice_.end)

    @property
    def is_cut(self) -> bool:
        """Whether other parts have the rows of the same commit that follow."""
        high, own = self.part.handle_to, self.slice_.dispatcher.handle_to
        return bool(high) and (not own or high < own)

    @property
    def is_snapshot(self) -> bool:
        """Whether the part is a snapshot: the rows at one time."""
        return not self.part.from_ts


class _ChunkBuilder:
    """Encodes changes as they come. It yields a chunk when the next is made: the last ends with its part."""

    def __init__(self, bounds: _Bounds, encoder: Encoder, options: EncoderOptions) -> None:
        self._bounds = bounds
        self._encoder = encoder
        self._sampling = None if bounds.is_snapshot else options.traced
        self._cuts = ChunkCutter(
            options.chunk_bytes,
            options.commit_bytes_max,
            anywhere=bounds.is_snapshot,
        )
        self._has_phases = bool(bounds.slice_.schema.table.unique_keys) and not bounds.is_snapshot
        self._waiting: list[_UncutRows] = []
        self._last_chunk: EncodedChunk | None = None
        self._last_ts = 0

    def add(self, changes: RowChanges, *, whole: bool) -> Iterator[EncodedChunk]:
        """Encode the next changes and yield full chunks; `whole`: their last commit is complete."""
        done, followed = 0, changes.followed
        if self._has_phases:
            followed[:] = False
        for piece in changes.pieces(_PIECE_ROWS, _PIECE_BYTES):
            piece_followed = followed[done : done + len(piece)]
            done += len(piece)
            complete = whole and done == len(changes)
            block = self._encoder.encode(piece)
            self._waiting.append(_UncutRows(block, piece, complete))
            sizes = RowSizes(block.nbytes, piece.commit_ts, piece_followed)
            for rows in self._cuts.add(sizes, whole=complete):
                yield from self._make_chunk(rows)

    def end(self) -> Iterator[EncodedChunk]:
        """Yield the last chunks."""
        if self._cuts.rest():
            yield from self._make_chunk(self._cuts.rest())
        if self._last_chunk is not None:
            yield replace(self._last_chunk, end=self._bounds.end(self._last_ts))

    def _make_chunk(self, rows: int) -> Iterator[EncodedChunk]:
        """Make a chunk of the first `rows` that wait; yield the one before."""
        first_ts = int(self._waiting[0].changes.commit_ts[0])
        start = self._bounds.begin(first_ts) if self._last_chunk is None else self._last_chunk.end
        taken = self._take(rows)
        if self._last_chunk is not None:
            yield self._last_chunk
        payload = self._encoder.payload([uncut.block for uncut in taken])
        end, traced = self._end_of(taken[-1]), self._pick_traced(taken)
        self._last_chunk = EncodedChunk(start, end, rows, payload, traced)

    def _pick_traced(self, taken: list["_UncutRows"]) -> Traced:
        if self._sampling is None:
            return ()
        picked = self._sampling.pick(np.concatenate([uncut.changes.commit_ts for uncut in taken]))
        return self._sampling.limit(picked, _TRACED_MAX).pairs()

    def _take(self, rows: int) -> list["_UncutRows"]:
        taken: list[_UncutRows] = []
        while rows:
            first = self._waiting[0]
            count = min(rows, len(first.changes))
            taken.append(first.slice(0, count))
            left = first.slice(count, len(first.changes))
            self._waiting[:1] = [left] if len(left.changes) else []
            rows -= count
        return taken

    def _end_of(self, last: "_UncutRows") -> Position:
        """Return the position after these changes, before those that still wait."""
        self._last_ts = int(last.changes.commit_ts[-1])
        complete = last.complete
        if self._waiting:
            complete = int(self._waiting[0].changes.commit_ts[0]) != self._last_ts
        if complete and not self._bounds.is_cut and not self._bounds.is_snapshot:
            return Position(self._last_ts)
        phase = Phase.ROWS
        if self._has_phases:
            phase = Phase.DELETES if last.changes.kinds[-1] == DELETE else Phase.REST
        return Position(self._last_ts, last.changes.handles[-1].as_py() + _AFTER, phase)


@dataclass(frozen=True, slots=True)
class _UncutRows:
    """Encoded changes that are in no chunk yet; `complete`: their last commit has no more rows."""

    block: EncodedRows
    changes: RowChanges
    complete: bool

    def slice(self, start: int, stop: int) -> "_UncutRows":
        return _UncutRows(self.block.slice(start, stop), self.changes.slice(start, stop), self.complete)
