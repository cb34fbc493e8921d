"""A table in the event store against the same table in the key-value store, as of one timestamp.

Both are read at once, in pieces of their own: ranges of the cluster's regions here, parts of the snapshot
there. What they give by range are digests, which add up; only ranges whose digests differ are compared key
by key.

Verifying a table by its name, whoever runs the pieces.

Verifying a table: executors read it from the key-value store and from the event store, and compare.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.clock import SYSTEM, Clock
from penstock.columnar.row_hash import Digest, Hashes, differing, digests_by_range, row_hashes, total
from penstock.errors import Corrupt
from penstock.eventstore.capture.safe_point import history_held
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


KEYS_MAX = 100  # listed for one range, and for one table ten times as many

RangeDigests = dict[int, Digest]
"""By the number of the range."""


class Difference(StrEnum):
    """How a row differs."""

    MISSING = "missing"  # the event store does not have it
    EXTRA = "extra"  # only the event store has it
    UNEQUAL = "unequal"  # its values are others


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A row that is not the same in both; `handle` is its key without the table's prefix, in hex."""

    difference: Difference
    table_id: int
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerifyReport:
    """What a comparison found: `differing` rows are not the same, of which `mismatches` lists up to 1000."""

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
    """The digest of one range in the key-value store. Can be pickled, and repeated."""

    number: int
    range: KvScanPartition

    def run(self) -> RangeDigests:
        """Read it."""
        return {self.number: total(Digest.of(row_hashes(batch)) for batch in self.range.read())}


@dataclass(frozen=True)
class StoreDigest:
    """The digests of one part of the event store's snapshot, by range. Can be pickled, and repeated."""

    part: SnapshotPartition
    schema: pa.Schema
    starts: tuple[bytes, ...]
    numbers: tuple[int, ...]  # of the ranges that begin at `starts`

    def run(self) -> RangeDigests:
        """Read it."""
        found: RangeDigests = {}
        for batch in self.part.read():
            shown = batch.cast(self.schema)
            pairs = digests_by_range(shown.column(HANDLE), row_hashes(shown), self.starts)
            add_digests(found, ((self.numbers[place], digest) for place, digest in pairs))
        return found


@dataclass(frozen=True)
class KeyComparison:
    """A range whose digests differ, key by key. Can be pickled, and repeated.

    Takes the memory of its handles, twice; a range is no more than a region's.
    """

    range: KvScanPartition
    partition: Partition

    def run(self) -> tuple[int, list[Mismatch]]:
        """How many rows differ, and the first of them."""
        scan, (first, last) = self.range.scan, self.range.handles
        view = TableView(scan.table.name, (self.partition,))
        rows = read_snapshot(view, scan.ts, columns=scan.columns, handle_from=first, handle_to=last)
        ours = _keyed(batch.cast(scan.schema) for batch in rows)
        found = differing(*_keyed(self.range.read()), *ours)
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


def _keyed(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Array, Hashes]:
    handles, hashes = [], [np.zeros(0, np.uint64)]
    for batch in batches:
        handles.append(batch.column(HANDLE))
        hashes.append(row_hashes(batch))
    return pa.chunked_array(handles, pa.binary()).combine_chunks(), np.concatenate(hashes)


Run = Callable[[Sequence[Any]], list[Any]]
"""Runs every piece of work, anywhere and in any order; returns the answers in the order of the pieces."""


def compare(view: TableView, scan: KvScan, ranges: Sequence[KvScanPartition], run: Run) -> TableVerifyReport:
    """Compare a table as both have it at the scan's timestamp. `scan` has all columns and the handle.

    Raises Corrupt when the event store knows another schema then, and whatever reading raises.
    """
    _check_schema(view, scan)
    pieces = [ClusterDigest(number, each) for number, each in enumerate(ranges)]
    stored = list(_store_pieces(view, scan, ranges))
    answers = run([*pieces, *stored])
    cluster: RangeDigests = {}
    store: RangeDigests = {}
    for place, answer in enumerate(answers):
        add_digests(cluster if place < len(pieces) else store, answer.items())
    wrong = [
        number
        for number in range(len(ranges))
        if cluster.get(number, Digest()) != store.get(number, Digest())
    ]
    partitions = {each.table_id: each for each in view.partitions}
    compared = run([KeyComparison(ranges[each], partitions[ranges[each].physical_id]) for each in wrong])
    return TableVerifyReport(
        table=view.name,
        ts=scan.ts,
        ranges=len(ranges),
        rows=total(cluster.values()).rows,
        store_rows=total(store.values()).rows,
        ranges_differing=len(wrong),
        differing=sum(count for count, _ in compared),
        mismatches=tuple(each for _, listed in compared for each in listed)[: 10 * KEYS_MAX],
    )


def _check_schema(view: TableView, scan: KvScan) -> None:
    ours = snapshot_schema(view, scan.ts, scan.columns)
    if ours != scan.schema:
        raise Corrupt(
            f"{view.name} has the columns {_shown(ours)} in the event store at {scan.ts}, and"
            f" {_shown(scan.schema)} in the cluster; keep its manifest for inspection"
        )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema if each.name != HANDLE)


def _store_pieces(view: TableView, scan: KvScan, ranges: Sequence[KvScanPartition]) -> Iterator[StoreDigest]:
    for partition in view.partitions:
        numbered = [
            (each.handles[0], number)
            for number, each in enumerate(ranges)
            if each.physical_id == partition.table_id
        ]
        starts, numbers = zip(*numbered, strict=True)
        alone = TableView(view.name, (partition,))
        for part in plan_snapshot(alone, scan.ts, columns=scan.columns):
            yield StoreDigest(part, scan.schema, starts, numbers)


def add_digests(found: RangeDigests, more: Iterable[tuple[int, Digest]]) -> None:
    """Add digests of parts to what is there of their ranges."""
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


def verify_table(
    spark: "SparkSession",
    settings: "Settings",
    table: str,
    *,
    ts: int | None = None,
    flight_tls: "TlsSettings | None" = None,
    progress: Progress | None = None,
) -> TableVerifyReport:
    """Compare `database.table` in the event store with the cluster's own, row by row, as of `ts`.

    Without `ts` it is the newest that the event store can read. The report lists keys, no values. Raises as
    `penstock.verify.event_store.verify` does.
    """

    def run(pieces: "Sequence[Any]") -> list[Any]:
        return run_on_executors(spark, pieces, progress=progress) if pieces else []

    return verify(
        for_executors(settings),
        table,
        run,
        ts=ts,
        flight_tls=flight_tls or settings.capture.flight_client_tls,
    )
