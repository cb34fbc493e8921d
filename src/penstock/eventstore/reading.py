"""Reading a range of a table from the capture that holds it: objects as far as they go, then rows.

The same range gives the same rows in the same order, whether or not a flush came in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import Invalid, Unavailable
from penstock.eventstore import paths, rows
from penstock.eventstore.building import SchemaVersion
from penstock.eventstore.manifest import ManifestState
from penstock.eventstore.paths import Side
from penstock.eventstore.sides import COMMIT_TS, HANDLE, START_TS, decode_sides, side_schema
from penstock.eventstore.storage import Storage
from penstock.eventstore.store import EventStore
from penstock.tables.decoding.decoder import RowDecoder

_ORDER = [(COMMIT_TS, "ascending"), (START_TS, "ascending"), (HANDLE, "ascending")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Changes of one side in (from_ts, to_ts], of rows in [handle_from, handle_to) (b"": no bound)."""

    table_id: int
    from_ts: int
    to_ts: int
    side: Side = "data"
    columns: tuple[str, ...] = ()  # none: all
    handle_from: bytes = b""
    handle_to: bytes = b""


class Reader:
    """Reads ranges of the tables that an event store owns."""

    def __init__(self, store: EventStore, storage: Storage, decoder: RowDecoder) -> None:
        self._store = store
        self._storage = storage
        self._decoder = decoder

    def slices(self, table_id: int, from_ts: int, to_ts: int) -> list[tuple[int, int, SchemaVersion]]:
        """Divide a range where the schema changes: (from_ts, to_ts, schema) of each part.

        Raises Unavailable when the range is not complete yet.
        """
        self._check(table_id, from_ts, to_ts)
        versions = self._store.schemas.versions(table_id, from_ts, to_ts)
        starts = [from_ts, *(each.since_ts - 1 for each in versions[1:])]
        return list(zip(starts, [*starts[1:], to_ts], versions, strict=True))

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema and the rows of a range that has a single schema version.

        Raises Unavailable when the range is not complete yet, or rows moved while they were read; Invalid
        when the schema changes within the range or a column is not there.
        """
        parts = self.slices(wanted.table_id, wanted.from_ts, wanted.to_ts)
        if len(parts) != 1:
            cuts = ", ".join(str(part[1]) for part in parts[:-1])
            raise Invalid(f"the schema of table {wanted.table_id} changes after {cuts}; read the parts")
        version = parts[0][2]
        schema = side_schema(version.table, wanted.side)
        missing = sorted(set(wanted.columns).difference(schema.names))
        if missing:
            raise Invalid(f"table {wanted.table_id} has no column {missing[0]!r} then")
        shown = pa.schema([schema.field(name) for name in wanted.columns or schema.names])
        return shown, self._batches(wanted, version, schema, shown)

    def _check(self, table_id: int, from_ts: int, to_ts: int) -> None:
        if not 0 <= from_ts < to_ts:
            raise Invalid(f"({from_ts}, {to_ts}] is no range; from_ts must be below to_ts")
        readable = self._store.readable_ts(table_id)
        if to_ts > readable:
            raise Unavailable(f"table {table_id} can be read up to {readable}, not {to_ts}; wait")

    def _batches(
        self, wanted: ReadRange, version: SchemaVersion, schema: pa.Schema, shown: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        table = self._store.tables().get(wanted.table_id)
        if table is None:
            raise Unavailable(f"table {wanted.table_id} is not captured here; ask its owner")
        # Rows before objects: what a flush moves in between is then in both, and taken from the objects.
        held = table.held(wanted.from_ts, wanted.to_ts)
        state = self._store.ownership(wanted.table_id).state
        flushed = min(wanted.to_ts, max(wanted.from_ts, state.flushed_ts))
        if flushed > wanted.from_ts:
            found = self._from_objects(wanted, state, flushed, schema)
            yield from found.select(shown.names).to_batches()
        if flushed < wanted.to_ts:
            raw = rows.in_order(list(table.load(held, flushed, wanted.to_ts)))
            batch = decode_sides(raw, version.table, self._decoder).of(wanted.side)
            yield batch.filter(_within(batch, wanted)).select(shown.names)

    def _from_objects(
        self, wanted: ReadRange, state: ManifestState, to_ts: int, schema: pa.Schema
    ) -> pa.Table:
        times = (pc.field(COMMIT_TS) > wanted.from_ts) & (pc.field(COMMIT_TS) <= to_ts)
        parts = [schema.empty_table()]
        for info in state.visible(wanted.side, to_ts):
            if info.kind == "merged" or info.max_ts <= wanted.from_ts:
                continue
            path = paths.object_path(paths.table_root(wanted.table_id), info.side, info.id)
            with self._storage.open(path) as file:
                part = pq.read_table(file, filters=times)
            parts.append(part.cast(schema).filter(_within(part, wanted)))
        return pa.concat_tables(parts).sort_by(_ORDER)


def _within(found: pa.Table | pa.RecordBatch, wanted: ReadRange) -> pa.Array:
    handles = found.column(HANDLE)
    inside = pc.greater_equal(handles, pa.scalar(wanted.handle_from, pa.binary()))
    if not wanted.handle_to:
        return inside
    return pc.and_(inside, pc.less(handles, pa.scalar(wanted.handle_to, pa.binary())))
