"""A part of a slice read, encoded, and cut into chunks: what executors do, in bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from penstock.changefeeds.codecs.encoder import (
    EncodedRows,
    Encoder,
    encoder_of,
    extension_of,
    header_of,
    shown_columns,
)
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.pairing import Pairing, keys_move
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.changefeeds.codecs.row_filter import RowFilter
from penstock.changefeeds.engines.chunking import Chunking, Sizes
from penstock.changefeeds.engines.engine import Traced
from penstock.changefeeds.engines.partrows import PartRows
from penstock.changes import ChangesPartition
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.positions import Position
from penstock.follow.slices import Slice

__all__ = ["EncodedChunk", "encode_part", "extension", "file_header"]

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


def file_header(schema: SchemaVersion, options: EncoderOptions) -> bytes:
    """What comes before the first chunk of a file."""
    return header_of(schema, options)


def extension(options: EncoderOptions) -> str:
    """How the names of data files end."""
    return extension_of(options)


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
