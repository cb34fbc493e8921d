"""The load of a table's first snapshot from beginning to end, whoever runs its tasks."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.historyhold import history_held
from penstock.eventstore.sides import side_schema
from penstock.eventstore.upkeep.load import RangeTask, SnapshotLoad
from penstock.eventstore.upkeep.loadplan import LoadPlan, check_fresh
from penstock.follow.schema_subscription import read_schemas
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings
from penstock.tables.catalog import Catalog
from penstock.tables.kv_scan import ranges_of, scan_of


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


LoadRun = Callable[[Sequence[RangeTask]], None]
"""Runs every task, anywhere and in any order, and returns when all have run; raises what a task raised."""


def load_table(
    settings: Settings, name: str, run: LoadRun, *, restart: bool = False, clock: Clock = SYSTEM
) -> LoadReport:
    """Load `database.table` as of one timestamp, from which a capture goes on without gap or overlap.

    A load that was interrupted, wherever, goes on with its timestamp and with the tasks that are left;
    `restart` forgets it and begins anew. Raises Invalid when there is no such table, or it is captured
    already, or history at the timestamp of an interrupted load is gone; Unavailable when the cluster or
    storage does not answer.
    """
    cluster = ClusterRef.of(settings)
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    begun = find_loads(storage, cluster, name)
    if restart:
        clear(begun)
        begun = []
    plan = begun[0].plan if begun else None
    ts = plan.ts if plan is not None else cluster.client().timestamp()
    load_id = plan.id if plan is not None else clock.unique_id()
    with ExitStack() as stack:
        try:
            stack.enter_context(history_held(settings, f"load-{load_id}", ts, kept_after=True, clock=clock))
        except Invalid as error:
            if plan is None:
                raise
            raise Invalid(f"the interrupted load of {name} cannot go on ({error}); restart it") from error
        loads = _begin(settings, storage, cluster, name, ts, load_id, clock)
        run([task for load in loads if not load.committed() for task in load.tasks(cluster)])
        states = [load.commit(writer=f"load/{load_id[:12]}", clock=clock) for load in loads]
        clear(loads)
    made = [
        each
        for load, state in zip(loads, states, strict=True)
        for each in state.objects.values()
        if each.kind == "direct" and each.create_ts == load.plan.ts
    ]
    return LoadReport(
        table=name,
        ts=ts,
        ranges=sum(len(load.plan.ranges) for load in loads),
        rows=sum(each.rows for each in made),
        objects=len(made),
        size_bytes=sum(each.size_bytes for each in made),
        resumed=plan is not None,
    )


def find_loads(storage: StorageRef, cluster: ClusterRef, name: str) -> list[SnapshotLoad]:
    """The loads of a table's partitions that were begun and not cleared, in the order of the partitions."""
    client = cluster.client()
    table = Catalog(client).schema(client.timestamp()).place(name).table
    found = [SnapshotLoad.find(storage, table_id) for table_id in table.physical_ids]
    return [load for load in found if load is not None]


def clear(loads: Sequence[SnapshotLoad]) -> None:
    """Remove loads; the first partition's, which is found first, as the last."""
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
    """The load of every partition, begun where it is not yet; in the order of the partitions."""
    client = cluster.client()
    place = Catalog(client).schema(ts).place(name)
    side_schema(place.table, "data")  # refuses a table that cannot be kept
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
            if plan.committed_in(state):
                continue  # and cleared: the driver before this one was interrupted while it cleared
            check_fresh(name, state)
            load = SnapshotLoad.begin(storage, plan)
        loads.append(load)
    return loads
