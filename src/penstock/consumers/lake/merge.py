"""How changes get into files: files with a changed key are rewritten, the others stay.

Files cover ranges of the key's first column. A new row goes where its neighbours are rewritten anyway, to a
small neighbour, or to a file of its own in between. So files keep a good size and separate ranges, and a
change of few keys writes few files. That only matters for speed: files may overlap, as after another tool's
compaction.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.key_order import KeySet, OrderedRows
from penstock.consumers.lake.files import FILE_BYTES, DataFile, FileWriter

__all__ = ["RewriteGroup", "merge", "plan"]

SMALL_BYTES = FILE_BYTES // 16
"""Smaller files are rewritten when a new row comes beside them."""

_Shaping = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Neighbouring files that are rewritten together with new rows between the files around them."""

    files: tuple[DataFile, ...]
    floor: Any = field(default=None, repr=False)
    """The end of the files before it that stay; None: there are none."""
    ceiling: Any = field(default=None, repr=False)
    """The start of the files after it."""


def plan(
    files: Sequence[DataFile],
    changed: KeySet,
    upserts: OrderedRows,
    *,
    every: bool = False,
    small_bytes: int = SMALL_BYTES,
) -> list[RewriteGroup]:
    """Choose the files, in the order of their keys; `every`: all, because their columns change. Pure."""
    ordered = sorted((file for file in files if file.bounded), key=lambda file: file.lowest)
    chosen = [every or _may_hold(file, changed) for file in ordered]
    _choose_small(ordered, chosen, upserts, small_bytes)
    unknown = tuple(file for file in files if not file.bounded)
    groups = [RewriteGroup(unknown)] if unknown and (every or len(changed)) else []
    floor = None
    for taken, run in groupby(range(len(ordered)), key=chosen.__getitem__):
        places = list(run)
        members = tuple(ordered[place] for place in places)
        if taken:
            after = places[-1] + 1
            groups.append(
                RewriteGroup(members, floor, ordered[after].lowest if after < len(ordered) else None)
            )
        else:
            floor = max(file.highest for file in members)
    return groups


def _may_hold(file: DataFile, changed: KeySet) -> bool:
    return (file.nulls and changed.has_nulls) or changed.overlaps(file.lowest, file.highest)


def _choose_small(
    ordered: Sequence[DataFile], chosen: list[bool], upserts: OrderedRows, small_bytes: int
) -> None:
    """Choose a small neighbour of each gap that gets rows, if no neighbour is chosen."""
    for gap in range(len(ordered) + 1):
        beside = [place for place in (gap - 1, gap) if 0 <= place < len(ordered)]
        below = ordered[gap - 1].highest if gap else None
        above = ordered[gap].lowest if gap < len(ordered) else None
        small = [place for place in beside if ordered[place].nbytes < small_bytes]
        if small and not any(chosen[place] for place in beside) and upserts.has_between(below, above):
            chosen[small[0]] = True


def merge(
    groups: Sequence[RewriteGroup],
    changed: KeySet,
    upserts: OrderedRows,
    *,
    read: Callable[[DataFile], Iterable[pa.RecordBatch]],
    arriving: _Shaping,
    writer: FileWriter,
    keys: Sequence[str],
) -> None:
    """Write the rows of the chosen files without the changed keys, and all upserts.

    `read` returns rows in the copy's new schema, and `arriving` converts upserts to it. Each upsert is
    written once. Only some rows of one file are in memory at a time.
    """
    for group in groups:
        if group.floor is not None:
            _write_all(upserts.take_up_to(group.floor), arriving, writer)
            writer.cut()
        for file in group.files:
            for rows in read(file):
                highest = pc.max(rows.column(keys[0])).as_py()
                beside = upserts.take_up_to(highest) if highest is not None else iter(())
                _write_merged(changed.remove_from(rows), beside, arriving, writer, keys)
        if group.ceiling is not None:
            _write_all(upserts.take_below(group.ceiling), arriving, writer)
            writer.cut()
    _write_all(upserts.take_rest(), arriving, writer)
    writer.cut()


def _write_all(rows: Iterable[pa.RecordBatch], arriving: _Shaping, writer: FileWriter) -> None:
    for batch in rows:
        writer.write([arriving(batch)])


def _write_merged(
    kept: pa.RecordBatch,
    beside: Iterator[pa.RecordBatch],
    arriving: _Shaping,
    writer: FileWriter,
    keys: Sequence[str],
) -> None:
    """Write rows of a file and the upserts beside them; in order if the upserts are few."""
    few = next(beside, None)
    if few is None:
        writer.write([kept])
        return
    for more in beside:
        writer.write([arriving(few)])
        few = more
    rows = pa.Table.from_batches([kept, arriving(few)])
    writer.write(rows.sort_by([(name, "ascending") for name in keys]).to_batches())
