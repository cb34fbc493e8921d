"""A copy of a table as a Delta table: rows and watermark in one commit of its log.

The watermark is an application transaction of the Delta log, so two writers of one job conflict by the
format's own rules. Whose the table is stands in the metadata of its columns, which a whole commit replaces.

What a Delta log says of a file, out of its footer: readers skip files by it. Pure.
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

from penstock.changes.columns import choose_columns
from penstock.clock import Clock
from penstock.consumers.lake.consumer import LakeConsumer
from penstock.consumers.lake.files import (
    DataFile,
    FileStore,
    WrittenFile,
    check_only_attempts,
    read_rows,
    remove_half_written,
)
from penstock.consumers.lake.table import LakeOptions, LakeWatermark, Overtaken, Version
from penstock.consumers.schema_evolution import COLUMN_ID, Dialect, key_columns, parquet_type
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import JobContext
from penstock.object_storage import ObjectStorage, StorageRef

__all__ = ["Delta", "stats_of"]


_COLUMNS = 32
"""As many columns as Delta keeps bounds of, unless it is told otherwise."""
_TEXT_CHARS = 64
"""A bound that is longer is left out: cutting it off would need care with the upper one."""


def stats_of(footer: pq.FileMetaData) -> str:
    """The number of rows; of columns that have them, the bounds and the number of NULLs."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(min(footer.num_columns, _COLUMNS)):
        column = footer.schema.column(place)
        groups = [footer.row_group(each).column(place).statistics for each in range(footer.num_row_groups)]
        inside = column.path != column.name  # of a list
        if inside or any(each is None for each in groups):
            continue
        nulls[column.name] = sum(each.null_count for each in groups)
        bounds = _bounds(groups)
        if bounds is not None:
            least[column.name], most[column.name] = bounds
    found = {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(found, ensure_ascii=False)


def _bounds(groups: Sequence[Any]) -> tuple[Any, Any] | None:
    """The bounds over row groups, unless one that has values does not say."""
    known = [each for each in groups if each.has_min_max]
    if not known or any(each.num_values for each in groups if not each.has_min_max):
        return None
    lowest, highest = _value(min(each.min for each in known)), _value(max(each.max for each in known))
    return None if lowest is None or highest is None else (lowest, highest)


def _value(value: Any) -> Any:
    """A bound as JSON has it; None for one that it cannot have."""
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

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        self.options = LakeOptions.parse(job.info)

    def open_table(self) -> "DeltaCopy":
        """See LakeConsumer."""
        return DeltaCopy(self.options.place, self.options.history, self.job.clock)

    def check(self, schema: SchemaVersion) -> None:
        """See Consumer."""
        super().check(schema)
        for name in choose_columns(schema.table, self.job.info.columns).names:
            if _REFUSED.intersection(name):
                raise Invalid(
                    f"column {name!r} of {schema.name} has a name that Delta tables cannot have;"
                    " choose the others with --column"
                )


class DeltaCopy:
    """A Delta table. Implements LakeTable."""

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

    def look(self) -> Version | None:
        """See LakeTable."""
        storage = self._storage  # makes a directory that is not there
        with self.failures():
            try:
                table = DeltaTable(self.place, storage_options=dict(self.ref.options))
            except TableNotFoundError:
                check_only_attempts(storage, self.folder, self.place)
                return None
        return self.version_of(table)

    def version_of(self, table: DeltaTable) -> Version:
        """What a table is; raise Invalid when it is none of ours, or not any more as it was made."""
        schema = _number_columns(pa.schema(table.schema().to_arrow()))
        watermark, last_id = (table.transaction_version(name) for name in (_WATERMARK, _COLUMN_ID))
        marked = [each for each in schema if _OWNER in each.metadata]
        if watermark is None or last_id is None or not marked:
            raise Invalid(
                f"the Delta table at {self.place} is not Penstock's; give the job a place of its own"
            )
        self._check_layout(table)
        owner, job = (marked[0].metadata[name].decode() for name in (_OWNER, _JOB))
        marks = LakeWatermark(owner=owner, job=job, watermark=watermark, column_id=last_id)
        return Version(marks=marks, schema=_without_owner(schema), origin=table)

    def _check_layout(self, table: DeltaTable) -> None:
        """Files are read as they are: others may not have given the table what changes their meaning."""
        features = {*(table.protocol().reader_features or ())}
        wrong = [name for name in ("columnMapping",) if name in features]
        if "deletionVectors" in features and _has_deletion_vectors(table):
            wrong.append("deletion vectors")
        if table.metadata().partition_columns:
            wrong.append("partitions")
        if wrong:
            raise Invalid(
                f"somebody gave the Delta table at {self.place} {' and '.join(wrong)}: it cannot be kept"
                " like that; remove it, and make it anew with `penstock job repair --rebuild`"
            )

    def files(self, version: Version) -> list[DataFile]:
        """See LakeTable."""
        key = key_columns(version.schema)[0]
        with self.failures():
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
        """See LakeTable."""
        return read_rows(self._storage, file.path, version.schema)

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> "DeltaStaging":
        """See LakeTable. Columns and features come in commits of their own, before the rows."""
        table = None if base is None else self._prepared(base, schema, whole=whole)
        return DeltaStaging(self, table, schema, whole=whole)

    def _prepared(self, base: Version, schema: pa.Schema, *, whole: bool) -> DeltaTable:
        table: DeltaTable = base.origin
        come = [] if whole else [each for each in schema if each.name not in base.schema.names]
        with self.failures():
            if come:
                table.alter.add_columns(Schema.from_arrow(pa.schema(come)).fields)
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
        """See LakeTable."""

    def maintain(self) -> None:
        """See LakeTable. Only what commits have removed goes; nothing is known of other files."""
        with self.failures():
            table = DeltaTable(self.place, storage_options=dict(self.ref.options))
            table.vacuum(self._history_hours, dry_run=False, enforce_retention_duration=False)
        remove_half_written(self._storage, self.clock.wall_ms())

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Tell errors of the library in Penstock's words."""
        try:
            yield
        except CommitFailedError as error:
            raise Overtaken(f"the Delta table at {self.place} has a newer commit") from error
        except DeltaProtocolError as error:
            raise Invalid(
                f"the Delta table at {self.place} needs what this version lacks: {error}"
            ) from error
        except (DeltaError, OSError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise Unavailable(
                f"the Delta table at {self.place} does not answer ({reason}); try again"
            ) from error


class DeltaStaging:
    """See Staging."""

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
        """See Staging."""
        now_ms = self._copy.clock.wall_ms()
        added = [
            AddAction(
                path=each.path,
                size=each.nbytes,
                partition_values={},
                modification_time=now_ms,
                data_change=True,
                stats=stats_of(each.footer),
            )
            for each in written
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
                    RemoveAction(each.path, data_change=True, deletion_timestamp=now_ms) for each in removed
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
    """Whether a column is to be of a type that the table has to say it uses."""
    local = any(pa.types.is_timestamp(each.type) and each.type.tz is None for each in schema)
    return local and "timestampNtz" not in (table.protocol().reader_features or ())


def _number_columns(schema: pa.Schema) -> pa.Schema:
    """A table's columns; those that somebody else added have ids that no column of the source has."""
    return pa.schema(
        [
            each if COLUMN_ID in (each.metadata or {}) else each.with_metadata({COLUMN_ID: str(-1 - place)})
            for place, each in enumerate(schema)
        ]
    )


def _with_owner(schema: pa.Schema, marks: LakeWatermark) -> pa.Schema:
    first, *others = schema
    whose: dict[bytes, Any] = {**first.metadata, _OWNER: marks.owner, _JOB: marks.job}
    return pa.schema([first.with_metadata(whose), *others])


def _without_owner(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            each.with_metadata({k: v for k, v in each.metadata.items() if k not in {_OWNER, _JOB}})
            for each in schema
        ]
    )
