"""One version of a table's schema, and rows of one version as rows of a later one. No I/O.

Columns are the same when their ids are the same, whatever their names. A column keeps its id as long as every
stored value is a value of its later type. Else TiDB makes a column with another id, and writes its values
into every row before readers see it; rows of earlier versions keep these values (`kept_columns`). A column
that was added since reads as the cluster reads it in rows that were written before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import Corrupt
from penstock.eventstore.sides import RESERVED, side_schema
from penstock.tables.arrow import arrow_field, arrow_name, arrow_type
from penstock.tables.columns import ColumnInfo, Tp
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.impossible_dates import hide_scalar
from penstock.tables.schema import TableInfo

SCHEMA_FACT = "schema"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A table as it is from `since_ts` on, until its next version."""

    since_ts: int
    version: int
    table: TableInfo
    database: str = ""
    account: str = ""
    """The account that the database belongs to, where that is followed; else empty."""

    @property
    def name(self) -> str:
        """The table's name, with its database."""
        return f"{self.database}.{self.table.name}"

    def as_fact(self) -> dict[str, Any]:
        """Return the fact that a manifest records, so that a reader of the table needs nothing else."""
        return {
            "kind": SCHEMA_FACT,
            "version": self.version,
            "since_ts": self.since_ts,
            "database": self.database,
            "table": self.table.to_json(),
        }

    @classmethod
    def from_fact(cls, fact: Mapping[str, Any]) -> "SchemaVersion":
        """Return the version that a fact describes; raise Corrupt when the fact describes none."""
        try:
            return cls(
                since_ts=int(fact["since_ts"]),
                version=int(fact["version"]),
                table=TableInfo.from_json(fact["table"]),
                database=str(fact["database"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                "a schema in a manifest has a missing or wrong field; keep the manifest for inspection"
            ) from error


def schemas_in(facts: Iterable[Mapping[str, Any]]) -> list[SchemaVersion]:
    """Return the schema versions among a manifest's facts, by time."""
    found = [SchemaVersion.from_fact(fact) for fact in facts if fact["kind"] == SCHEMA_FACT]
    return sorted(found, key=lambda version: version.since_ts)


def versions_in_force(versions: Sequence[SchemaVersion], from_ts: int, to_ts: int) -> list[SchemaVersion]:
    """Return those of a table's versions, by time, under which changes in (from_ts, to_ts] were committed.

    Changes before the first known version are read with that version.
    """
    known = [version for version in versions if version.since_ts <= to_ts] or list(versions[:1])
    first = max((index for index, version in enumerate(known) if version.since_ts <= from_ts + 1), default=0)
    return known[first:]


def cut_at_changes(
    versions: Sequence[SchemaVersion], from_ts: int, to_ts: int
) -> list[tuple[int, int, SchemaVersion]]:
    """Divide a range among the versions in force in it: (from_ts, to_ts, version) of each part, in order."""
    starts = [from_ts, *(version.since_ts - 1 for version in versions[1:])]
    return list(zip(starts, [*starts[1:], to_ts], versions, strict=True))


def rewritten_columns(before: TableInfo, after: TableInfo) -> list[ColumnInfo]:
    """Return the columns of a version that took the place of others, which the version before had.

    Rows have their values without a change for readers: MODIFY COLUMN wrote them before.
    """
    hidden = {column.id for column in before.columns if column.replaces_another}
    seen = {column.name.lower(): column.id for column in before.stored_columns}
    ids = set(seen.values())
    # Of versions that the cluster has collected, only the name that another column has now is left.
    return [
        column
        for column in after.stored_columns
        if column.id in hidden or (column.id not in ids and column.name.lower() in seen)
    ]


class Projection:
    """Takes columns of `new`, and system columns, out of rows of `old`.

    `reads` are the columns of `old` that it needs, maybe some that readers did not see then; `schema` is the
    schema of the result. A column that was added since may read as a date that no calendar has; without
    `impossible_dates` it is null.
    """

    def __init__(
        self, old: TableInfo, new: TableInfo, names: Sequence[str], *, impossible_dates: bool = False
    ) -> None:
        system = side_schema(new, "data")
        before = {column.id: column for column in old.kept_columns}
        after = {arrow_name(column): column for column in new.kept_columns}
        self._sources = [
            _OldValues(name) if name in RESERVED else _source(before.get(after[name].id), after[name])
            for name in names
        ]
        if not impossible_dates:
            self._sources = [
                source if isinstance(source, _OldValues) else hide_scalar(source) for source in self._sources
            ]
        self.schema = pa.schema(
            [system.field(name) if name in RESERVED else arrow_field(after[name]) for name in names]
        )
        self.reads = tuple(
            dict.fromkeys(source.name for source in self._sources if isinstance(source, _OldValues))
        )

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the new version; nothing is copied where nothing changed.

        Raises Corrupt when a value is not a value of its column's later type.
        """
        if not len(self.schema):
            return batch.select([])
        arrays = [
            _values(batch, source, field) for source, field in zip(self._sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _OldValues(NamedTuple):
    """The values that a column of the old version holds."""

    name: str
    digits: int | None = None  # digits after the point, for decimals stored as text whose scale changed


def _source(before: ColumnInfo | None, after: ColumnInfo) -> _OldValues | pa.Scalar:
    """Return where a column's values are, or the one value that all its rows have."""
    if before is None:
        return origin_scalar(after)
    wide = after.type.tp is Tp.NEW_DECIMAL and pa.types.is_string(arrow_type(after.type))
    same = before.type.scale == after.type.scale and arrow_type(before.type) == arrow_type(after.type)
    return _OldValues(arrow_name(before), after.type.scale if wide and not same else None)


def _values(batch: pa.RecordBatch, source: _OldValues | pa.Scalar, field: pa.Field) -> pa.Array:
    if not isinstance(source, _OldValues):
        return pa.repeat(source, batch.num_rows)
    array = batch.column(source.name)
    if source.digits is not None:
        texts = (
            None if value is None else f"{Decimal(value):.{source.digits}f}" for value in array.to_pylist()
        )
        return pa.array(texts, pa.string(), size=len(array))
    try:
        return array if array.type == field.type else array.cast(field.type)
    except pa.ArrowInvalid:  # its message may show the value, which must not be logged
        raise Corrupt(
            f"a value of column {field.name} is not of type {field.type}, its later type; keep the object"
        ) from None
