"""The net change of each row: by handle, of a range in order, and by key, of batches in any order.

Both number their keys (`_number_keys`), and both decide by the first and the last change of each number
(`_NetSide`): changes are ordered by commit-ts, and at one commit-ts a tombstone comes before the row that it
makes room for. They differ in three ways:

* `coalesce_by_handle` identifies a row by its handle and its physical table. Two physical tables may have
  rows of the same handle, as EXCHANGE PARTITION leaves them; where changes of several tables are together,
  PARTITION says which. `coalesce_by_key` identifies it by the columns of its primary key.
* `coalesce_by_handle` serves readers that apply single changes, so it keeps what such a reader needs:

      first      last       kept
      tombstone  data       the first tombstone and the last data
      tombstone  tombstone  the last tombstone
      data       data       the last data
      data       tombstone  nothing; with `replay` the last tombstone

  `coalesce_by_key` serves targets that replace rows, and keeps the last change whatever the first was. That
  is the same table with `replay` and without the tombstones of updates.
* `coalesce_by_handle` works in memory, on the rows that `Tail` has cached. `coalesce_by_key` works in bounded
  memory: rows beyond `memory_bytes` go to a file that is mapped, and keys are compared in parts.
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

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def coalesce_by_handle(
    data: pa.RecordBatch, tombstones: pa.RecordBatch, *, replay: bool = False, keys_move: bool = False
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the net changes of both sides, each ordered by commit-ts as before; `_update` is set anew.

    Pass `replay` for a reader that may have applied some of the changes before. A tombstone that stays
    carries the old row of the first one, which is the row that the reader has. Where a row's primary key may
    change while its handle does not (`keys_move`), a tombstone has to name the key that the reader has, at a
    time when no other row has it: the first tombstone stays instead of the last.

    The result can be coalesced again together with the changes that follow it. Skip the tombstones of updates
    (`without_updates`) only after that.
    """
    numbers = _number_keys(
        [
            pa.chunked_array(parts)
            for name in (HANDLE, PARTITION)
            # A side without rows may not have PARTITION.
            if (parts := [side.column(name) for side in (tombstones, data) if name in side.schema.names])
        ]
    )
    count = _count(numbers)
    if count == len(numbers):
        return data, tombstones  # every row changed once
    ended = _NetSide.of(numbers[: len(tombstones)], tombstones.column(COMMIT_TS))
    begun = _NetSide.of(numbers[len(tombstones) :], data.column(COMMIT_TS))
    first_t, last_t, last_d = ended.first(count), ended.last(count), begun.last(count)
    was_there = ended.times(first_t, absent=_NEVER) <= begun.times(begun.first(count), absent=_NEVER)
    is_there = _ends_with_data(ended, last_t, begun, last_d)
    updated = was_there & is_there

    by_first = was_there if keys_move else updated
    by_last = ~is_there & ~by_first & (was_there | replay)
    kept_t = np.flatnonzero(_mark((first_t[by_first], last_t[by_last]), len(tombstones)))
    kept_d = np.flatnonzero(_mark((last_d[is_there],), len(data)))
    ends = _take(tombstones, kept_t, updated[ended.numbers[kept_t]])
    old = first_t[ended.numbers[kept_t]]
    return _take(data, kept_d, updated[begun.numbers[kept_d]]), _with_old(ends, tombstones, old, kept_t)


def without_updates(tombstones: pa.RecordBatch) -> pa.RecordBatch:
    """Return the tombstones whose rows do not come back in the same change, or in the net change."""
    return tombstones.filter(pc.invert(tombstones.column(UPDATE)))


def _take(side: pa.RecordBatch, rows: Ints, updated: Mask) -> pa.RecordBatch:
    """Return some rows of a side, with `_update` as given; nothing is copied when those are all."""
    taken = side if len(rows) == len(side) else side.take(pa.array(rows))
    if UPDATE not in side.schema.names:
        return taken
    at = side.schema.get_field_index(UPDATE)
    return taken.set_column(at, side.schema.field(at), pa.array(updated))


def _with_old(kept: pa.RecordBatch, tombstones: pa.RecordBatch, old: Ints, rows: Ints) -> pa.RecordBatch:
    """Return the tombstones that stayed, which were at `rows`, with the old rows of those at `old`."""
    if OLD not in kept.schema.names or np.array_equal(old, rows):
        return kept
    at = kept.schema.get_field_index(OLD)
    return kept.set_column(at, kept.schema.field(at), tombstones.column(OLD).take(pa.array(old)))


@dataclass(frozen=True, slots=True)
class NetChanges:
    """What a target has to apply. No key is there twice, neither in a table nor in both.

    `upserts` has the columns of the changes and `_commit_ts`; `deletes` the key's columns and `_commit_ts`,
    and may name rows that the target does not have. Both are in the order in which the changes came. Their
    memory may be a mapped file, whose space is given back with the tables.
    """

    keys: tuple[str, ...]
    upserts: pa.Table
    deletes: pa.Table

    @property
    def empty(self) -> bool:
        """Whether there is nothing to apply."""
        return not self.upserts.num_rows and not self.deletes.num_rows

    @property
    def changed_keys(self) -> pa.Table:
        """Every key that changed: a target without upserts removes these first."""
        return pa.concat_tables([side.select(list(self.keys)) for side in (self.upserts, self.deletes)])


def coalesce_by_key(
    changes: Iterable[tuple[pa.RecordBatch, pa.RecordBatch]],
    columns: pa.Schema,
    keys: Sequence[str],
    scratch: Path,
    *,
    distinct: bool = False,
    memory_bytes: int = SPOOL_BYTES,
) -> NetChanges:
    """Return the last change of each key of some batches of inserts and deletes.

    Inserts have `columns` and `_commit_ts`, deletes `keys` and `_commit_ts`. With `distinct` the caller
    promises that no key is there twice. Files in `scratch` are removed before this returns or raises. An
    error of `changes` is raised, and OSError when the disk fails.
    """
    begun = with_commit_ts(columns)
    ended = pa.schema([*(begun.field(name) for name in keys), begun[-1]])
    upserts = SpillTable(begun, scratch / "upserts.arrow", memory_bytes=memory_bytes)
    deletes = SpillTable(ended, scratch / "deletes.arrow", memory_bytes=memory_bytes)
    try:
        for inserts, gone in changes:
            upserts.add(inserts)
            deletes.add(gone)
        every = NetChanges(tuple(keys), upserts.finish(), deletes.finish())
        return every if distinct else _keep_last(every, scratch, memory_bytes)
    finally:
        upserts.discard()
        deletes.discard()


def _keep_last(changes: NetChanges, scratch: Path, memory_bytes: int) -> NetChanges:
    sides = (changes.deletes, changes.upserts)
    last_deletes, last_upserts = last_changes(sides, changes.keys, memory_bytes=memory_bytes)
    return NetChanges(
        changes.keys,
        _filter(changes.upserts, last_upserts, scratch / "upserts.net.arrow", memory_bytes),
        _filter(changes.deletes, last_deletes, scratch / "deletes.net.arrow", memory_bytes),
    )


_NUMBERING = 4  # numbering keys takes about so many times their own size
_PARTS_MAX = 64  # each part goes through all keys again


def last_changes(
    sides: tuple[pa.Table, pa.Table], keys: Sequence[str], *, memory_bytes: int = SPOOL_BYTES
) -> tuple[Mask, Mask]:
    """Return which rows of deletes, and of upserts, are the last change of their keys. Pure.

    The last column of each is `_commit_ts`.
    Keys are compared in as many parts as keep what is needed at once within about `memory_bytes`.
    """
    deletes, upserts = (side.select([*keys, side.schema.names[-1]]) for side in sides)
    masks = np.zeros(deletes.num_rows, np.bool_), np.zeros(upserts.num_rows, np.bool_)
    needed = _NUMBERING * (deletes.nbytes + upserts.nbytes)
    parts = min(_PARTS_MAX, -(-needed // memory_bytes))
    for part in range(parts):
        (delete_rows, some_deletes), (upsert_rows, some_upserts) = (
            _select_part(side, keys, part, parts) for side in (deletes, upserts)
        )
        last_t, last_d = _last_of_each(some_deletes, some_upserts, keys)
        masks[0][delete_rows[last_t]] = True
        masks[1][upsert_rows[last_d]] = True
    return masks


def _select_part(rows: pa.Table, keys: Sequence[str], part: int, parts: int) -> tuple[Ints, pa.Table]:
    """Return the rows whose keys belong to one of `parts` parts, and their row numbers."""
    if parts == 1:
        return np.arange(rows.num_rows), rows
    selected: list[pa.RecordBatch] = []
    numbers: list[Ints] = [np.empty(0, np.int64)]
    begin = 0
    for batch in rows.to_batches():
        chosen = np.flatnonzero(row_hashes(batch.select(list(keys))) % np.uint64(parts) == part)
        selected.append(batch.take(pa.array(chosen)))
        numbers.append(begin + chosen)
        begin += batch.num_rows
    return np.concatenate(numbers), pa.Table.from_batches(selected, rows.schema)


def _last_of_each(deletes: pa.Table, upserts: pa.Table, keys: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the row numbers of the deletes, and of the upserts, that are the last change of their keys."""
    rows = pa.concat_tables([deletes, upserts])
    numbers = _number_keys([rows.column(name) for name in keys])
    count = _count(numbers)
    ended = _NetSide.of(numbers[: deletes.num_rows], deletes.columns[-1])
    begun = _NetSide.of(numbers[deletes.num_rows :], upserts.columns[-1])
    last_t, last_d = ended.last(count), begun.last(count)
    is_there = _ends_with_data(ended, last_t, begun, last_d)
    return last_t[~is_there], last_d[is_there]


def _filter(rows: pa.Table, mask: Mask, path: Path, memory_bytes: int) -> pa.Table:
    """Return the rows of a mask; nothing is copied when those are all."""
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


# The kernel: keys as numbers, and the first and the last change of each.

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _NetSide:
    """The changes of one side: the number of the key that each changes, and its commit-ts.

    `order` has the row numbers by commit-ts, rows of one commit-ts as they come; None: as the rows are.
    """

    numbers: Ints
    ts: Ints
    order: Ints | None

    @classmethod
    def of(cls, numbers: Ints, commit_ts: pa.Array | pa.ChunkedArray) -> "_NetSide":
        ts = commit_ts.to_numpy()
        ordered = bool(np.all(ts[1:] >= ts[:-1]))
        return cls(numbers, ts, None if ordered else np.argsort(ts, kind="stable"))

    def first(self, count: int) -> Ints:
        """Return the row number of the first change of each of `count` keys; -1: it has none here."""
        return self._outermost(count, slice(None, None, -1))

    def last(self, count: int) -> Ints:
        """Return the row number of the last change of each of `count` keys; -1: it has none here."""
        return self._outermost(count, slice(None))

    def _outermost(self, count: int, direction: slice) -> Ints:
        rows = (np.arange(len(self.numbers)) if self.order is None else self.order)[direction]
        found = np.full(count, -1, np.int64)
        found[self.numbers[rows]] = rows  # of several assignments to one key the last one stays
        return found

    def times(self, rows: Ints, *, absent: int) -> Ints:
        """Return the commit-ts of rows; `absent` for -1, which numpy takes for the last element."""
        found: Ints = np.append(self.ts, absent)[rows]
        return found


def _ends_with_data(ended: _NetSide, last_t: Ints, begun: _NetSide, last_d: Ints) -> Mask:
    """Return for each key whether its last change is data: at one commit-ts the tombstone comes first."""
    found: Mask = begun.times(last_d, absent=-1) >= ended.times(last_t, absent=-1)
    return found


def _mark(rows: Iterable[Ints], count: int) -> Mask:
    marked = np.zeros(count, np.bool_)
    for some in rows:
        marked[some] = True
    return marked


def _count(numbers: Ints) -> int:
    return int(numbers.max(initial=-1)) + 1


def _number_keys(columns: Sequence[pa.ChunkedArray]) -> Ints:
    """Return numbers from 0 without gaps, the same for rows that are equal in all columns."""
    numbers = _number_values(columns[0])
    for column in columns[1:]:
        if _count(numbers) == len(numbers):
            break  # the rows differ already
        values = _number_values(column)
        distinct = _count(values)
        if distinct > 1:
            numbers = _rank(numbers * distinct + values)  # one integer for each pair
    return numbers


def _number_values(column: pa.ChunkedArray) -> Ints:
    """Return numbers from 0 without gaps, the same for equal values."""
    integers = _as_integers(column)
    if integers is not None:
        return _rank(integers)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    codes = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return np.concatenate([np.empty(0, np.int64), *codes]).astype(np.int64)


def _rank(values: npt.NDArray[np.integer[Any]]) -> Ints:
    """Number integers by sorting, which takes a third of the time that hashing takes."""
    order = np.argsort(values)
    ordered = values[order]
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.cumsum(np.append([False], ordered[1:] != ordered[:-1])[: len(values)])
    return numbers


def _as_integers(column: pa.ChunkedArray) -> npt.NDArray[np.integer[Any]] | None:
    """Return values as integers that are equal when the values are; None when they are not such values."""
    if column.null_count:
        return None
    if pa.types.is_integer(column.type):
        integers: npt.NDArray[np.integer[Any]] = column.to_numpy()
        return integers
    if not pa.types.is_binary(column.type):
        return None
    words = [_as_words(chunk) for chunk in column.chunks if len(chunk)]
    known = [word for word in words if word is not None]
    return np.concatenate([np.empty(0, np.int64), *known]) if len(known) == len(words) else None


_WORD_BYTES = 8


def _as_words(values: pa.BinaryArray) -> Ints | None:
    """Return values that all have the width of an integer, such as handles of one, as integers.

    The bytes of a handle are in big-endian order, so the integers are not in the order of the handles.
    """
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if np.any(np.diff(bounds) != _WORD_BYTES):
        return None
    return np.frombuffer(content, np.int64, len(values), int(bounds[0]))
