"""From ordered raw rows to the objects of one chunk of a flush.

Data goes into objects as it comes. Tombstones are divided by time, and each object's are ordered by row id.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.columnar.spill_queue import SpillTable
from penstock.errors import Corrupt, Invalid
from penstock.eventstore import paths
from penstock.eventstore.log.rows import count_before, times
from penstock.eventstore.manifest import ObjectInfo, ObjectKind
from penstock.eventstore.objects.object_file import TOMBSTONE_GROUP_ROWS, ObjectWriter
from penstock.eventstore.objects.row_ids import (
    ASK,
    Events,
    Moves,
    Places,
    RowIds,
    fill_row_ids,
    match_tombstones,
)
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SchemaVersion, versions_in_force
from penstock.eventstore.sides import (
    COMMIT_TS,
    HANDLE,
    OBJECT,
    OFFSET,
    decode_sides,
    find_backfills,
    stored_side_schema,
)
from penstock.object_storage import ObjectStorage
from penstock.tables.decoding.decoder import RowDecoder
from penstock.tables.raw import RAW_SCHEMA

OBJECT_ROWS = 8 * TOMBSTONE_GROUP_ROWS
OBJECT_BYTES = 16 * 1024 * 1024
"""Bytes of Arrow. A reader of an object's changes sorts all of it by time, in memory."""


Find = Callable[[pa.Array], RowIds]
"""Finds where the rows of some handles are, as of just before a chunk."""


class Schemas(Protocol):
    """Which schema a table had when.

    Every change of schema up to `resolved_ts` is known. Answers for timestamps up to it never change.
    """

    def resolved_ts(self) -> int:
        """Return the timestamp up to which the history is complete."""

    def storable_ts(self, table_id: int) -> int:
        """Return how far a table's changes can be kept.

        That is `resolved_ts`, or just before the version that forbids it. A later version that can be kept
        moves it on.
        """

    def rewrites(self, table_id: int, from_ts: int, to_ts: int) -> list[int]:
        """Return each time in (from_ts, to_ts] at which a rewritten column took the place of another.

        Only the times that are known so far.
        """

    def flashback(self, table_id: int, from_ts: int) -> int:
        """Return the first FLASHBACK CLUSTER after `from_ts` that took back a table's rows; 0: none did."""

    def versions(self, table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """Return the versions in force in (from_ts, to_ts], by time, from the one at its start on.

        Raises Unavailable when the table is not known.
        """

    def ended_ts(self, table_id: int) -> int:
        """Return when the physical table was dropped, truncated or replaced, as far as is known.

        0 when it exists.
        """

    def ends(self, table_id: int, from_ts: int, to_ts: int) -> list[int]:
        """Return each time in (from_ts, to_ts] at which it ceased to be a table or a part of one.

        Only the times that are known so far.
        """

    def known_ids(self) -> Collection[int]:
        """Return every physical table that is known up to `resolved_ts`, dropped ones among them."""

    def last_ddl_ts(self) -> int:
        """Return when a table was last created, altered or dropped, up to `resolved_ts`; 0 if never."""


@dataclass(frozen=True, slots=True)
class Built:
    """The objects of a chunk, which count once a manifest names them, and what they do to the index.

    `moves` is None when that does not fit into memory; then the index reads the objects.
    """

    objects: list[ObjectInfo]
    last_ts: int
    moves: Moves | None


@dataclass(slots=True)
class _Part:
    """The rows of a chunk that have one schema version and go into objects of one kind."""

    schema: SchemaVersion
    kind: ObjectKind
    data: ObjectWriter
    tombstones: list[pa.RecordBatch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Build:
    """Makes the objects of flushes.

    Updates that are no change for readers (`find_backfills`) go into objects of their own, which only
    snapshots read.
    """

    storage: ObjectStorage
    decoder: RowDecoder
    scratch: Path
    clock: Clock = SYSTEM

    def build_appendable(
        self, table_id: int, versions: list[SchemaVersion], ordered: Iterable[pa.RecordBatch], find: Find
    ) -> Built:
        """Write the objects of many commits. Their tombstones, and all handles, are held in memory."""
        made: list[ObjectInfo | None] = []
        parts: dict[tuple[int, ObjectKind], _Part] = {}
        written: dict[tuple[int, ObjectKind], list[pa.RecordBatch]] = {}
        last_ts = 0
        with ExitStack() as stack:
            for batch in ordered:
                last_ts = int(times(batch)[-1])
                for schema, of_version in divide_by_version(batch, versions):
                    for kind, rows in self._divide_by_kind(of_version, schema, "appendable"):
                        key = schema.since_ts, kind
                        if key not in parts:
                            writer = stack.enter_context(self._writer(table_id, schema, "data", kind))
                            parts[key], written[key] = _Part(schema, kind, writer), []
                        with _refuse_damaged_rows():
                            sides = decode_sides(rows, schema.table, self.decoder)
                        parts[key].data.write(sides.data)
                        parts[key].tombstones.append(sides.tombstone)
                        written[key].append(sides.data.select([HANDLE, COMMIT_TS]))
            made += [part.data.finish() for part in parts.values()]
        places = Places(
            [part.data.id for part in parts.values()], [part.data.rows for part in parts.values()]
        )
        ids, moves = _row_ids(
            [batch for batches in written.values() for batch in batches],
            [tombstone for part in parts.values() for tombstone in part.tombstones],
            places,
            find,
        )
        at = 0
        for part in parts.values():
            for group in divide_tombstones(part.tombstones, within_commit=False):
                rows = sum(batch.num_rows for batch in group)
                made.append(
                    self._write_tombstones(table_id, part.schema, part.kind, group, ids.part(at, rows))
                )
                at += rows
        return Built([info for info in made if info is not None], last_ts, moves)

    def build_direct(
        self, table_id: int, versions: list[SchemaVersion], ordered: Iterable[pa.RecordBatch], find: Find
    ) -> Built:
        """Write the objects of everything with one commit-ts; each transaction has its own.

        Takes the memory of a tombstone object and of a row group. A handle occurs once, so every row that is
        ended existed before.
        """
        made: list[ObjectInfo] = []
        commit_ts = 0
        for (commit_ts, _), batches in groupby(_by_transaction(ordered), key=_transaction):
            schema = versions_in_force(versions, commit_ts - 1, commit_ts)[-1]
            aside = SpillTable(RAW_SCHEMA, self.scratch / f"{self.clock.unique_id()}.arrow")
            try:
                changes = self._set_backfills_aside(batches, schema, aside)
                made += self._write_transaction(table_id, schema, "direct", changes, find)
                backfills = aside.finish().to_batches()
                made += self._write_transaction(table_id, schema, "backfill", backfills, find)
            except BaseException:
                aside.discard()
                raise
        return Built(made, commit_ts, None)

    def _divide_by_kind(
        self, rows: pa.RecordBatch, schema: SchemaVersion, kind: ObjectKind
    ) -> Iterator[tuple[ObjectKind, pa.RecordBatch]]:
        """Divide rows of one schema version into changes, of the given kind, and backfills."""
        with _refuse_damaged_rows():
            backfills = find_backfills(rows, schema.table, self.decoder)
        if not backfills.any():
            yield kind, rows
            return
        if not backfills.all():
            yield kind, rows.filter(pa.array(~backfills))
        yield "backfill", rows.filter(pa.array(backfills))

    def _set_backfills_aside(
        self, batches: Iterable[pa.RecordBatch], schema: SchemaVersion, aside: SpillTable
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a transaction; put its backfills aside."""
        for batch in batches:
            for kind, rows in self._divide_by_kind(batch, schema, "direct"):
                if kind == "direct":
                    yield rows
                else:
                    aside.add(rows)

    def _write_transaction(
        self,
        table_id: int,
        schema: SchemaVersion,
        kind: ObjectKind,
        batches: Iterable[pa.RecordBatch],
        find: Find,
    ) -> list[ObjectInfo]:
        """Write rows of one transaction, which are in order."""
        made: list[ObjectInfo | None] = []
        with self._writer(table_id, schema, "data", kind) as data:
            ended = self._write_data(data, schema, batches)
            for group in divide_tombstones(ended, within_commit=True):
                data.end_group()  # else both sides would be in memory at the same time
                ids = find(pa.concat_arrays([batch.column(HANDLE) for batch in group]))
                made.append(self._write_tombstones(table_id, schema, kind, group, ids))
            made.append(data.finish())
        return [info for info in made if info is not None]

    def _write_data(
        self, data: ObjectWriter, schema: SchemaVersion, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Write the data side of some rows; yield the tombstones."""
        for rows in batches:
            with _refuse_damaged_rows():
                sides = decode_sides(rows, schema.table, self.decoder)
            data.write(sides.data)
            yield sides.tombstone

    def _write_tombstones(
        self, table_id: int, schema: SchemaVersion, kind: ObjectKind, group: list[pa.RecordBatch], ids: RowIds
    ) -> ObjectInfo | None:
        metrics.EVENTSTORE_UNKNOWN_ROWS_TOTAL.inc(int(np.count_nonzero(ids.objects < 0)))
        with self._writer(table_id, schema, "tombstone", kind) as writer:
            for batch in sort_by_row_id(group, ids):
                writer.write(batch)
            return writer.finish()

    def _writer(self, table_id: int, schema: SchemaVersion, side: Side, kind: ObjectKind) -> ObjectWriter:
        return ObjectWriter(
            self.storage,
            paths.table_root(table_id),
            side,
            kind=kind,
            schema_version=schema.version,
            schema=stored_side_schema(schema.table, side),
            scratch=self.scratch,
            clock=self.clock,
        )


@contextmanager
def _refuse_damaged_rows() -> Iterator[None]:
    """Raise Invalid for rows that do not fit their table's description: they cost that table alone.

    The log has checksums, so the cluster has such rows too. TiDB writes one when it converts JSON to an
    integer column that is too narrow for the number, for instance.
    """
    try:
        yield
    except Corrupt as error:
        raise Invalid(f"a row cannot be read: {error}") from error


def _row_ids(
    written: list[pa.RecordBatch], ended: list[pa.RecordBatch], places: Places, find: Find
) -> tuple[RowIds, Moves]:
    """Return the row id of every tombstone of a chunk, and what the chunk does to the index."""
    rows, tombstones = _events(written), _events(ended)
    matches = match_tombstones(rows, tombstones)
    ids = places.of(matches.ends)
    asked = matches.ends == ASK
    if asked.any():
        ids = fill_row_ids(ids, asked, find(tombstones.handles.filter(pa.array(asked))))
    moves = Moves(
        gone=tombstones.handles.take(pa.array(matches.gone)),
        live=rows.handles.take(pa.array(matches.live)),
        places=places.of(matches.live),
    )
    return ids, moves


def _events(batches: list[pa.RecordBatch]) -> Events:
    return Events.of(
        [batch.column(HANDLE) for batch in batches], [batch.column(COMMIT_TS) for batch in batches]
    )


def _by_transaction(ordered: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Divide ordered rows of one commit-ts where another transaction begins."""
    for rows in ordered:
        start = times(rows, "start_ts")
        bounds = [0, *(np.flatnonzero(start[1:] != start[:-1]) + 1).tolist(), rows.num_rows]
        for first, end in pairwise(bounds):
            yield rows.slice(first, end - first)


def _transaction(rows: pa.RecordBatch) -> tuple[int, int]:
    return int(times(rows)[0]), int(times(rows, "start_ts")[0])


def divide_by_version(
    rows: pa.RecordBatch, versions: list[SchemaVersion]
) -> Iterator[tuple[SchemaVersion, pa.RecordBatch]]:
    """Divide ordered rows by the schema under which they were committed."""
    commit = times(rows)
    starts = [0, *(count_before(commit, version.since_ts) for version in versions[1:])]
    ends = [*starts[1:], rows.num_rows]
    for version, start, end in zip(versions, starts, ends, strict=True):
        if end > start:
            yield version, rows.slice(start, end - start)


def divide_tombstones(
    ordered: Iterable[pa.RecordBatch], *, within_commit: bool
) -> Iterator[list[pa.RecordBatch]]:
    """Divide ordered tombstones into the contents of one object each.

    An object ends at the first commit after it is full, so that no two overlap in time. With `within_commit`
    it may end anywhere, which is right for tombstones of a single transaction.
    """
    group: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in ordered:
        rest = batch
        if group and (rows >= OBJECT_ROWS or nbytes >= OBJECT_BYTES):
            commit = batch.column(COMMIT_TS).to_numpy()
            last = group[-1].column(COMMIT_TS)[-1].as_py()
            kept = 0 if within_commit else int(np.searchsorted(commit, last, side="right"))
            rest = batch.slice(kept)
            if kept:
                group.append(batch.slice(0, kept))
            if rest.num_rows:
                yield group
                group, rows, nbytes = [], 0, 0
        if rest.num_rows:
            group.append(rest)
            rows, nbytes = rows + rest.num_rows, nbytes + rest.nbytes
    if group:
        yield group


def sort_by_row_id(group: list[pa.RecordBatch], ids: RowIds) -> Iterator[pa.RecordBatch]:
    """Yield the tombstones of one object with their row ids, ordered by them, a row group at a time.

    Empties the group, because its rows would be in memory twice.
    """
    (whole,) = pa.Table.from_batches(group).combine_chunks().to_batches()
    group.clear()
    order = ids.order(whole.column(COMMIT_TS).to_numpy())
    columns = [whole.schema.get_field_index(name) for name in (OBJECT, OFFSET)]
    for start in range(0, len(order), TOMBSTONE_GROUP_ROWS):
        chosen = order[start : start + TOMBSTONE_GROUP_ROWS]
        batch = whole.take(pa.array(chosen))
        for column, values in zip(columns, ids.columns(chosen), strict=True):
            batch = batch.set_column(column, whole.schema.field(column), values)
        yield batch
