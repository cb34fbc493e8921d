"""Reading a range of a table from the capture that holds it: objects as far as they go, then rows.

The same range gives the same rows in the same order, whether or not a flush came in between. Rows come as
they are taken; a read needs the memory of a few row groups, and of one sort where rows are not flushed.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Invalid, Unavailable
from penstock.eventstore.objectreading import Batches, ObjectReader
from penstock.eventstore.paths import Side
from penstock.eventstore.ranges import Part, RangeReader, ReadRange, TableProgress
from penstock.eventstore.schemaversion import SchemaVersion, cut_at_changes
from penstock.eventstore.sides import HANDLE, decode_sides, side_schema
from penstock.eventstore.storage import Storage
from penstock.eventstore.store import EventStore
from penstock.tables.decoding.decoder import RowDecoder

__all__ = ["Part", "RangeReader", "ReadRange", "Reader", "TableProgress"]


class Reader:
    """Reads ranges of the tables that an event store owns, in its process; implements RangeReader."""

    def __init__(self, store: EventStore, storage: Storage, decoder: RowDecoder) -> None:
        self._store = store
        self._storage = storage
        self._decoder = decoder

    def progress(self, table_id: int) -> TableProgress:
        """See RangeReader."""
        rows = self._store.rows(table_id)
        return TableProgress(table_id, self._store.readable_ts(table_id), rows.resolved_ts, rows.flushed_ts)

    def parts(self, wanted: ReadRange) -> list[Part]:
        """See RangeReader."""
        self._check(wanted.table_id, wanted.from_ts, wanted.to_ts)
        versions = self._store.schemas.versions(wanted.table_id, wanted.from_ts, wanted.to_ts)
        cuts = cut_at_changes(versions, wanted.from_ts, wanted.to_ts)
        return [Part(replace(wanted, from_ts=start, to_ts=end), version) for start, end, version in cuts]

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """See RangeReader."""
        parts = self.parts(wanted)
        if len(parts) != 1:
            cuts = ", ".join(str(part.wanted.to_ts) for part in parts[:-1])
            raise Invalid(f"the schema of table {wanted.table_id} changes after {cuts}; read the parts")
        version = parts[0].schema
        schema = side_schema(version.table, wanted.side)
        missing = sorted(set(wanted.columns).difference(schema.names))
        if missing:
            raise Invalid(f"table {wanted.table_id} has no column {missing[0]!r} then")
        shown = pa.schema([schema.field(name) for name in wanted.columns or schema.names])
        return shown, self._batches(wanted, version, shown)

    def _check(self, table_id: int, from_ts: int, to_ts: int) -> None:
        if not 0 <= from_ts < to_ts:
            raise Invalid(f"({from_ts}, {to_ts}] is no range; from_ts must be below to_ts")
        readable = self._store.readable_ts(table_id)
        if to_ts > readable:
            raise Unavailable(f"table {table_id} can be read up to {readable}, not {to_ts}; wait")

    def _batches(
        self, wanted: ReadRange, version: SchemaVersion, shown: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        at = wanted.from_ts
        while at < wanted.to_ts:
            # Rows before objects: had a flush moved any of these rows, the objects would say so.
            held = self._store.unflushed(wanted.table_id, at, wanted.to_ts)
            state = self._store.ownership(wanted.table_id).state
            upto = min(wanted.to_ts, state.flushed_ts)
            if upto > at:
                held.close()
                objects = ObjectReader(self._storage, wanted.table_id, at, upto, shown.names)
                found = objects.changes(state.visible(wanted.side, upto))
            else:
                upto = wanted.to_ts
                found = self._decoded(held, version, wanted.side)
            with closing(found):
                for batch in found:
                    inside = _within(batch, wanted).select(shown.names)
                    if inside.num_rows:
                        yield inside.cast(shown)
            at = upto

    def _decoded(self, held: Batches, version: SchemaVersion, side: Side) -> Batches:
        with closing(held):
            for raw in held:
                yield decode_sides(raw, version.table, self._decoder).of(side)


def _within(batch: pa.RecordBatch, wanted: ReadRange) -> pa.RecordBatch:
    """The rows whose handles are wanted."""
    found = batch
    if wanted.handle_to:
        found = found.filter(pc.less(found.column(HANDLE), pa.scalar(wanted.handle_to, pa.binary())))
    if wanted.handle_from:
        lowest = pa.scalar(wanted.handle_from, pa.binary())
        found = found.filter(pc.greater_equal(found.column(HANDLE), lowest))
    return found
