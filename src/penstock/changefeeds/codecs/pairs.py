"""Updates that a file holds as two rows, the one before and the one after, as one change again. Pure."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import (
    OP_DELETE,
    OP_INSERT,
    OP_UPDATE,
    DecodedChanges,
    as_struct,
    concat,
)
from penstock.errors import Corrupt

Halves = tuple[DecodedChanges, pa.BooleanArray]
"""Changes, and which are halves of updates: a delete of the row before, an insert of the row after."""


def paired(batches: Iterator[Halves]) -> Iterator[DecodedChanges]:
    """The changes, each delete that is a half and the insert that follows it as one update.

    The two may be in different batches. Raises Corrupt when a half stands alone.
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
        yield _joined(changes, halves)
    if held is not None:
        raise Corrupt("it ends with the first half of an update; keep the file")


def _joined(changes: DecodedChanges, halves: pa.BooleanArray) -> DecodedChanges:
    if not pc.any(halves).as_py():
        return changes
    ended = pc.and_(halves, pc.equal(changes.ops, OP_DELETE)).to_numpy(zero_copy_only=False)
    begun = pc.and_(halves, pc.equal(changes.ops, OP_INSERT)).to_numpy(zero_copy_only=False)
    if begun[0] or (ended[:-1] != begun[1:]).any():
        raise Corrupt("half of an update stands alone; keep the file")
    is_new = pa.array(begun)
    before = changes.rows.take(pc.max_element_wise(pc.subtract(pa.array(range(len(changes))), 1), 0))
    ops = pc.if_else(is_new, OP_UPDATE, changes.ops)
    joined = DecodedChanges(ops, changes.commit_ts, changes.rows, as_struct(before, is_new))
    return joined.filter(pa.array(~ended))
