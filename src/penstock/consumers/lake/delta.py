"""A copy of a table as a Delta table: rows and watermark in one commit of its log.

The watermark is an application transaction of the Delta log, so two writers of one job conflict by the
format's own rules. The owner is in the metadata of the columns, which a whole commit replaces.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from penstock.changes.columns import own_columns
from penstock.clock import Clock
from penstock.consumers.lake.consumer import LakeConsumer
from penstock.consumers.lake.files import (
    DataFile,
    FileStore,
    WrittenFile,
    check_only_attempts,
    damage_errors,
    read_rows,
    remove_half_written,
)
from penstock.consumers.lake.table import LakeOptions, LakeWatermark, Overtaken, Version
from penstock.consumers.schema_evolution import COLUMN_ID, Dialect, key_columns, parquet_type
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import JobContext
from penstock.jobs.spec import ConsumerInfo
from penstock.object_storage import ObjectStorage, StorageRef
from penstock.targets import Target

__all__ = ["Delta", "stats_of"]


_COLUMNS = 32
"""The number of columns of which Delta keeps bounds by default."""
_TEXT_CHARS = 64
"""A longer bound is left out: truncating it would need care with the upper one."""


def stats_of(footer: pq.FileMetaData) -> str:
    """Return a file's statistics for the Delta log, from its footer: readers skip files by them. Pure."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(min(footer.num_columns, _COLUMNS)):
        column = footer.schema.column(place)
        groups = [
            footer.row_group(number).column(place).statistics for number in range(footer.num_row_groups)
        ]
        inside = column.path != column.name  # of a list
        if inside or any(group is None for group in groups):
            continue
        nulls[column.name] = sum(group.null_count for group in groups)
        bounds = _bounds(groups)
        if bounds is not None:
            least[column.name], most[column.name] = bounds
    found = {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(found, ensure_ascii=False)


def _bounds(groups: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the bounds over row groups; None when a group with values does not have them."""
    known = [group for group in groups if group.has_min_max]
    if not known or any(group.num_values for group in groups if not group.has_min_max):
        return None
    lowest, highest = _value(min(group.min for group in known)), _value(max(group.max for group in known))
    return None if lowest is None or highest is None else (lowest, highest)


def _value(value: Any) -> Any:
    """Return a bound as JSON has it; None if it cannot have it."""
    match value:
        case str():
            return value if len(value) <= _TEXT_CHARS else None
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return int(value) if value.as_tuple().exponent == 0 else None
        case int() | float():
            return value
    return None


_WATERMARK, _COLUMN_ID = "penstock/watermark", "penstock/column_id"
_OWNER, _JOB = b"penstock.owner", b"penstock.job"
_REFUSED = frozenset(" ,;{}()\n\t=")
"""Characters that a Delta table's columns cannot have in their names."""


class Delta(LakeConsumer):
    """Keeps a copy as a Delta table. Options: uri, storage.*, history."""

    options_type = LakeOptions

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...]:
        """Return where the copy is."""
        return (LakeOptions.parse(info).target,)

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        self.options = LakeOptions.parse(job.info)

    def open_table(self) -> "DeltaCopy":
        """Return the Delta table at the job's URI."""
        return DeltaCopy(self.options.place, self.options.history, self.job.clock)

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when Delta cannot have such a table."""
        super().check(schema)
        for name in own_columns(schema.table, self.job.info.columns).names:
            if _REFUSED.intersection(name):
                raise Invalid(
                    f"column {name!r} of {schema.name} has a name that Delta tables cannot have;"
                    " choose the others with --column"
                )


class DeltaCopy:
    """A LakeTable in Delta's format."""

    dialect = Dialect(parquet_type)
    folder = "data"

    def __init__(self, ref: StorageRef, history_s: float, clock: Clock) -> None:
        self.place = ref.url
        self.ref = ref
        self.clock = clock
        self._history_hours = math.ceil(history_s / 3600)

    @cached_property
    def _storage(self) -> ObjectStorage:
        return self.ref.open()

    def latest(self) -> Version | None:
        """Return the newest version; None when there is no table. Raises Invalid if it is not Penstock's."""
        storage = self._storage  # creates a directory that does not exist
        with self.failures():
            try:
                table = DeltaTable(self.place, storage_options=dict(self.ref.options))
            except TableNotFoundError:
                check_only_attempts(storage, self.folder, self.place)
                return None
        return self.version_of(table)

    def version_of(self, table: DeltaTable) -> Version:
        """Return the version of a table; raise Invalid if it is not Penstock's, or its layout was changed."""
        with self.failures():
            return self._version_of(table)

    def _version_of(self, table: DeltaTable) -> Version:
        schema = _number_columns(pa.schema(table.schema().to_arrow()))
        watermark, last_id = (table.transaction_version(name) for name in (_WATERMARK, _COLUMN_ID))
        marked = [column for column in schema if _OWNER in column.metadata]
        if watermark is None or last_id is None or not marked:
            raise Invalid(
                f"the Delta table at {self.place} is not Penstock's; give the job a place of its own"
            )
        self._check_layout(table)
        owner, job = (marked[0].metadata[name].decode() for name in (_OWNER, _JOB))
        marks = LakeWatermark(owner=owner, job=job, watermark=watermark, column_id=last_id)
        return Version(marks=marks, schema=_without_owner(schema), origin=table)

    def _check_layout(self, table: DeltaTable) -> None:
        """Raise Invalid when others gave the table features that change what its files mean."""
        features = {*(table.protocol().reader_features or ())}
        wrong = [name for name in ("columnMapping",) if name in features]
        if "deletionVectors" in features and _has_deletion_vectors(table):
            wrong.append("deletion vectors")
        if table.metadata().partition_columns:
            wrong.append("partitions")
        if wrong:
            raise Invalid(
                f"another program gave the Delta table at {self.place} {' and '.join(wrong)}, which a copy"
                " cannot have; remove it, and rebuild it with `penstock job repair --rebuild`"
            )

    def files(self, version: Version) -> list[DataFile]:
        """Return the files of a version, with the bounds that the Delta log has."""
        key = key_columns(version.schema)[0]
        with self.failures():
            return self._files(version, key)

    def _files(self, version: Version, key: str) -> list[DataFile]:
        added = pa.table(version.origin.get_add_actions(flatten=True))
        columns = {name: added.column(name) for name in added.column_names}
        nothing = pa.nulls(added.num_rows)
        return [
            DataFile(path, rows or 0, nbytes, lowest, highest, nulls != 0)
            for path, rows, nbytes, lowest, highest, nulls in zip(
                *(
                    columns.get(name, nothing).to_pylist()
                    for name in (
                        "path",
                        "num_records",
                        "size_bytes",
                        f"min.{key}",
                        f"max.{key}",
                        f"null_count.{key}",
                    )
                ),
                strict=True,
            )
        ]

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in the version's columns."""
        return read_rows(self._storage, file.path, version.schema)

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> "DeltaStaging":
        """Prepare a commit. New columns and features get commits of their own, before the rows."""
        table = None if base is None else self._prepare(base, schema, whole=whole)
        return DeltaStaging(self, table, schema, whole=whole)

    def _prepare(self, base: Version, schema: pa.Schema, *, whole: bool) -> DeltaTable:
        table: DeltaTable = base.origin
        added = [] if whole else [column for column in schema if column.name not in base.schema.names]
        with self.failures():
            if added:
                table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)
            elif whole and _needs_feature(table, schema):
                table.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
                )
            else:
                return table
            table.update_incremental()
        if self.version_of(table).marks != base.marks:
            raise Overtaken(f"the Delta table at {self.place} has a newer commit")
        return table

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def maintain(self) -> None:
        """Remove files that commits have removed long ago; other files are unknown to the log."""
        with self.failures():
            table = DeltaTable(self.place, storage_options=dict(self.ref.options))
            table.vacuum(self._history_hours, dry_run=False, enforce_retention_duration=False)
        remove_half_written(self._storage, self.clock.wall_ms())

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Translate errors of the library."""
        try:
            with damage_errors(f"the log of the Delta table at {self.place}"):
                yield
        except CommitFailedError as error:
            raise Overtaken(f"the Delta table at {self.place} has a newer commit") from error
        except DeltaProtocolError as error:
            raise Invalid(
                f"the Delta table at {self.place} needs a feature that this version does not have: {error}"
            ) from error
        except (DeltaError, OSError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise Unavailable(
                f"the Delta table at {self.place} does not answer ({reason}); try again"
            ) from error


class DeltaStaging:
    """A prepared commit of a Delta table."""

    def __init__(self, copy: DeltaCopy, table: DeltaTable | None, schema: pa.Schema, *, whole: bool) -> None:
        self.file_schema = schema.remove_metadata()
        self.open_store: Callable[[], FileStore] = copy.ref.open
        self._copy = copy
        self._table = table
        self._schema = schema
        self._whole = whole

    def commit(
        self, marks: LakeWatermark, written: Sequence[WrittenFile], removed: Sequence[DataFile]
    ) -> None:
        """Commit files with the watermark; raise Overtaken when the table has a newer version."""
        now_ms = self._copy.clock.wall_ms()
        added = [
            AddAction(
                path=file.path,
                size=file.nbytes,
                partition_values={},
                modification_time=now_ms,
                data_change=True,
                stats=stats_of(file.footer),
            )
            for file in written
        ]
        properties = CommitProperties(
            custom_metadata={"penstock.job": marks.job, "penstock.watermark": str(marks.watermark)},
            max_commit_retries=0,  # on top of this very version, or not at all
            app_transactions=[
                Transaction(_WATERMARK, marks.watermark),
                Transaction(_COLUMN_ID, marks.column_id),
            ],
        )
        with self._copy.failures():
            if self._table is None:
                self._create(marks, added, properties)
            elif self._whole:
                schema = Schema.from_arrow(_with_owner(self._schema, marks))
                self._table.create_write_transaction(
                    [*added], "overwrite", schema, commit_properties=properties
                )
            else:
                gone = [
                    RemoveAction(file.path, data_change=True, deletion_timestamp=now_ms) for file in removed
                ]
                self._table.create_write_transaction(
                    [*added, *gone], "append", self._table.schema(), commit_properties=properties
                )

    def _create(self, marks: LakeWatermark, added: list[AddAction], properties: CommitProperties) -> None:
        try:
            create_table_with_add_actions(
                self._copy.place,
                Schema.from_arrow(_with_owner(self._schema, marks)),
                added,
                description=f"Copy that Penstock keeps for job {marks.job}",
                storage_options=dict(self._copy.ref.options),
                commit_properties=properties,
            )
        except DeltaError as error:
            try:  # unlike `is_deltatable`, this lets other threads run while it waits for storage
                DeltaTable(self._copy.place, storage_options=dict(self._copy.ref.options))
            except TableNotFoundError:
                raise error from None
            raise Overtaken(f"there is a Delta table at {self._copy.place} by now") from None


def _has_deletion_vectors(table: DeltaTable) -> bool:
    found = pa.RecordBatchReader.from_stream(table.deletion_vectors())
    return any(batch.num_rows for batch in found)


def _needs_feature(table: DeltaTable, schema: pa.Schema) -> bool:
    """Return whether a column has a type for which the table must declare a feature."""
    local = any(pa.types.is_timestamp(column.type) and column.type.tz is None for column in schema)
    return local and "timestampNtz" not in (table.protocol().reader_features or ())


def _number_columns(schema: pa.Schema) -> pa.Schema:
    """Return a table's columns; those that another program added get negative ids."""
    return pa.schema(
        [
            column
            if COLUMN_ID in (column.metadata or {})
            else column.with_metadata({COLUMN_ID: str(-1 - place)})
            for place, column in enumerate(schema)
        ]
    )


def _with_owner(schema: pa.Schema, marks: LakeWatermark) -> pa.Schema:
    first, *others = schema
    metadata: dict[bytes, Any] = {**first.metadata, _OWNER: marks.owner, _JOB: marks.job}
    return pa.schema([first.with_metadata(metadata), *others])


def _without_owner(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            column.with_metadata({k: v for k, v in column.metadata.items() if k not in {_OWNER, _JOB}})
            for column in schema
        ]
    )
