"""Bulk jobs over a table of the event store: load its first snapshot, and merge its objects.

A load reads ranges of the cluster and writes them as objects. A merge is planned and committed by the capture
that owns the table. `load_snapshot` and `merge_table` run the tasks on executors; `load_table` and
`merge_objects` leave it to their caller who runs them.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.safe_point import hold_history
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.sides import side_schema
from penstock.eventstore.upkeep.load import LoadPlan, RangeTask, SnapshotLoad, check_fresh
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, read_plan, write_merge, write_output
from penstock.follow.captures import find_owners
from penstock.follow.schema_subscription import read_schemas
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings
from penstock.spark.shipping import for_executors
from penstock.spark.tasks import Progress, run_on_executors
from penstock.tables.catalog import Catalog
from penstock.tables.kv_scan import ranges_of, scan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LoadReport", "MergeReport", "load_snapshot", "merge_table"]

_COMMIT_TIMEOUT_S = 600.0  # a capture first moves the tombstones of rows that were deleted meanwhile
_OVERTAKEN_MAX = 3  # rounds in which every merge was overtaken


# Loads.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A load that is committed: the table is complete up to `ts`."""

    table: str
    ts: int
    ranges: int
    rows: int
    objects: int
    size_bytes: int
    resumed: bool


def load_snapshot(
    spark: "SparkSession",
    settings: Settings,
    table: str,
    *,
    restart: bool = False,
    progress: Progress | None = None,
) -> LoadReport:
    """Load `database.table` as it is now, on executors; a capture goes on from there without gap or overlap.

    A capture does not begin with the table until the load is committed. A load that was interrupted (a driver
    or an executor crashed, a store did not answer) goes on when this is called again, with the same timestamp
    and the ranges that are left; `restart` begins a new load. The cluster keeps its history from the first
    call until a day after the last. Raises Invalid when there is no such table, or it is captured already, or
    history at the timestamp of an interrupted load is gone; Unavailable when the cluster or storage does not
    answer, here or on an executor.
    """

    def run(tasks: Sequence[RangeTask]) -> None:
        run_on_executors(spark, tasks, progress=progress)

    return load_table(for_executors(settings), table, run, restart=restart)


LoadRun = Callable[[Sequence[RangeTask]], None]
"""Runs every task, anywhere and in any order, and returns when all have run; a task's error is raised."""


def load_table(
    settings: Settings, name: str, run: LoadRun, *, restart: bool = False, clock: Clock = SYSTEM
) -> LoadReport:
    """Load `database.table` at one timestamp with the tasks that `run` runs; see `load_snapshot` for the
    promise.

    A load that was interrupted goes on with its timestamp and the tasks that are left; `restart` removes it
    and begins a new one. Raises Invalid when there is no such table, or it is captured already, or history at
    the timestamp of an interrupted load is gone; Unavailable when the cluster or storage does not answer.
    """
    cluster = ClusterRef.of(settings)
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    begun = find_loads(storage, cluster, name)
    if restart:
        clear_loads(begun)
        begun = []
    plan = begun[0].plan if begun else None
    ts = plan.ts if plan is not None else cluster.client().timestamp()
    load_id = plan.id if plan is not None else clock.unique_id()
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_history(settings, f"load-{load_id}", ts, kept_after=True, clock=clock))
        except Invalid as error:
            if plan is None:
                raise
            raise Invalid(f"the interrupted load of {name} cannot go on ({error}); restart it") from error
        loads = _begin(settings, storage, cluster, name, ts, load_id, clock)
        run([task for load in loads if not load.is_committed() for task in load.tasks(cluster)])
        states = [load.commit(writer=f"load/{load_id[:12]}", clock=clock) for load in loads]
        clear_loads(loads)
    loaded = [
        info
        for load, state in zip(loads, states, strict=True)
        for info in state.objects.values()
        if info.kind == "direct" and info.create_ts == load.plan.ts
    ]
    return LoadReport(
        table=name,
        ts=ts,
        ranges=sum(len(load.plan.ranges) for load in loads),
        rows=sum(info.rows for info in loaded),
        objects=len(loaded),
        size_bytes=sum(info.size_bytes for info in loaded),
        resumed=plan is not None,
    )


def find_loads(storage: StorageRef, cluster: ClusterRef, name: str) -> list[SnapshotLoad]:
    """Return the loads of a table that were begun and not cleared, in the order of its partitions."""
    client = cluster.client()
    table = Catalog(client).schema(client.timestamp()).place(name).table
    found = [SnapshotLoad.find(storage, table_id) for table_id in table.physical_ids]
    return [load for load in found if load is not None]


def clear_loads(loads: Sequence[SnapshotLoad]) -> None:
    """Remove loads; that of the first partition last, because a restart finds it first."""
    for load in reversed(loads):
        load.clear()


def _begin(
    settings: Settings,
    storage: StorageRef,
    cluster: ClusterRef,
    name: str,
    ts: int,
    load_id: str,
    clock: Clock,
) -> list[SnapshotLoad]:
    """Begin the load of every partition that has none; return all loads in the order of partitions."""
    client = cluster.client()
    place = Catalog(client).schema(ts).place(name)
    side_schema(place.table, "data")  # raises for a table that the event store cannot keep
    parts = ranges_of(client, scan_of(cluster, place, ts))
    schemas = eventloop.run(read_schemas(settings, ts, clock=clock))
    loads = []
    for table_id in place.table.physical_ids:
        load = SnapshotLoad.find(storage, table_id)
        if load is None:
            plan = LoadPlan(
                id=load_id,
                table_id=table_id,
                ts=ts,
                schema=schemas.versions(table_id, ts - 1, ts)[-1],
                ranges=tuple((part.lower, part.upper) for part in parts if part.physical_id == table_id),
            )
            state = manifest_log.load(storage.open(), paths.table_root(table_id))
            if plan.is_committed_in(state):
                continue  # and cleared: an earlier driver was interrupted while it cleared
            check_fresh(name, state)
            load = SnapshotLoad.begin(storage, plan)
        loads.append(load)
    return loads


# Merges.


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """The result of a merge job; `overtaken` merges were written and not committed: others came first."""

    table: str
    merges: int = 0
    overtaken: int = 0
    objects_read: int = 0
    objects_written: int = 0


def merge_table(
    spark: "SparkSession",
    settings: Settings,
    table: str,
    *,
    flight_tls: TlsSettings | None = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge the objects of `database.table` on executors until its capture plans no more merges.

    Readers go on meanwhile. Raises Invalid when there is no such table, Unavailable when no capture owns it,
    or the capture or storage does not answer, here or on an executor; merges that were committed before that
    stay.
    """

    def run(tasks: Sequence["MergeTask"]) -> list[MergeOutput]:
        return run_on_executors(spark, tasks, progress=progress)

    return merge_objects(
        for_executors(settings), table, run, flight_tls=flight_tls or settings.capture.flight_client_tls
    )


@dataclass(frozen=True)
class MergeTask:
    """A task that writes one merge. Can be pickled, and repeated."""

    storage: StorageRef
    plan_id: str
    plan: MergePlan

    def run(self) -> MergeOutput:
        """Write the merge; raise Unavailable when an input is gone or storage does not answer."""
        with TemporaryDirectory(prefix="penstock-merge-") as scratch:
            return write_merge(self.plan, self.storage.open(), Path(scratch))


MergeRun = Callable[[Sequence[MergeTask]], list[MergeOutput]]
"""Runs every task, anywhere and in any order; returns the outputs in the order of the tasks."""


def merge_objects(
    settings: Settings, name: str, run: MergeRun, *, flight_tls: TlsSettings | None = None
) -> MergeReport:
    """Merge the objects of `database.table` with the tasks that `run` runs, until no more merges are planned.

    Raises Invalid when there is no such table, Unavailable when no capture owns it, or the capture or storage
    does not answer; merges that were committed before that stay.
    """
    client = ClusterRef.of(settings).client()
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    owners = find_owners(client, tls=flight_tls, token=settings.capture.read_flight_token())
    view = find_table(storage, name, rows=owners.get)
    table_ids = [partition.table_id for partition in view.partitions]
    missing = [table_id for table_id in table_ids if table_id not in owners]
    if missing:
        raise Unavailable(f"no capture that answers owns {name} (table {missing[0]}); start a capture")
    report = MergeReport(table=name)
    rounds_overtaken = 0
    while rounds_overtaken < _OVERTAKEN_MAX:
        tasks = [
            (owners[table_id], task)
            for table_id in table_ids
            for task in _plan_merges(owners[table_id], storage, table_id)
        ]
        if not tasks:
            break
        outputs = run([task for _, task in tasks])
        before = report.merges
        for (owner, task), output in zip(tasks, outputs, strict=True):
            report = _add_merge(report, task, output, committed=_commit(owner, task.plan_id, output))
        rounds_overtaken += report.merges == before
    return report


def _plan_merges(owner: FlightReader, storage: StorageRef, table_id: int) -> list[MergeTask]:
    answer = owner.run_action("plan_merge", json.dumps({"table_id": table_id}).encode())
    try:
        plans: Any = json.loads(answer)
        return [MergeTask(storage, str(tree["plan_id"]), read_plan(tree["plan"])) for tree in plans]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the capture's merge plan of table {table_id} is not understood; upgrade Penstock"
        ) from error


def _commit(owner: FlightReader, plan_id: str, output: MergeOutput) -> bool:
    answer = owner.run_action("commit_merge", write_output(plan_id, output), timeout_s=_COMMIT_TIMEOUT_S)
    return bool(json.loads(answer)["committed"])


def _add_merge(report: MergeReport, task: MergeTask, output: MergeOutput, *, committed: bool) -> MergeReport:
    return MergeReport(
        table=report.table,
        merges=report.merges + committed,
        overtaken=report.overtaken + (not committed),
        objects_read=report.objects_read + len(task.plan.data) + len(task.plan.tombstones),
        objects_written=report.objects_written + len(output.objects),
    )
