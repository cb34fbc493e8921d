"""Reading a range of a table from the capture that holds it: objects as far as they go, then rows.

The same range gives the same rows in the same order, whether or not a flush came in between. Rows are read as
they are taken; a read needs the memory of a few row groups, and of one sort where rows are not flushed.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from penstock.errors import Invalid, Unavailable
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.read.blocks import select_handles
from penstock.eventstore.read.partition import (
    CaptureProgress,
    PartitionState,
    ReadRange,
    SchemaRange,
    state_of_manifest,
)
from penstock.eventstore.read.streams import list_old, merge_streams, open_streams, select_schema
from penstock.eventstore.schema_version import SchemaVersion, cut_at_changes, schemas_in, versions_in_force
from penstock.eventstore.sides import HANDLE, decode_side, drop_backfills
from penstock.object_storage import ObjectStorage
from penstock.tables.decoding.decoder import RowDecoder

__all__ = ["Reader"]

_BATCH_ROWS = 32 * 1024


class Reader:
    """Reads ranges of the tables that an event store owns, in its process; implements RangeReader."""

    def __init__(self, store: EventStore, storage: ObjectStorage, decoder: RowDecoder) -> None:
        self._store = store
        self._storage = storage
        self._decoder = decoder

    def progress(self, table_id: int) -> CaptureProgress:
        """Return how far a table can be read."""
        rows = self._store.rows(table_id)
        readable_ts = self._store.readable_ts(table_id)  # first, because `changed_ts` has to cover it
        oldest_ts = self._store.ownership(table_id).state.oldest_ts
        ended_ts = self._store.schemas.ended_ts(table_id)
        return CaptureProgress(
            table_id, readable_ts, rows.resolved_ts, rows.flushed_ts, rows.changed_ts, oldest_ts, ended_ts
        )

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """Divide a range where the table's schema changes, in order; check that it can be read."""
        self._check_range(wanted.table_id, wanted.from_ts, wanted.to_ts)
        versions = self._versions(wanted)
        parts = cut_at_changes(versions, wanted.from_ts, wanted.to_ts)
        return [
            SchemaRange(replace(wanted, from_ts=start, to_ts=end), version) for start, end, version in parts
        ]

    def _versions(self, wanted: ReadRange) -> list[SchemaVersion]:
        """Return the schemas of a range: those that its flush recorded, or the history's if not flushed.

        The cluster collects old schemas, so that a history that is read after a restart does not have them;
        of a table that was dropped and recovered it has none from before. A range has no changes before its
        table existed.
        """
        table_id, from_ts, to_ts = wanted.table_id, wanted.from_ts, wanted.to_ts
        manifest = self._store.ownership(table_id).state
        if from_ts < manifest.flushed_ts:
            return PartitionState(table_id, self._storage, manifest, self).schemas(from_ts, to_ts)
        schemas = self._store.schemas
        try:
            return schemas.versions(table_id, from_ts, to_ts)
        except Unavailable:
            recorded = versions_in_force(schemas_in(manifest.facts), from_ts, to_ts)
            return recorded or schemas.versions(table_id, from_ts, schemas.resolved_ts())[:1]

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of a part, in order and in bounded memory."""
        parts = self.parts(wanted)
        if len(parts) != 1:
            split_points = ", ".join(str(part.wanted.to_ts) for part in parts[:-1])
            raise Invalid(
                f"the schema of table {wanted.table_id} changes after {split_points}; read the parts"
            )
        state = self._state(wanted.table_id, wanted.from_ts)
        if (
            wanted.from_ts or state.flushed_ts
        ):  # else the range is everything since the first scan of the table
            state.check_history(wanted.from_ts)
        shown = select_schema(parts[0].schema, wanted.side, wanted.columns or None)
        return shown, self._batches(wanted, parts[0].schema, shown)

    def _check_range(self, table_id: int, from_ts: int, to_ts: int) -> None:
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
            # Rows before objects: had a flush moved any of these rows, `flushed_ts` would show it.
            held = self._store.read_unflushed(wanted.table_id, at, wanted.to_ts)
            state = self._state(wanted.table_id, at)
            upto = min(wanted.to_ts, state.flushed_ts)
            if upto > at:
                held.close()
                yield from self._read_flushed(state, replace(wanted, from_ts=at, to_ts=upto), version, shown)
            else:
                upto = wanted.to_ts
                with closing(self._decode_held(held, version, wanted, shown)) as batches:
                    for batch in batches:
                        inside = select_handles(batch, wanted.handle_from, wanted.handle_to)
                        if inside.num_rows:
                            yield inside.select(shown.names).cast(shown)
            at = upto

    def _state(self, table_id: int, from_ts: int) -> PartitionState:
        """Return the table as its owner knows it, with its history.

        An archive is removed only after the owner's state names it no more, so a missing one means a newer
        state.
        """
        ownership = self._store.ownership(table_id)
        while True:
            manifest = ownership.state
            state = state_of_manifest(self._storage, table_id, manifest, from_ts)
            if state is not None:
                return state
            if ownership.state is manifest:
                raise Unavailable(f"an archive of table {table_id} is not at {self._storage.url}; try again")

    def _read_flushed(
        self, state: PartitionState, wanted: ReadRange, version: SchemaVersion, shown: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        streams = open_streams(
            state,
            wanted.side,
            wanted.from_ts,
            wanted.to_ts,
            columns=shown.names,
            old_columns=list_old(shown),
            handle_from=wanted.handle_from,
            handle_to=wanted.handle_to,
            schema=version,
            backfills=wanted.backfills,
        )
        return merge_streams(streams, _BATCH_ROWS)

    def _decode_held(
        self,
        held: Generator[pa.RecordBatch, None, None],
        version: SchemaVersion,
        wanted: ReadRange,
        shown: pa.Schema,
    ) -> Generator[pa.RecordBatch, None, None]:
        names = {*shown.names, *(list_old(shown) or ()), HANDLE}
        with closing(held):
            for raw in held:
                rows = raw if wanted.backfills else drop_backfills(raw, version.table, self._decoder)
                yield decode_side(rows, version.table, self._decoder, wanted.side, names)
