"""What an Iceberg manifest says of a file, and what becomes of old snapshots."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, PrimitiveType

from penstock.consumers.lake.files import WrittenFile

__all__ = ["SNAPSHOTS_MAX", "bounds_of", "entry_of", "expire"]

SNAPSHOTS_MAX = 500
"""Snapshots that a table has at most, however young: all of them are in the file that each commit writes."""
_SNAPSHOTS_KEPT = 400


def entry_of(written: WrittenFile, location: str, metadata: TableMetadata) -> Entry:
    """A new file as a manifest has it."""
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=written.footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return Entry.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=written.nbytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def bounds_of(entry: Entry, column: NestedField, as_arrow: pa.DataType) -> tuple[Any, Any, bool]:
    """The least and the greatest value of a column, and whether it may be NULL; see DataFile."""
    kind, number = column.field_type, column.field_id
    assert isinstance(kind, PrimitiveType), "keys are no lists"
    bounds = [
        _value(found[number], kind, as_arrow) if found and number in found else None
        for found in (entry.lower_bounds, entry.upper_bounds)
    ]
    nulls = (entry.null_value_counts or {}).get(number)
    return bounds[0], bounds[1], nulls != 0


def _value(bound: bytes, kind: PrimitiveType, as_arrow: pa.DataType) -> Any:
    value = from_bytes(kind, bound)
    if pa.types.is_temporal(as_arrow):  # which are counted since 1970
        width = pa.int32() if pa.types.is_date32(as_arrow) else pa.int64()
        return pa.scalar(value, width).cast(as_arrow).as_py()
    return value


def expire(table: Table, before_ms: int) -> list[str]:
    """Let snapshots go that are older, or too many, and return the locations that only they needed.

    Where somebody has made branches or tags, or gone back to an older snapshot, all of them stay.
    """
    lineage = _lineage(table)
    if set(table.refs()) != {"main"} or len(lineage) != len(table.snapshots()):
        return []
    kept = max(1, sum(each.timestamp_ms >= before_ms for each in lineage))
    if len(lineage) > SNAPSHOTS_MAX:
        kept = min(kept, _SNAPSHOTS_KEPT)
    expired = lineage[kept:]
    if not expired:
        return []
    unneeded = list(_needed_only_by(expired, lineage[kept - 1], table))
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in expired]).commit()
    return unneeded


def _lineage(table: Table) -> list[Snapshot]:
    """The current snapshot, its parent, and so on."""
    found: list[Snapshot] = []
    at = table.current_snapshot()
    while at is not None:
        found.append(at)
        parent = at.parent_snapshot_id
        at = None if parent is None else table.snapshot_by_id(parent)
    return found


def _needed_only_by(expired: list[Snapshot], oldest: Snapshot, table: Table) -> Iterator[str]:
    """What snapshots have that the next one, the oldest that stays, does not have: no later one has it.

    Files were taken out by the snapshot after the last one that has them.
    """
    still = {each.manifest_path for each in oldest.manifests(table.io)}
    gone: set[str] = set()
    for snapshot in (oldest, *expired[:-1]):
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id or not manifest.deleted_files_count:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status is ManifestEntryStatus.DELETED:
                    gone.add(entry.data_file.file_path)
    for snapshot in expired:
        gone.add(snapshot.manifest_list)
        gone.update(
            each.manifest_path for each in snapshot.manifests(table.io) if each.manifest_path not in still
        )
    yield from sorted(gone)
