"""The load of a table's first snapshot, on storage: its plan, the ranges that are read, and its one commit.

The plan is created once and has everything, so that any process can go on after a driver that crashed. Each
range has one file, created by the first task that finishes it; objects of a second attempt are deleted. The
commit is one manifest entry: before it the table does not exist, after it the table is complete up to the
plan's timestamp, from which a capture goes on.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Fenced, Invalid, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.manifest import LOADED, ManifestState, ObjectInfo, read_archive, write_archive
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.objects.object_file import ObjectWriter
from penstock.eventstore.read.find import NameMarks
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE, stored_side_schema
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import ObjectStorage, StorageRef
from penstock.tables.arrow import arrow_name
from penstock.tables.kv_scan import KvScan, KvScanPartition

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The rows of one physical table as of `ts`, by ranges of record keys that follow each other.

    `id` is shared by the partitions of a table that are loaded together.
    """

    id: str
    table_id: int
    ts: int
    schema: SchemaVersion
    ranges: tuple[tuple[bytes, bytes], ...]

    def as_fact(self) -> dict[str, Any]:
        """Return the fact that the manifest records, by which a second driver sees the commit."""
        return {"kind": LOADED, "id": self.id, "ts": self.ts}

    def is_committed_in(self, state: ManifestState) -> bool:
        """Return whether a manifest has this load."""
        return any(fact["kind"] == LOADED and fact["id"] == self.id for fact in state.facts)


def check_fresh(name: str, state: ManifestState) -> None:
    """Raise Invalid when a manifest has rows of the table: only a new table can be loaded."""
    if state.objects or state.flushed_ts:
        raise Invalid(
            f"{name} is captured already, up to {state.flushed_ts}, and needs no load; to load it again,"
            " remove its folder from storage while no capture runs"
        )


def write_plan(plan: LoadPlan) -> bytes:
    """Encode a plan."""
    tree = {
        "format": FORMAT,
        "id": plan.id,
        "table_id": plan.table_id,
        "ts": plan.ts,
        "schema": plan.schema.as_fact(),
        "ranges": [[_text(lower), _text(upper)] for lower, upper in plan.ranges],
    }
    return json.dumps(tree, separators=(",", ":"), sort_keys=True).encode()


def read_plan(data: bytes, *, path: str) -> LoadPlan:
    """Decode a plan; raise Corrupt with the path when the file is not a plan of this format."""
    try:
        tree: Mapping[str, Any] = json.loads(data)
        if tree["format"] != FORMAT:
            raise Corrupt(f"load plan {path} has format {tree['format']!r}, not {FORMAT}; upgrade Penstock")
        return LoadPlan(
            id=str(tree["id"]),
            table_id=int(tree["table_id"]),
            ts=int(tree["ts"]),
            schema=SchemaVersion.from_fact(tree["schema"]),
            ranges=tuple((_bytes(lower), _bytes(upper)) for lower, upper in tree["ranges"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"load plan {path} has a missing or wrong field; remove it and load again") from (error)


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


OBJECT_BYTES = 256 * 1024 * 1024  # of Arrow; a range that is larger becomes several objects
_COMMIT_ATTEMPTS = 5


@dataclass(frozen=True)
class RangeTask:
    """One range to read and write, wherever there is a processor. Can be pickled, and repeated."""

    storage: StorageRef
    cluster: ClusterRef
    load_id: str
    ts: int
    schema: SchemaVersion
    table_id: int
    number: int
    lower: bytes
    upper: bytes

    def run(self) -> int:
        """Load the range unless it is loaded; return the number of its rows.

        Raises Unavailable when the cluster or storage does not answer, Invalid when garbage collection has
        passed the load's timestamp.
        """
        storage, root = self.storage.open(), paths.table_root(self.table_id)
        path = paths.load_range(root, self.load_id, self.number)
        done = storage.read(path)
        if done is None:
            with TemporaryDirectory(prefix="penstock-load-") as scratch:
                made = list(self._write(storage, Path(scratch)))
            mine = write_archive(made)
            if storage.create(path, mine):
                return sum(info.rows for info in made)
            done = storage.read(path) or mine
            if done != mine:  # another attempt was first
                for info in made:
                    storage.delete(paths.object_path(root, info.side, info.id))
        return sum(info.rows for info in read_archive(done, path=path))

    def _write(self, storage: ObjectStorage, scratch: Path) -> Iterator[ObjectInfo]:
        table = self.schema.table
        columns = (*(arrow_name(column) for column in table.kept_columns), HANDLE)
        scan = KvScan(self.cluster, table, self.ts, columns)
        rows = KvScanPartition(scan, self.table_id, self.lower, self.upper).read()
        return write_objects(rows, self.schema, self.table_id, self.ts, storage=storage, scratch=scratch)


def write_objects(
    rows: Iterable[pa.RecordBatch],
    schema: SchemaVersion,
    table_id: int,
    ts: int,
    *,
    storage: ObjectStorage,
    scratch: Path,
    object_bytes: int = OBJECT_BYTES,
    clock: Clock = SYSTEM,
) -> Iterator[ObjectInfo]:
    """Write rows (kept columns and handle, ordered by it) as direct objects committed at `ts`."""
    shown = stored_side_schema(schema.table, "data")
    source = iter(rows)
    batch = next(source, None)
    while batch is not None:
        with ObjectWriter(
            storage,
            paths.table_root(table_id),
            "data",
            kind="direct",
            schema_version=schema.version,
            schema=shown,
            scratch=scratch,
            clock=clock,
        ) as writer:
            written = 0
            while batch is not None and written < object_bytes:
                writer.write(_add_commit_ts(batch, ts, shown))
                written += batch.nbytes
                batch = next(source, None)
            info = writer.finish()
        if info is not None:
            yield info


def _add_commit_ts(batch: pa.RecordBatch, ts: int, shown: pa.Schema) -> pa.RecordBatch:
    times = pa.array(np.full(batch.num_rows, ts, np.int64))
    inserted = pa.array(np.zeros(batch.num_rows, np.bool_))
    return pa.RecordBatch.from_arrays([*batch.columns, times, times, inserted], schema=shown)


@dataclass(frozen=True, slots=True)
class SnapshotLoad:
    """The load of one physical table, as storage has it. Any number of processes may hold it."""

    storage: StorageRef
    plan: LoadPlan

    @classmethod
    def find(cls, storage: StorageRef, table_id: int) -> "SnapshotLoad | None":
        """Return the load that was begun and not cleared; None when there is none."""
        plan = find_plan(storage.open(), table_id)
        return None if plan is None else cls(storage, plan)

    @classmethod
    def begin(cls, storage: StorageRef, plan: LoadPlan) -> "SnapshotLoad":
        """Begin a load, or join the one that somebody began first."""
        path = paths.load_plan(paths.table_root(plan.table_id))
        while not storage.open().create(path, write_plan(plan)):
            found = cls.find(storage, plan.table_id)
            if found is not None:
                return found
        return cls(storage, plan)

    @property
    def _root(self) -> str:
        return paths.table_root(self.plan.table_id)

    def state(self) -> ManifestState:
        """Read the table's manifest."""
        return manifest_log.load(self.storage.open(), self._root)

    def is_committed(self) -> bool:
        """Return whether the manifest has the load, so that only `clear` is left to do."""
        return self.plan.is_committed_in(self.state())

    def tasks(self, cluster: ClusterRef) -> list[RangeTask]:
        """Return the ranges that are not loaded yet."""
        plan = self.plan
        done = self._list_loaded()
        return [
            RangeTask(
                self.storage, cluster, plan.id, plan.ts, plan.schema, plan.table_id, number, lower, upper
            )
            for number, (lower, upper) in enumerate(plan.ranges)
            if number not in done
        ]

    def _list_loaded(self) -> set[int]:
        names = self.storage.open().names(paths.load_ranges(self._root, self.plan.id))
        return {number for name in names if (number := paths.load_range_number(name)) is not None}

    def objects(self) -> list[ObjectInfo]:
        """Return the objects of every range; raise Unavailable when a range is not loaded."""
        storage, found = self.storage.open(), []
        for number in range(len(self.plan.ranges)):
            path = paths.load_range(self._root, self.plan.id, number)
            data = storage.read(path)
            if data is None:
                raise Unavailable(
                    f"range {number} of {self.plan.schema.name} does not exist at {storage.url}; run the load"
                    " again, with storage that this process and the executors share"
                )
            found += read_archive(data, path=path)
        return found

    def commit(self, *, writer: str, clock: Clock = SYSTEM) -> ManifestState:
        """Make the table: its objects and its schema, complete up to the load's timestamp. Repeating is safe.

        Raises Invalid when somebody else began the table meanwhile, Unavailable when storage does not answer:
        then repeat the call to find out whether it was committed.
        """
        plan, storage = self.plan, self.storage.open()
        facts = [plan.schema.as_fact(), plan.as_fact()]
        NameMarks(storage).mark([(plan.schema.database, plan.schema.table.name)], plan.table_id)
        for _ in range(_COMMIT_ATTEMPTS):
            state = self.state()
            if plan.is_committed_in(state):
                return state
            check_fresh(plan.schema.name, state)
            objects = self.objects()
            log = ManifestLog.open(storage, self._root, writer=writer, clock=clock)
            if log.state.objects or log.state.flushed_ts:
                continue  # the checks above decide whose they are
            try:
                return log.commit(add=objects, flushed_ts=plan.ts, facts=facts)
            except Fenced:
                continue  # another driver of this load, or a capture that has not seen its plan yet
        raise Fenced(f"{plan.schema.name} is opened by others again and again; stop them, then load again")

    def clear(self) -> None:
        """Remove the load's files from storage; the plan last, so that this can be repeated.

        Before the commit this abandons the load: the objects that it wrote become orphans.
        """
        storage = self.storage.open()
        plan_path = paths.load_plan(self._root)
        for name in storage.names(paths.load_folder(self._root)):
            if name != plan_path:
                storage.delete(name)
        storage.delete(plan_path)


def find_plan(storage: ObjectStorage, table_id: int) -> LoadPlan | None:
    """Return the plan of the load that was begun and not cleared; None when there is none."""
    path = paths.load_plan(paths.table_root(table_id))
    data = storage.read(path)
    return None if data is None else read_plan(data, path=path)


def is_load_in_progress(storage: ObjectStorage, table_id: int) -> bool:
    """Return whether captures must leave a table alone, because its first snapshot is being loaded."""
    plan = find_plan(storage, table_id)
    return plan is not None and not plan.is_committed_in(
        manifest_log.load(storage, paths.table_root(table_id))
    )
