"""Decoded changes of one table as Arrow arrays, the same for every file format. Pure.

`pair_halves` joins an update that a file has as two rows, the one before and the one after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Corrupt
from penstock.tables import impossible_dates

OP_INSERT, OP_UPDATE, OP_DELETE = "I", "U", "D"


@dataclass(frozen=True, slots=True)
class DecodedChanges:
    """Changes in order. All members have the same length.

    `rows` has the row after a change, or the row that a delete ended. `old` has the row before an update if
    the format has it, and null elsewhere. `commit_ts` is null where the format has none.
    """

    ops: pa.StringArray
    commit_ts: pa.UInt64Array
    rows: pa.RecordBatch
    old: pa.StructArray

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def slice(self, start: int, length: int | None = None) -> "DecodedChanges":
        """Return a run of changes; nothing is copied."""
        return DecodedChanges(
            self.ops.slice(start, length),
            self.commit_ts.slice(start, length),
            self.rows.slice(start, length),
            self.old.slice(start, length),
        )

    def take(self, places: pa.Array) -> "DecodedChanges":
        """Return the changes at these places, in this order."""
        return DecodedChanges(
            self.ops.take(places), self.commit_ts.take(places), self.rows.take(places), self.old.take(places)
        )

    def filter(self, mask: pa.BooleanArray) -> "DecodedChanges":
        """Return the changes where the mask is true."""
        return self.take(pc.indices_nonzero(mask))

    @property
    def last_ts(self) -> int | None:
        """When the last one was committed; None when it is not known."""
        return self.commit_ts[-1].as_py() if len(self) else None

    def count_upto(self, ts: int) -> int:
        """Return how many come before the first that is known to be committed after `ts`."""
        late = pc.index(pc.greater(self.commit_ts, pa.scalar(ts, pa.uint64())), value=True).as_py()
        return len(self) if late < 0 else int(late)


def concat(parts: Sequence[DecodedChanges]) -> DecodedChanges:
    """Return all changes one after the other; there is at least one part."""
    return DecodedChanges(
        pa.concat_arrays([part.ops for part in parts]),
        pa.concat_arrays([part.commit_ts for part in parts]),
        pa.concat_batches([part.rows for part in parts]),
        pa.concat_arrays([part.old for part in parts]),
    )


def no_old(rows: pa.RecordBatch) -> pa.StructArray:
    """Return `old` for changes whose rows before are not known."""
    return pa.nulls(rows.num_rows, pa.struct(list(rows.schema)))


def unknown_ts(count: int) -> pa.UInt64Array:
    """Return `commit_ts` for a format that has none."""
    return pa.nulls(count, pa.uint64())


def as_struct(rows: pa.RecordBatch, valid: pa.BooleanArray) -> pa.StructArray:
    """Return rows as `old`, with null where `valid` is not true."""
    mask = pc.invert(valid.fill_null(fill_value=False))
    return pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema), mask=mask)


def row_dicts(rows: pa.RecordBatch | pa.StructArray) -> list[dict[str, Any] | None]:
    """Return rows as dicts of Python values; dates that no calendar has are texts."""
    if isinstance(rows, pa.StructArray):
        valid = rows.is_valid().to_pylist()
        held = row_dicts(pa.RecordBatch.from_struct_array(rows))
        return [row if is_valid else None for row, is_valid in zip(held, valid, strict=True)]
    names = rows.schema.names
    if not names:
        return [{} for _ in range(rows.num_rows)]
    columns = [impossible_dates.to_pylist(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


Halves = tuple[DecodedChanges, pa.BooleanArray]
"""Changes, and which are halves of updates: a delete of the row before, an insert of the row after."""


def pair_halves(batches: Iterator[Halves]) -> Iterator[DecodedChanges]:
    """Yield the changes, with a delete that is a half and the insert that follows it as one update.

    The two may be in different batches. Raises Corrupt when a half has no partner.
    """
    held: Halves | None = None
    for batch in batches:
        changes, halves = batch
        if held is not None:
            changes, halves = concat([held[0], changes]), pa.concat_arrays([held[1], halves])
            held = None
        last = len(changes) - 1
        if last >= 0 and changes.ops[last].as_py() == OP_DELETE and halves[last].as_py():
            held = changes.slice(last), halves.slice(last)
            changes, halves = changes.slice(0, last), halves.slice(0, last)
        yield _join_halves(changes, halves)
    if held is not None:
        raise Corrupt("it ends with the first half of an update; keep the file")


def _join_halves(changes: DecodedChanges, halves: pa.BooleanArray) -> DecodedChanges:
    if not pc.any(halves).as_py():
        return changes
    ended = pc.and_(halves, pc.equal(changes.ops, OP_DELETE)).to_numpy(zero_copy_only=False)
    begun = pc.and_(halves, pc.equal(changes.ops, OP_INSERT)).to_numpy(zero_copy_only=False)
    if begun[0] or (ended[:-1] != begun[1:]).any():
        raise Corrupt("half of an update has no other half; keep the file")
    is_new = pa.array(begun)
    # The row before an insert that is a half is the one of the change just before it.
    before = changes.rows.take(pc.max_element_wise(pc.subtract(pa.array(range(len(changes))), 1), 0))
    ops = pc.if_else(is_new, OP_UPDATE, changes.ops)
    joined = DecodedChanges(ops, changes.commit_ts, changes.rows, as_struct(before, is_new))
    return joined.filter(pa.array(~ended))
