"""Handles that divide a table into parts of about as many rows, by a sample of its objects."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.objects.objectfiles import opened
from penstock.eventstore.read.partition import Partition, PartitionState
from penstock.eventstore.sides import HANDLE

_GROUPS_MAX = 64  # row groups that are read for a sample
_SAMPLE_MAX = 256  # handles of a row group


class HandleSample(NamedTuple):
    """Some handles, in order, that stand for `rows` rows."""

    handles: list[bytes]
    rows: int


def table_cuts(partition: Partition, ts: int, rows: int) -> list[bytes]:
    """Where to divide a physical table as of `ts`; none for a small one.

    Rows that are not flushed yet do not count. Blocks. Raises what reading a snapshot raises.
    """
    state = partition.state(from_ts=ts)
    state.check_range(0, ts)
    objects = [each for each in state.visible("data", min(ts, state.flushed_ts)) if each.rows]
    if sum(each.rows for each in objects) <= rows:
        return []
    stride = -(-len(objects) // _GROUPS_MAX)
    groups_max = max(1, _GROUPS_MAX // len(objects))
    samples = [each for info in objects[::stride] for each in _samples(state, info, ts, groups_max)]
    scale = sum(each.rows for each in objects) / sum(each.rows for each in samples)
    return divide(samples, rows / scale)


def _samples(state: PartitionState, info: ObjectInfo, ts: int, groups_max: int) -> Iterable[HandleSample]:
    """Row groups of an object, evenly spread, as a sample of all of it."""
    with state.reading(ts), opened(state.storage, state.table_id, info) as file:
        count = file.num_row_groups
        chosen = sorted({at * count // groups_max for at in range(min(count, groups_max))})
        for number in chosen:
            handles = file.read_row_group(number, columns=[HANDLE]).column(0)
            yield HandleSample(_thinned(handles), info.rows // len(chosen))


def _thinned(handles: pa.ChunkedArray) -> list[bytes]:
    ordered = handles.take(pc.sort_indices(handles))
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), _SAMPLE_MAX)).astype(np.int64)
    found: list[bytes] = ordered.take(pa.array(places)).to_pylist()
    return found


def divide(samples: Sequence[HandleSample], rows: float) -> list[bytes]:
    """Handles, in order, that divide what the samples stand for into parts of about `rows`. Pure."""
    weighted = sorted((handle, each.rows / len(each.handles)) for each in samples for handle in each.handles)
    total = sum(weight for _, weight in weighted)
    parts = max(1, round(total / rows))
    cuts: list[bytes] = []
    before = 0.0
    for handle, weight in weighted:
        is_new = handle > (cuts[-1] if cuts else weighted[0][0])
        if before >= total * (len(cuts) + 1) / parts and is_new and len(cuts) + 1 < parts:
            cuts.append(handle)
        before += weight
    return cuts
