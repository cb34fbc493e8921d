"""Where a reader that takes a limited part of a snapshot at a time goes on: at a handle."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.changes.limits import ReadLimit
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.objectfiles import ColumnBounds, column_bounds, opened
from penstock.eventstore.read.partition import PartitionState
from penstock.eventstore.sides import HANDLE


class HandleGroup(NamedTuple):
    """Rows that are together in an object, by their lowest handle."""

    low: bytes
    rows: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class _Found:
    state: PartitionState
    info: ObjectInfo


def admitted_handle(states: Sequence[PartitionState], ts: int, low: bytes, limit: ReadLimit) -> bytes | None:
    """The handle before which about as many rows of the snapshot at `ts`, from `low` on, are as are allowed.

    None when that is all of them. Counts come from objects, whose deleted rows count, and whose row groups
    count where they begin. Only the footers of objects that begin before the end are read. Raises as
    reading the snapshot does.
    """
    if not limit:
        return None
    objects = sorted(
        (
            _Found(state, info)
            for state in states
            for info in state.visible("data", min(ts, state.flushed_ts))
            if info.key_max >= low
        ),
        key=lambda each: each.info.key_min,
    )
    groups: list[HandleGroup] = []
    for each in objects:
        cut = cut_groups(groups, limit)
        if cut is not None and cut <= each.info.key_min:
            return cut
        groups.extend(_groups(each, ts, low))
    return cut_groups(groups, limit)


def cut_groups(groups: Iterable[HandleGroup], limit: ReadLimit) -> bytes | None:
    """Where the first group begins that would be too much and is not among the lowest. Pure."""
    rows, nbytes, lowest = 0, 0.0, None
    for each in sorted(groups):
        rows, nbytes = rows + each.rows, nbytes + each.nbytes
        if lowest is not None and each.low > lowest and not limit.allows(rows, nbytes):
            return each.low
        lowest = each.low if lowest is None else lowest
    return None


def _groups(found: _Found, ts: int, low: bytes) -> Iterator[HandleGroup]:
    state, info = found.state, found.info
    row_bytes = info.size_bytes / max(1, info.rows)
    with state.reading(ts), opened(state.storage, state.table_id, info) as file:
        bounds = column_bounds(file.metadata, HANDLE, missing=ColumnBounds(info.key_min, info.key_max))
        for number, each in enumerate(bounds):
            if each is not None and each.high >= low:
                rows = file.metadata.row_group(number).num_rows
                yield HandleGroup(max(each.low, low), rows, rows * row_bytes)
