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
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
