"""A scan of a table in the key-value store at one timestamp, in ranges that any process can read.

A range is the part of the table that one region had when the scan was planned. Later splits, merges and moves
of regions do not matter: the client follows them while it reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.errors import Invalid
from penstock.kv import Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.scanning import Page
from penstock.tables.arrow import arrow_field, arrow_name
from penstock.tables.catalog import Catalog
from penstock.tables.columns import ColumnInfo
from penstock.tables.decoding.decoder import decode_keys, decode_rows, record_handles
from penstock.tables.keys import record_range
from penstock.tables.records import in_key_only
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import TablePlace

HANDLE_COLUMN = "_handle"
"""Name of the column with a row's handle, as in the event store. A scan adds it when it is requested."""


@dataclass(frozen=True)
class KvScan:
    """The table, timestamp and columns of a scan, which its ranges share.

    `columns` are names of `kept_columns` in Arrow, and maybe HANDLE_COLUMN.
    """

    cluster: ClusterRef
    table: TableInfo
    ts: int
    columns: tuple[str, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        handle = pa.field(HANDLE_COLUMN, pa.binary(), nullable=False)
        named = {arrow_name(column): arrow_field(column) for column in self._stored}
        return pa.schema([handle if name == HANDLE_COLUMN else named[name] for name in self.columns])

    @cached_property
    def key_only(self) -> bool:
        """Whether the keys have all requested columns, so that values need not be read."""
        table = self.table
        return all(column in table.handle_columns and in_key_only(table, column) for column in self._stored)

    @cached_property
    def _stored(self) -> list[ColumnInfo]:
        kept = {arrow_name(column): column for column in self.table.kept_columns}
        return [kept[name] for name in self.columns if name != HANDLE_COLUMN]

    def decode(self, page: Page) -> pa.RecordBatch:
        """Return the rows of a page, which is not empty."""
        keys = pa.array([key for key, _ in page], pa.binary())
        if self.key_only:
            decoded = decode_keys(self.table, keys, self._stored)
        else:
            values = pa.array([value for _, value in page], pa.binary())
            decoded = decode_rows(self.table, keys, values, self._stored)
        if HANDLE_COLUMN not in self.columns:
            return decoded
        columns = iter(decoded.columns)
        arrays = [record_handles(keys) if name == HANDLE_COLUMN else next(columns) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True)
class KvScanPartition:
    """A range of a scan: the record keys [lower, upper) of one physical table. Instances can be pickled."""

    scan: KvScan
    physical_id: int
    lower: bytes
    upper: bytes

    @property
    def handles(self) -> tuple[bytes, bytes]:
        """The bounds as handles: the first included, the second excluded; empty means no bound."""
        prefix, end = record_range(self.physical_id)
        upper = b"" if self.upper == end else self.upper.removeprefix(prefix)
        return self.lower.removeprefix(prefix), upper

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the order of their keys, as they come from the store.

        Raise Unavailable when the cluster does not answer, Invalid when garbage collection has passed the
        scan's timestamp, Corrupt when a row is damaged.
        """
        snapshot = self.scan.cluster.client().snapshot(self.scan.ts)
        for page in snapshot.scan_pages(self.lower, self.upper, key_only=self.scan.key_only):
            yield self.scan.decode(page)


def plan_scan(
    cluster: ClusterRef, name: str, *, ts: int | None = None, columns: Sequence[str] | None = None
) -> KvScan:
    """Return a scan of `database.table` with its schema as of `ts` (none: now).

    Raise Invalid when the table or a column does not exist, or `ts` is ahead of the cluster's time or behind
    its safe point of garbage collection; raise Unavailable when the cluster does not answer.
    """
    client = cluster.client()
    now = client.timestamp()
    if ts is not None and ts > now:
        raise Invalid(f"timestamp {ts} is in the future: the cluster's time is {now}; pass one up to that")
    at_ts = now if ts is None else ts
    return scan_of(cluster, Catalog(client).schema(at_ts).place(name), at_ts, columns)


def scan_of(cluster: ClusterRef, place: TablePlace, ts: int, columns: Sequence[str] | None = None) -> KvScan:
    """Return a scan of a table at `ts`; raise Invalid for a view, a sequence or an unknown column."""
    table = place.table
    if not table.is_base_table:
        raise Invalid(f"{place.database.name}.{table.name} is a {table.kind} and has no rows; scan a table")
    if columns is None:
        return KvScan(cluster, table, ts, tuple(arrow_name(column) for column in table.stored_columns))
    if not columns:
        raise Invalid(f"no column of {place.database.name}.{table.name} is requested; name at least one")
    stored = {HANDLE_COLUMN, *(arrow_name(column) for column in table.stored_columns)}
    names = [name if name in stored else arrow_name(table.column(name)) for name in columns]
    return KvScan(cluster, table, ts, tuple(dict.fromkeys(names)))


def ranges_of(
    client: Client, scan: KvScan, *, handle_from: bytes = b"", handle_to: bytes = b""
) -> list[KvScanPartition]:
    """Return the ranges of a scan, one for each region that now has a part of it, in key order."""
    ranges: list[KvScanPartition] = []
    for physical_id in scan.table.physical_ids:
        prefix, end = record_range(physical_id)
        lower, upper = prefix + handle_from, prefix + handle_to if handle_to else end
        if lower >= upper:
            continue
        regions = client.regions(lower, upper)
        starts = [lower, *(region.start_key for region in regions if region.start_key > lower)]
        bounds = zip(starts, [*starts[1:], upper], strict=True)
        ranges += [KvScanPartition(scan, physical_id, start, stop) for start, stop in bounds]
    return ranges
