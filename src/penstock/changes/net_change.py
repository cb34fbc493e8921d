"""The net effect of changes on each row, in vectors. Pure.

A row is a handle in a physical table: where the changes of several are together, their PARTITION tells which.
Two of them may have rows of the same handle, as EXCHANGE PARTITION leaves them. Of the changes to a row, by
time and at one time the tombstone first, the first and the last decide:

    first      last       kept
    tombstone  data       the first tombstone and the last data
    tombstone  tombstone  the last tombstone
    data       data       the last data
    data       tombstone  nothing; with `replay` the last tombstone

`replay` is for a reader that may have applied some of the changes before. A tombstone that stays carries the
old row of the first one: the row that a reader has. Where a row's primary key may change while its handle
does not (`keys_move`), a tombstone has to name the key that a reader has, at a time when no other row has it:
the first tombstone stays instead of the last.

The result can be coalesced again together with what follows it. Only then may the tombstones of updates be
skipped, for readers that replace rows.

The changes of an iteration as what they come to: for each key one row to put, or one to take away.

    net = gather(data, job.scratch)
    target.merge(net.upserts, net.deletes)

A key may have changed in many batches. Its last change counts: the greatest `_commit_ts`, and at one
`_commit_ts` the row before the delete that made room for it. All of it is done in vectors and in bounded
memory: rows beyond some MiB go to a file, which is then mapped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.columns import with_commit_ts
from penstock.columnar.row_hash import row_hashes
from penstock.columnar.spill_queue import SPOOL_BYTES, SpillTable
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD, PARTITION, UPDATE

_INT_HANDLE_BYTES = 8

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def coalesce(
    data: pa.RecordBatch, tombstones: pa.RecordBatch, *, replay: bool = False, keys_move: bool = False
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The net changes of both sides, each ordered by time as before; `_update` says what they are now."""
    rows = _number([tombstones.column(HANDLE), data.column(HANDLE)])
    if int(rows.max(initial=-1)) + 1 < len(rows):
        rows = _within_partitions(rows, (tombstones, data))
    count = int(rows.max(initial=-1)) + 1
    if count == len(rows):
        return data, tombstones
    ended, begun = _Ends.of(rows[: len(tombstones)], tombstones), _Ends.of(rows[len(tombstones) :], data)
    first_t, last_t, last_d = ended.first(count), ended.last(count), begun.last(count)
    was_there = ended.times(first_t, absent=_NEVER) <= begun.times(begun.first(count), absent=_NEVER)
    is_there = begun.times(last_d, absent=-1) >= ended.times(last_t, absent=-1)
    updated = was_there & is_there

    by_first = was_there if keys_move else updated
    by_last = ~is_there & ~by_first & (was_there | replay)
    kept_t = _in_order(np.concatenate((first_t[by_first], last_t[by_last])), len(tombstones))
    kept_d = _in_order(last_d[is_there], len(data))
    ends = _pick(tombstones, kept_t, updated[ended.rows[kept_t]])
    old = first_t[ended.rows[kept_t]]
    return _pick(data, kept_d, updated[begun.rows[kept_d]]), _with_old(ends, tombstones, old, kept_t)


def without_updates(tombstones: pa.RecordBatch) -> pa.RecordBatch:
    """The tombstones whose rows do not come back in the same, or in the net, change."""
    return tombstones.filter(pc.invert(tombstones.column(UPDATE)))


_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the changes of each row begin and end on one side; -1: it has none there."""

    rows: Ints
    ts: Ints

    @classmethod
    def of(cls, rows: Ints, side: pa.RecordBatch) -> "_Ends":
        return cls(rows, side.column(COMMIT_TS).to_numpy())

    def first(self, count: int) -> Ints:
        found = np.full(count, -1, np.int64)
        found[self.rows[::-1]] = np.arange(len(self.rows) - 1, -1, -1)
        return found

    def last(self, count: int) -> Ints:
        found = np.full(count, -1, np.int64)
        found[self.rows] = np.arange(len(self.rows))
        return found

    def times(self, places: Ints, *, absent: int) -> Ints:
        found: Ints = np.append(self.ts, absent)[places]  # -1 is the last
        return found


def _number(handles: list[pa.Array]) -> Ints:
    """Numbers from 0 without gaps, the same for equal handles."""
    integers = [_as_integers(each) for each in handles]
    if any(each is None for each in integers):
        codes = pa.concat_arrays(handles).dictionary_encode().indices.to_numpy()
        return np.asarray(codes, np.int64)
    return _ranks(np.concatenate([each for each in integers if each is not None]))


def _within_partitions(rows: Ints, sides: tuple[pa.RecordBatch, pa.RecordBatch]) -> Ints:
    """Numbers from 0 without gaps that are the same for the same number in the same partition."""
    named = [each.column(PARTITION).to_numpy() for each in sides if PARTITION in each.schema.names]
    if not named:
        return rows
    partitions, at = np.unique(np.concatenate(named), return_inverse=True)
    return rows if len(partitions) == 1 else _ranks(rows * len(partitions) + at)


def _ranks(values: Ints) -> Ints:
    """Numbers from 0 without gaps, the same for equal values."""
    if not len(values):
        return values
    order = np.argsort(values)
    ordered = values[order]
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.concatenate(([0], np.cumsum(ordered[1:] != ordered[:-1])))
    return numbers


def _as_integers(handles: pa.Array) -> Ints | None:
    """Handles that all have the width of an integer, as such; their order means nothing."""
    if not len(handles):
        return np.empty(0, np.int64)
    _, offsets, content = handles.buffers()
    bounds = np.frombuffer(offsets, np.int32)[handles.offset : handles.offset + len(handles) + 1]
    if np.any(np.diff(bounds) != _INT_HANDLE_BYTES):
        return None
    return np.frombuffer(content, np.int64, len(handles), int(bounds[0]))


def _in_order(places: Ints, count: int) -> Ints:
    wanted = np.zeros(count, np.bool_)
    wanted[places] = True
    return np.flatnonzero(wanted)


def _pick(side: pa.RecordBatch, kept: Ints, updated: Mask) -> pa.RecordBatch:
    found = side if len(kept) == len(side) else side.take(pa.array(kept))
    if UPDATE not in side.schema.names:
        return found
    at = side.schema.get_field_index(UPDATE)
    return found.set_column(at, side.schema.field(at), pa.array(updated))


def _with_old(kept: pa.RecordBatch, tombstones: pa.RecordBatch, old: Ints, places: Ints) -> pa.RecordBatch:
    """Tombstones with the old rows of the first ones."""
    if OLD not in kept.schema.names or np.array_equal(old, places):
        return kept
    at = kept.schema.get_field_index(OLD)
    return kept.set_column(at, kept.schema.field(at), tombstones.column(OLD).take(pa.array(old)))


_NUMBERING = 4
"""How many times their own size keys take while they are compared, about."""
_PARTS_MAX = 64
"""Parts in which keys are compared: each looks at all of them again."""


@dataclass(frozen=True, slots=True)
class NetChanges:
    """What the target lacks. No key is there twice, neither in a table nor in both.

    `upserts` has the retriever's columns and `_commit_ts`; `deletes` the key's columns and `_commit_ts`, and
    may name rows that the target does not have. Both are in the order of the commits; their memory may be a
    mapped file, that goes when they do.
    """

    keys: tuple[str, ...]
    upserts: pa.Table
    deletes: pa.Table

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.upserts.num_rows and not self.deletes.num_rows

    @property
    def changed_keys(self) -> pa.Table:
        """Every key that is there: what a target without upserts removes first."""
        parts = [each.select(list(self.keys)) for each in (self.upserts, self.deletes)]
        return pa.concat_tables(parts)


def net_of(
    changes: Iterable[tuple[pa.RecordBatch, pa.RecordBatch]],
    columns: pa.Schema,
    keys: Sequence[str],
    scratch: Path,
    *,
    distinct: bool = False,
    memory_bytes: int = SPOOL_BYTES,
) -> NetChanges:
    """What inserts (`columns` and `_commit_ts`) and deletes come to; `distinct`: no key is there twice."""
    begun = with_commit_ts(columns)
    ended = pa.schema([begun.field(name) for name in (*keys, COMMIT_TS)])
    upserts = SpillTable(begun, scratch / "upserts.arrow", memory_bytes=memory_bytes)
    deletes = SpillTable(ended, scratch / "deletes.arrow", memory_bytes=memory_bytes)
    try:
        for inserts, gone in changes:
            upserts.add(inserts)
            deletes.add(gone)
        found = NetChanges(tuple(keys), upserts.finish(), deletes.finish())
        return found if distinct else _last_of_each(found, scratch, memory_bytes)
    finally:
        upserts.discard()
        deletes.discard()


def _last_of_each(changes: NetChanges, scratch: Path, memory_bytes: int) -> NetChanges:
    sides = (changes.deletes, changes.upserts)
    last_deletes, last_upserts = last_changes(sides, changes.keys, memory_bytes=memory_bytes)
    return NetChanges(
        changes.keys,
        _kept(changes.upserts, last_upserts, scratch / "upserts.net.arrow", memory_bytes),
        _kept(changes.deletes, last_deletes, scratch / "deletes.net.arrow", memory_bytes),
    )


def last_changes(
    sides: tuple[pa.Table, pa.Table], keys: Sequence[str], *, memory_bytes: int = SPOOL_BYTES
) -> tuple[Mask, Mask]:
    """Which rows of deletes, and of upserts, are the last change of their keys. Pure."""
    rows = [each.select([*keys, COMMIT_TS]) for each in sides]
    masks = tuple(np.zeros(each.num_rows, np.bool_) for each in rows)
    needed = _NUMBERING * sum(each.nbytes for each in rows)
    parts = min(_PARTS_MAX, -(-needed // memory_bytes))
    for part in range(parts):
        places, mine = zip(*(_part(each, keys, part, parts) for each in rows), strict=True)
        last = _last(mine[0], mine[1], keys)
        ended, begun = last[last < mine[0].num_rows], last[last >= mine[0].num_rows] - mine[0].num_rows
        for mask, where, chosen in zip(masks, places, (ended, begun), strict=True):
            mask[where[chosen]] = True
    return masks[0], masks[1]


def _part(rows: pa.Table, keys: Sequence[str], part: int, parts: int) -> tuple[Ints, pa.Table]:
    """The rows of one part of all keys, with their places: so many are compared as memory allows."""
    if parts == 1:
        return np.arange(rows.num_rows), rows
    found: list[pa.RecordBatch] = []
    places: list[Ints] = []
    begin = 0
    for batch in rows.to_batches():
        chosen = np.flatnonzero(row_hashes(batch.select(list(keys))) % np.uint64(parts) == part)
        found.append(batch.take(pa.array(chosen)))
        places.append(begin + chosen)
        begin += batch.num_rows
    return np.concatenate([np.empty(0, np.int64), *places]), pa.Table.from_batches(found, rows.schema)


def _last(deletes: pa.Table, upserts: pa.Table, keys: Sequence[str]) -> Ints:
    """The place of each key's last change among deletes and then upserts."""
    rows = pa.concat_tables([deletes, upserts])
    if not rows.num_rows:
        return np.empty(0, np.int64)
    numbers = _numbered([rows.column(name) for name in keys])
    side = np.repeat(np.array([0, 1]), [deletes.num_rows, upserts.num_rows])
    order = np.lexsort((side, rows.column(COMMIT_TS).to_numpy()))
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers[order]] = order  # of those of one key the last assignment stays
    return last


def _numbered(columns: Sequence[pa.ChunkedArray]) -> Ints:
    """Numbers from 0 without gaps, the same for rows that are equal in all columns."""
    numbers = _codes(columns[0])
    for column in columns[1:]:
        more = _codes(column)
        pairs = numbers * (int(more.max()) + 1) + more
        numbers = _value_ranks(pairs)
    return numbers


def _codes(column: pa.ChunkedArray) -> Ints:
    if pa.types.is_integer(column.type) and not column.null_count:
        return _value_ranks(column.to_numpy())
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return np.concatenate([each.indices.to_numpy() for each in encoded.chunks]).astype(np.int64)


def _value_ranks(values: npt.NDArray[np.integer[Any]]) -> Ints:
    """Numbers by sorting, which for integers takes a third of the time that hashing takes."""
    order = np.argsort(values)
    ordered = values[order]
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.concatenate(([0], np.cumsum(ordered[1:] != ordered[:-1])))
    return numbers


def _kept(rows: pa.Table, mask: Mask, path: Path, memory_bytes: int) -> pa.Table:
    """The rows of a mask; nothing is copied when those are all."""
    if mask.all():
        return rows
    spool = SpillTable(rows.schema, path, memory_bytes=memory_bytes)
    begin = 0
    try:
        for batch in rows.to_batches():
            spool.add(batch.filter(pa.array(mask[begin : begin + batch.num_rows])))
            begin += batch.num_rows
        return spool.finish()
    finally:
        spool.discard()
