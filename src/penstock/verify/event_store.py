"""Verifies a table of the event store against the same table of the cluster, at one timestamp.

Both sides are read at the same time, each in its own tasks: ranges of regions from the cluster, parts of a
snapshot from the event store. A task returns digests by range, which add up. Only ranges whose digests differ
are compared key by key. `verify_table` runs the tasks on executors; `verify` leaves it to its caller who runs
them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.clock import SYSTEM, Clock
from penstock.columnar.row_hash import Digest, Hashes, compare_hashes, digests_by_range, row_hashes, total
from penstock.errors import Corrupt
from penstock.eventstore.capture.safe_point import hold_history
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.partition import Partition, TableView
from penstock.eventstore.read.snapshot import SnapshotPartition, plan_snapshot, read_snapshot, snapshot_schema
from penstock.eventstore.sides import HANDLE
from penstock.follow.captures import find_owners
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings
from penstock.spark.shipping import for_executors
from penstock.spark.tasks import Progress, run_on_executors
from penstock.tables.kv_scan import HANDLE_COLUMN, KvScan, KvScanPartition, plan_scan, ranges_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Difference", "Mismatch", "TableVerifyReport", "verify_table"]


KEYS_MAX = 100  # that are listed for one range; ten times as many for a table

RangeDigests = dict[int, Digest]
"""Digests by the number of their range."""


class Difference(StrEnum):
    """How a row differs."""

    MISSING = "missing"  # only the cluster has it
    EXTRA = "extra"  # only the event store has it
    UNEQUAL = "unequal"  # both have it, with different values


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A row that differs; `handle` is its key without the table's prefix, in hex."""

    difference: Difference
    table_id: int
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerifyReport:
    """The result of a comparison: `differing` rows differ, of which `mismatches` lists up to 1000."""

    table: str
    ts: int
    ranges: int
    rows: int
    store_rows: int
    ranges_differing: int = 0
    differing: int = 0
    mismatches: tuple[Mismatch, ...] = field(default=(), repr=False)

    @property
    def same(self) -> bool:
        """Whether both have the same rows."""
        return not self.ranges_differing


@dataclass(frozen=True)
class ClusterDigest:
    """A task that returns the digest of one range of the cluster. Can be pickled, and repeated."""

    number: int
    range: KvScanPartition

    def run(self) -> RangeDigests:
        """Read the range; return its digest."""
        return {self.number: total(Digest.of(row_hashes(batch)) for batch in self.range.read())}


@dataclass(frozen=True)
class StoreDigest:
    """A task that returns the digests of one part of a stored snapshot. Can be pickled, and repeated."""

    part: SnapshotPartition
    schema: pa.Schema
    starts: tuple[bytes, ...]
    numbers: tuple[int, ...]  # of the ranges that begin at `starts`

    def run(self) -> RangeDigests:
        """Read the part; return the digests of the ranges that it has rows of."""
        found: RangeDigests = {}
        for batch in self.part.read(impossible_dates=True):
            rows = batch.cast(self.schema)
            pairs = digests_by_range(rows.column(HANDLE), row_hashes(rows), self.starts)
            add_digests(found, ((self.numbers[place], digest) for place, digest in pairs))
        return found


@dataclass(frozen=True)
class KeyComparison:
    """A task that compares a range whose digests differ, key by key. Can be pickled, and repeated.

    It needs memory for the handles of both sides; a range is not larger than a region.
    """

    range: KvScanPartition
    partition: Partition

    def run(self) -> tuple[int, list[Mismatch]]:
        """Return how many rows differ, and the first of them."""
        scan, (first, last) = self.range.scan, self.range.handles
        view = TableView(scan.table.name, (self.partition,))
        rows = read_snapshot(
            view,
            scan.ts,
            columns=scan.columns,
            handle_from=first,
            handle_to=last,
            impossible_dates=True,
        )
        stored = _hash_rows(batch.cast(scan.schema) for batch in rows)
        found = compare_hashes(*_hash_rows(self.range.read()), *stored)
        kinds = (
            (Difference.MISSING, found.only_first),
            (Difference.EXTRA, found.only_second),
            (Difference.UNEQUAL, found.unequal),
        )
        listed = [
            Mismatch(kind, self.range.physical_id, handle.hex())
            for kind, handles in kinds
            for handle in handles.slice(0, KEYS_MAX).to_pylist()
        ]
        return sum(len(handles) for _, handles in kinds), listed


def _hash_rows(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Array, Hashes]:
    """Return the handles of rows, and the hashes of their values."""
    handles, hashes = [], [np.zeros(0, np.uint64)]
    for batch in batches:
        handles.append(batch.column(HANDLE))
        hashes.append(row_hashes(batch))
    return pa.chunked_array(handles, pa.binary()).combine_chunks(), np.concatenate(hashes)


Run = Callable[[Sequence[Any]], list[Any]]
"""Runs every task, anywhere and in any order; returns the answers in the order of the tasks."""


def compare(view: TableView, scan: KvScan, ranges: Sequence[KvScanPartition], run: Run) -> TableVerifyReport:
    """Compare a table as both have it at the scan's timestamp. `scan` has all columns and the handle.

    Raises Corrupt when the event store knows another schema then, and whatever reading raises.
    """
    _check_schema(view, scan)
    cluster_tasks = [ClusterDigest(number, scan_range) for number, scan_range in enumerate(ranges)]
    answers = run([*cluster_tasks, *_store_tasks(view, scan, ranges)])
    cluster: RangeDigests = {}
    store: RangeDigests = {}
    for place, answer in enumerate(answers):
        add_digests(cluster if place < len(cluster_tasks) else store, answer.items())
    wrong = [
        number
        for number in range(len(ranges))
        if cluster.get(number, Digest()) != store.get(number, Digest())
    ]
    partitions = {partition.table_id: partition for partition in view.partitions}
    compared = run(
        [KeyComparison(ranges[number], partitions[ranges[number].physical_id]) for number in wrong]
    )
    return TableVerifyReport(
        table=view.name,
        ts=scan.ts,
        ranges=len(ranges),
        rows=total(cluster.values()).rows,
        store_rows=total(store.values()).rows,
        ranges_differing=len(wrong),
        differing=sum(count for count, _ in compared),
        mismatches=tuple(mismatch for _, listed in compared for mismatch in listed)[: 10 * KEYS_MAX],
    )


def _check_schema(view: TableView, scan: KvScan) -> None:
    stored = snapshot_schema(view, scan.ts, scan.columns)
    if stored != scan.schema:
        raise Corrupt(
            f"{view.name} has the columns {_describe_columns(stored)} in the event store at {scan.ts}, and"
            f" {_describe_columns(scan.schema)} in the cluster; keep its manifest for inspection"
        )


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema if column.name != HANDLE)


def _store_tasks(view: TableView, scan: KvScan, ranges: Sequence[KvScanPartition]) -> Iterator[StoreDigest]:
    for partition in view.partitions:
        numbered = [
            (scan_range.handles[0], number)
            for number, scan_range in enumerate(ranges)
            if scan_range.physical_id == partition.table_id
        ]
        starts, numbers = zip(*numbered, strict=True)
        alone = TableView(view.name, (partition,))
        for part in plan_snapshot(alone, scan.ts, columns=scan.columns):
            yield StoreDigest(part, scan.schema, starts, numbers)


def add_digests(found: RangeDigests, more: Iterable[tuple[int, Digest]]) -> None:
    """Add digests of parts to those of their ranges."""
    for number, digest in more:
        found[number] = found.get(number, Digest()) + digest


def verify(
    settings: Settings,
    name: str,
    run: Run,
    *,
    ts: int | None = None,
    flight_tls: TlsSettings | None = None,
    clock: Clock = SYSTEM,
) -> TableVerifyReport:
    """Compare `database.table` in the event store with the cluster's at `ts`, or at the newest readable
    timestamp.

    The cluster keeps its history meanwhile. Raises Invalid when there is no such table, or `ts` is in the
    future or collected in the cluster; StaleRead when it is collected in the event store; Unavailable when
    the event store is not complete up to `ts`, or a capture or the cluster does not answer; Corrupt when the
    schemas differ.
    """
    cluster = ClusterRef.of(settings)
    client = cluster.client()
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    whole = plan_scan(cluster, name, ts=ts)  # first: it has the best message for a wrong name or ts
    owners = find_owners(client, tls=flight_tls, token=settings.capture.read_flight_token())
    view = find_table(storage, name, at_ts=ts, rows=owners.get)
    at_ts = newest_ts(view) if ts is None else ts
    with hold_history(settings, f"verify-{clock.unique_id()}", at_ts, kept_after=False, clock=clock):
        if ts is None:
            whole = plan_scan(cluster, name, ts=at_ts)
        scan = replace(whole, columns=(*whole.columns, HANDLE_COLUMN))
        return compare(view, scan, ranges_of(client, scan), run)


def newest_ts(view: TableView) -> int:
    """Return the timestamp up to which every partition of a table can be read."""
    return min(partition.state().readable_ts for partition in view.partitions)


def verify_table(
    spark: "SparkSession",
    settings: Settings,
    table: str,
    *,
    ts: int | None = None,
    flight_tls: TlsSettings | None = None,
    progress: Progress | None = None,
) -> TableVerifyReport:
    """Compare `database.table` in the event store with the cluster's on executors, row by row, at `ts`.

    Without `ts` it is the newest timestamp that the event store can read. The report lists keys, no values.
    Raises Invalid when there is no such table or `ts` cannot be read in the cluster, StaleRead when it is
    collected in the event store, Unavailable when the event store is not complete up to `ts` or something
    does not answer, Corrupt when the schemas differ.
    """

    def run(tasks: Sequence[Any]) -> list[Any]:
        return run_on_executors(spark, tasks, progress=progress) if tasks else []

    return verify(
        for_executors(settings),
        table,
        run,
        ts=ts,
        flight_tls=flight_tls or settings.capture.flight_client_tls,
    )
