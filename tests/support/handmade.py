"""A table's objects made by hand, of every kind, and beside them what the table was at each timestamp.

Flushes, merges and transfers do here what their promises say, one row at a time and without any of the code
that does it in earnest. So tests of readers depend on the format of the objects alone.
"""

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import (
    Archive,
    ManifestState,
    ObjectInfo,
    ObjectKind,
    Removal,
    Targets,
    write_archive,
)
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.paths import Side
from penstock.eventstore.read.partition import CaptureProgress, Partition, ReadRange, SchemaRange, TableView
from penstock.eventstore.schema_version import SchemaVersion, cut_at_changes, versions_in_force
from penstock.eventstore.sides import side_schema
from penstock.object_storage import StorageRef
from penstock.tables.columns import ColumnInfo
from penstock.tables.keys import encode_handle
from penstock.tables.records import origin_cell
from penstock.tables.schema import TableInfo
from penstock.tables.values import from_cell

TABLE_ID = 1

Row = dict[str, Any]
Cells = Mapping[int, Any]  # values by column id
RowId = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Change:
    """One change of one row; `cells` None: it was deleted. `old` is what it ended, None: nothing."""

    ts: int
    number: int
    table: TableInfo
    cells: Cells | None
    old: "Change | None"

    @property
    def handle(self) -> bytes:
        """The handle of the row."""
        return encode_handle(self.number)

    def row(self, table: TableInfo) -> Row:
        """Return the data row, by the columns of a schema."""
        assert self.cells is not None
        return {**row_in_schema(self.cells, table), **self._system(update=self.old is not None)}

    def tombstone(self, row_id: RowId | None) -> Row:
        """Return the tombstone, by the columns of the schema of its time."""
        assert self.old is not None
        assert self.old.cells is not None
        before = row_in_schema(self.old.cells, self.table)
        where = dict(zip(("_object", "_offset"), row_id or (None, None), strict=True))
        return {**before, **self._system(update=self.cells is not None), **where, "_old": before}

    def of(self, side: Side) -> Row | None:
        """Return one side, as it is before tombstones have row ids; None: the change has no such side."""
        if side == "data":
            return None if self.cells is None else self.row(self.table)
        return None if self.old is None else self.tombstone(None)

    def _system(self, *, update: bool) -> Row:
        times = {"_commit_ts": self.ts, "_start_ts": self.ts - 1}
        return {"_handle": self.handle, **times, "_update": update}


def row_in_schema(cells: Cells, table: TableInfo) -> Row:
    """Return a row by the names of a schema, with the defaults of the columns that it was written without."""
    return {
        column.name: cells[column.id] if column.id in cells else _origin(column)
        for column in table.stored_columns
    }


def _origin(column: ColumnInfo) -> Any:
    cell = origin_cell(column)
    return None if cell is None else from_cell(column.type, cell)


@dataclass
class HeldRows:
    """A RangeReader over a list of changes; counts what it is asked."""

    changes: list[Change] = field(default_factory=list)
    versions: list[SchemaVersion] = field(default_factory=list)
    readable_ts: int = 0
    batch_rows: int = 3
    asked: int = 0

    def progress(self, table_id: int) -> CaptureProgress:
        """Return up to where the table can be read."""
        self.asked += 1
        return CaptureProgress(table_id, self.readable_ts, self.readable_ts, 0)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """Cut a range at the changes of the schema; raise Unavailable beyond what can be read."""
        self.asked += 1
        if wanted.to_ts > self.readable_ts:
            raise Unavailable("not complete yet")
        versions = versions_in_force(self.versions, wanted.from_ts, wanted.to_ts)
        cuts = cut_at_changes(versions, wanted.from_ts, wanted.to_ts)
        return [SchemaRange(replace(wanted, from_ts=low, to_ts=high), version) for low, high, version in cuts]

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Yield the changes of a range from memory."""
        (part,) = self.parts(wanted)
        schema = side_schema(part.schema.table, wanted.side)
        chosen = [
            row
            for change in sorted(self.changes, key=lambda each: (each.ts, each.handle))
            if wanted.from_ts < change.ts <= wanted.to_ts and change.handle >= wanted.handle_from
            if not wanted.handle_to or change.handle < wanted.handle_to
            if (row := change.of(wanted.side)) is not None
        ]
        table = pa.Table.from_pylist(chosen, schema).select(list(wanted.columns or schema.names))
        return table.schema, iter(table.to_batches(max_chunksize=self.batch_rows))


@dataclass(frozen=True)
class Merge:
    """A merge that has begun: its inputs, and what it saw."""

    ts: int
    seq: int
    inputs: tuple[ObjectInfo, ...]
    live: tuple[Change, ...]
    kept: tuple["Ended", ...]  # tombstones of inputs that are about other objects


class Ended(NamedTuple):
    """A tombstone, and the row id of the row that it ended."""

    change: Change
    row_id: RowId | None


class HandMade:
    """A table in the making: commit, alter, flush, merge; then look at it through `view` and `at`."""

    def __init__(
        self, storage: StorageRef, table: TableInfo, *, start_ts: int = 100, group_rows: int = 3
    ) -> None:
        self.storage = storage
        self.ts = start_ts
        self.group_rows = group_rows
        self.versions = [SchemaVersion(0, 1, table, "shop")]
        self.history: list[Change] = []
        self.rows = HeldRows(self.history, self.versions, start_ts)
        self._log = ManifestLog.open(storage.open(), paths.table_root(TABLE_ID), writer="hand")
        self._log.commit(facts=[version.as_fact() for version in self.versions], flushed_ts=start_ts)
        self._live: dict[int, Change] = {}
        self._row_ids: dict[tuple[int, int], RowId] = {}  # of each row version, where it was put last
        self._data: dict[str, list[Change]] = {}  # what each object holds, in file order
        self._ended: dict[str, list[Ended]] = {}

    @property
    def table(self) -> TableInfo:
        """The newest schema."""
        return self.versions[-1].table

    @property
    def state(self) -> ManifestState:
        """What the manifest says."""
        return self._log.state

    def view(self, *, objects_only: bool = False) -> TableView:
        """Return the table for readers."""
        rows = None if objects_only else self.rows
        return TableView("shop.items", (Partition(self.storage, TABLE_ID, rows),))

    def commit(self, puts: Mapping[int, Row], deletes: Collection[int] = ()) -> int:
        """Commit one transaction of rows by number, with the table's current columns."""
        self._tick()
        ids = {column.name: column.id for column in self.table.stored_columns}
        for number, row in puts.items():
            self._change(number, {ids[name]: value for name, value in row.items()})
        for number in set(deletes).difference(puts).intersection(self._live):
            self._change(number, None)
        return self.ts

    def _change(self, number: int, cells: Cells | None) -> None:
        made = Change(self.ts, number, self.table, cells, self._live.pop(number, None))
        self.history.append(made)
        if cells is not None:
            self._live[number] = made

    def alter(self, table: TableInfo) -> int:
        """Another schema from now on."""
        self._tick()
        version = len(self.versions) + 1
        self.versions.append(SchemaVersion(self.ts, version, replace(table, update_ts=self.ts), "shop"))
        return self.ts

    def _tick(self) -> None:
        self.ts += 2
        self.rows.readable_ts = self.ts

    def table_at(self, ts: int) -> TableInfo:
        """Return the schema in force at a timestamp."""
        return versions_in_force(self.versions, ts - 1, ts)[-1].table

    def at(self, ts: int) -> dict[int, Row]:
        """Return the table at a timestamp, in the schema of that time, with `_commit_ts`."""
        last = {change.number: change for change in self.history if change.ts <= ts}
        table = self.table_at(ts)
        return {
            number: {**row_in_schema(change.cells, table), "_commit_ts": change.ts}
            for number, change in last.items()
            if change.cells is not None
        }

    def flush(self, direct: Collection[int] = (), *, upto_ts: int | None = None) -> None:
        """Move changes into objects: transactions in `direct` into objects of their own."""
        upto = self.ts if upto_ts is None else upto_ts
        pending = [change for change in self.history if self.state.flushed_ts < change.ts <= upto]
        pending.sort(key=lambda each: (each.ts, each.handle))
        groups = [
            (version, kind, same)
            for version in self.versions
            for kind, same in _by_kind(
                [change for change in pending if change.table is version.table], direct
            )
        ]
        made: list[ObjectInfo] = []
        for version, kind, changes in groups:
            made += self._write_data(
                version, kind, [change for change in changes if change.cells is not None]
            )
        for version, kind, changes in groups:
            made += self._write_tombstones(
                version, kind, [self._end(change) for change in changes if change.old]
            )
        facts = [
            known_version.as_fact()
            for known_version in self.versions
            if self.state.flushed_ts < known_version.since_ts <= upto
        ]
        self._log.commit(add=made, flushed_ts=upto, facts=facts)

    def _end(self, change: Change) -> Ended:
        assert change.old is not None
        return Ended(change, self._row_ids.get((change.number, change.old.ts)))

    def begin_merge(self, chosen: Callable[[ObjectInfo], bool]) -> Merge:
        """Begin a merge of chosen objects of the table as it is flushed now."""
        ts = self.state.flushed_ts
        data, tombstones = self.state.visible_objects("data", ts), self.state.visible_objects("tombstone", ts)
        gone = {ended.row_id for info in tombstones for ended in self._ended[info.id]}
        inputs = {info.id for info in data if chosen(info)}
        outside = {info.id for info in data} - inputs
        used = [info for info in tombstones if chosen(info)]
        return Merge(
            ts,
            self.state.seq,
            (*(info for info in data if info.id in inputs), *used),
            tuple(
                change
                for object_id in sorted(inputs)
                for offset, change in enumerate(self._data[object_id])
                if (object_id, offset) not in gone
            ),
            tuple(
                ended
                for info in used
                for ended in self._ended[info.id]
                if ended.row_id is not None and ended.row_id[0] in outside
            ),
        )

    def finish_merge(self, merge: Merge, *, outputs: int = 1) -> None:
        """Replace the inputs, whatever was flushed since the merge began."""
        inputs = {info.id for info in merge.inputs}
        since = [info for info in self.state.objects.values() if info.seq > merge.seq]
        late = [
            ended
            for info in since
            for ended in self._ended.get(info.id, ())
            if ended.row_id is not None and ended.row_id[0] in inputs
        ]
        version = versions_in_force(self.versions, merge.ts - 1, merge.ts)[-1]
        live = sorted(merge.live, key=lambda each: each.handle)
        made: list[ObjectInfo] = []
        for part in range(outputs):
            mine = live[len(live) * part // outputs : len(live) * (part + 1) // outputs]
            made += self._write_data(version, "merged", mine, create_ts=merge.ts)
        moved = [self._end(late_end.change) for late_end in late]
        for newer in self.versions:
            ended = [one for one in (*merge.kept, *moved) if one.change.table is newer.table]
            made += self._write_tombstones(newer, "merged", ended, create_ts=merge.ts)
        removed = [Removal(id=object_id, delete_ts=merge.ts) for object_id in inputs]
        self._log.commit(add=made, remove=removed)

    def forget(self, *, collect: bool) -> None:
        """Let removed objects leave the state, and with `collect` storage too."""
        gone = [info for info in self.state.objects.values() if info.delete_ts]
        if not gone:
            return
        upto_ts = max(info.delete_ts for info in gone)
        archive = Archive(id=f"{self.state.seq:032x}", upto_ts=upto_ts, objects=len(gone))
        root = paths.table_root(TABLE_ID)
        self.storage.open().write(paths.archive(root, archive.id), write_archive(gone))
        self._log.commit(archive=archive, forget=[info.id for info in gone])
        if collect:
            self._log.commit(collect=[archive.id])
            for info in gone:
                self.storage.open().delete(paths.object_path(root, info.side, info.id))

    def _write_data(
        self, version: SchemaVersion, kind: ObjectKind, changes: list[Change], *, create_ts: int = 0
    ) -> list[ObjectInfo]:
        if not changes:
            return []
        rows = [change.row(version.table) for change in changes]
        info = self._write("data", version, kind, rows, create_ts, ())
        self._data[info.id] = changes
        for offset, change in enumerate(changes):
            self._row_ids[change.number, change.ts] = (info.id, offset)
        return [info]

    def _write_tombstones(
        self, version: SchemaVersion, kind: ObjectKind, ended: list[Ended], *, create_ts: int = 0
    ) -> list[ObjectInfo]:
        if not ended:
            return []
        ordered = sorted(ended, key=lambda each: (each.row_id is None, each.row_id, each.change.ts))
        rows = [end.change.tombstone(end.row_id) for end in ordered]
        targets = Counter(end.row_id[0] for end in ended if end.row_id is not None)
        info = self._write("tombstone", version, kind, rows, create_ts, tuple(sorted(targets.items())))
        self._ended[info.id] = ordered
        return [info]

    def _write(
        self,
        side: Side,
        version: SchemaVersion,
        kind: ObjectKind,
        rows: list[Row],
        create_ts: int,
        targets: Targets,
    ) -> ObjectInfo:
        file = io.BytesIO()
        table = pa.Table.from_pylist(rows, side_schema(version.table, side))
        pq.write_table(table, file, row_group_size=self.group_rows)
        made = SYSTEM.unique_id()
        self.storage.open().write(paths.object_path(paths.table_root(TABLE_ID), side, made), file.getvalue())
        times = [row["_commit_ts"] for row in rows]
        return ObjectInfo(
            id=made,
            side=side,
            kind=kind,
            schema_version=version.version,
            create_ts=create_ts or min(times),
            min_ts=min(times),
            max_ts=max(times),
            rows=len(rows),
            size_bytes=len(file.getvalue()),
            key_min=min(row["_handle"] for row in rows),
            key_max=max(row["_handle"] for row in rows),
            targets=targets,
        )


def _by_kind(changes: list[Change], direct: Collection[int]) -> Iterator[tuple[ObjectKind, list[Change]]]:
    """Yield changes by the object that they go into: direct ones by their transaction."""
    usual = [change for change in changes if change.ts not in direct]
    alone = [change for change in changes if change.ts in direct]
    if usual:
        yield "appendable", usual
    for _, same in groupby(alone, key=lambda each: each.ts):
        yield "direct", list(same)
