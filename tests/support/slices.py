"""Slices of a table for encoders, and changes made by hand."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import DELETE, INSERT, UPDATE, RowChanges
from penstock.changefeeds.engines.encode import EncodedChunk, encode_part
from penstock.changes import plan_changes
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import Position, Slice, TableSpan, slice_options
from penstock.tables.arrow import arrow_schema
from penstock.tables.schema import TableInfo
from support.tableworld import TableWorld

__all__ = ["encode_slice", "row_changes", "slice_of"]

Row = Mapping[str, Any]


def row_changes(
    table: TableInfo, changes: Iterable[tuple[int, Row | None, Row | None]], *, snapshot: bool = False
) -> RowChanges:
    """Return changes as (commit_ts, row before, row after), with cells as Arrow has them."""
    made = list(changes)
    schema = arrow_schema(table)
    kinds = [DELETE if new is None else INSERT if old is None else UPDATE for _, old, new in made]
    return RowChanges(
        kinds=np.array(kinds, np.int8),
        commit_ts=np.array([ts for ts, _, _ in made], np.int64),
        handles=pa.array([number.to_bytes(8, "big") for number in range(len(made))], pa.binary()),
        known=np.ones(len(made), np.bool_),
        rows=pa.RecordBatch.from_pylist([dict(new or old or {}) for _, old, new in made], schema),
        old=pa.RecordBatch.from_pylist([dict(old) for _, old, new in made if old and new], schema),
        snapshot=snapshot,
    )


def slice_of(
    world: TableWorld,
    from_ts: int,
    to_ts: int,
    *,
    schema: SchemaVersion | None = None,
    start: Position | None = None,
    **planned: Any,
) -> Slice:
    """Return the changes of a world's table in (from_ts, to_ts], or its snapshot if from_ts = 0."""
    schema = schema or world.table.schemas[-1]
    parts = plan_changes(world.view(), from_ts, to_ts, **{**slice_options(schema), **planned})
    return Slice(
        dispatcher=TableSpan.of("feed", world.ids[0]),
        schema=schema,
        start=start or (Position(from_ts) if from_ts else Position(to_ts, b"")),
        end=Position(to_ts),
        parts=tuple(parts),
        rows=sum(part.rows for part in parts),
        nbytes=0,
    )


def encode_slice(
    piece: Slice,
    options: EncoderOptions,
    *,
    start: Position | None = None,
    numbers: Sequence[int] | None = None,
    on_read: Callable[[int], None] | None = None,
) -> list[EncodedChunk]:
    """Return the chunks of some parts of a slice, by default all, from `start` on."""
    wanted = piece if start is None else replace(piece, start=start)
    chosen = range(len(piece.parts)) if numbers is None else numbers
    return [chunk for number in chosen for chunk in encode_part(wanted, number, options, on_read)]
