"""The commit of a merge, and the transfer of tombstones that came while it was written.

Those tombstones delete rows that lived at the merge's timestamp, so each handle is once in the merged
objects. Their copies name the merged objects, and are `merged` too: snapshots apply them, and no change is
reported twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock import metrics
from penstock.columnar.sorted_spill import order_by
from penstock.eventstore.manifest import ManifestState, ObjectInfo, Removal
from penstock.eventstore.objects.flush import OwnedTable
from penstock.eventstore.objects.object_file import ColumnBounds, column_bounds, open_object
from penstock.eventstore.sides import COMMIT_TS, HANDLE, MERGED_TOMBSTONES, OBJECT, OFFSET
from penstock.eventstore.upkeep.merge import MergeOutput, MergeWriter, deletes_from
from penstock.object_storage import ObjectStorage

_BY_HANDLE = order_by(MERGED_TOMBSTONES, HANDLE)


def transfer_tombstones(
    writing: MergeWriter, output: MergeOutput, state: ManifestState
) -> tuple[ObjectInfo, ...]:
    """Write the tombstones after the merge's timestamp that delete rows of its inputs, for its outputs.

    No flush may run meanwhile. Changes that were committed at that very timestamp are flushed, hence merged.
    """
    plan = writing.plan
    inputs = {info.id for info in plan.data}
    newer = [
        info
        for info in state.objects.values()
        if info.side == "tombstone"
        and not info.delete_ts
        and info.max_ts > plan.ts
        and deletes_from(info, inputs)
    ]
    if not newer or not output.data:
        return ()
    with writing.open_spill(_BY_HANDLE) as spool:
        for info in newer:
            for batch in _read_deleting(writing, info, inputs):
                spool.write(batch)
        places = _MergedRows(writing.storage, plan.table_id, output.data)
        with closing(spool.sort()) as ordered:
            return writing.write_tombstones(places.move(batch) for batch in ordered)


def commit_merge(table: OwnedTable, output: MergeOutput, writing: MergeWriter) -> bool:
    """Replace a merge's inputs by its objects, in one step. The caller holds `table.flushing`.

    False: an input is no longer part of the table, or the table is no longer owned; then nothing happened.
    After Unavailable the commit may have happened; call it again to find out. Raises Fenced when the table
    has a newer owner.
    """
    if table.rows.disowned:
        return False
    plan = writing.plan
    state = table.ownership.settle()
    made = {info.id for info in output.objects}
    if made and made <= state.objects.keys():
        table.index.catch_up(state)
        return True  # an earlier call committed it, and its answer was lost
    if not all(_is_current(state, info) for info in (*plan.data, *plan.tombstones)):
        return False
    moved = transfer_tombstones(writing, output, state)
    removed = [info for info in (*plan.data, *plan.tombstones, *plan.gone) if _is_current(state, info)]
    if not removed:
        return False
    state = table.ownership.commit(
        add=[*output.objects, *moved],
        remove=[Removal(id=info.id, delete_ts=plan.ts) for info in removed],
    )
    table.index.catch_up(state)
    metrics.EVENTSTORE_TRANSFERRED_ROWS_TOTAL.inc(sum(info.rows for info in moved))
    return True


def _is_current(state: ManifestState, info: ObjectInfo) -> bool:
    found = state.objects.get(info.id)
    return found is not None and not found.delete_ts


def _read_deleting(writing: MergeWriter, info: ObjectInfo, inputs: set[str]) -> Iterator[pa.RecordBatch]:
    """Yield the newer tombstones of an object that delete rows of the inputs."""
    wanted = pa.array(sorted(inputs), pa.string())
    with open_object(writing.storage, writing.plan.table_id, info) as file:
        groups = [
            number
            for number, bounds in enumerate(column_bounds(file.metadata, OBJECT))
            if bounds is not None and any(bounds.low <= object_id <= bounds.high for object_id in inputs)
        ]
        for batch in file.iter_batches(row_groups=groups, columns=MERGED_TOMBSTONES.names) if groups else ():
            rows = batch.select(MERGED_TOMBSTONES.names).cast(MERGED_TOMBSTONES)
            chosen = pc.and_(
                pc.is_in(rows.column(OBJECT), value_set=wanted),
                pc.greater(rows.column(COMMIT_TS), writing.plan.ts),
            )
            yield rows.filter(chosen)


@dataclass(frozen=True, slots=True)
class _MergedGroup:
    """A row group of a merged object: the bounds of its handles, and the offset of its first row."""

    info: ObjectInfo
    number: int
    bounds: ColumnBounds
    start: int


@dataclass(slots=True)
class _MergedRows:
    """Where the rows of merged objects are, by handle. Asked in order, it reads each row group once."""

    storage: ObjectStorage
    table_id: int
    objects: Sequence[ObjectInfo]
    _groups: list[_MergedGroup] = field(init=False)
    _last: tuple[_MergedGroup, pa.Array] | None = None

    def __post_init__(self) -> None:
        self._groups = []
        for info in self.objects:
            start = 0
            with open_object(self.storage, self.table_id, info) as file:
                whole = ColumnBounds(info.key_min, info.key_max)
                for number, bounds in enumerate(column_bounds(file.metadata, HANDLE, missing=whole)):
                    self._groups.append(_MergedGroup(info, number, bounds or whole, start))
                    start += file.metadata.row_group(number).num_rows

    def move(self, tombstones: pa.RecordBatch) -> pa.RecordBatch:
        """Return tombstones, which are in the order of handles, with the row ids of the merged objects.

        Tombstones whose row is in no merged object are left out: that row was dead when the merge began.
        """
        handles = tombstones.column(HANDLE)
        first, last = handles[0].as_py(), handles[-1].as_py()
        objects: npt.NDArray[np.int64] = np.full(len(handles), -1)
        offsets: npt.NDArray[np.int64] = np.full(len(handles), -1)
        for at, group in enumerate(self._groups):
            if group.bounds.low <= last and first <= group.bounds.high:
                found = pc.index_in(handles, value_set=self._handles(group))
                here = found.is_valid().to_numpy(zero_copy_only=False)
                objects[here] = at
                offsets[here] = group.start + found.drop_null().to_numpy()
        known = pa.array(objects >= 0)
        names = pa.array([group.info.id for group in self._groups], pa.string())
        moved = tombstones.filter(known)
        moved = moved.set_column(
            moved.schema.get_field_index(OBJECT),
            MERGED_TOMBSTONES.field(OBJECT),
            names.take(pa.array(objects).filter(known)),
        )
        return moved.set_column(
            moved.schema.get_field_index(OFFSET),
            MERGED_TOMBSTONES.field(OFFSET),
            pa.array(offsets).filter(known),
        )

    def _handles(self, group: _MergedGroup) -> pa.Array:
        if self._last is None or self._last[0] != group:
            with open_object(self.storage, self.table_id, group.info) as file:
                column = file.read_row_group(group.number, columns=[HANDLE]).column(HANDLE)
            self._last = group, column.combine_chunks()
        return self._last[1]
