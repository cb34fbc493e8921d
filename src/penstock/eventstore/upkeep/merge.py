"""Merges: the live rows of some objects are written again as fewer objects, which then replace them.

A merge is planned at a state of the manifest, whose flushed-ts is the merge's timestamp. Any process that
reaches storage may write it, while rows go on being flushed; the owner commits it. Until then nothing has
changed for anybody, and objects of a merge that is not committed are never read. Plans and outputs travel
between processes as JSON.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import SYSTEM, Clock
from penstock.columnar.sorted_spill import SLICE_ROWS, SortedSpill, SortOrder, order_by
from penstock.errors import Corrupt, Invalid
from penstock.eventstore import paths
from penstock.eventstore.manifest import ManifestState, ObjectInfo, object_tree, read_object
from penstock.eventstore.objects.deletion_vectors import Deletions
from penstock.eventstore.objects.object_file import ObjectWriter, open_object
from penstock.eventstore.paths import Side
from penstock.eventstore.read.object_scan import ObjectScan, ObjectScanTask
from penstock.eventstore.schema_version import SchemaVersion, schemas_in, versions_in_force
from penstock.eventstore.sides import (
    COMMIT_TS,
    HANDLE,
    MERGED_TOMBSTONES,
    OBJECT,
    OFFSET,
    stored_side_schema,
)
from penstock.eventstore.upkeep.merge_policy import MergeChoice, MergePolicy
from penstock.object_storage import ObjectStorage
from penstock.tables.schema import TableInfo

SORT_BYTES = 64 * 1024 * 1024
_PAST_TARGET = 1.25  # a merge is planned for one object, which may come out this much larger

BY_ROW_ID = order_by(MERGED_TOMBSTONES, OBJECT, OFFSET, COMMIT_TS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """Everything but storage that writing a merge needs. Can be pickled.

    `data` and `tombstones` are the inputs; `gone` are tombstone objects that delete nothing that stays.
    `deleting` are all tombstone objects that delete rows of `data`; `kept` are the data objects whose
    tombstones stay.
    """

    table_id: int
    base_seq: int
    ts: int
    made_ms: int
    target_bytes: int
    schema: SchemaVersion
    data: tuple[ObjectInfo, ...]
    tables: tuple[TableInfo, ...]  # the schemas of `data`
    deleting: tuple[ObjectInfo, ...]
    tombstones: tuple[ObjectInfo, ...]
    kept: frozenset[str]
    gone: tuple[ObjectInfo, ...]


@dataclass(frozen=True, slots=True)
class MergeOutput:
    """The objects that a merge made, data first by key. Can be pickled."""

    data: tuple[ObjectInfo, ...] = ()
    tombstones: tuple[ObjectInfo, ...] = ()

    @property
    def objects(self) -> tuple[ObjectInfo, ...]:
        """All objects of the output."""
        return (*self.data, *self.tombstones)


def plan_merge(table_id: int, state: ManifestState, policy: MergePolicy, *, now_ms: int) -> MergePlan | None:
    """Plan the next merge of a table; None when it needs none. Raises Corrupt when a schema is not known."""
    choice = policy.choose(state)
    return None if choice is None else _plan(table_id, state, choice, policy.target_bytes, now_ms)


def plan_merges(
    table_id: int, state: ManifestState, policy: MergePolicy, *, now_ms: int, plans_max: int
) -> list[MergePlan]:
    """Plan merges that share no object: they may be written at the same time and committed in any order.

    Only the first plan takes tombstone objects. Which of them delete nothing any more depends on which merges
    are committed, and the first is planned as if it were alone.
    """
    plans: list[MergePlan] = []
    choice = policy.choose(state)
    left = state
    while choice is not None and len(plans) < plans_max:
        plans.append(_plan(table_id, state, choice, policy.target_bytes, now_ms))
        taken = {info.id for info in choice.data}
        left = replace(left, objects={key: info for key, info in left.objects.items() if key not in taken})
        following = policy.choose(left) if taken else None
        choice = MergeChoice(following.data, (), ()) if following is not None and following.data else None
    return plans


def _plan(
    table_id: int, state: ManifestState, choice: MergeChoice, target_bytes: int, now_ms: int
) -> MergePlan:
    current = [info for info in state.objects.values() if not info.delete_ts]
    taken = {info.id for info in choice.data}
    schemas = schemas_in(state.facts)
    tables = {version.version: version.table for version in schemas}
    if not schemas or not {info.schema_version for info in choice.data}.issubset(tables):
        raise Corrupt(
            f"the manifest of table {table_id} has no schema for some objects; keep it for inspection"
        )
    return MergePlan(
        table_id=table_id,
        base_seq=state.seq,
        ts=state.flushed_ts,
        made_ms=now_ms,
        target_bytes=target_bytes,
        schema=versions_in_force(schemas, state.flushed_ts - 1, state.flushed_ts)[-1],
        data=choice.data,
        tables=tuple(tables[info.schema_version] for info in choice.data),
        deleting=tuple(info for info in current if info.side == "tombstone" and deletes_from(info, taken)),
        tombstones=choice.tombstones,
        kept=_select_targets(choice.tombstones, {info.id for info in current if info.side == "data"} - taken),
        gone=choice.gone,
    )


def deletes_from(tombstones: ObjectInfo, objects: set[str]) -> bool:
    """Return whether a tombstone object may delete rows of some data objects."""
    return tombstones.targets is None or any(target in objects for target, _ in tombstones.targets)


def _select_targets(tombstones: tuple[ObjectInfo, ...], objects: set[str]) -> frozenset[str]:
    """Return those of some data objects that tombstone objects may delete from."""
    if any(tombstone.targets is None for tombstone in tombstones):
        return frozenset(objects)
    named = {target for tombstone in tombstones for target, _ in tombstone.targets or ()}
    return frozenset(named & objects)


def check_output(plan: MergePlan, output: MergeOutput, storage: ObjectStorage) -> None:
    """Raise Invalid unless an output describes itself rightly and has as many rows as live in its inputs.

    For outputs of other processes: once a merge is committed, rows that it left out are gone from snapshots.
    """
    deleted = Deletions(storage, plan.table_id, plan.deleting, plan.ts)
    live = sum(info.rows - len(deleted.of(info.id)) for info in sorted(plan.data, key=lambda info: info.id))
    expected = ("merged", plan.ts, plan.schema.version)
    described = all(
        info.side == side and (info.kind, info.create_ts, info.schema_version) == expected
        for side, objects in (("data", output.data), ("tombstone", output.tombstones))
        for info in objects
    )
    if not described or sum(info.rows for info in output.data) != live:
        raise Invalid(
            f"the output of a merge of table {plan.table_id} does not have the rows of its inputs;"
            " run the same version of Penstock everywhere, and merge again"
        )


def write_merge(
    plan: MergePlan,
    storage: ObjectStorage,
    scratch: Path,
    *,
    sort_bytes: int = SORT_BYTES,
    clock: Clock = SYSTEM,
    proceed: Callable[[], None] = lambda: None,
) -> MergeOutput:
    """Write the objects that replace the inputs of a merge, in bounded memory.

    `proceed` is called now and then; an error of it ends the work. Raises Unavailable when an input is gone
    (another merge was first) or storage does not answer, Corrupt when an input is damaged.
    """
    return MergeWriter(plan, storage, scratch, sort_bytes, clock, proceed).write()


@dataclass(frozen=True, slots=True)
class MergeWriter:
    """Writes the objects of one merge."""

    plan: MergePlan
    storage: ObjectStorage
    scratch: Path
    sort_bytes: int
    clock: Clock
    proceed: Callable[[], None]

    def write(self) -> MergeOutput:
        """Write all objects.

        Raises Unavailable when an input is gone or storage does not answer, Corrupt when an input is damaged.
        """
        return MergeOutput(self._write_data(), self.write_tombstones(self._read_kept_tombstones()))

    def _write_data(self) -> tuple[ObjectInfo, ...]:
        """Write the rows that live at the merge's timestamp, by handle."""
        plan, table = self.plan, self.plan.schema.table
        schema = stored_side_schema(table, "data")
        scan = ObjectScan(
            self.storage,
            plan.table_id,
            plan.ts,
            table,
            tuple(schema.names),
            Deletions(self.storage, plan.table_id, plan.deleting, plan.ts),
            SLICE_ROWS,
        )
        tasks = [
            ObjectScanTask(info, of, info.rows, info.size_bytes)
            for info, of in zip(plan.data, plan.tables, strict=True)
        ]
        with self.open_spill(order_by(schema, HANDLE)) as spool, closing(scan.batches(tasks)) as found:
            for batch in found:
                self.proceed()
                spool.write(batch)
            return self._write_objects("data", schema, spool)

    def _read_kept_tombstones(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tombstone inputs that delete a row that stays."""
        kept = pa.array(sorted(self.plan.kept), pa.string())
        for info in self.plan.tombstones:
            with open_object(self.storage, self.plan.table_id, info) as file:
                for batch in file.iter_batches(columns=MERGED_TOMBSTONES.names):
                    self.proceed()
                    rows = batch.select(MERGED_TOMBSTONES.names).cast(MERGED_TOMBSTONES)
                    yield rows.filter(pc.is_in(rows.column(OBJECT), value_set=kept))

    def write_tombstones(self, rows: Iterator[pa.RecordBatch]) -> tuple[ObjectInfo, ...]:
        """Write objects of tombstones that come in any order."""
        with self.open_spill(BY_ROW_ID) as spool:
            for batch in rows:
                spool.write(batch)
            return self._write_objects("tombstone", MERGED_TOMBSTONES, spool)

    def open_spill(self, order: SortOrder) -> SortedSpill:
        """Open a spill that sorts rows."""
        return SortedSpill(order, memory_bytes=self.sort_bytes, scratch=self.scratch)

    def _write_objects(self, side: Side, schema: pa.Schema, spool: SortedSpill) -> tuple[ObjectInfo, ...]:
        made: list[ObjectInfo] = []
        size_max = self.plan.target_bytes * _PAST_TARGET
        with closing(spool.sort()) as ordered:
            batch = next(ordered, None)
            while batch is not None:
                with self._writer(side, schema) as writer:
                    while batch is not None and writer.size_bytes < size_max:
                        self.proceed()
                        writer.write(batch)
                        batch = next(ordered, None)
                    info = writer.finish()
                assert info is not None, "slices have rows"
                made.append(info)
        return tuple(made)

    def _writer(self, side: Side, schema: pa.Schema) -> ObjectWriter:
        return ObjectWriter(
            self.storage,
            paths.table_root(self.plan.table_id),
            side,
            kind="merged",
            schema_version=self.plan.schema.version,
            schema=schema,
            scratch=self.scratch,
            create_ts=self.plan.ts,
            clock=self.clock,
        )


_NUMBERS = ("table_id", "base_seq", "ts", "made_ms", "target_bytes")
_OBJECTS = ("data", "deleting", "tombstones", "gone")


def plan_tree(plan: MergePlan) -> dict[str, Any]:
    """Return a plan as JSON has it; each of its tables once, by schema version."""
    versions = {info.schema_version: table for info, table in zip(plan.data, plan.tables, strict=True)}
    return {
        **{name: getattr(plan, name) for name in _NUMBERS},
        **{name: [object_tree(info) for info in getattr(plan, name)] for name in _OBJECTS},
        "schema": plan.schema.as_fact(),
        "tables": {str(version): table.to_json() for version, table in versions.items()},
        "kept": sorted(plan.kept),
    }


def read_plan(tree: Mapping[str, Any]) -> MergePlan:
    """Return the plan of some JSON; raise KeyError, TypeError or ValueError when it is not a plan."""
    data = _objects(tree["data"])
    versions = {int(version): TableInfo.from_json(table) for version, table in tree["tables"].items()}
    return MergePlan(
        table_id=int(tree["table_id"]),
        base_seq=int(tree["base_seq"]),
        ts=int(tree["ts"]),
        made_ms=int(tree["made_ms"]),
        target_bytes=int(tree["target_bytes"]),
        schema=SchemaVersion.from_fact(tree["schema"]),
        data=data,
        tables=tuple(versions[info.schema_version] for info in data),
        deleting=_objects(tree["deleting"]),
        tombstones=_objects(tree["tombstones"]),
        kept=frozenset(tree["kept"]),
        gone=_objects(tree["gone"]),
    )


def write_output(plan_id: str, output: MergeOutput) -> bytes:
    """Encode the output of a plan as the body of an action."""
    sides = {"data": output.data, "tombstones": output.tombstones}
    tree = {name: [object_tree(info) for info in objects] for name, objects in sides.items()}
    return json.dumps({"plan_id": plan_id, **tree}, separators=(",", ":")).encode()


def read_output(body: bytes) -> tuple[str, MergeOutput]:
    """Decode a plan's id and its output; raise Invalid when the body has none."""
    try:
        tree = json.loads(body)
        return str(tree["plan_id"]), MergeOutput(_objects(tree["data"]), _objects(tree["tombstones"]))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise Invalid(
            "the body of commit_merge needs plan_id, and data and tombstones as lists of objects"
        ) from error


def _objects(trees: Any) -> tuple[ObjectInfo, ...]:
    return tuple(read_object(tree) for tree in trees)
