"""Verifying a table by its name, whoever runs the pieces."""

from dataclasses import replace

from penstock.clock import SYSTEM, Clock
from penstock.eventstore.capture.historyhold import history_held
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.partition import TableView
from penstock.follow.owners import find_owners
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings
from penstock.tables.kv_scan import HANDLE_COLUMN, plan_scan, ranges_of
from penstock.verify.event_store import Run, TableVerifyReport, compare


def verify(
    settings: Settings,
    name: str,
    run: Run,
    *,
    ts: int | None = None,
    flight_tls: TlsSettings | None = None,
    clock: Clock = SYSTEM,
) -> TableVerifyReport:
    """Compare `database.table` in the event store with the cluster's, as of `ts` (None: the newest readable).

    History is held back in the cluster meanwhile. Raises Invalid when there is no such table, or `ts` is in
    the future, or collected in the cluster; StaleRead when it is collected in the event store; Unavailable
    when the event store has not come so far, or somebody does not answer; Corrupt when the schemas differ.
    """
    cluster = ClusterRef.of(settings)
    client = cluster.client()
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    whole = plan_scan(cluster, name, ts=ts)  # first, because it knows best what is wrong with a name or a ts
    owners = find_owners(client, tls=flight_tls, token=settings.capture.read_flight_token())
    view = find_table(storage, name, at_ts=ts, rows=owners.get)
    at_ts = newest_ts(view) if ts is None else ts
    with history_held(settings, f"verify-{clock.unique_id()}", at_ts, kept_after=False, clock=clock):
        if ts is None:
            whole = plan_scan(cluster, name, ts=at_ts)
        scan = replace(whole, columns=(*whole.columns, HANDLE_COLUMN))
        return compare(view, scan, ranges_of(client, scan), run)


def newest_ts(view: TableView) -> int:
    """How far every partition of a table can be read."""
    return min(partition.state().readable_ts for partition in view.partitions)
