"""Metadata of an Iceberg table: entries of files in manifests, expired snapshots, and columns.

Iceberg numbers columns itself. Which of its numbers is which column of the source is a property of the table,
in the same commits as everything else.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from penstock.consumers.lake.files import WrittenFile
from penstock.consumers.schema_evolution import COLUMN_ID, KEY_PLACE, column_id, key_columns, parquet_type
from penstock.jobs.schema_changes import fits

__all__ = [
    "SNAPSHOTS_MAX",
    "bounds_of",
    "copy_columns",
    "entry_of",
    "expire",
    "file_schema",
    "follow",
    "new_schema",
    "numbering",
    "promotes",
    "stored_type",
]


SNAPSHOTS_MAX = 500
"""The most snapshots of a table, however young: all of them are in the file that each commit writes."""
_SNAPSHOTS_KEPT = 400


def entry_of(written: WrittenFile, location: str, metadata: TableMetadata) -> Entry:
    """Return a new file as a manifest has it."""
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
    """Return the least and the greatest value of a column, and whether it may be NULL."""
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
    if pa.types.is_temporal(as_arrow):  # stored as a count since 1970
        width = pa.int32() if pa.types.is_date32(as_arrow) else pa.int64()
        return pa.scalar(value, width).cast(as_arrow).as_py()
    return value


def expire(table: Table, before_ms: int) -> list[str]:
    """Expire snapshots that are older, or too many; return the locations that only they needed.

    If the table has branches or tags, or was rolled back to an older snapshot, all of them stay.
    """
    lineage = _lineage(table)
    if set(table.refs()) != {"main"} or len(lineage) != len(table.snapshots()):
        return []
    kept = max(1, sum(snapshot.timestamp_ms >= before_ms for snapshot in lineage))
    if len(lineage) > SNAPSHOTS_MAX:
        kept = min(kept, _SNAPSHOTS_KEPT)
    expired = lineage[kept:]
    if not expired:
        return []
    unneeded = list(_find_unshared(expired, lineage[kept - 1], table))
    table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in expired]).commit()
    return unneeded


def _lineage(table: Table) -> list[Snapshot]:
    """Return the current snapshot, its parent, and so on."""
    found: list[Snapshot] = []
    at = table.current_snapshot()
    while at is not None:
        found.append(at)
        parent = at.parent_snapshot_id
        at = None if parent is None else table.snapshot_by_id(parent)
    return found


def _find_unshared(expired: list[Snapshot], oldest: Snapshot, table: Table) -> Iterator[str]:
    """Yield what expired snapshots have and the oldest that stays does not have: no later one has it.

    Files were removed by the snapshot after the last one that has them.
    """
    still = {manifest.manifest_path for manifest in oldest.manifests(table.io)}
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
            manifest.manifest_path
            for manifest in snapshot.manifests(table.io)
            if manifest.manifest_path not in still
        )
    yield from sorted(gone)


_FIELD_ID = b"PARQUET:field_id"
_TYPES: dict[pa.DataType, IcebergType] = {
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of a type are stored: Iceberg has no integers below 32 bits."""
    kept = parquet_type(kind)
    return pa.int32() if pa.types.is_integer(kept) and kept.bit_width < 32 else kept


def promotes(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether Iceberg reads a column of one type as if it had always had the other."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale) and fits(old, new)
    return fits(old, new)


def new_schema(schema: pa.Schema) -> Schema:
    """Return the columns of a new table."""
    numbers = iter(range(1, 2 * len(schema) + 1))  # two for each column: a list needs one for its element
    return Schema(
        *(
            NestedField(next(numbers), column.name, _iceberg_type(column.type, next(numbers)), required=False)
            for column in schema
        )
    )


def _iceberg_type(kind: pa.DataType, element_id: int = -1) -> IcebergType:
    if pa.types.is_list(kind):
        return ListType(element_id, _iceberg_type(kind.value_type), element_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _TYPES[kind]


def _arrow_type(kind: pa.DataType) -> pa.DataType:
    """Return Penstock's type for a type that the library returns."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field)
    large = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return large.get(kind, kind)


def numbering(schema: Schema, copied: pa.Schema) -> str:
    """Return the property's text: which column of the source each number is, and which are the key."""
    ids = {schema.find_field(column.name).field_id: column_id(column) for column in copied}
    keys = [schema.find_field(name).field_id for name in key_columns(copied)]
    return json.dumps({"columns": ids, "keys": keys})


def copy_columns(schema: Schema, numbering_text: str) -> pa.Schema:
    """Return the columns of a copy; those that another program added get negative ids."""
    kept = json.loads(numbering_text)
    fields = []
    for field, as_arrow in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
        metadata = {COLUMN_ID: str(kept["columns"].get(str(field.field_id), -field.field_id))}
        if field.field_id in kept["keys"]:
            metadata[KEY_PLACE] = str(kept["keys"].index(field.field_id))
        fields.append(pa.field(field.name, parquet_type(_arrow_type(as_arrow.type)), metadata=metadata))
    return pa.schema(fields)


def file_schema(schema: Schema, copied: pa.Schema) -> pa.Schema:
    """Return the columns of a copy as its files have them: with Iceberg's numbers."""
    numbered = schema_to_pyarrow(schema)
    return pa.schema(
        [
            pa.field(
                column.name,
                _arrow_type(numbered.field(column.name).type),
                metadata={_FIELD_ID: numbered.field(column.name).metadata[_FIELD_ID]},
            )
            for column in copied
        ]
    )


def follow(transaction: Transaction, current: pa.Schema, wanted: pa.Schema) -> None:
    """Stage the changes that make a table's columns those of a copy; columns that stay keep their values."""
    before = {column_id(column): column for column in current}
    after = {column_id(column) for column in wanted}
    fresh: list[pa.Field] = []
    with transaction.update_schema() as update:
        for old in current:
            if column_id(old) not in after:
                update.delete_column((old.name,))
        for new in wanted:
            old = before.get(column_id(new))
            if old is None or not promotes(old.type, new.type):
                fresh.append(new)
                if old is not None:
                    update.delete_column((old.name,))
                continue
            if old.type != new.type:
                update.update_column((old.name,), _iceberg_type(new.type))
            if old.name != new.name:
                update.rename_column((old.name,), new.name)
    with transaction.update_schema() as update:  # once the old names are free
        for new in fresh:
            update.add_column((new.name,), _iceberg_type(new.type))
