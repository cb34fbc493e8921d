"""Changes of rows in the order in which every format writes them. `Pairing` makes them of both sides. Pure.

A reader applies changes row by row, to a table whose keys are unique at every moment. So an update that
changes a key while the handle stays is a delete and an insert, in every format: the primary key, by which
readers know a row, or any other unique key, as TiCDC has it. In tables with such keys the deletes of a commit
come before the rest of it, each in the order of handles, so that a value is free when another row gets it.

Elsewhere changes are ordered by (commit_ts, handle). If a clustered key changes there ('a' to 'a ' under a
collation that pads), no other row can have it, and the insert follows its delete.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import ChangeBatch
from penstock.columnar.text_lines import Ints, content, truths
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OLD
from penstock.follow.slices import Phase, Position
from penstock.tables.arrow import arrow_name, arrow_schema
from penstock.tables.records import key_follows_handle
from penstock.tables.schema import TableInfo

INSERT, UPDATE, DELETE = 0, 1, 2
_INT_HANDLE_BYTES = 8

Mask = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.int8]
Keep = Callable[[pa.RecordBatch], Mask]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes in order. `rows` has the row after each change, or the row that a delete ended.

    `old` has the rows before the updates. Where `known` is false, the row was deleted and only its primary
    key is known. `left_out` counts the changes that were read with these and that a filter left out; a slice
    of the changes has none of them.
    """

    kinds: Kinds
    commit_ts: Ints
    handles: pa.Array
    known: Mask
    rows: pa.RecordBatch
    old: pa.RecordBatch
    snapshot: bool = False
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def updates(self) -> Mask:
        """Which changes are updates."""
        mask: Mask = self.kinds == UPDATE
        return mask

    @property
    def followed(self) -> Mask:
        """Which changes are deletes whose row comes back, with another key, in the next change."""
        mask = np.zeros(len(self), np.bool_)
        mask[:-1] = (self.kinds[:-1] == DELETE) & (self.kinds[1:] == INSERT)
        mask[:-1] &= self.commit_ts[:-1] == self.commit_ts[1:]
        at = np.flatnonzero(mask)
        if len(at):
            mask[at] = np.asarray(pc.equal(take_cells(self.handles, at), take_cells(self.handles, at + 1)))
        return mask

    def slice(self, start: int, stop: int) -> "RowChanges":
        """Return the changes in [start, stop); nothing is copied."""
        before, inside = int(self.updates[:start].sum()), int(self.updates[start:stop].sum())
        return RowChanges(
            self.kinds[start:stop],
            self.commit_ts[start:stop],
            self.handles.slice(start, stop - start),
            self.known[start:stop],
            self.rows.slice(start, stop - start),
            self.old.slice(before, inside),
            self.snapshot,
        )

    def where(self, mask: Mask) -> "RowChanges":
        """Return the changes where the mask is true."""
        places = np.flatnonzero(mask)
        return RowChanges(
            self.kinds[places],
            self.commit_ts[places],
            take_cells(self.handles, places),
            self.known[places],
            take_rows(self.rows, places),
            take_rows(self.old, np.flatnonzero(mask[self.updates])),
            self.snapshot,
        )

    def pieces(self, rows_max: int, bytes_max: int) -> Iterator["RowChanges"]:
        """Yield all changes in order, at most so many rows and about so many bytes at a time."""
        nbytes = self.rows.nbytes + self.old.nbytes
        step = max(1, min(rows_max, len(self) * bytes_max // max(1, nbytes)))
        for start in range(0, len(self), step):
            yield self.slice(start, min(len(self), start + step))


def take_cells(cells: pa.Array, places: Ints) -> pa.Array:
    """Return the cells of a column at these places."""
    return pc.take(cells, pa.array(places), boundscheck=False)


def take_rows(rows: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """Return the rows at these places. It goes column by column: Arrow takes twice as long for a batch."""
    if len(places) == rows.num_rows and np.array_equal(places, np.arange(len(places))):
        return rows
    if not rows.num_columns:
        return rows.slice(0, len(places))
    columns = [take_cells(column, places) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def key_columns(table: TableInfo) -> tuple[str, ...]:
    """Return the columns of which none changes in an update that is written as one change.

    A column that readers do not see, such as the hidden one of an expression in an index, changes with the
    columns that it depends on.
    """
    stored = {column.name.lower(): column.name for column in table.stored_columns}
    keys = () if key_follows_handle(table) else (table.primary_key,)
    found: dict[str, None] = {}
    for column in (column for key in (*keys, *table.unique_keys) for column in key):
        names = [column.name.lower()]
        if names[0] not in stored:
            names = [name.lower() for name in column.extra.get("dependences") or ()] or list(stored)
        found.update((stored[name], None) for name in names if name in stored)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Makes row changes of batches of a table's changes.

    `columns` are written of each row; `reads` are these, those of `key_columns`, and the ones that `keep`
    needs. `keep` says which rows exist for the reader; None: all of them.
    """

    table: TableInfo
    columns: Sequence[str]
    reads: Sequence[str]
    keep: Keep | None = None

    def of(
        self,
        batches: Sequence[ChangeBatch],
        after: Position,
        upto: Position | None = None,
        *,
        snapshot_ts: int = 0,
    ) -> RowChanges:
        """Return the changes of whole commits that are after a position, and not after another.

        With `snapshot_ts` they are the rows of a snapshot: inserts at that time.
        """
        ends = pa.concat_batches([batch.tombstones for batch in batches])
        begins = pa.concat_batches([batch.data for batch in batches])
        old, known = self._old(ends)
        # From here on columns have the names of the table: rows have no system columns beside them.
        new = begins.select(self._stored).rename_columns(self.reads)
        sides = _PairedRows(
            commits=np.concatenate([_commits(ends), _commits(begins, snapshot_ts)]),
            handles=pa.concat_arrays([ends.column(HANDLE), begins.column(HANDLE)]),
            ends=ends.num_rows,
        )
        changes = sides.changes()
        left_out = 0
        if self.keep is not None:
            read = changes
            changes, left = read.keep_sides(self.keep(old) | ~known, self.keep(new))
            left_out = len(sides.within(read.where(~left), after, upto).commits)
        keys = key_columns(self.table)
        if keys:
            split = self._other_keys(changes, keys, old, new)
            changes = changes.split(split, deletes_first=bool(self.table.unique_keys))
        changes = sides.within(changes, after, upto)
        gathered = self._gather(changes, sides, old, known, new, snapshot=bool(snapshot_ts))
        return replace(gathered, left_out=left_out)

    def _old(self, ends: pa.RecordBatch) -> tuple[pa.RecordBatch, Mask]:
        """Return the rows that ended, and whether more than their keys is known."""
        if not ends.num_rows:
            return pa.RecordBatch.from_pylist([], self._schema), np.ones(0, np.bool_)
        held = ends.column(OLD)
        found = dict(zip((field.name for field in held.type), held.flatten(), strict=True))
        if held.null_count:
            keys = map(arrow_name, self.table.primary_key)
            found |= {name: ends.column(name) for name in keys if name in ends.schema.names}
        return pa.RecordBatch.from_arrays(
            [found[name] for name in self._stored], schema=self._schema
        ), np.asarray(held.is_valid())

    @property
    def _stored(self) -> list[str]:
        """The names that the columns to read have in changes."""
        return [arrow_name(self.table.column(name)) for name in self.reads]

    @property
    def _schema(self) -> pa.Schema:
        table = arrow_schema(self.table)
        return pa.schema([table.field(name) for name in self.reads])

    def _other_keys(
        self, changes: "_Changes", keys: Sequence[str], old: pa.RecordBatch, new: pa.RecordBatch
    ) -> Mask:
        """Return which updates change one of these columns, compared as they are written."""
        other = np.zeros(len(changes.commits), np.bool_)
        at = np.flatnonzero((changes.ends >= 0) & (changes.begins >= 0))
        if not len(at):
            return other
        for name in keys:
            before = take_cells(old.column(name), changes.ends[at])
            after = take_cells(new.column(name), changes.begins[at])
            same = truths(pc.equal(_as_written(before), _as_written(after)))
            other[at] |= ~(same | truths(pc.and_(before.is_null(), after.is_null())))
        return other

    def _gather(
        self,
        changes: "_Changes",
        sides: "_PairedRows",
        old: pa.RecordBatch,
        known: Mask,
        new: pa.RecordBatch,
        *,
        snapshot: bool,
    ) -> RowChanges:
        begun = changes.begins >= 0
        both = begun & (changes.ends >= 0)
        kinds = np.where(both, UPDATE, np.where(begun, INSERT, DELETE)).astype(np.int8)
        # Ended rows come first in `handles` and `rows`, so that a begun row is `sides.ends` places later.
        place = np.where(begun, changes.begins + sides.ends, changes.ends)
        old, new = old.select(self.columns), new.select(self.columns)
        rows = pa.concat_batches([old, new]) if old.num_rows else new
        whole = np.concatenate((known, np.ones(new.num_rows, np.bool_)))
        return RowChanges(
            kinds,
            changes.commits,
            take_cells(sides.handles, place),
            whole[place],
            take_rows(rows, place),
            take_rows(old, changes.ends[both]),
            snapshot,
        )


@dataclass(frozen=True, slots=True)
class _Changes:
    """Where each change is among the rows that ended and those that began; -1: it has no such side."""

    commits: Ints
    ends: Ints
    begins: Ints

    def where(self, mask: Mask) -> "_Changes":
        if mask.all():
            return self
        return _Changes(self.commits[mask], self.ends[mask], self.begins[mask])

    def keep_sides(self, ends: Mask, begins: Mask) -> "tuple[_Changes, Mask]":
        """Return the changes with only these sides, and which of all changes have a side left: only those."""
        lasting_ends = np.append(ends, False)[self.ends]  # -1 is the appended place: no side stays no side
        lasting_begins = np.append(begins, False)[self.begins]
        left = _Changes(
            self.commits, np.where(lasting_ends, self.ends, -1), np.where(lasting_begins, self.begins, -1)
        )
        lasting = lasting_ends | lasting_begins
        return left.where(lasting), lasting

    def split(self, split: Mask, *, deletes_first: bool) -> "_Changes":
        """Return the changes with some updates as a delete and an insert.

        `deletes_first`: the deletes of a commit come before the rest of it.
        """
        if not split.any() and not (deletes_first and (self.begins < 0).any()):
            return self
        both = (self.ends >= 0) & (self.begins >= 0)
        assert not (split & ~both).any(), "only updates are split"
        commits = np.concatenate((self.commits, self.commits[split]))
        ends = np.concatenate((self.ends, self.ends[split]))
        begins = np.concatenate((self.begins, np.full(int(split.sum()), -1, np.int64)))
        ends[: len(split)][split] = -1
        place = np.concatenate((np.arange(len(split)), np.flatnonzero(split)))
        if deletes_first:
            order = np.lexsort((place, begins >= 0, commits))
        else:
            order = np.lexsort((begins >= 0, place))
        return _Changes(commits[order], ends[order], begins[order])


@dataclass(frozen=True, slots=True)
class _PairedRows:
    """Commits and handles of the rows that ended, then of those that began; `ends` counts the first."""

    commits: Ints
    handles: pa.Array
    ends: int

    def changes(self) -> _Changes:
        """Return the changes in order, each with both sides of a row at a commit."""
        ranks = _ranks(self.handles)
        order = self._order(ranks)
        if not len(order):
            nothing = np.empty(0, np.int64)
            return _Changes(nothing, nothing, nothing)
        commits, ranks = self.commits[order], ranks[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (commits[1:] != commits[:-1]) | (ranks[1:] != ranks[:-1])
        last = np.append(first[1:], True)
        start, end = order[first], order[last]
        return _Changes(
            commits[first],
            np.where(start < self.ends, start, -1),
            np.where(end >= self.ends, end - self.ends, -1),
        )

    def within(self, changes: _Changes, after: Position, upto: Position | None) -> _Changes:
        """Return the changes that are after a position, and not after another."""
        wanted = ~self._mark_done(changes, after)
        if upto is not None:
            wanted &= self._mark_done(changes, upto)
        return changes.where(wanted)

    def _mark_done(self, changes: _Changes, position: Position) -> Mask:
        """Return which changes are done at a position."""
        if position.handle is None:
            done: Mask = changes.commits <= position.ts
            return done
        done = changes.commits < position.ts
        at = np.flatnonzero(changes.commits == position.ts)
        if not len(at):
            return done
        begins, ends = changes.begins[at], changes.ends[at]
        handles = take_cells(self.handles, np.where(begins >= 0, begins + self.ends, ends))
        before = truths(pc.less(handles, pa.scalar(position.handle, pa.binary())))
        match position.phase:
            case Phase.ROWS:
                done[at] = before
            case Phase.DELETES:
                done[at] = before & (begins < 0)
            case Phase.REST:
                done[at] = before | (begins < 0)
        return done

    def _order(self, ranks: npt.NDArray[np.unsignedinteger]) -> Ints:
        """Return the places by commit and handle. Sorts are stable: of one change the ended row is first."""
        rising = (self.commits[1:] > self.commits[:-1]) | (
            (self.commits[1:] == self.commits[:-1]) & (ranks[1:] >= ranks[:-1])
        )
        return np.arange(len(ranks)) if rising.all() else np.lexsort((ranks, self.commits))


def _commits(side: pa.RecordBatch, snapshot_ts: int = 0) -> Ints:
    if snapshot_ts:
        return np.full(side.num_rows, snapshot_ts, np.int64)
    commits: Ints = side.column(COMMIT_TS).to_numpy()
    return commits


def _as_written(cells: pa.Array) -> pa.Array:
    """Return cells that are equal when their texts are: -0.0 equals 0.0, but is written as -0."""
    if pa.types.is_floating(cells.type):
        return cells.view(pa.int64() if cells.type == pa.float64() else pa.int32())
    return cells


def _ranks(handles: pa.Array) -> npt.NDArray[np.unsignedinteger]:
    """Return numbers in the order of the handles, the same for equal handles."""
    held, bounds = content(handles)
    if (np.diff(bounds) == _INT_HANDLE_BYTES).all():
        return np.frombuffer(held, ">u8").astype(np.uint64)
    ranks: npt.NDArray[np.unsignedinteger] = pc.rank(handles, tiebreaker="dense").to_numpy()
    return ranks
